"""The command line ``dsinga``: finds and runs its commands, and prints errors and log messages."""

from __future__ import annotations

import ast
import contextlib
import logging
import sys
import traceback
import warnings
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from click.shell_completion import get_completion_class

from dsinga.base.advice import command_line
from dsinga.base.components import built_in
from dsinga.base.error_frames import shows_all_frames
from dsinga.base.errors import ClusterNotReady, RunError, Terminated, UserError
from dsinga.base.registry import PACKAGE, find, nearest, register, registered
from dsinga.base.regular_files import name_fault
from dsinga.base.termination import ignore_terminations, raised_terminations
from dsinga.base.version import __version__
from dsinga.monitor.standard_streams import open_standard_streams, output_fault

SHELLS = ("bash", "zsh", "fish")
INSTEAD = {"fit": "train", "run": "train", "evaluate": "test", "score": "test"}
CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"]}
VERSION_HELP = "Show the versions of dsinga and of its kernels, and exit."
# Exit statuses of commands ended by SIGINT, and by TERMINATIONS or a cluster that has not come in time.
INTERRUPTED_STATUS, TERMINATED_STATUS = 130, 75


class Commands(click.Group):
    """Finds and runs the commands of ``dsinga``, each imported when it is used.

    After SIGINT it exits with status 130, and after SIGTERM and other signals of batch systems with 75 (EX_TEMPFAIL),
    so that they start a command again.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted(registered("command"))

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Return the command with a name, None if unknown. Raises UserError if its add-on is missing."""
        try:
            command: click.Command | None = find("command", name)
        except UserError:
            if ctx.resilient_parsing:  # while completing a line
                return None
            raise
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Find the command that the arguments name. Raises UsageError, with the nearest name, for an unknown one."""
        known = self.list_commands(ctx)
        if args[0] not in known and self.get_command(ctx, args[0]) is None:
            word = INSTEAD.get(args[0])
            hint = f"; write {word}" if word else nearest(args[0], known) or f"; these are {', '.join(known)}"
            ctx.fail(f"No such command {args[0]!r}{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands for ``--help``, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, row) for name in self.list_commands(ctx) if (row := _summary(name)) is not None])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; after a signal, say how to resume and exit with a status for batch systems."""
        try:
            with raised_terminations():
                return super().invoke(ctx)
        except click.NoSuchOption as error:
            raise _with_remedy(error) from None
        except SystemExit as exit:  # from user code, or a signal handler
            *_, frame = traceback.extract_tb(exit.__traceback__)
            click.echo(f"dsinga: {frame.filename}:{frame.lineno}: sys.exit({exit}) has ended the command", err=True)
            sys.exit(exit.code or 1)
        except KeyboardInterrupt as interrupt:
            is_terminated = isinstance(interrupt, Terminated)
            if is_terminated:
                ignore_terminations()  # another signal must not change the status
            what = "terminated" if is_terminated else "interrupted"
            with contextlib.suppress(OSError):  # the terminal is gone
                click.echo(f"dsinga: {what}: {interrupt}" if str(interrupt) else f"dsinga: {what}", err=True)
            sys.exit(TERMINATED_STATUS if is_terminated else INTERRUPTED_STATUS)


def _with_remedy(error: click.NoSuchOption) -> click.UsageError:
    """Add advice to the error of an unknown option."""
    command = error.ctx.command if error.ctx else None
    options = [option for option in getattr(command, "params", ()) if isinstance(option, click.Option)]
    names = {name.lstrip("-"): name for option in options for name in option.opts}
    word = error.option_name.lstrip("-")
    field = word.replace("-", "_")
    hint = ""
    if "set" in names and field in _job_fields():
        hint = f"; write --set {field}=VALUE"
    for option in options:
        if word in getattr(option.type, "choices", ()):
            hint = f"; write {option.opts[0]} {word}"
    near = nearest(word, names).removeprefix("; did you mean ").strip("'?")
    hint = hint or (f"; did you mean {names[near]!r}?" if near else "")
    return click.UsageError(f"No such option {error.option_name!r}{hint}", error.ctx)


def _job_fields() -> Collection[str]:
    from dsinga.job import Job  # which help does not need
    from dsinga.job.message import field_types

    return field_types(Job)


def _show_version(ctx: click.Context, option: click.Parameter, is_asked: bool) -> None:
    """Print the versions of dsinga and its kernels, and end the command."""
    if not is_asked or ctx.resilient_parsing:
        return
    from dsinga.ops import describe_kernels  # loads the kernels

    click.echo(f"dsinga, version {__version__}")
    click.echo(describe_kernels())
    ctx.exit()


@click.group(cls=Commands, context_settings=CONTEXT_SETTINGS)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help=VERSION_HELP)
def main_group() -> None:
    """Train neural networks on a laptop or a Dask cluster, straight from zarr and other arrays, as job files say."""


def _summary(name: str) -> str | None:
    """Return the description of a command for the list of commands: the first line of its docstring."""
    row = built_in("command").get(name)
    if row is None:
        return ""
    file = Path(PACKAGE).parent.joinpath(*row.module.split(".")).with_suffix(".py")
    if not file.exists():  # a missing add-on
        return None
    functions = (node for node in ast.parse(file.read_bytes()).body if isinstance(node, ast.FunctionDef))
    text = next(ast.get_docstring(function) or "" for function in functions if function.name == row.attribute)
    return text.partition("\n")[0]


@register("command", "completion")
@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that makes SHELL complete commands, options and files at the Tab key.

    For this shell: eval "$(dsinga completion bash)". For each new shell, write the script to a file that the shell
    reads when it starts, such as ~/.bashrc.
    """
    root = ctx.find_root()
    program = root.info_name or "dsinga"
    variable = f"_{program}_COMPLETE".replace("-", "_").replace(".", "_").upper()  # click looks for this name
    shell_class = get_completion_class(shell)
    assert shell_class is not None
    click.echo(shell_class(root.command, {}, program, variable).source())


@contextlib.contextmanager
def _checked_output() -> Iterator[None]:
    """Exit with status 1 if standard output does not accept all that a command writes."""
    ended: BaseException | None = None
    try:
        yield
    except (OSError, SystemExit) as error:
        ended = error
    fault = output_fault()
    if fault is None or (isinstance(ended, SystemExit) and ended.code):
        if ended:
            raise ended
        return
    if fault:
        click.echo(f"dsinga: {fault}", err=True)
    sys.exit(1)


@contextlib.contextmanager
def plain_messages(arguments: Sequence[str], program: Sequence[str] = ("dsinga",)) -> Iterator[None]:
    """Print errors of a command as one message, without a traceback, and log messages on stderr.

    Exits with status 2 for bad input, 75 if Dask workers or a scheduler have not come in time, 1 for other failed runs.
    """
    open_standard_streams()
    # Dask's table of differing versions, of which many do not matter: preflight checks warn of those that do.
    warnings.filterwarnings("ignore", "Mismatched versions found")
    logger, handler = logging.getLogger("dsinga"), logging.StreamHandler()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        with command_line(arguments, program), _checked_output():
            yield
    except (UserError, RunError) as error:
        if shows_all_frames():
            traceback.print_exc()
        click.echo(f"dsinga: {error}", err=True)
        sys.exit(2 if isinstance(error, UserError) else TERMINATED_STATUS if isinstance(error, ClusterNotReady) else 1)
    except UnicodeEncodeError as error:
        if error.encoding != sys.getfilesystemencoding():
            raise
        click.echo(f"dsinga: {name_fault(error)}", err=True)
        sys.exit(2)
    except MemoryError as error:
        what = f": {error}" if str(error) else ""
        has_no_net = arguments[:1] == ["data"]
        remedy = "give it parts of the data" if has_no_net else "make layers or batches smaller, or use more workers"
        click.echo(f"dsinga: out of memory{what}; {remedy}", err=True)
        sys.exit(1)
    finally:
        logger.removeHandler(handler)


def main() -> None:
    """Run the command that the arguments name."""
    with plain_messages(sys.argv[1:]):
        main_group(prog_name="dsinga")


if __name__ == "__main__":
    main()
