"""Windows of fields as settings of a job, and the other way round."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from dsinga.addons.fields.records.definition import TrainedLayout, WindowDefinition, define_windows
from dsinga.addons.fields.records.trained_layout import with_trained_layout
from dsinga.addons.fields.records.window_messages import WindowDimConf, WindowFillConf, WindowsConf, WindowVariableConf
from dsinga.base.errors import UserError
from dsinga.data import resolve
from dsinga.job import Job, Phase
from dsinga.net import input_layers


def definition_of(conf: WindowsConf) -> WindowDefinition:
    """Return the definition that the settings of a job describe. Raises UserError for what is wrong with them."""
    dims = {dim.name: dim for dim in conf.dim}
    if len(dims) < len(conf.dim):
        raise conf.error("windows name a dimension twice; give each dimension once", "dim")
    definition = define_windows(
        inputs=conf.inputs,
        targets=conf.targets,
        input_dims={name: dim.size for name, dim in dims.items() if dim.size is not None},
        input_overlap={name: dim.overlap for name, dim in dims.items() if dim.overlap},
        context={name: (dim.before, dim.after) for name, dim in dims.items() if dim.before or dim.after},
        lead={name: dim.lead for name, dim in dims.items() if dim.lead},
        leads=conf.leads,
        direct=conf.direct,
        lead_weights=conf.lead_weights or None,
        lead_start=conf.lead_start or None,
        edges={name: dim.edges for name, dim in dims.items() if dim.edges != "inside"},
        within={
            name: (dim.first, dim.last) for name, dim in dims.items() if dim.first is not None or dim.last is not None
        },
        channels=[name for name in conf.channels if name] if conf.channels else None,
        static=conf.static,
        coordinates=conf.coordinates,
        mask=conf.mask,
        fill={fill.variable: fill.value for fill in conf.fill},
        max_nan=conf.max_nan,
        weights=conf.weights,
        over_gaps=conf.over_gaps,
        climatology=conf.climatology,
        memory=conf.memory,
    )
    trained = TrainedLayout(
        dims={variable.name: tuple(variable.dims) for variable in conf.variable},
        points={name: tuple(dim.points) for name, dim in dims.items() if dim.points},
        steps={name: dim.step for name, dim in dims.items() if dim.step},
        units={variable.name: variable.units for variable in conf.variable if variable.units},
        begins={name: dim.begin for name, dim in dims.items() if dim.begin},
    )
    return definition if trained == TrainedLayout() else definition.replace(trained=trained)


def windows_conf(definition: WindowDefinition) -> WindowsConf:
    """Return the settings of a job that describe a definition."""
    trained = definition.trained or TrainedLayout()
    names = [
        *definition.input_dims,
        *definition.lead,
        *definition.edges,
        *definition.within,
        *trained.points,
        *trained.steps,
        *trained.begins,
    ]
    dims = []
    for name in dict.fromkeys(names):
        before, after = definition.context.get(name, (0, 0))
        first, last = definition.within.get(name, (None, None))
        dims.append(
            WindowDimConf(
                name=name,
                size=definition.input_dims.get(name),
                overlap=definition.input_overlap.get(name, 0),
                before=before,
                after=after,
                lead=definition.lead.get(name, 0),
                edges=definition.edge(name),
                first=None if first is None else str(first),
                last=None if last is None else str(last),
                points=list(trained.points.get(name, ())),
                step=trained.steps.get(name, ""),
                begin=trained.begins.get(name, ""),
            )
        )
    channels = definition.channels
    return WindowsConf(
        inputs=list(definition.inputs),
        targets=list(definition.targets),
        dim=dims,
        leads=definition.leads,
        direct=definition.direct,
        lead_weights=list(definition.lead_weights),
        lead_start=list(definition.lead_start),
        channels=[] if channels is None else list(channels) or [""],
        static=list(definition.static),
        coordinates=list(definition.coordinates),
        mask=list(definition.mask),
        fill=[WindowFillConf(variable=name, value=value) for name, value in definition.fill.items()],
        max_nan=definition.max_nan,
        weights=definition.weights,
        over_gaps=definition.over_gaps,
        climatology=definition.climatology,
        memory=definition.memory,
        variable=[
            WindowVariableConf(name=name, dims=list(dims), units=trained.units.get(name, ""))
            for name, dims in trained.dims.items()
        ],
    )


def windows_of(job: Job, phase: Phase, roots: Sequence[str] = ()) -> WindowDefinition:
    """Return the definition of windows of the input layer of a phase, or of training; raise UserError for none.

    Where a job file does not say how the data of training lie, the store that it names does, if it is still there.
    """
    for each in (phase, Phase.kTrain, Phase.kVal):
        for conf in input_layers(job.neuralnet, each):
            store = conf.store_conf
            if store is not None and store.windows is not None:
                definition = definition_of(store.windows)
                if definition.trained is None and store.path:
                    with contextlib.suppress(UserError):
                        return with_trained_layout(resolve(store.path, roots), definition)
                return definition
    raise UserError(
        "the job does not say what windows of a Dataset are; train it from dsinga.windows(dataset, ...), or give its "
        "input layer store_conf { windows { ... } }; for records along one dimension, give a dask array"
    )
