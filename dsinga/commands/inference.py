"""The command ``predict``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dsinga.base.errors import UserError
from dsinga.base.redaction import redact
from dsinga.base.registry import register
from dsinga.commands.options import CHECKPOINT, DEVICE, cluster_options, job_and_runner, job_options, where_options

if TYPE_CHECKING:
    from dsinga.job import Job


@register("command", "predict")
@click.command()
@CHECKPOINT
@click.option("--layer", required=True, help="Name of the layer.")
@click.option("--out", required=True, help="Zarr store to write: a path or URL.")
@click.option("--overwrite", is_flag=True, help="Replace an existing store.")
@click.option(
    "--phase", default="test", show_default=True, help="Phase whose records are read: train, val, test or deploy."
)
@DEVICE
@job_options
@where_options
@cluster_options
def predict(
    conf: Path, checkpoint: str | None, layer: str, out: str, overwrite: bool, phase: str, data_root: str | None,
    resources: dict[str, float], hosts: list[str], **options: Any,
) -> None:  # fmt: skip
    """Write the output of a layer to a zarr store.

    The store has a row for every record of a phase of the job file CONF, and the labels.
    """
    from dsinga import api
    from dsinga.data import write_store

    source: Any  # which stands for a client
    job, source = job_and_runner(conf, options)
    _check_apart(out, job, data_root)
    batches = api.predict_with_labels(
        job, checkpoint, layer, phase, source, data_root=data_root, resources=resources, hosts=hosts
    )
    count = write_store(out, batches, overwrite=overwrite)
    click.echo(redact(f"wrote the feature of {layer!r} for {count} records to {out}"))


def _check_apart(out: str, job: Job, data_root: str | None) -> None:
    """Raise UserError where the job reads the store ``out``, which the command would replace."""
    from dsinga import api
    from dsinga.data import resolve
    from dsinga.data.filesystem import absolute

    for layer in job.net.layer:
        conf = layer.store_conf or layer.char_rnn_conf
        if conf is None or not conf.path:
            continue
        try:
            read = resolve(conf.path, api.roots(job, data_root))
        except UserError:  # the store does not exist, so it is not out
            continue
        if _is_within(absolute(out), read):
            raise UserError(f"the job reads {out} in layer {layer.name!r}; write the feature to another store")


def _is_within(out: str, read: str) -> bool:
    """Return whether ``out`` is the store ``read``, or a folder around it, by whatever links."""
    if "://" in out or "://" in read:
        return out == read
    out, read = os.path.realpath(out), os.path.realpath(read)
    return out == read or read.startswith(os.path.join(out, ""))
