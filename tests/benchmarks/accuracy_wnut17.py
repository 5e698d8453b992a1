"""Compare entity recognition on WNUT 2017 by a bidirectional GRU with a conditional random field and with a softmax.

    python tests/benchmarks/accuracy_wnut17.py [--epochs 10] [--seeds 1] [--hidden 64]

Both have the same net, records and order; only the loss layer differs. Prints the metrics of each on
``emerging.dev.conll`` and ``emerging.test.annotated``. The raw files are looked for in the folder of real data:
DSINGA_DATA, or ../shared/data beside the checkout.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import dsinga
from dsinga.data import RecordStore, import_records
from dsinga.models import bigru_crf
from dsinga.models.bigru_crf import FEATURES

RAW = Path(os.environ.get("DSINGA_DATA", Path(__file__).resolve().parents[3] / "shared/data")) / "wnut17"
FILES = {"train": "wnut17train.conll", "val": "emerging.dev.conll", "test": "emerging.test.annotated"}


def import_wnut17(folder: Path) -> None:
    """Import the three files into ``folder``, with the vocabulary of the training sentences."""
    for name, file in FILES.items():
        options = {} if name == "train" else {"vocabulary": str(folder / "train")}
        import_records("conll", RAW / file, folder / name, **options)


def train_and_test(folder: Path, epochs: int, **model: object) -> dict[str, dict[str, float]]:
    """Train a net and return its metrics by phase."""
    stores = {name: RecordStore(folder / "train" / f"{name}.zarr") for name in FEATURES}
    vocabulary = {name: len(store.vocabulary) for name, store in stores.items()}
    steps = epochs * (len(stores["words"]) // 32)
    job = bigru_crf(
        vocabulary, len(stores["words"].classes), str(folder), train_steps=steps, disp_freq=0, validate_freq=0, **model
    )
    result = dsinga.train(job, workers=1, progress=False)
    return {phase: dsinga.evaluate(job, result.params, phase) for phase in ("val", "test")}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--hidden", type=int, default=64)
    arguments = parser.parse_args()
    print("loss      seed  phase  precision  recall     F1  seconds", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        import_wnut17(Path(folder))
        for seed in range(1, arguments.seeds + 1):
            for crf in (True, False):
                began = time.perf_counter()
                metrics_of = train_and_test(Path(folder), arguments.epochs, crf=crf, seed=seed, hidden=arguments.hidden)
                seconds = time.perf_counter() - began
                for phase, metrics in metrics_of.items():
                    figures = [metrics.get(name, 0.0) for name in ("precision", "recall", "f1")]
                    shown = "  ".join(f"{figure:9.4f}" for figure in figures)
                    print(f"{'CRF' if crf else 'softmax':8} {seed:5}  {phase:5} {shown} {seconds:8.0f}", flush=True)


if __name__ == "__main__":
    main()
