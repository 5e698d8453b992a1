"""Epochs of whole fields by one loader in a process of its own, measured: the part of bench_windows beside insitubatch.

``python -m tools.benchmarks.window_process LOADER PATH EPOCHS`` prints the seconds to the first batch, records a second
of each epoch, and MiB: at most, and of these after the imports. ``s3 FOLDER`` in place of these serves a folder as the
bucket "bench" of an S3 server of moto, which answers each request 20 ms late.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

BATCH, DELAY_SECONDS = 32, 0.02
VARIABLES = ["a", "b"]
KEYS = {
    "AWS_ACCESS_KEY_ID": "x",
    "AWS_SECRET_ACCESS_KEY": "y",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
Epochs = Callable[[int], Iterator[Any]]


def ours(path: str) -> tuple[Epochs, int]:
    """Open windows, shuffled among eight blocks of neighbours; return the batches of an epoch, and their number."""
    import dsinga
    from dsinga.reading.prefetch import Prefetch
    from dsinga.reading.sampler import Sampler

    windows = dsinga.windows(path, inputs=VARIABLES, input_dims={"time": 1, "lat": -1, "lon": -1})
    count = len(windows) // BATCH

    def batches(epoch: int) -> Iterator[Any]:
        sampler = Sampler(len(windows), BATCH, epoch, windows.block)
        with Prefetch(lambda step: windows.read(sampler.rows(step)), 0, count) as prefetched:
            yield from prefetched

    return batches, count


def theirs(path: str) -> tuple[Epochs, int]:
    """Open the same by insitubatch, which shuffles within blocks of at least 16 chunks."""
    from insitubatch import InSituDataset, obstore_store, open_geometries, split_by_chunk  # type: ignore[import-not-found]

    options: dict[str, Any] = {"client_options": {"allow_http": True}, "virtual_hosted_style_request": False}
    store = obstore_store(path, **options) if path.startswith("s3:") else obstore_store(f"file://{path}")
    geometries = open_geometries(store, variables=VARIABLES)
    manifest = split_by_chunk(geometries["a"], fractions=(1.0, 0.0, 0.0))
    dataset = InSituDataset(store, manifest, geometries=geometries, batch_size=BATCH)

    def batches(epoch: int) -> Iterator[Any]:
        dataset.set_epoch(epoch)
        yield from dataset.train

    return batches, manifest.n_samples // BATCH


LOADERS = {"dsinga": (ours, ["dsinga.addons.fields.records.field_windows", "xarray"]), "insitubatch": (theirs, [])}


def memory(key: str) -> int:
    """Return the MiB of a line of this process's status."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key))
    return int(line.split()[1]) >> 10


def measure(loader: str, path: str, epochs: int) -> dict[str, Any]:
    """Return what a loader takes."""
    make, modules = LOADERS[loader]
    for module in (loader, *modules):
        importlib.import_module(module)
    imported, started = memory("VmRSS"), time.perf_counter()
    batches, count = make(path)
    first, rates = 0.0, []
    for epoch in range(epochs):
        began = time.perf_counter()
        for _ in batches(epoch):
            first = first or time.perf_counter() - started
        rates.append(count * BATCH / (time.perf_counter() - began))
    return {"first": first, "rates": rates, "peak": memory("VmHWM"), "imported": imported}


def serve(folder: Path) -> None:
    """Serve a folder as a bucket until standard input ends; print the address when it is ready."""
    import boto3  # type: ignore[import-not-found]
    from moto.server import DomainDispatcherApplication, create_backend_app  # type: ignore[import-not-found]
    from werkzeug.serving import WSGIRequestHandler, make_server  # type: ignore[import-not-found]

    class Silent(WSGIRequestHandler):  # type: ignore[misc]
        def log(self, *args: Any) -> None:
            """Log no request."""

    moto, delay = DomainDispatcherApplication(create_backend_app), 0.0

    def application(environ: Any, start: Any) -> Any:
        time.sleep(delay)
        return moto(environ, start)

    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=Silent)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.port}"
    os.environ |= KEYS
    client = boto3.client("s3", endpoint_url=address)
    client.create_bucket(Bucket="bench")
    for file in folder.rglob("*"):
        if file.is_file():
            client.upload_file(str(file), "bench", str(file.relative_to(folder)))
    delay = DELAY_SECONDS
    print(address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    if sys.argv[1] == "s3":
        serve(Path(sys.argv[2]))
    else:
        print(json.dumps(measure(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
