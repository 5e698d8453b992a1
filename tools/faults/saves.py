"""Kills processes while what dsinga writes replaces an older one: ``python -m tools.faults.saves --count 500``.

A thing is written, and written again with other contents by a process that gets SIGKILL: at a random moment, or, with
``--every``, before each of its operations on files. What is read afterwards must be the old contents or the new ones,
bit for bit; then it is written once more, and nothing that the killed process has left may remain. What is never
written over an older one, such as an estimator, must be absent or complete.
"""

from __future__ import annotations

import argparse
import collections
import functools
import os

os.environ["OMP_NUM_THREADS"] = "1"  # before numpy is imported: a forked process has no threads but its own
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dsinga import nn
from dsinga.addons.onnx.export_net import model_to_onnx
from dsinga.addons.onnx.serving import write_triton
from dsinga.addons.onnx.written_files import write_onnx
from dsinga.addons.planner.rate_store import RateStore
from dsinga.base.durable_files import replace_file
from dsinga.base.errors import UserError
from dsinga.checkpoint import read_checkpoint, remove_old_checkpoints, write_checkpoint
from dsinga.convert import load_weights, save_weights
from dsinga.data import import_records, write_store
from dsinga.data.stores.record_store import RecordStore
from dsinga.data.stores.writer import write_csv
from dsinga.estimators import Classifier
from dsinga.estimators import load as load_estimator
from dsinga.job import load as load_job
from tools.faults.moments import before_file_operation
from tools.faults.verdicts import run_dsinga

X = np.random.default_rng(0).normal(size=(24, 6)).astype(np.float32)
KEPT = "mine.txt"  # a file of the user's in each folder
SECONDS = 60.0  # after which a process hangs


class Thing(NamedTuple):
    """What is written: ``write`` does it in a folder, for the contents 0 and 1; ``read`` returns what is there."""

    write: Callable[[Path, int], Any]
    read: Callable[[Path], Any]
    replaces: bool = True


@functools.cache
def model(which: int) -> Any:
    """Return one of two trained models, which differ in layers, params, labels' names and the optimizer's state."""
    made = nn.Sequential([nn.Input(6), nn.Dense(5 + which, name="hidden"), nn.Dense(3, name="end")])
    made.compile("adam" if which else "sgd", "sparse_categorical_crossentropy")
    made.fit(X, np.arange(24) % 3, epochs=1 + which, seed=which, progress=False)
    return made


@functools.cache
def estimator() -> Any:
    """Return a fitted estimator."""
    return Classifier(hidden=5, epochs=1, random_state=0).fit(X, np.arange(24) % 3)


def bits(*arrays: Any) -> Any:
    """Return the bits of arrays, by which contents are compared."""
    return [np.asarray(array).tobytes() for array in arrays]


def load_model(folder: Path) -> Any:
    """Return the params, the predictions and the steps of the optimizer of a saved model."""
    loaded = nn.load_model(folder)
    steps = loaded.trained.steps
    return bits(*loaded.get_weights(), loaded.predict(X), steps), sorted(loaded.trained.slots)


@functools.cache
def shifted(which: int) -> Any:
    """Return a model with other params in the same layers."""
    made = nn.Sequential([nn.Input(6), nn.Dense(5, name="hidden"), nn.Dense(3, name="end")])
    made.compile("sgd", "sparse_categorical_crossentropy")
    made.set_weights([array + which for array in made.get_weights()])
    return made


def load_params(file: Path) -> Any:
    """Return the params of a file, and the predictions of a model with them."""
    made = nn.Sequential([nn.Input(6), nn.Dense(5, name="hidden"), nn.Dense(3, name="end")])
    made.load_weights(file)
    return bits(*made.get_weights(), made.predict(X))


def as_hugging_face(folder: Path, which: int) -> None:
    """Write weights and their configuration."""
    save_weights(model(which), folder, config={"hidden": 5 + which})


def load_hugging_face(folder: Path) -> Any:
    """Return the predictions of the model that the configuration describes, with the weights."""
    made = nn.Sequential([nn.Input(6), nn.Dense(5, name="hidden"), nn.Dense(3, name="end")])
    wide = nn.Sequential([nn.Input(6), nn.Dense(6, name="hidden"), nn.Dense(3, name="end")])
    loaded = []
    for each, hidden in ((made, 5), (wide, 6)):
        try:
            load_weights(each, folder)
        except UserError:
            continue
        loaded.append((hidden, (folder / "config.json").read_text(), bits(each.predict(X))))
    return loaded


def checkpoints(folder: Path, which: int) -> None:
    """Write a checkpoint over an older one of the same step, and one that lets an older one go."""
    params, state = dict(model(which).params), {"end_bias": {"h": np.full(3, which, np.float32)}}
    write_checkpoint(folder, 7, params, state, {"which": which}, {"rows": np.full(9, which)})
    remove_old_checkpoints(folder, 1)


def read_checkpoints(folder: Path) -> Any:
    """Return what the checkpoint has."""
    read = read_checkpoint(folder / "step7")
    return bits(*read.params.values(), read.state["end_bias"]["h"], read.loop["rows"]), read.meta


def read_store(path: Path) -> Any:
    """Return the records of a store."""
    store = RecordStore(path)
    return bits(*store.read(np.arange(len(store))))


def weights(folder: Path, which: int) -> None:
    """Write the params of a model."""
    shifted(which).save_weights(folder / "w.safetensors")


def predictions(folder: Path, which: int) -> None:
    """Write the predictions of a job with one of two files of params."""
    if not which:
        write_store(folder / "x.zarr", [(X, np.arange(24) % 3)], overwrite=True)
        (folder / "job.conf").write_text(str(shifted(0).job(str(folder / "x.zarr"), epochs=1)), encoding="utf-8")
        for number in (0, 1):
            weights(folder, number)
            (folder / "w.safetensors").rename(folder / f"{number}.safetensors")
    path = folder / f"{which}.safetensors"
    arguments = ["predict", folder / "job.conf", "--checkpoint", path, "--layer", "end", "--out", folder / "p.zarr"]
    assert run_dsinga([*map(str, arguments), "--overwrite", "--phase", "train"]) == 0


def rates(folder: Path, which: int) -> None:
    """Write a cache of rates."""
    store = RateStore(folder / "rates.json")
    store._figures = {"key": (float(which), 1.0)}
    store.measured = 1
    store.save()


def comma_separated(folder: Path, which: int) -> None:
    """Import records from text."""
    (folder / "x.csv").write_text("".join(f"{row % 2},{row + which},{row}\n" for row in range(40)), encoding="utf-8")
    import_records("csv", folder / "x.csv", folder / "x.zarr", overwrite=True)


def example(folder: Path, which: int) -> None:
    """Write an example."""
    assert run_dsinga(["example", "digits", str(folder / "digits")]) == 0


def read_example(folder: Path) -> Any:
    """Return the contents of all files of an example, whose job can be read."""
    load_job(folder / "job.conf")
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and not is_draft(path)]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def onnx_files(folder: Path, which: int) -> None:
    """Write a net with its params in a file beside it, or in the file of the net."""
    write_onnx(*model_to_onnx(model(which)), folder / "n.onnx", external=10**9 * which)


def read_onnx_files(path: Path) -> Any:
    """Return the predictions of an ONNX file."""
    return bits(nn.load_onnx(path).predict(X))


def is_draft(path: Path) -> bool:
    """Return whether a path is in what a killed process has left."""
    return any(".draft-" in part for part in path.parts)


def best(weights_only: bool) -> Callable[[Path, int], None]:
    """Return what saves a model after an epoch."""

    def write(folder: Path, which: int) -> None:
        saver = nn.callbacks.ModelCheckpoint(folder / "best", save_weights_only=weights_only)
        saver.model = shifted(which) if weights_only else model(which)
        saver.on_epoch_end(which, {"loss": 1.0})

    return write


def in_rows(which: int) -> Iterator[np.ndarray]:
    """Yield records in batches."""
    yield from (np.full((50, 3), which + number, np.float32) for number in range(4))


THINGS = {
    "model": Thing(lambda folder, which: model(which).save(folder), load_model),
    "weights": Thing(weights, lambda folder: load_params(folder / "w.safetensors")),
    "callback": Thing(best(False), lambda folder: load_model(folder / "best")),
    "callback's weights": Thing(best(True), lambda folder: load_params(folder / "best")),
    "weights for Hugging Face": Thing(as_hugging_face, load_hugging_face),
    "checkpoint": Thing(checkpoints, read_checkpoints),
    "store": Thing(
        lambda folder, which: write_store(folder / "s.zarr", ((rows, None) for rows in in_rows(which)), overwrite=True),
        lambda folder: read_store(folder / "s.zarr"),
    ),
    "import": Thing(comma_separated, lambda folder: read_store(folder / "x.zarr")),
    "predictions": Thing(predictions, lambda folder: read_store(folder / "p.zarr")),
    "numbers as text": Thing(
        lambda folder, which: write_csv(folder / "n.csv", in_rows(which)),
        lambda folder: (folder / "n.csv").read_text(encoding="utf-8"),
    ),
    "rates": Thing(rates, lambda folder: RateStore(folder / "rates.json").get("key", lambda: (-1.0,))),
    "text": Thing(
        lambda folder, which: replace_file(folder / "t.txt", f"{which}" * 100_000),
        lambda folder: (folder / "t.txt").read_text(encoding="utf-8"),
    ),
    "ONNX files": Thing(onnx_files, lambda folder: read_onnx_files(folder / "n.onnx")),
    "Triton's model": Thing(
        lambda folder, which: write_triton(*model_to_onnx(model(which)), folder / "net"),
        lambda folder: ((folder / "net/config.pbtxt").read_text(), read_onnx_files(folder / "net/1/model.onnx")),
    ),
    "estimator": Thing(
        lambda folder, _: estimator().save(folder / "e"),
        lambda folder: bits(load_estimator(folder / "e").predict(X)),
        replaces=False,
    ),
    "example": Thing(example, lambda folder: read_example(folder / "digits"), replaces=False),
}


class Kills:
    """The kills of one thing, in folders below ``work``.

    Args:
        name: its name among THINGS.
        work: an empty folder.
    """

    def __init__(self, name: str, work: Path):
        self.thing, self._work = THINGS[name], work
        self._before, whole, here = work / "before", work / "whole", work / "here"
        for folder in (self._before, whole, here):
            folder.mkdir(parents=True)
            (folder / KEPT).write_text("mine", encoding="utf-8")
        for which in (0, 1) if self.thing.replaces else (0,):  # so that forked processes need not import and train
            self.thing.write(here, which)
        self._write(whole, 0)
        if self.thing.replaces:
            shutil.copytree(whole, self._before, dirs_exist_ok=True)
        else:
            shutil.rmtree(whole)
            shutil.copytree(self._before, whole)
        self._old = self.contents(self._before)
        self._write(whole, 1)
        self.seconds = min(self._measure() for _ in range(3))
        self._new, self._names = self.contents(whole), names_in(whole)
        assert self._old != self._new

    def _measure(self) -> float:
        """Return the seconds in which a process writes."""
        folder = self._work / "measured"
        shutil.copytree(self._before, folder)
        began = time.monotonic()
        self._write(folder, 1)
        shutil.rmtree(folder)
        return time.monotonic() - began

    def _write(self, folder: Path, which: int) -> None:
        """Write in a process of its own, as the killed ones do."""
        pid = self._start(folder, which)
        assert os.waitpid(pid, 0)[1] == 0, f"{folder}: it cannot be written"

    def _start(self, folder: Path, which: int, count: int | None = None) -> int:
        """Return the id of a process that writes, and kills itself before its operation ``count`` on files."""
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                if count is not None:
                    before_file_operation(folder, count)
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                signal.alarm(int(SECONDS))
                self.thing.write(folder, which)
                status = 0
            finally:
                os._exit(status)
        return pid

    def contents(self, folder: Path) -> Any:
        """Return what is read in a folder, None where it says in a sentence that nothing is there."""
        try:
            return self.thing.read(folder)
        except UserError:
            return None

    def kill(self, delay: float | None = None, count: int | None = None) -> str:
        """Kill a process that writes the new contents, after a delay or before an operation; return how it ended."""
        case = self._work / "case"
        shutil.rmtree(case, ignore_errors=True)
        shutil.copytree(self._before, case)
        pid = self._start(case, 1, count)
        if delay is not None:
            time.sleep(delay)
            os.kill(pid, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status not in (0, -signal.SIGKILL):
            return f"WRONG: it ended with {status}"
        left = self.contents(case)
        end = "old" if left == self._old else "new" if left == self._new else f"WRONG: {str(left)[:200]}"
        if end == "old" or self.thing.replaces:
            try:
                self._write(case, 1)
            except AssertionError as error:
                return f"WRONG: {error}"
            if left := names_in(case) ^ self._names:
                return f"WRONG: written again, it has {str(sorted(left))[:200]} too much or too little"
        if self.contents(case) != self._new:
            return "WRONG: written again, it is not new"
        return end if status else "not killed"


def names_in(folder: Path) -> set[str]:
    """Return the paths of all files and folders below a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def every_operation(kills: Kills) -> Iterator[str]:
    """Yield how the kills ended before each operation on files."""
    for count in range(10_000):
        end = kills.kill(count=count)
        if end == "not killed":
            return
        yield end


def random_moments(kills: Kills, chosen: random.Random, count: int) -> Iterator[str]:
    """Yield how so many kills ended; processes that had written before are not among them."""
    while count:
        end = kills.kill(delay=chosen.uniform(0, 1.1 * kills.seconds))
        if end != "not killed":
            count -= 1
            yield end


def main() -> int:
    """Kill as often as the arguments ask for; return 1 if anything was neither old nor new."""
    parser = argparse.ArgumentParser(prog="python -m tools.faults.saves")
    parser.add_argument("--count", type=int, default=500, help="kills at random moments, of all things together [500]")
    parser.add_argument("--every", action="store_true", help="kill before each operation on files instead")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=THINGS, nargs="+", default=[*THINGS], metavar="THING")
    options = parser.parse_args()
    chosen, wrong = random.Random(options.seed), 0
    with tempfile.TemporaryDirectory(prefix="dsinga-saves-") as work:
        for number, name in enumerate(options.only):
            kills = Kills(name, Path(work) / str(number))
            share = len(range(number, options.count, len(options.only)))
            ends = collections.Counter(
                every_operation(kills) if options.every else random_moments(kills, chosen, share)
            )
            wrong += sum(count for end, count in ends.items() if end.startswith("WRONG"))
            print(f"{name}: {ends.total()} kills: {', '.join(f'{n} {end}' for end, n in ends.items())}", flush=True)
    print(f"{wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
