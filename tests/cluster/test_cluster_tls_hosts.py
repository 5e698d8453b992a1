"""What passes between two hosts, captured on the wire: network namespaces that are joined by a cable."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.small_job import JOB
from tests.support.tls import write_certificates

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("ip"), reason="only root makes network namespaces, by ip"),
]

ROOT = Path(__file__).parents[2]
START_SECONDS = 60

# Trains in the first host, from a value that is easy to find: each float32 of it has the bytes "ABCD".
DRIVER = """
import json, sys
import numpy as np
from distributed import Security
import dsinga
from dsinga.cluster import connect

address, files, stores = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
security = Security(require_encryption=True, **files) if files else None
with connect(scheduler=address, security=security) as client:
    client.wait_for_workers(2, timeout=60)
    canary = np.full((10, 128), np.frombuffer(b"ABCD", np.float32)[0])
    result = dsinga.train("job.conf", client, workers=2, data_root=stores, progress=False, params={"w2": canary})
print(result.step)
"""

# Prints, when its input ends: whether the bytes were seen, and how many TCP connections began with what.
SNIFFER = r"""
import collections, json, socket, sys, threading
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3))
wire.bind((sys.argv[1], 0))
print("ready", flush=True)
threading.Thread(target=lambda: (sys.stdin.read(), wire.close()), daemon=True).start()
begins, found, total = {}, False, 0
wire.settimeout(0.5)
while wire.fileno() >= 0:
    try:
        frame = wire.recv(1 << 17)
    except TimeoutError:
        continue
    except OSError:
        break
    if frame[12:14] != b"\x08\x00" or frame[23] != 6:
        continue
    start = 14 + 4 * (frame[14] & 15)
    payload = frame[start + 4 * (frame[start + 12] >> 4) : 14 + int.from_bytes(frame[16:18], "big")]
    if payload:
        total += len(payload)
        found |= b"ABCDABCDABCD" in payload
        begins.setdefault((frame[26:34], frame[start : start + 4]), payload[:3])
kinds = collections.Counter("tls" if first[:2] == b"\x16\x03" else "other" for first in begins.values())
print(json.dumps({"found": found, "bytes": total, **kinds}))
"""


@contextlib.contextmanager
def two_hosts() -> Iterator[tuple[str, str]]:
    """Make two network namespaces with addresses 10.78.0.1 and 10.78.0.2; yield their names."""
    hosts = [f"dsinga-tls-{number}-{os.getpid()}" for number in (1, 2)]

    def ip(words: str) -> None:
        subprocess.run(["ip", *words.split()], check=True, timeout=30)

    try:
        for host in hosts:
            ip(f"netns add {host}")
        ip(f"link add cable1 netns {hosts[0]} type veth peer name cable2 netns {hosts[1]}")
        for number, host in enumerate(hosts, 1):
            ip(f"-n {host} addr add 10.78.0.{number}/24 dev cable{number}")
            ip(f"-n {host} link set lo up")
            ip(f"-n {host} link set cable{number} up")
        yield hosts[0], hosts[1]
    finally:
        for host in hosts:
            subprocess.run(["ip", "netns", "del", host], timeout=30, check=False)


@pytest.mark.parametrize("scheme", ["tcp", "tls"])
def test_values_pass_between_hosts_in_the_clear_without_tls_only(scheme: str, stores: Path, tmp_path: Path) -> None:
    folder = write_certificates(tmp_path)
    (tmp_path / "job.conf").write_text(JOB.replace("train_steps: 50", "train_steps: 5"))
    paths = {"ca-file": folder / "ca.pem", "cert": folder / "cert.pem", "key": folder / "key.pem"}
    tls = [f"--tls-{name}={path}" for name, path in paths.items()] if scheme == "tls" else []
    files = {f"tls_{name.replace('-', '_')}" if name == "ca-file" else f"tls_client_{name}": str(path)
             for name, path in paths.items()} if tls else {}  # fmt: skip
    address = f"{scheme}://10.78.0.1:8786"
    dask = [sys.executable, "-m", "dask"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with two_hosts() as hosts, contextlib.ExitStack() as stack:

        def start(host: str, *command: str, **options: object) -> subprocess.Popen:
            words = ["ip", "netns", "exec", host, *command]
            process = subprocess.Popen(words, cwd=tmp_path, env=environment, start_new_session=True, **options)
            stack.callback(end, process)
            return process

        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        sniffer = start(hosts[1], sys.executable, "-c", SNIFFER, "cable2", **pipes)
        assert sniffer.stdout.readline() == "ready\n"
        with open(tmp_path / "log", "w") as log:
            output = {"stdout": log, "stderr": log}
            start(
                hosts[0],
                *dask,
                "scheduler",
                f"--host={scheme}://10.78.0.1",
                "--port=8786",
                "--no-dashboard",
                *tls,
                **output,
            )
            for number, host in enumerate(hosts, 1):
                words = [f"--host={scheme}://10.78.0.{number}", "--nthreads=1", "--no-nanny", "--no-dashboard", *tls]
                start(host, *dask, "worker", address, *words, **output)
            driver = start(
                hosts[0], sys.executable, "-c", DRIVER, address, json.dumps(files), str(stores),
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
            printed, errors = driver.communicate(timeout=100)
        assert printed == "5\n", errors + (tmp_path / "log").read_text()
        seen = json.loads(sniffer.communicate("", timeout=30)[0])
    assert seen["bytes"] > 50_000
    assert seen["found"] == (scheme == "tcp")
    assert (seen.get("other", 0) == 0) == (scheme == "tls")


def end(process: subprocess.Popen) -> None:
    """End a process and its children."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
