"""The cost of training an embedding on two workers with a sparse gradient, of the rows looked up, or a dense one.

    python tests/benchmarks/bench_sparse.py [--steps 30]

A table of 50,000 words x 128 numbers, 32 sequences of 40 words a batch, drawn evenly or as words are (Zipf), then an
inner product over each sequence. Prints Markdown: megabytes between processes and milliseconds a step.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from dsinga.cluster import connect
from dsinga.cluster.benchmark import measure
from dsinga.data import write_store
from dsinga.job import Job, loads
from dsinga.layers.embedding import Embedding
from dsinga.registry import register

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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    steps = parser.parse_args().steps
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
