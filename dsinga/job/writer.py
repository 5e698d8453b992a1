"""Writes jobs as text that the reader reads back, and as HTML; masks secrets."""

from __future__ import annotations

import enum
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from typing import Any

from dsinga.base.components import distribution_comments, scanned
from dsinga.base.redaction import redact
from dsinga.job.enums import Phase
from dsinga.job.layerconf import LayerConf, ParamConf
from dsinga.job.message import JobError, Message, readable, set_fields
from dsinga.job.schema import ClusterConf, Job
from dsinga.job.type_names import TypeName
from dsinga.job.updaterconf import LRGenConf


def redact_job(job: Job) -> Job:
    """Return a copy of a job that may be shown: without secrets, as in URLs.

    ``dsinga.job.to_text`` masks nothing.
    """
    return _redacted(job)


def _redacted(value: Any) -> Any:
    if isinstance(value, str):
        return value if isinstance(value, TypeName) else redact(value)
    if isinstance(value, Message):
        return value.replace(**{name: _redacted(inner) for name, inner in set_fields(value).items()})
    return [_redacted(item) for item in value] if isinstance(value, list) else value


WIDTH = 100  # a block that fits a line of this length is written on one
NAME = re.compile(r"[A-Za-z_]\w*")


def to_text(job: Job) -> str:
    """Write a job in text format, without fields that have default values."""
    text = "".join(f"{line}\n" for line in lines(message_fields(job)))
    return (distribution_comments(text) if scanned() else "") + text


def _job_text(job: Job) -> str:
    """Return the text that ``print`` shows of a job, without secrets."""
    return to_text(redact_job(job)).rstrip("\n")


# Set here because the schema must not import this file.
Job.__str__ = _job_text  # type: ignore[assignment, method-assign]


def message_fields(message: Message) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of a message's fields as the text has them."""
    for name, value in set_fields(message).items():
        # A list with one value is written as a single value, a list of messages as one field for each.
        single = isinstance(value, list) and (len(value) == 1 or isinstance(next(iter(value), None), Message))
        yield from ((name, item) for item in (value if single else [value]))


def lines(fields: Iterable[tuple[str, Any]], width: int = WIDTH) -> Iterator[str]:
    """Write the fields of a block as lines; an inner block that fits ``width`` is one line."""
    for name, value in fields:
        if not NAME.fullmatch(name):
            raise JobError(f"a job in text format cannot hold a field called {name!r}")
        if isinstance(value, (Message, Mapping)):
            inner = [*lines(message_fields(value) if isinstance(value, Message) else value.items(), width - 2)]
            line = " ".join([name, "{", *inner, "}"])
            if len(line) <= width:
                yield line
            else:
                yield from (f"{name} {{", *(f"  {inner_line}" for inner_line in inner), "}")
        else:
            yield f"{name}: {written(value)}"


def written(value: Any) -> str:
    """Return a value as the text of a job file has it."""
    if isinstance(value, list):
        if any(isinstance(item, list) for item in value):
            raise JobError(f"a job in text format cannot hold a list within a list: {value!r}")
        return f"[{', '.join(written(item) for item in value)}]"
    if isinstance(value, Mapping):
        return f"{{ {' '.join(lines(value.items()))} }}"
    if isinstance(value, (enum.Enum, TypeName)):
        return value.name
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return quoted(value)
    raise JobError(f"a job in text format cannot hold {value!r}")


def quoted(text: str) -> str:
    """Return ``text`` as a string literal; unprintable characters become escaped UTF-8 bytes."""
    escapes = {"\n": r"\n", "\t": r"\t", '"': r"\"", "\\": r"\\"}

    def escaped(char: str) -> str:
        return escapes.get(char) or (char if char.isprintable() else "".join(f"\\{byte:03o}" for byte in char.encode()))

    return f'"{"".join(map(escaped, text))}"'


SHOWN_APART = ("name", "type", "user_type", "srclayers", "include", "exclude", "param")


def job_html(job: Job) -> str:
    """Return the HTML that a notebook shows of a job: a line on training and a table of layers."""
    job = redact_job(job)
    head = ("layer", "type", "sources", "configuration", "params", "phases")
    rows = [
        f"<div><b>{escape(job.name)}</b>: {escape(training_summary(job))}</div>",
        "<table>",
        f"<thead>{row(head, 'th')}</thead>",
        "<tbody>",
        *(row(layer_cells(layer), "td") for layer in job.neuralnet.layer),
        "</tbody>",
        "</table>",
    ]
    return "\n".join(rows)


def training_summary(job: Job) -> str:
    """Return one line on training: steps or epochs, algorithm, updater, workers."""
    alg, updater, rate = job.train_one_batch, job.updater, job.updater.learning_rate
    rates = ", ".join(
        f"{value:g}" for value in (rate.fixedstep_conf.step_lr if rate.fixedstep_conf else [rate.base_lr])
    )
    length = f"{job.epochs} epochs" if job.epochs else f"{job.train_steps} steps"
    parts = [
        f"{length} of {alg.user_alg or alg.alg.name}",
        f"{updater.user_type or updater.type.name} at {rates} ({rate.user_type or rate.type.name})",
    ]
    if job.cluster is not None:
        parts.append(f"{job.cluster.nworker_groups} × {job.cluster.nworkers_per_group} workers")
    return ", ".join(parts)


def layer_cells(layer: LayerConf) -> tuple[str, ...]:
    """Return a layer's table row: name, type, sources, settings, params, phases."""
    conf = {name: value for name, value in set_fields(layer).items() if name not in SHOWN_APART}
    phases = [phase.name or "" for phase in layer.include] + [f"not {phase.name}" for phase in layer.exclude]
    params = [param_text(param) for param in layer.param]
    sources = ", ".join(layer.srclayers)
    return layer.name, layer.type_name, sources, ", ".join(field_texts(conf)), ", ".join(params), ", ".join(phases)


def field_texts(fields: dict[str, Any]) -> list[str]:
    """Return "field value" for each field that is set, also in inner messages."""
    texts = []
    for name, value in fields.items():
        if isinstance(value, Message):
            texts += field_texts(set_fields(value)) or [name]
        else:
            value = readable(value)
            texts.append(f"{name} {'×'.join(map(number, value)) if isinstance(value, list) else number(value)}")
    return texts


def number(value: Any) -> str:
    """Write a number as people do: 16 for 16.0."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def param_text(param: ParamConf) -> str:
    """Return a param's name, if given, and its initialiser or shared param."""
    if param.share_from:
        return f"{param.name} = {param.share_from}".lstrip()
    initialiser = (param.init.user_type or param.init.type.name) if param.init else ""
    return f"{param.name} ({initialiser})" if param.name and initialiser else param.name or initialiser


def row(cells: tuple[str, ...], tag: str) -> str:
    """Return a table row of escaped, left-aligned cells."""
    inner = "".join(f'<{tag} style="text-align: left">{escape(cell)}</{tag}>' for cell in cells)
    return f"<tr>{inner}</tr>"


Job._repr_html_ = job_html  # set here because the schema must not import this file


def job_signature(job: Job) -> str:
    """Return a hash that is equal for jobs with equal iterations, to compare their timings.

    Layers, batch sizes, algorithm, updater, exchange and precision count; stores, learning rate, numbers of steps and
    topology do not.
    """
    trained = [layer for layer in job.neuralnet.layer if layer.in_phase(Phase.kTrain)]
    layers = [layer.replace(store_conf=None) for layer in trained if layer.srclayers]
    batches = [sum(layer.store_conf.batchsize) for layer in trained if layer.store_conf]
    updater = job.updater.replace(learning_rate=LRGenConf())
    parts = (*layers, updater, job.train_one_batch)
    messages = [message for part in parts for message in lines(message_fields(part))]
    cluster = job.cluster or ClusterConf()
    exchange = [cluster.update.name, cluster.compression.name, cluster.slicing.name]
    text = "\n".join([*messages, str(batches), *exchange, job.precision.name])
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
