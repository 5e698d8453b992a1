"""What can be said of a job before shapes are known: each mistake is one JobError with place, layer and remedy."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence

from dsinga.job.checkcluster import check_cluster
from dsinga.job.checknet import check_net
from dsinga.job.enums import (
    AlgType,
    ChangeMethod,
    ExtensionType,
    InitMethod,
    LayerType,
    ParamType,
    PartitionMethod,
    Phase,
    UpdaterType,
)
from dsinga.job.extensionconf import ExtensionConf, check_extension
from dsinga.job.layerconf import LayerConf
from dsinga.job.limits import beyond
from dsinga.job.message import JobError, Message, field_types, item_type, set_fields
from dsinga.job.paramconf import ParamConf, ParamGenConf
from dsinga.job.schema import AlgConf, FixedStepConf, Job, LRGenConf, UpdaterConf

# Type member: the fields of the same message that it cannot do without.
NEEDS: dict[object, tuple[str, ...]] = {
    AlgType.kUserAlg: ("user_alg",),
    UpdaterType.kUserUpdater: ("user_type",),
    UpdaterType.kRMSProp: ("rmsprop_conf",),
    ChangeMethod.kUserChange: ("user_type",),
    ChangeMethod.kInverseT: ("inverset_conf",),
    ChangeMethod.kInverse: ("inverse_conf",),
    ChangeMethod.kExponential: ("exponential_conf",),
    ChangeMethod.kLinear: ("linear_conf",),
    ChangeMethod.kStep: ("step_conf",),
    ChangeMethod.kFixedStep: ("fixedstep_conf",),
    ExtensionType.kUserExtension: ("user_type",),
    ExtensionType.kEarlyStopping: ("monitor",),
    ExtensionType.kKeepBest: ("monitor",),
    ExtensionType.kReduceOnPlateau: ("monitor",),
    InitMethod.kUserInit: ("user_type",),
    ParamType.kUser: ("user_type",),
    LayerType.kUserLayer: ("user_type",),
    LayerType.kRecordInput: ("store_conf",),
    LayerType.kCSVInput: ("store_conf",),
    LayerType.kCSVOutput: ("store_conf",),
    LayerType.kRecordOutput: ("store_conf",),
    LayerType.kLMDBData: ("lmdbdata_conf",),
    LayerType.kShardData: ("sharddata_conf",),
    LayerType.kCharRNN: ("char_rnn_conf",),
    LayerType.kCharRNNOutput: ("char_rnn_conf",),
    LayerType.kConvolution: ("convolution_conf",),
    LayerType.kCConvolution: ("convolution_conf",),
    LayerType.kCudnnConv: ("convolution_conf",),
    LayerType.kInnerProduct: ("innerproduct_conf",),
    LayerType.kRBMVis: ("rbm_conf",),
    LayerType.kRBMHid: ("rbm_conf",),
    LayerType.kGRU: ("gru_conf",),
    LayerType.kLSTM: ("lstm_conf",),
    LayerType.kRNN: ("rnn_conf",),
    LayerType.kEmbedding: ("embedding_conf",),
}


# The messages whose type is an enumeration with a member for a user's own.
TYPED = (AlgConf, UpdaterConf, LRGenConf, ParamGenConf, ParamConf, LayerConf, ExtensionConf)


def training_phases(job: Job) -> list[Phase]:
    """Return the phases that training the job runs: kTrain, and those for which it gives both a frequency and steps."""
    runs = {Phase.kVal: job.validate_freq and job.validate_steps, Phase.kTest: job.test_freq and job.test_steps}
    return [Phase.kTrain, *(phase for phase, wanted in runs.items() if wanted)]


def check(job: Job, phases: Sequence[Phase] | None = None) -> None:
    """Raise JobError for the first mistake in ``job``.

    ``phases`` are those that will run; by default those of training: kTrain, and kVal and kTest if the job has both
    frequency and steps for them.
    """
    if phases is None:
        phases = training_phases(job)
    for layer, message in walk(job):
        check_numbers(layer, message)
        check_type(layer, message)
        if isinstance(message, FixedStepConf):
            check_fixed_steps(message)
        elif isinstance(message, ParamGenConf) and message.low > message.high:
            raise fault(layer, message, f"low: {message.low} is above high: {message.high}", "low")
        elif isinstance(message, LayerConf):
            check_layer(message)
        elif isinstance(message, ExtensionConf):
            check_extension(message)
    check_cluster(job)
    check_algorithm(job)
    if Phase.kTrain in phases and job.train_steps == 0:
        raise job.error("the job has nothing to do: give it train_steps, as in train_steps: 1000", "train_steps")
    check_net(job.neuralnet, phases)


def check_algorithm(job: Job) -> None:
    """Refuse kCD without a restricted Boltzmann machine, and such a machine with an algorithm of gradients."""
    kinds = LayerType.kRBMVis, LayerType.kRBMHid
    machine = next((one for one in job.neuralnet.layer if one.type in kinds and one.in_phase(Phase.kTrain)), None)
    conf = job.train_one_batch
    if conf.alg is AlgType.kCD and machine is None:
        raise conf.error("kCD trains restricted Boltzmann machines, but the net has no kRBMVis layer", "alg")
    if conf.alg is AlgType.kCD and job.neuralnet.partition is PartitionMethod.auto:
        raise job.neuralnet.error("the cost model knows back-propagation, not kCD; leave partition out", "partition")
    if conf.alg in (AlgType.kBP, AlgType.kBPTT) and machine is not None:
        what = f"{machine.type_name} has no gradient for {conf.alg.name}"
        raise fault(machine, machine, f"{what}; train it by train_one_batch {{ alg: kCD }}", "type")


def walk(message: Message, layer: LayerConf | None = None) -> Iterator[tuple[LayerConf | None, Message]]:
    """Yield a message and all within it, each with the layer that it belongs to."""
    layer = message if isinstance(message, LayerConf) else layer
    yield layer, message
    for value in vars(message).values():
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, Message):
                yield from walk(one, layer)


def fault(layer: LayerConf | None, message: Message, text: str, field: str | None = None, item: int = 0) -> JobError:
    """Return the JobError that says ``text`` of a message, or of one value of a field of it, naming its layer."""
    return message.error(f"layer {layer.name!r}: {text}" if layer else text, field, item)


def check_numbers(layer: LayerConf | None, message: Message) -> None:
    """Refuse numbers outside their ranges."""
    for field, item, value, allowed in beyond(message):
        raise fault(layer, message, f"{field} must be {allowed}, not {value}", field, item)


def check_type(layer: LayerConf | None, message: Message) -> None:
    """Refuse a type without the fields that it needs, or with a user's type beside a built-in one."""
    if not isinstance(message, TYPED):
        return
    field = "alg" if isinstance(message, AlgConf) else "type"
    type_: enum.Enum = getattr(message, field)
    user_field = f"user_{field}"
    if getattr(message, user_field) and not type_.name.startswith("kUser"):
        name = next(one.name for one in type(type_) if one.name.startswith("kUser"))
        text = f"{user_field}: {getattr(message, user_field)!r} has no effect beside {field} {type_.name}"
        raise fault(layer, message, f"{text}; write {field}: {name}, or leave {field} out", user_field)
    for needed in NEEDS.get(type_, ()):
        if getattr(message, needed):
            continue
        if needed in set_fields(message) or field in set_fields(message):
            is_text = item_type(field_types(type(message))[needed])[0] is str
            remedy = f'{needed}: "..."' if is_text else f"{needed} {{ ... }}"
            raise fault(layer, message, f"{field} {type_.name} needs {remedy}", field)
        known = ", ".join(one.name for one in list(type(type_))[:3])
        raise fault(layer, message, f"{type(message).__name__} needs its {field} ({known}, ...) or a {needed}")


def check_layer(layer: LayerConf) -> None:
    """Refuse contradictions within one layer."""
    if layer.include and layer.exclude:
        raise fault(layer, layer, "has both include and exclude; keep include", "exclude")
    store = layer.store_conf
    if store is not None and not store.path:
        raise fault(layer, store, 'store_conf needs a path: "..."')
    if store is not None and not store.batchsize and layer.type in (LayerType.kRecordInput, LayerType.kCSVInput):
        raise fault(layer, store, "store_conf needs a batchsize, as in batchsize: 64")
    if store is not None and store.std_value == 0:
        raise fault(layer, store, "std_value divides the records and must not be 0", "std_value")
    if layer.lrn_conf is not None and layer.lrn_conf.local_size % 2 == 0:
        raise fault(layer, layer.lrn_conf, f"local_size must be odd, not {layer.lrn_conf.local_size}", "local_size")
    for field in ("unroll_conn_type", "shift"):
        count = len(getattr(layer, field))
        if count not in (0, len(layer.srclayers)):
            raise fault(layer, layer, f"{field} has {count} values for {len(layer.srclayers)} srclayers", field)


def check_fixed_steps(conf: FixedStepConf) -> None:
    """Refuse steps and rates that do not go together."""
    if not conf.step or len(conf.step) != len(conf.step_lr):
        counts = f"{len(conf.step)} step and {len(conf.step_lr)} step_lr"
        raise conf.error(f"fixedstep_conf needs as many step as step_lr, at least one of each; it has {counts}")
    for item, (before, after) in enumerate(zip(conf.step, conf.step[1:], strict=False), start=1):
        if after <= before:
            raise conf.error(f"the steps of fixedstep_conf must rise; {after} follows {before}", "step", item)
