"""Compare the bits per character of SINGA's char-rnn on held-out text with those of the same net in PyTorch.

    python tests/benchmarks/accuracy_char_rnn.py [--steps 1000] [--hidden 512] [--json FILE]

The text is the source of Linux, 6.2 MB of 101 characters: nine tenths for training, the last tenth for testing. Both
begin with the same params, read the same windows in the same order, clip gradients alike and are updated by SINGA's
RMSProp, which is implemented here for PyTorch; the state of the GRU is carried from window to window. Two measures are
given: over windows of 50 that begin with zeros, as ``dsinga test`` does it, and over 50 long texts with carried states.
The text is looked for in the folder of real data: DSINGA_DATA, or ../shared/data beside the checkout.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

import dsinga
from dsinga.data import RecordStore, import_records
from dsinga.data.sources.windows import Windows
from dsinga.job import Job
from dsinga.models import char_rnn
from dsinga.training import initial_values, schedule

RAW = Path(os.environ.get("DSINGA_DATA", Path(__file__).resolve().parents[3] / "shared/data")) / "linux-kernel-c"
TEXT = "linux-4.1.5-kernel.txt.xz"
STEPS, BATCH = 50, 50
RHO, DELTA, CLIP = 0.95, 1e-8, 5.0

Values = dict[str, np.ndarray]


class Peer(torch.nn.Module):
    """The net of dsinga.models.char_rnn in PyTorch, with the weights of SINGA's GRU."""

    def __init__(self, values: Values):
        super().__init__()
        self.weights = torch.nn.ParameterDict({name: torch.tensor(value) for name, value in values.items()})
        hidden, self.vocabulary = values["gru1_z_hx"].shape
        self.gru = torch.nn.GRU(self.vocabulary, hidden, batch_first=True)

    def forward(self, codes: torch.Tensor, state: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sum of -log p over the characters after the first of each row, and the state."""
        x = torch.nn.functional.one_hot(codes[:, :-1], self.vocabulary).float()
        joined = {
            name: torch.cat([self.weights[f"gru1_{gate}_{kind}"] for gate in "rzc"])  # PyTorch's order
            for name, kind in (("weight_ih_l0", "hx"), ("weight_hh_l0", "hh"), ("bias_ih_l0", "b"))
        }
        joined["bias_hh_l0"] = torch.zeros_like(joined["bias_ih_l0"])
        h, state = torch.func.functional_call(self.gru, joined, (x, state))
        scores = torch.nn.functional.linear(h, self.weights["ip1_weight"], self.weights["ip1_bias"])
        loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), codes[:, 1:].flatten(), reduction="sum")
        return loss, state.detach()


def train_peer(job: Job, values: Values, windows: Windows) -> Values:
    """Return the params after training in PyTorch."""
    torch.set_num_threads(1)
    peer, rate, state = Peer(values), schedule(job.updater.learning_rate), None
    history = {name: torch.zeros_like(weight) for name, weight in peer.weights.items()}
    for step in range(job.train_steps):
        loss, state = peer(read(windows, step), state)
        peer.zero_grad(set_to_none=True)
        (loss / BATCH).backward()
        with torch.no_grad():
            for name, weight in peer.weights.items():
                g = weight.grad.clamp(-CLIP, CLIP)
                history[name].mul_(RHO).addcmul_(g, g, value=1 - RHO)
                weight.sub_(rate(step) * g / torch.sqrt(history[name] + DELTA))
    return {name: weight.detach().numpy() for name, weight in peer.weights.items()}


def read(windows: Windows, step: int) -> torch.Tensor:
    """Return the windows (BATCH, STEPS + 1) of a step; after the end of the text they begin anew."""
    first = step % windows.windows_per_stream * BATCH
    return torch.tensor(windows.read(range(first, first + BATCH))[0].astype(np.int64))


def bits(values: Values, windows: Windows, carry: bool) -> float:
    """Return the bits per character of a text, computed by PyTorch."""
    peer, state, total = Peer(values), None, 0.0
    with torch.no_grad():
        for step in range(windows.windows_per_stream):
            loss, next_state = peer(read(windows, step), state)
            total, state = total + float(loss), next_state if carry else None
    return total / (windows.windows_per_stream * BATCH * STEPS) / math.log(2)


def compare(folder: Path, steps: int, hidden: int) -> dict[str, float]:
    """Train both for ``steps`` steps; return their bits per character of the held-out text, and the seconds."""
    store = RecordStore(folder / "train_data.zarr")
    job = char_rnn(len(store.vocabulary), str(folder), hidden=hidden, batchsize=BATCH, steps=STEPS, train_steps=steps)
    job = job.replace(disp_freq=0, test_freq=0, checkpoint_freq=0)
    first = initial_values(dsinga.build_net(job).params, job.seed)
    first.pop("gru1_state")
    train, test = Windows(store, BATCH, STEPS), Windows(RecordStore(folder / "test_data.zarr"), BATCH, STEPS)
    began = time.perf_counter()
    ours = dsinga.train(job, workers=1, progress=False).params
    middle = time.perf_counter()
    theirs = train_peer(job, first, train)
    ended = time.perf_counter()
    ours = {name: ours[name] for name in first}
    figures = {"steps": steps, "dsinga_seconds": middle - began, "pytorch_seconds": ended - middle}
    figures["dsinga_evaluate"] = dsinga.evaluate(job, ours, "test")["loss"] / math.log(2)
    for measure, carry in (("windows", False), ("carried", True)):
        bits_ours, bits_theirs = bits(ours, test, carry), bits(theirs, test, carry)
        figures[f"dsinga_{measure}"], figures[f"pytorch_{measure}"] = bits_ours, bits_theirs
        figures[f"difference_{measure}"] = bits_ours / bits_theirs - 1
    return figures


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--steps", type=int, nargs="+", default=[1000], help="Numbers of steps, each for a run of its own."
    )
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--json", type=Path, help="Also write the figures to this file.")
    arguments = parser.parse_args()
    rows = []
    print("bits per character of the held-out tenth\n steps  measure   dsinga  PyTorch  difference", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        import_records("text", RAW / TEXT, folder, held_out=0.1)
        for steps in arguments.steps:
            figures = compare(Path(folder), steps, arguments.hidden)
            rows.append(figures)
            for measure in ("windows", "carried"):
                ours, theirs, difference = (
                    figures[f"{what}_{measure}"] for what in ("dsinga", "pytorch", "difference")
                )
                print(f"{steps:6}  {measure:8}  {ours:6.4f}  {theirs:7.4f}  {100 * difference:+9.2f}%", flush=True)
            print(
                f"        dsinga test says {figures['dsinga_evaluate']:.4f}; seconds of training: dsinga "
                f"{figures['dsinga_seconds']:.0f}, PyTorch {figures['pytorch_seconds']:.0f}",
                flush=True,
            )
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
