"""The commands ``export`` and ``import``: nets for servers, and nets of ONNX files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dsinga.base.components import naming_addons
from dsinga.base.errors import UserError
from dsinga.base.registry import lookup, register, registered
from dsinga.commands.options import IMPORT

if TYPE_CHECKING:
    from dsinga.nn.model.from_job import JobModel, OpenSaved

CHECKED_RECORDS = 100  # that are compared, from the first on


@register("command", "export")
@click.command()
@click.option(
    "--to",
    type=click.Choice(["onnx", "triton", "mlflow"]),
    default="onnx",
    show_default=True,
    help="A file of ONNX, a model in Triton's model repository, or a model of MLflow.",
)
@click.option("--out", required=True, help="File to write, or folder for Triton or MLflow, whose name the model gets.")
@click.option("--opset", default=21, show_default=True, type=int, help="Version of ONNX's operators.")
@click.option(
    "--check", multiple=True, metavar="DATA",
    help="Records to compare ONNX Runtime's outputs with dsinga's; repeat it for each input.",
)  # fmt: skip
@click.option("--data-root", help="Folder where relative paths of the job are looked up last.")
@IMPORT
@click.argument("checkpoint", type=click.Path(path_type=Path))
def export(checkpoint: Path, to: str, out: str, opset: int, check: tuple[str, ...], data_root: str | None) -> None:
    """Write a trained net for a server.

    CHECKPOINT is a checkpoint, a workspace, or a folder written by model.save or an estimator's save. The server
    accepts raw records, or the columns of a data frame, and returns the net's or estimator's predictions. Names of
    classes, and shapes of records that the job lacks, come from the job's data if they exist.
    """
    from dsinga.addons.onnx.export_net import model_to_onnx
    from dsinga.addons.onnx.serving import write_checked

    model = saved_model(checkpoint, data_root)
    x = first_records(check, model) if check else None
    difference = write_checked(to, model_to_onnx(model, opset), out, model, x)
    click.echo(f"wrote {out}")
    if difference is not None:
        click.echo(f"the outputs of ONNX Runtime differ from dsinga's by {difference:.3g} at most")


def saved_model(path: Path, data_root: str | None) -> JobModel:
    """Load the model at a path: a checkpoint, a folder of checkpoints, a workspace, a saved model or estimator."""
    from dsinga import nn
    from dsinga.base.durable_files import current_file
    from dsinga.checkpoint.directory import is_checkpoint
    from dsinga.checkpoint.metadata import read_metadata
    from dsinga.checkpoint.porting import find
    from dsinga.job import loads
    from dsinga.nn.model.model_params import JOB, PARAMS

    for file in registered("saved"):
        if current_file(path / file).is_file():
            opens: OpenSaved = lookup("saved", file)
            return opens(path)
    if all(current_file(path / name).is_file() for name in (JOB, PARAMS)):
        model = nn.load_model(path)
    else:
        found = find(path)
        job = read_metadata(found).meta.get("job") if is_checkpoint(found) else None
        if not isinstance(job, str):
            raise UserError(f"{found} does not say its job; name the folder of a checkpoint, or one of model.save")
        model = nn.from_job(loads(job, f"the job of {found}"))
        model.params = found
    try:
        take_from_data(model, data_root)
    except UserError as error:  # the data are elsewhere: the job itself may say the shapes
        try:
            model.input_shapes()
        except UserError:
            raise error from None
    return model


def take_from_data(model: JobModel, data_root: str | None) -> None:
    """Set shapes of records, and names of classes and columns, from a job's data."""
    from dsinga.api import roots
    from dsinga.data import RecordNames
    from dsinga.job import Phase
    from dsinga.reading.checked_job import check_job

    job = check_job(model.base, roots(model.base, data_root), [Phase.kTrain])
    net, stores = job.net(Phase.kTrain), job.reader(Phase.kTrain).stores
    layers = {name: net.layer(name) for name in model.input_names()}
    model.record_shapes = {name: tuple(getattr(layer, "stored", layer.shape[1:])) for name, layer in layers.items()}
    known = model.trained.names
    names = {name: known.get(name, RecordNames()).or_else(RecordNames.of(stores.get(name))) for name in layers}
    model.trained = replace(model.trained, names=names)


def first_records(paths: tuple[str, ...], model: JobModel) -> Any:
    """Read the first records of stores (several in a list), or of parquet files for tables."""
    import numpy as np

    from dsinga.addons.onnx.export_tables import served_columns
    from dsinga.data import open_records

    names = None if model.served is None else model.served.names
    if len(paths) == 1 and (names is not None or (model.served is None and served_columns(model))):
        with naming_addons("a data frame"):
            from dsinga.addons.tables.open_frame import open_frame
        frame = open_frame(paths[0])
        return frame.read(0, names or frame.names).slice(0, CHECKED_RECORDS)
    sources = [open_records(path) for path in paths]
    rows = np.arange(min(CHECKED_RECORDS, *map(len, sources)))
    records = [source.read(rows)[0] for source in sources]
    return records if len(records) > 1 else records[0]


@register("command", "import")
@click.command()
@click.option("--out", help="Folder to write the job file and the params to [default: that of NET, without .onnx].")
@click.option(
    "--shape", multiple=True, metavar="N,N,...",
    help="Shape of the records of an input, where NET leaves sizes open; repeat it for each input.",
)  # fmt: skip
@click.argument("net", type=click.Path(path_type=Path))
def import_net(net: Path, out: str | None, shape: tuple[str, ...]) -> None:
    """Make a job file and params of the ONNX file NET.

    Its layers are dsinga's, with the params of NET; give the job data and a loss to train it.
    """
    from dsinga import nn

    try:
        shapes = [tuple(int(size) for size in text.split(",")) for text in shape]
    except ValueError:
        raise UserError(f"--shape is {shape[0]}; give whole numbers with commas, as in 3,224,224") from None
    folder = Path(out) if out else net.with_suffix("")
    nn.load_onnx(net, *shapes).save(folder)
    click.echo(f"wrote {folder}/job.conf and {folder}/params.safetensors")
