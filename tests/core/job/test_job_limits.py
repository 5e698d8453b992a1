"""Limits of a job: bounds of numbers, the work of reading it, and names of functions."""

import math
import os
import resource
from collections.abc import Iterator
from typing import Any

import pytest

from dsinga.job import Job, JobError, Settings, check, load, loads
from dsinga.job.component import check_definition
from dsinga.job.field_types import item_type
from dsinga.job.functions import find_function
from dsinga.job.limits import NUMBER, number_range, out_of_range
from dsinga.job.message import Message, field_types, importable_fields, is_message
from dsinga.job.reader import LARGEST_BYTES
from tests.support.refusals import refused, refused_with


def messages(cls: type[Message] = Job, above: tuple[type[Message], ...] = ()) -> Iterator[type[Message]]:
    yield cls
    for hint in importable_fields(cls).values():
        kind, _ = item_type(hint)
        if is_message(kind) and kind not in above:  # a schedule may be made of schedules
            yield from messages(kind, (*above, cls))


FIELDS = [
    (cls, field, item_type(hint)[0])
    for cls in dict.fromkeys(messages())
    for field, hint in importable_fields(cls).items()
    if item_type(hint)[0] in (int, float)
]


def accepts(cls: type[Message], field: str, value: Any) -> bool:
    """Whether a message with this value in ``field``, and others that are valid, can be made and is in range."""
    kinds = {name: item_type(hint)[0] for name, hint in cls._types.items() if name in cls._required - {field}}
    fillers = {name: "x" if kind is str else 0.5 if kind is float else 1 for name, kind in kinds.items()}
    try:
        message = cls(**fillers, **{field: value})
    except JobError:
        return False
    return not [name for name, *_ in out_of_range(message) if name == field]


def accepting(value: Any, kinds: tuple[type, ...] = (int, float)) -> set[str]:
    return {f"{cls.__name__}.{field}" for cls, field, kind in FIELDS if kind in kinds and accepts(cls, field, value)}


# Numbers of SINGA's that have no effect here.
WITHOUT_EFFECT = {
    "ClusterConf.poll_time", "ClusterConf.start_port", "ConvolutionConf.workspace_byte_limit", "Job.id",
    "LayerConf.partition_id", "MnistConf.alpha", "MnistConf.beta", "MnistConf.elastic_freq", "MnistConf.gamma",
    "MnistConf.kernel", "MnistConf.resize", "MnistConf.sigma", "ParamConf.id", "ParamConf.owner",
}  # fmt: skip


NEGATIVE = WITHOUT_EFFECT | {
    "LayerConf.partition_dim", "NetConf.partition_dim", "ParamConf.partition_dim",  # -1: not partitioned
    "AugmentConf.value",  # pixels may be negative
    "TableColumnConf.mean", "TableColumnConf.quantile", "PiecewiseLinearConf.edge",
    "FieldErrorConf.climatology", "NormalizationConf.mean", "SequenceLengthConf.mask_value",
    "ExtensionConf.above", "ExtensionConf.baseline", "ExtensionConf.below",
    "LayerConf.unroll_index",  # set by unrolling, not by a job
    "LeadRecordConf.fill", "LeadRecordConf.mean", "LeadRecordConf.mask",  # -1: no mask
    "MeanLossConf.scale",  # -1: the mean is maximised
    "ArithmeticConf.number", "ActivationConf.beta", "PaddingConf.value", "ResizeConf.cubic_coeff",
    "ReinforcementConf.stop_return",  # returns may be negative
    "WindowDimConf.size",  # -1: all points
    "WindowDimConf.overlap", "WindowDimConf.lead",  # points between windows, targets before their inputs
    "WindowFillConf.value",
    "MnistConf.norm_b", "ParamGenConf.high", "ParamGenConf.low", "ParamGenConf.mean", "ParamGenConf.value",
    "ReshapeConf.shape",  # -1: the size that is left
    "RNNDummyConf.high", "RNNDummyConf.low", "StoreConf.mean_value",
    "SyncEdgeConf.group",  # check_edges compares it with the number of groups
    "UpdaterConf.clip_high", "UpdaterConf.clip_low", "ParamSettingsConf.clip_low", "ParamSettingsConf.clip_high",
}  # fmt: skip


def test_the_settings_of_each_component_are_well_defined():
    classes = [cls for cls in dict.fromkeys(messages()) if issubclass(cls, Settings)]
    assert len(classes) > 100
    for cls in classes:
        check_definition(cls)


def test_numbers_that_float32_cannot_hold_are_refused_in_every_field():
    for value in (math.nan, -math.inf, math.inf, 10**400, -(10**400), 1e39, -1e39):
        # infinity bounds nothing
        assert {name for name in accepting(value) if not name.endswith(".max_gradient_norm")} <= {
            f"{c}.clip_{end}" for c in ("UpdaterConf", "ParamSettingsConf") for end in ("low", "high")
        }


def test_a_number_below_zero_is_accepted_only_where_it_has_a_meaning():
    # Some add-ons may be missing.
    assert accepting(-1) == NEGATIVE & {f"{cls.__name__}.{field}" for cls, field, _ in FIELDS}


def test_zero_is_refused_where_nothing_can_be_divided_or_counted_by_it():
    refusing = {f"{cls.__name__}.{field}" for cls, field, _ in FIELDS} - accepting(0)
    assert refusing == {
        f"{cls.__name__}.{field}"
        for cls, field, _ in FIELDS
        if (allowed := number_range(field_types(cls)[field])) != NUMBER and 0 not in allowed
    }
    for field in (
        "StoreConf.std_value", "StoreConf.batchsize", "StepConf.change_freq", "InnerProductConf.num_output",
        "ConvolutionConf.kernel", "ConvolutionConf.stride", "ClusterConf.sync_freq", "ClusterConf.nworker_groups",
        "NetConf.unroll_len", "CDConf.cd_k", "HingeLossConf.margin", "MnistConf.norm_a",
    ):  # fmt: skip
        assert field in refusing


def test_fractions_are_less_than_one():
    assert not accepting(1.0, (float,)) & {
        "UpdaterConf.momentum", "DropoutConf.dropout_ratio", "RMSPropConf.rho", "AdamConf.beta1", "AdamConf.beta2",
        "AdaDeltaConf.rho", "AdamMaxConf.beta1", "AdamMaxConf.beta2", "ExtensionConf.factor",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("std_value: -1", "job.conf:2: layer 'data': std_value must be above 0, not -1.0"),
        ("std_value: inf", "std_value must be a number that float32 can hold, above 0, not inf"),
        ("mean_value: 1e39", "mean_value must be a number that float32 can hold, not 1e+39"),
        ("batchsize: 99999999999999999999", "takes a whole number of at most 64 bits, not one of 67"),
    ],
)
def test_a_refused_number_is_named_with_line_layer_and_range(field, expected):
    layer = f'name: "data" type: kRecordInput store_conf {{ path: "x" batchsize: 1\n{field} }}'
    text = f"train_steps: 1 neuralnet {{ layer {{ {layer} }} }}"
    refused_with(lambda: check(loads(text, "job.conf")), expected, error=JobError)


def test_a_value_of_python_that_does_not_fit_is_refused_in_a_short_message():
    for value in (10**5000, -(10**5000), {"a": 10**5000}, [[]], "x" * 10**6, object()):
        for fields in ({"seed": value}, {"updater": {"type": value}}):
            with pytest.raises(JobError) as caught:
                Job(**fields)
            assert len(str(caught.value)) < 300


SIZE = 250_001  # repeated parts of a text


@pytest.mark.parametrize(
    ("text", "repeated", "expected"),
    [
        ("%s", "{", "expected a field name, found '{'"),
        ("%s", "\0", "has no meaning here"),
        ("train_steps: %s", "1", "(250001 characters) is too long; numbers have at most 400"),
        ("updater { delta: 0.%s", "1", "numbers have at most 400"),
        ("%s", "a", "(250001 characters) is too long; names have at most 200"),
        ("name: '%s'", "a", "(250003 characters) is too long; strings have at most 4096"),
        ("%s", "layer {", "job.conf:1:707: blocks are nested more than 100 deep"),
        ("%s", "[x] { y: [{ z: [", "expected a value, found '['"),
        ("%s", "[a] <", "blocks are nested more than 100 deep"),
        ("%s", "gpu: 1 ", "a job has at most 100,000 values"),
    ],
)
def test_a_long_text_is_refused_in_a_short_message(text, repeated, expected, monkeypatch):
    monkeypatch.setattr("dsinga.job.textformat.MOST_VALUES", 100_000)  # which takes a tenth of the time
    with pytest.raises(JobError) as caught:
        loads(text % (repeated * SIZE), "job.conf")
    assert expected in str(caught.value)
    assert len(str(caught.value)) < 300


def test_a_large_file_is_refused_by_its_size_before_it_is_read(tmp_path):
    path = tmp_path / "large.conf"
    with path.open("wb") as file:
        os.truncate(file.fileno(), 3 << 30)  # a hole: takes no room on the disk
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused(lambda: load(path), r"large\.conf': it has 3,221,225,472 bytes, and such a file at most", error=JobError)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < LARGEST_BYTES >> 10


def test_pipes_and_devices_are_no_job_files(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, kind in ((tmp_path / "pipe", "a pipe"), ("/dev/zero", "a device")):
        with pytest.raises(JobError, match=f"cannot read the job file .*: it is {kind}, not a file"):
            load(path)
    refused(lambda: load(tmp_path), r"cannot read the job file .*: Is a directory", error=JobError)


def test_lines_may_end_as_on_any_system(tmp_path):
    path = tmp_path / "job.conf"
    path.write_bytes(b"\xef\xbb\xbf# a comment\r\ntrain_steps: 5\rseed: x")
    refused(lambda: load(path), r"job\.conf:3: ", error=JobError)
    path.write_bytes(b"\xef\xbb\xbf# a comment\r\ntrain_steps: 5\rseed: 6")
    assert (load(path).train_steps, load(path).seed) == (5, 6)


@pytest.mark.parametrize("name", [":f", "module:", "a b:c", ".x:f", "..:f", "a..b:f", "a:b:c", "x\0:f", "os:", "f"])
def test_what_is_no_name_of_a_function_is_refused(name: str) -> None:
    refused(lambda: find_function(name), 'there is no function .*or write "module:function"$')


LOADERS = """
import functools, os, pickle
from pickle import loads as decode
from numpy import load as array
from os import system
again = functools.partial(pickle.loads)
made = pickle.Unpickler
"""


@pytest.mark.parametrize(
    "name",
    [
        *("os:system", "cloudpickle:loads", "builtins:eval"),
        *("numpy:load", "numpy.lib.npyio:load", "distributed.protocol.pickle:loads", "yaml:unsafe_load", "pandas:eval"),
        *("pandas:read_pickle", "pandas:io.common.os.system", "distributed.protocol.serialize:deserialize"),
        *("dsinga.base.registry:import_file", "opens:decode", "opens:array", "opens:system", "opens:again"),
        *("opens:made", "opens:pickle.loads", "opens:os.system"),
    ],
)
def test_a_job_of_somebody_else_calls_no_function_that_runs_what_it_reads(name, tmp_path, monkeypatch):
    (tmp_path / "opens.py").write_text(LOADERS)
    monkeypatch.syspath_prepend(tmp_path)
    refused(lambda: find_function(name), "which jobs cannot call")
