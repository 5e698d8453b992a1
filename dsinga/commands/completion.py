"""The command ``completion``: the script by which a shell completes commands of dsinga."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script by which SHELL completes commands, options and files at the Tab key.

    For this shell: eval "$(dsinga completion bash)". For each new shell, write the script to a file that the shell
    reads when it starts, such as ~/.bashrc.
    """
    root = ctx.find_root()
    program = root.info_name or "dsinga"
    variable = f"_{program}_COMPLETE".replace("-", "_").replace(".", "_").upper()  # as click looks for it
    shell_class = get_completion_class(shell)
    assert shell_class is not None
    click.echo(shell_class(root.command, {}, program, variable).source())
