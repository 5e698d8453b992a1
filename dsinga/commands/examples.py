"""The command ``example``: a job with its records, to begin with."""

from __future__ import annotations

from pathlib import Path

import click

EXAMPLES = Path(__file__).parents[1] / "examples"
NAMES = sorted(path.parent.name for path in EXAMPLES.glob("*/job.conf"))


@click.command()
@click.argument("name", type=click.Choice(NAMES))
@click.argument("folder", type=click.Path(path_type=Path))
def example(name: str, folder: Path) -> None:
    """Write the example NAME, a job file and its records, to FOLDER."""
    import shutil

    from dsinga.errors import UserError

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists and is not an empty folder; name another one")
    try:
        shutil.copytree(EXAMPLES / name, folder, dirs_exist_ok=True)
    except OSError as error:
        raise UserError(f"the example cannot be written to {folder}: {error}") from error
    click.echo(f"wrote a job and its records to {folder}; train it with:\n  dsinga train {folder / 'job.conf'}")
