"""Finds mistakes in a job before its data are opened; errors name place, layer and remedy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from dsinga.base.errors import UserError
from dsinga.base.registry import check_owner, find, lookup, nearest, nearest_or_listed
from dsinga.job.component import Component, Settings, settings_class
from dsinga.job.enums import AlgType, LayerType, ParamType, PartitionMethod, Phase
from dsinga.job.field_types import item_type
from dsinga.job.layerconf import AugmentConf, LayerConf, ParamConf, ParamGenConf
from dsinga.job.limits import out_of_range
from dsinga.job.message import JobError, Message, field_types, is_message, set_fields
from dsinga.job.schema import ExtensionConf, Job, JobCheck, NetConf
from dsinga.job.updaterconf import LRGenConf, UpdaterConf


def training_phases(job: Job) -> list[Phase]:
    """Return the phases that a training run has: kTrain, and kVal and kTest if they have a frequency.

    With ``epochs``, phases with their own records also run without a frequency. An agent is tested in episodes.
    """
    if job.experience is not None:
        return [Phase.kTrain, *([Phase.kTest] if job.experience.is_tested else [])]
    runs = {
        Phase.kVal: job.validate_freq or (job.epochs and has_own_records(job, Phase.kVal)),
        Phase.kTest: job.test_freq or (job.epochs and has_own_records(job, Phase.kTest)),
    }
    return [Phase.kTrain, *(phase for phase, enabled in runs.items() if enabled)]


def has_own_records(job: Job, phase: Phase) -> bool:
    """Whether ``phase`` has input layers other than training's and, for kVal, than kTest's."""

    def inputs(phase: Phase) -> set[int]:
        layers = enumerate(job.neuralnet.layer)
        return {number for number, layer in layers if not layer.srclayers and layer.in_phase(phase)}

    def readable(number: int) -> bool:
        store = job.neuralnet.layer[number].store_conf
        return store is None or store.has_records

    of_phase, of_training = inputs(phase), inputs(Phase.kTrain)
    if not all(map(readable, of_phase)):
        return False
    return bool(of_phase - of_training and of_training - of_phase) and not (
        phase is Phase.kVal and of_phase == inputs(Phase.kTest)
    )


def check(job: Job, phases: Sequence[Phase] | None = None, needs_paths: bool = True) -> None:
    """Check a job before its data are opened: raise JobError for the first mistake.

    Args:
        job: the job.
        phases: the phases to check; by default all of a training run, which then also needs steps or epochs.
        needs_paths: whether stores need a path or bound arrays.
    """
    if job.experience is not None:
        raise job.experience.error(job.experience.no_records)
    if "\0" in job.name:
        raise job.error(f"the name {job.name!r} has a NUL, which no folder can have; leave it out", "name")
    trains = phases is None
    phases = training_phases(job) if phases is None else phases
    for layer, message in iterate_messages(job):
        check_numbers(layer, message)
        check_type(layer, message)
        if isinstance(message, Component):
            check_distribution(layer, message)
        check_settings(layer, message)
        if isinstance(message, LRGenConf):
            check_schedule(message, job.train_steps, job.updater)
        elif isinstance(message, ParamGenConf) and message.low > message.high:
            raise error_in(layer, message, f"low: {message.low} is above high: {message.high}", "low")
        elif isinstance(message, LayerConf):
            check_layer(message)
            if needs_paths:
                check_path(message, phases)
        elif isinstance(message, ExtensionConf):
            check_extension(message)
        elif isinstance(message, AugmentConf):
            check_known_fields(message, ())
    check_cluster(job)
    check_algorithm(job)
    if trains and job.train_steps == job.epochs == 0:
        raise job.error(
            "the job has nothing to do: give it train_steps, as in train_steps: 1000, or epochs, as in epochs: 10",
            "train_steps",
        )
    check_net(job.neuralnet, phases)


def check_cluster(job: Job) -> None:
    """Raise JobError for impossible numbers of workers, servers and groups."""
    stores = (layer.store_conf for layer in job.neuralnet.layer if layer.store_conf is not None)
    if job.cluster is not None or job.blocks or job.warmup_steps or any(store.site_path for store in stores):
        check_topology: JobCheck = lookup("hook", "check_cluster")
        check_topology(job)


def check_schedules(job: Job) -> None:
    """Raise JobError for a learning-rate schedule that is longer than the training."""
    for _, message in iterate_messages(job.updater):
        if isinstance(message, LRGenConf):
            check_schedule(message, job.train_steps, job.updater)


def check_schedule(conf: LRGenConf, train_steps: int, updater: UpdaterConf) -> None:
    """Raise JobError for a schedule that starts or warms up after ``train_steps`` (0: unknown).

    Steps of an earlier run count.
    """
    if conf.warmup_lr and not conf.warmup_steps:
        raise conf.error("warmup_lr has no effect without warmup_steps; give both or leave it out", "warmup_lr")
    steps = train_steps + updater.earlier_steps
    if train_steps == 0 or updater.goes_on:
        return
    if steps <= conf.start_step:
        raise conf.error(f"start_step: {conf.start_step} is after the {steps} train_steps", "start_step")
    if steps < conf.warmup_steps:
        text = f"warmup_steps: {conf.warmup_steps} is more than the {steps} steps of the run"
        raise conf.error(f"{text}, so that the rate would not reach base_lr; give fewer", "warmup_steps")


def check_algorithm(job: Job) -> None:
    """Raise JobError for an algorithm that does not fit the net, such as kCD without an RBM."""
    kinds = LayerType.kRBMVis, LayerType.kRBMHid
    layers = (layer for layer in job.neuralnet.layer if layer.type in kinds and layer.in_phase(Phase.kTrain))
    machine = next(layers, None)
    conf = job.train_one_batch
    if conf.alg is AlgType.kCD and machine is None:
        raise conf.error(
            "kCD trains restricted Boltzmann machines, but the net has no kRBMVis layer; use kBP, or add the layer",
            "alg",
        )
    static = next((param for layer in job.neuralnet.layer for param in layer.param if param.static), None)
    if conf.alg is AlgType.kCD and static is not None:
        raise static.error("static is for back-propagation, not kCD; use lr_scale: 0 and wd_scale: 0", "static")
    if conf.alg is AlgType.kCD and job.neuralnet.partition is PartitionMethod.auto:
        raise job.neuralnet.error(
            "partition: auto supports back-propagation only, not kCD; leave partition out", "partition"
        )
    if conf.alg in (AlgType.kBP, AlgType.kBPTT) and machine is not None:
        text = f"{machine.type_name} has no gradient for {conf.alg.name}"
        raise error_in(machine, machine, f"{text}; train it by train_one_batch {{ alg: kCD }}", "type")


def iterate_messages(message: Message, layer: LayerConf | None = None) -> Iterator[tuple[LayerConf | None, Message]]:
    """Yield a message of a job and all messages inside it, each with its layer or None."""
    layer = message if isinstance(message, LayerConf) else layer
    yield layer, message
    for value in vars(message).values():
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, Message):
                yield from iterate_messages(inner, layer)


def error_in(layer: LayerConf | None, message: Message, text: str, field: str | None = None, item: int = 0) -> JobError:
    """Return a JobError about a field, with its place and the layer's name."""
    return message.error(f"layer {layer.name!r}: {text}" if layer else text, field, item)


def check_numbers(layer: LayerConf | None, message: Message) -> None:
    """Raise JobError for a number out of range in a field, other than a component's settings."""
    for field, item, value, allowed in () if isinstance(message, Settings) else out_of_range(message):
        raise error_in(layer, message, f"{field} {allowed.fault(value)}", field, item)


def check_type(layer: LayerConf | None, message: Message) -> None:
    """Raise JobError for missing required fields, or for a built-in and a user's type together."""
    if isinstance(message, ParamConf) and message.type is ParamType.kUser and not message.user_type:
        raise error_in(layer, message, 'type kUser needs user_type: "..."', "type")
    if not isinstance(message, Component) or not message.kind:
        return
    field, user_field = message.type_field, message.user_field
    type_ = getattr(message, field)
    if getattr(message, user_field) and not message.is_user:
        text = f"{user_field}: {getattr(message, user_field)!r} has no effect beside {field} {type_}"
        raise error_in(layer, message, f"{text}; write {field}: {type_.user}, or leave {field} out", user_field)
    try:
        fields = message.needed_fields()
    except JobError:
        raise
    except UserError as error:  # the component belongs to an add-on that is not installed
        raise error_in(layer, message, str(error), user_field if message.is_user else field) from error
    for needed in fields:
        if getattr(message, needed) not in (None, "", []):
            continue
        if needed != user_field or field in set_fields(message):
            kind = item_type(field_types(type(message))[needed])[0]
            remedy = f"{needed} {{ ... }}" if is_message(kind) else f"{needed}: " + ('"..."' if kind is str else "...")
            is_user = message.is_user and needed != user_field
            name, field = (
                (f"{user_field} {message.type_name!r}", user_field) if is_user else (f"{field} {type_}", field)
            )
            raise error_in(layer, message, f"{name} needs {remedy}", field)
        known = ", ".join([*dict.fromkeys(type(type_).__members__.values())][:3])
        raise error_in(layer, message, f"{type(message).__name__} needs its {field} ({known}, ...) or a {needed}")


def check_distribution(layer: LayerConf | None, message: Component) -> None:
    """Raise JobError if two installed packages provide the same component."""
    try:
        check_owner(message.kind, message.type_name)
    except UserError as error:
        raise error_in(layer, message, str(error), message.type_field) from None


def check_settings(layer: LayerConf | None, message: Message) -> None:
    """Raise JobError for a component's settings that are out of range or contradict each other."""
    settings = message if isinstance(message, Settings) else None
    if isinstance(message, Component) and message.flat:
        conf = settings_class(find(message.kind, message.type_name))
        settings = message.settings_of(conf) if conf else None
    for text, field, item in settings.all_faults() if settings else ():
        raise error_in(layer, message, text, field, item)


def check_known_fields(conf: ExtensionConf | AugmentConf, of_users: tuple[str, ...]) -> None:
    """Raise JobError for a setting that an extension or augmentation of this type does not have."""
    settings = settings_class(find(conf.kind, conf.type_name))
    if settings is not None:
        known = [*field_types(settings), *(of_users if conf.type.is_user else ())]
        for name in set_fields(conf):
            if name not in ("type", "user_type", *known):
                hint = nearest(name, known) or f"; it has {', '.join(known)}"
                raise conf.error(f"{conf.title} has no field {name!r}{hint}", name)


def check_extension(conf: ExtensionConf) -> None:
    """Raise JobError for an extension's settings that contradict each other or have no effect."""
    check_known_fields(conf, ("freq", "after"))
    if conf.after is not None and conf.freq is None:
        raise conf.error("after has no effect without freq; give freq: every how many steps it runs", "after")


def check_layer(layer: LayerConf) -> None:
    """Raise JobError for fields of a layer that contradict each other."""
    if layer.include and layer.exclude:
        raise error_in(layer, layer, "has both include and exclude; leave exclude out", "exclude")
    store = layer.store_conf
    if store is not None and not store.batchsize and layer.type in (LayerType.kRecordInput, LayerType.kCSVInput):
        raise error_in(layer, store, "store_conf needs a batchsize, as in batchsize: 64")
    for field in ("unroll_conn_type", "shift"):
        count = len(getattr(layer, field))
        if count not in (0, len(layer.srclayers)):
            raise error_in(layer, layer, f"{field} has {count} values for {len(layer.srclayers)} srclayers", field)


def check_path(layer: LayerConf, phases: Sequence[Phase]) -> None:
    """Raise JobError for an input or output layer without a path or data."""
    store = layer.store_conf
    if store is None or store.has_records:
        return
    if any(layer.in_phase(phase) for phase in phases):
        raise error_in(layer, store, 'store_conf needs a path: "...", or in Python data=, the arrays of the phase')


def check_net(net: NetConf, phases: Iterable[Phase]) -> None:
    """Raise JobError for the first wrong layer in the nets of ``phases``."""
    if not net.layer:
        raise net.error("the job's neuralnet has no layers; add at least one, as in layer { name: ... }")
    for phase in phases:
        layers = unique([layer for layer in net.layer if layer.in_phase(phase)], phase)
        if not layers:
            raise net.error(f"no layer is in phase {phase.name}; change the include or exclude of its layers")
        for layer in layers.values():
            check_sources(layer, layers, net.layer, phase)
        check_cycles(layers, phase)


def unique(layers: Sequence[LayerConf], phase: Phase) -> dict[str, LayerConf]:
    """Return the layers of a phase by name. Raises JobError if two have the same name."""
    named: dict[str, LayerConf] = {}
    for layer in layers:
        if layer.name in named:
            where = named[layer.name].where()
            first = f", first on line {where.line}" if where else ""
            remedy = "rename one, or give each its own include"
            raise layer.error(f"layer {layer.name!r} is in phase {phase.name} twice{first}; {remedy}")
        named[layer.name] = layer
    return named


def check_sources(layer: LayerConf, in_phase: Mapping[str, LayerConf], all_: Sequence[LayerConf], phase: Phase) -> None:
    """Raise JobError if a layer reads a layer that its phase does not have."""
    for item, name in enumerate(layer.srclayers):
        if name in in_phase:
            continue
        elsewhere = next((layer for layer in all_ if layer.name == name), None)
        if elsewhere is not None:
            where = elsewhere.where()
            hint = f"; the layer of this name{f' on line {where.line}' if where else ''} is in other phases"
            text = f"its source {name!r} is not in phase {phase.name}{hint}"
        else:
            later = set() if layer.shift or layer.type is LayerType.kRBMVis else followers(layer.name, in_phase)
            known = [each for each in in_phase if each not in later]
            hint = nearest_or_listed(name, known, f"the layers of phase {phase.name} are") if known else ""
            text = f"there is no layer {name!r}, which it names as a source{hint}"
        raise layer.error(f"layer {layer.name!r}: {text}", "srclayers", item)


def followers(name: str, layers: Mapping[str, LayerConf]) -> set[str]:
    """Return the names of all layers that depend on a layer, and its own."""
    users: dict[str, list[str]] = {}
    for layer in layers.values():
        for source in layer.srclayers:
            users.setdefault(source, []).append(layer.name)
    found, pending = {name}, [name]
    while pending:
        added = [user for user in users.get(pending.pop(), ()) if user not in found]
        found.update(added)
        pending += added
    return found


def check_cycles(layers: Mapping[str, LayerConf], phase: Phase) -> None:
    """Raise JobError if layers depend on each other in a cycle."""
    done: set[str] = set()
    for start in layers:
        path = [start]  # depth first, without recursion because nets may be deep
        pending = [iter(forward_sources(layers[start], layers))]
        while path:
            name = next(pending[-1], None)
            if name is None:
                done.add(path.pop())
                pending.pop()
            elif name in path:
                loop = " <- ".join([*path[path.index(name) :], name])
                text = f"layer {name!r}: its srclayers lead back to it in phase {phase.name}: {loop}"
                raise layers[name].error(text, "srclayers")
            elif name not in done:
                path.append(name)
                pending.append(iter(forward_sources(layers[name], layers)))


def forward_sources(layer: LayerConf, layers: Mapping[str, LayerConf]) -> list[str]:
    """Return the names of the layers that must be computed before a layer.

    Sources with ``shift`` are copies of an earlier step, so they are left out. An RBM's visible layer does not wait for
    its hidden layer.
    """
    shifted = {name for name, shift in zip(layer.srclayers, layer.shift, strict=False) if shift}
    visible = layer.type is LayerType.kRBMVis
    return [
        name
        for name in layer.srclayers
        if name not in shifted and not (visible and is_hidden_side(layers[name], layer.name))
    ]


def is_hidden_side(layer: LayerConf, visible: str) -> bool:
    """Whether a layer is the hidden layer of the RBM that has the visible layer ``visible``."""
    return layer.type is LayerType.kRBMHid and visible in layer.srclayers
