"""The cost of training an embedding on two workers with a sparse gradient, of the rows looked up, or a dense one.

    python tools/benchmarks/bench_sparse.py [--steps 30]
    python tools/benchmarks/bench_sparse.py --movielens
    RATE=1gbit tools/benchmarks/hosts.sh 2 python tools/benchmarks/bench_sparse.py --movielens --scheduler '$SCHEDULER'

The first command: a table of 50,000 words x 128 numbers, 32 sequences of 40 words a batch, drawn evenly or as words are
(Zipf), then an inner product over each sequence. Prints Markdown: megabytes between processes and milliseconds a step.

The others train the recommender of ``dsinga.models`` on MovieLens 100k, which are looked for in the folder of real
data, DSINGA_DATA, or ../shared/data beside the checkout: in two processes, or on two hosts; they also print how many
rows of the tables a step changes.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from distributed import Client

from dsinga.addons.planner.benchmark import measure
from dsinga.base.registry import register
from dsinga.cluster import connect
from dsinga.data import import_records, open_store, write_store
from dsinga.job import ClusterConf, Job, LayerType, Phase, loads
from dsinga.layers.dense.embedding import Embedding
from dsinga.models import recommender

WORDS, WIDTH, BATCH, LENGTH = 50_000, 128, 32, 40
JOB = """
name: "sparse"
train_steps: 1
updater {{ type: {updater} learning_rate {{ type: kFixed base_lr: 0.01 }} }}
neuralnet {{
  layer {{ name: "data" type: kRecordInput store_conf {{ path: "{store}" batchsize: {batch} shape: {length} }} }}
  layer {{ name: "embed" srclayers: "data" {kind} embedding_conf {{ vocab_size: {words} feature_dim: {width} }}
    param {{ init {{ type: kGaussian std: 0.1 }} }} }}
  layer {{ name: "ip" type: kInnerProduct srclayers: "embed" innerproduct_conf {{ num_output: 10 }}
    param {{ init {{ type: kGaussian std: 0.01 }} }} }}
  layer {{ name: "loss" type: kSoftmaxLoss srclayers: "ip" srclayers: "data" }}
}}
"""
KINDS = {"rows": "type: kEmbedding", "dense": 'type: kUserLayer user_type: "DenseGradient"'}


@register("layer", "DenseGradient")
class DenseGradient(Embedding):
    """An embedding whose gradient is dense."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.params = tuple(replace(spec, sparse=False) for spec in self.params)

    def compute_gradient(self, *arguments):
        for_sources, (weight,) = super().compute_gradient(*arguments)
        return for_sources, (weight.dense(),)


def write_words(folder: Path) -> None:
    """Write two stores of sequences."""
    rng, count = np.random.default_rng(0), 20 * BATCH
    shares = 1 / np.arange(1, WORDS + 1)
    for name, chances in {"evenly": None, "as words": shares / shares.sum()}.items():
        words = rng.choice(WORDS, (count, LENGTH), p=chances).astype(np.uint16)
        write_store(folder / f"{name}.zarr", [(words, rng.integers(0, 10, count))])


def job(folder: Path, drawn: str, updater: str, gradient: str) -> Job:
    """Return the job, of one of the stores and one kind of gradient."""
    sizes = {"batch": BATCH, "length": LENGTH, "words": WORDS, "width": WIDTH}
    text = JOB.format(store=f"{drawn}.zarr", kind=KINDS[gradient], updater=updater, **sizes)
    return loads(text, str(folder / "sparse.conf"))


def movielens(steps: int, scheduler: str | None) -> None:
    """Print the figures of the recommender with both kinds of gradients, for two sizes of the batch."""
    raw = Path(os.environ.get("DSINGA_DATA", Path(__file__).resolve().parents[3] / "shared/data")) / "movielens-100k"
    print("| batch | gradient | rows of tables a step | MB between processes | ms a step |")
    print("| --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        import_records("movielens", raw, folder)
        words = len(open_store(Path(folder) / "films" / "titles.zarr").vocabulary)
        for batch in (64, 256):
            rows = touched_rows(Path(folder), batch)
            for gradient in KINDS:
                conf = with_gradient(recommender(943, 1682, words, folder, batchsize=batch), gradient)
                with Client(scheduler) if scheduler else connect(workers=2, separate_processes=True) as client:
                    figures = measure(conf, client, steps=steps, synthetic=False)
                shown = f"{rows:.0f} of {2 * 943 + 2 * 1682 + words}"
                print(
                    f"| {batch} | {gradient} | {shown} | {figures['crossing_mb']:.3f} "
                    f"| {figures['ms_per_iteration']:.1f} |",
                    flush=True,
                )


def touched_rows(folder: Path, batch: int) -> float:
    """Return how many rows of the five tables of the recommender a batch looks up, on average over 50 batches."""
    stores = [(open_store(folder / "train" / f"{name}.zarr"), uses) for name, uses in
              (("users", 2), ("films", 2), ("titles", 1))]  # fmt: skip
    random, counts = np.random.default_rng(0), []
    for _ in range(50):
        rows = np.sort(random.choice(len(stores[0][0]), batch, replace=False))
        codes = [(store.read(rows)[0], uses) for store, uses in stores]
        counts.append(sum(uses * len(np.unique(each[each >= 0])) for each, uses in codes))
    return float(np.mean(counts))


def with_gradient(job: Job, gradient: str) -> Job:
    """Return the job for two workers and servers, whose embeddings give one kind of gradient."""
    layers = [
        layer.replace(type=LayerType.kUserLayer, user_type="DenseGradient")
        if layer.type is LayerType.kEmbedding and gradient == "dense"
        else layer
        for layer in job.net.layer
        if layer.in_phase(Phase.kTrain)
    ]
    cluster = ClusterConf(nworkers_per_group=2, nservers_per_group=2)
    return job.replace(net=job.net.replace(layer=layers), cluster=cluster)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--movielens", action="store_true")
    parser.add_argument("--scheduler")
    arguments = parser.parse_args()
    steps = arguments.steps
    if arguments.movielens:
        movielens(steps, arguments.scheduler)
        return
    print("| words drawn | updater | workers | gradient | MB between processes | ms a step |")
    print("| --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_words(folder)
        for separate in (True, False):
            where = "2 processes" if separate else "2 threads"
            for drawn, updater in (("evenly", "kSGD"), ("as words", "kSGD"), ("evenly", "kAdam")):
                for gradient in KINDS:
                    with connect(workers=2, separate_processes=separate) as client:
                        conf = job(folder, drawn, updater, gradient)
                        figures = measure(conf, client, steps=steps, synthetic=False, roots=[str(folder)])
                    print(
                        f"| {drawn} | {updater} | {where} | {gradient} | {figures['crossing_mb']:.2f} "
                        f"| {figures['ms_per_iteration']:.1f} |",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
