"""Loss and bytes of sites that average their params, against the steps between outer steps, the sites, and the bits.

``python -m tools.benchmarks.bench_sites [--steps 1000] [--seeds 1] [--json FILE] [--picture FILE]`` prints a table in
Markdown. A net of 26,122 weights learns scikit-learn's handwritten digits, in batches of 64 for each site. Bytes are
those that a site sends to each other one. What the file of ``--json`` has is not trained again.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

import dsinga
from dsinga import nn
from dsinga.addons.pictures.panels import COLOURS, Line, Panel, draw_panels
from dsinga.cluster.server.compression import BITS
from dsinga.data import open_store
from dsinga.job import Compression

MEAN_OF_PARAMS = {"updater": nn.SGD(1.0)}  # local SGD
PERIODS, SITES, DELAYED = (1, 10, 100, 500), (1, 2, 4, 8), {"delay": 5, "mixing": 0.5}


def runs() -> dict[str, Any]:
    """Return the cluster of each run, by what it is: "4 sites, H = 10, kInt8"."""
    clusters: dict[str, Any] = {"1 site": nn.Cluster(workers=1)}

    def add(sites: int, period: int, name: str, **mean: Any) -> None:
        clusters[f"{sites} sites, H = {period}{name}"] = nn.Cluster(sites=sites, sync_freq=period, mean_conf=mean)

    for period in PERIODS:
        for sites in SITES[1:]:
            add(sites, period, "", **MEAN_OF_PARAMS)
        add(4, period, ", DiLoCo")
    for period in (10, 100):
        for compression in list(BITS)[1:]:
            add(4, period, f", {compression.name}", compression=compression, **MEAN_OF_PARAMS)
        add(4, period, ", delay 5, mixing 0.5", **DELAYED, **MEAN_OF_PARAMS)
    add(4, 10, ", asynchronous", asynchronous=True, **MEAN_OF_PARAMS)
    return clusters


def train(data: dict[str, Any], steps: int, seed: int, cluster: Any) -> tuple[float, float, float]:
    """Return the loss and the accuracy of the test, and the bytes that a site sends to each other one."""
    model = nn.Sequential(
        [nn.Rescaling(1 / 16), nn.Flatten(), *(nn.Dense(128, "relu") for _ in range(2)), nn.Dense(10)]
    )
    model.compile(nn.AdamW(1e-3), "sparse_categorical_crossentropy", cluster=cluster)
    job = model.job(*data["train"], epochs=1, batch_size=64)
    job = job.replace(epochs=0, train_steps=steps, seed=seed, test_freq=steps, cluster=cluster)
    result = dsinga.train(job, data=data, progress=False)
    row = result.history.phase("test")[-1]
    compression = cluster.mean_conf.compression if cluster.mean_conf else Compression.kNone
    weights = sum(value.size for value in result.params.values())
    outer_steps = steps // cluster.sync_freq if cluster.nserver_groups > 1 else 0
    return row["loss"], row["accuracy"], outer_steps * weights * BITS[compression] / 8


def picture(losses: dict[str, float]) -> str:
    """Return an SVG of the loss against the steps between outer steps, the sites, and the bits."""
    colours = dict(zip((*SITES[1:], "DiLoCo", *PERIODS), COLOURS[:4] + COLOURS[:4], strict=True))

    def line(colour: str, label: str, points: dict[float, str]) -> Line:
        return Line([(x, losses[name]) for x, name in points.items()], colour, label)

    by_period = {
        f"{sites}": line(colours[sites], f"{sites} sites", {h: f"{sites} sites, H = {h}" for h in PERIODS})
        for sites in SITES[1:]
    }
    diloco = {h: f"4 sites, H = {h}, DiLoCo" for h in PERIODS}
    by_sites = {
        f"{h}": line(colours[h], f"H = {h}", {1: "1 site"} | {sites: f"{sites} sites, H = {h}" for sites in SITES[1:]})
        for h in PERIODS
    }
    names = {round(bits): each.name for each, bits in BITS.items()}
    by_bits = {
        f"{h}": line(
            colours[h],
            f"H = {h}",
            {bits: f"4 sites, H = {h}" + ("" if bits == 32 else f", {names[bits]}") for bits in sorted(names)},
        )
        for h in (10, 100)
    }
    by_period["DiLoCo"] = line(colours["DiLoCo"], "4, DiLoCo", diloco)
    return draw_panels(
        [
            Panel("test loss", by_period, "H, steps between outer steps", True, True, PERIODS, "log"),
            Panel("test loss", by_sites, "sites", True, True, SITES, includes=(0.0,)),
            Panel("test loss", by_bits, "bits of a number", True, True, sorted(names), includes=(0.0,)),
        ],
        "test loss against the steps between outer steps, the number of sites, and the bits of a number",
    )


def main() -> None:
    """Train all combinations and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    digits = Path(dsinga.__file__).parent / "examples" / "digits"
    data = {
        phase: open_store(digits / f"{phase}_data.zarr").read(range(count))
        for phase, count in {"train": 1437, "test": 360}.items()
    }
    figures = json.loads(options.json.read_text()) if options.json and options.json.exists() else {}
    print("| | test loss | accuracy | sent by a site to each other |\n| --- | --- | --- | --- |")
    for name, cluster in runs().items():
        if name not in figures:
            rows = [train(data, options.steps, seed, cluster) for seed in range(options.seeds)]
            figures[name] = np.mean(rows, axis=0).tolist()
            if options.json:
                options.json.write_text(json.dumps(figures))
        loss, accuracy, size = figures[name]
        print(f"| {name} | {loss:.4f} | {accuracy:.1%} | {size / 1e6:,.2f} MB |", flush=True)
    if options.picture:
        options.picture.write_text(picture({name: loss for name, (loss, _, _) in figures.items()}), encoding="utf-8")


if __name__ == "__main__":
    main()
