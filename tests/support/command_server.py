"""A process that has imported the package and forks for each command: to import anew takes each a second of CPU."""

import contextlib
import gc
import importlib
import json
import multiprocessing.forkserver
import multiprocessing.util
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

CLIENT = Path(__file__).with_name("forked_command.py")
PRELOAD = [
    *("dsinga.cluster.run.driver", "dsinga.commands.cli", "dsinga.rl", "distributed.nanny", "rich.progress", "pandas"),
    *("distributed.protocol.numpy", "distributed.http.scheduler.prometheus", "distributed.http.worker.prometheus"),
    "tests.support.gc_thresholds",
]
REQUEST_BYTES = 1 << 17
# What a command may have otherwise than the server, beside Dask's configuration: none of it is read when a module of
# PRELOAD is imported.
OWN_VARIABLES = {"PATH", "PWD", "OLDPWD", "SHLVL", "_", "TMPDIR", "PYTEST_CURRENT_TEST", "JPY_PARENT_PID"}
OWN_VARIABLES |= {"DSINGA_DATA", "DSINGA_STEPS", "MPLBACKEND"}


@contextlib.contextmanager
def command_server(folder: Path, environment: dict[str, str], preload: list[str] = PRELOAD) -> Iterator[list[str]]:
    """Start the process, with its socket in ``folder``; yield the words for ``python -m`` in a command.

    It imports ``preload``. A command with other variables than ``environment`` is run in a process of its own.
    """
    address = str(folder / "commands")
    words = [sys.executable, "-m", __name__, address, *preload]
    with subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout.readline(), "the server of commands does not start"
        yield [sys.executable, "-IS", str(CLIENT), address]


def serve(address: str, preload: list[str]) -> None:
    """Fork for each request until standard input ends; return in the forked processes, too, after their commands."""
    for name in preload:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, remove_ended)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen(128)
        print(flush=True)
        while listener in select.select([listener, sys.stdin], [], [])[0]:
            connection, _ = listener.accept()
            if not os.fork():
                break
            connection.close()
        else:
            return
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    run_request(connection)


def remove_ended(*_: Any) -> None:
    """Remove the processes of ended requests."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def run_request(connection: socket.socket) -> None:
    """Fork the process of a command; in this one, pass on its status, and end it if the client or the tests end."""
    message, files, *_ = socket.recv_fds(connection, REQUEST_BYTES, 3)
    request = json.loads(message)
    if shared_variables(request["environment"]) != shared_variables(os.environ):
        return
    if pid := os.fork():
        os.setpgid(pid, pid)
        ended = os.pidfd_open(pid)
        if ended not in select.select([ended, connection, sys.stdin], [], [])[0]:
            os.killpg(pid, signal.SIGTERM)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with contextlib.suppress(BrokenPipeError):
            connection.send(bytes([status if status >= 0 else 128 - status]))
        os._exit(0)
    connection.close()
    with contextlib.suppress(PermissionError):  # the other process may have done it
        os.setpgid(0, 0)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    if dask := sys.modules.get("dask"):
        dask.config.refresh()  # was read from the server's environment
    sys.path[0] = request["folder"]
    sys.argv[1:] = request["arguments"]
    tempfile.tempdir = None  # TMPDIR may be another one
    prepare_fork_server()
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


def prepare_fork_server() -> None:
    """Let :mod:`multiprocessing` take a process that is forked now for its fork server, in place of a new program.

    It has imported everything. Later, a thread of this process may hold a lock which that process would need.
    """
    here, there = socket.socketpair()
    start = multiprocessing.util.spawnv_passfds
    if pid := os.fork():
        there.close()

        def spawn(path: Any, arguments: list[Any], files: list[int]) -> int:
            if "forkserver" not in arguments[-1]:
                return start(path, arguments, files)
            multiprocessing.util.spawnv_passfds = start
            socket.send_fds(here, [b" "], files)
            here.close()
            return pid

        multiprocessing.util.spawnv_passfds = spawn
        return
    here.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _, files, *_ = socket.recv_fds(there, 1, 2)  # none if the process ends without a fork server
    there.close()
    if files:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        multiprocessing.forkserver.main(*files, [])
    os._exit(0)


def shared_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a command must have as the server has them."""
    return {
        name: value for name, value in environment.items() if name not in OWN_VARIABLES and not name.startswith("DASK_")
    }


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2:])
