"""Shows a job in notebooks as an HTML table with a row for each layer."""

from __future__ import annotations

from html import escape
from typing import Any

from dsinga.job.layerconf import LayerConf, ParamConf
from dsinga.job.message import Message, readable, set_fields
from dsinga.job.schema import Job
from dsinga.job.writer import redact_job

SHOWN_APART = ("name", "type", "user_type", "srclayers", "include", "exclude", "param")


def job_html(job: Job) -> str:
    """Return ``job`` as HTML, without secrets: a line on training, then a table with a row for each layer."""
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
    """Return one line on the training of a job: steps or epochs, algorithm, updater, workers."""
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
    """Return the cells of a layer's row."""
    conf = {name: value for name, value in set_fields(layer).items() if name not in SHOWN_APART}
    phases = [phase.name or "" for phase in layer.include] + [f"not {phase.name}" for phase in layer.exclude]
    params = [param_text(param) for param in layer.param]
    sources = ", ".join(layer.srclayers)
    return layer.name, layer.type_name, sources, ", ".join(field_texts(conf)), ", ".join(params), ", ".join(phases)


def field_texts(fields: dict[str, Any]) -> list[str]:
    """Return "field value" for each field that is set; an inner message is replaced by its fields."""
    texts = []
    for name, value in fields.items():
        if isinstance(value, Message):
            texts += field_texts(set_fields(value)) or [name]
        elif isinstance(value, dict):
            texts += field_texts(value) or [name]
        else:
            value = readable(value)
            texts.append(f"{name} {'×'.join(map(number, value)) if isinstance(value, list) else number(value)}")
    return texts


def number(value: Any) -> str:
    """Return a number as people write it: 16 for the float 16.0."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def param_text(param: ParamConf) -> str:
    """Return a param's name, if the job gives it one, and its initialiser or the param that it shares."""
    if param.share_from:
        return f"{param.name} = {param.share_from}".lstrip()
    initialiser = (param.init.user_type or param.init.type.name) if param.init else ""
    return f"{param.name} ({initialiser})" if param.name and initialiser else param.name or initialiser


def row(cells: tuple[str, ...], tag: str) -> str:
    """Return a table row of escaped cells, aligned to the left."""
    inner = "".join(f'<{tag} style="text-align: left">{escape(cell)}</{tag}>' for cell in cells)
    return f"<tr>{inner}</tr>"


Job._repr_html_ = job_html  # set here because the schema must not import this file
