"""Loss and bytes of sites that agree by the mean, against the steps between agreements, the sites, and the bits.

``python -m tools.benchmarks.bench_sites [--steps 1000] [--seeds 1]`` prints a table in Markdown. A net of 26,122
weights learns scikit-learn's handwritten digits, in batches of 64 for each site. Bytes are those that a site sends to
each other one.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np

import dsinga
from dsinga import nn
from dsinga.data import open_store
from dsinga.planner.sites import BITS

MEAN_OF_PARAMS = nn.SGD(1.0)
PERIODS, SITES, COMPRESSIONS = (1, 10, 100, 500), (1, 2, 4, 8), tuple(compression.name for compression in BITS)


def train(data: dict[str, Any], steps: int, seed: int, cluster: Any) -> tuple[float, float, int]:
    """Return the loss and the accuracy of the test, and the number of weights."""
    model = nn.Sequential(
        [nn.Rescaling(1 / 16), nn.Flatten(), *(nn.Dense(128, "relu") for _ in range(2)), nn.Dense(10)]
    )
    model.compile(nn.AdamW(1e-3), "sparse_categorical_crossentropy", cluster=cluster)
    job = model.job(*data["train"], epochs=1, batch_size=64)
    job = job.replace(epochs=0, train_steps=steps, seed=seed, test_freq=steps, cluster=cluster)
    result = dsinga.train(job, data=data, progress=False)
    row = result.history.phase("test")[-1]
    return row["loss"], row["accuracy"], sum(value.size for value in result.params.values())


def main() -> None:
    """Train all combinations and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    digits = Path(dsinga.__file__).parent / "examples" / "digits"
    data = {
        phase: open_store(digits / f"{phase}_data.zarr").read(range(count))
        for phase, count in {"train": 1437, "test": 360}.items()
    }

    def row(name: str, cluster: Any, size: float) -> None:
        runs = [train(data, options.steps, seed, cluster) for seed in range(options.seeds)]
        loss, accuracy, weights = np.mean(runs, axis=0)
        print(f"| {name} | {loss:.4f} | {accuracy:.1%} | {size * weights / 1e6:,.2f} MB |", flush=True)

    print("| | test loss | accuracy | sent by a site to each other |\n| --- | --- | --- | --- |")
    row("one site alone", nn.Cluster(workers=1), 0)
    for sites in SITES[1:]:
        for period in PERIODS:
            sent = 4 * options.steps // period
            row(f"{sites} sites, H = {period}", nn.Cluster(sites=sites, sync_freq=period), sent)
            conf = nn.Cluster(sites=sites, sync_freq=period, mean_conf={"updater": MEAN_OF_PARAMS})
            row(f"{sites} sites, H = {period}, local SGD", conf, sent)
    for compression in COMPRESSIONS[1:]:
        conf = nn.Cluster(sites=4, sync_freq=10, mean_conf={"compression": compression, "updater": MEAN_OF_PARAMS})
        bits = next(bits for each, bits in BITS.items() if each.name == compression)
        row(f"4 sites, H = 10, local SGD, {compression}", conf, math.ceil(bits / 8 * (options.steps // 10)))
    conf = nn.Cluster(sites=4, sync_freq=10, mean_conf={"asynchronous": True, "updater": MEAN_OF_PARAMS})
    row("4 sites, H = 10, local SGD, asynchronous", conf, 4 * options.steps // 10)


if __name__ == "__main__":
    main()
