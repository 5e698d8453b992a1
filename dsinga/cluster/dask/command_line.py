"""Adds dsinga's commands to Dask's command line, as ``dask dsinga``."""

from __future__ import annotations

from typing import Any

import click

import dsinga.base.settings  # noqa: F401  # so that ``dask config`` knows dsinga's settings
from dsinga.commands.cli import CONTEXT_SETTINGS, Commands, main_group, plain_messages


class DaskCommands(Commands):
    """dsinga's commands as a subgroup of another command, with dsinga's messages and exit statuses."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse arguments, and keep them for advice in messages."""
        ctx.obj = list(args)  # parsing takes arguments out of the list
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command with dsinga's messages."""
        with plain_messages(ctx.obj, ctx.command_path.split()):
            return super().invoke(ctx)


command = DaskCommands(
    "dsinga",
    params=main_group.params,
    help=main_group.help,
    context_settings=CONTEXT_SETTINGS,
)
