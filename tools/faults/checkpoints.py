"""Damaged workspaces and checkpoints for ``python -m tools.faults checkpoints``.

A workspace with three checkpoints is damaged; then it is resumed, tested or predicted from. Resuming must end with the
bits of a run that nothing has disturbed; the other two must read the params that were asked for.
"""

from __future__ import annotations

import contextlib
import json
import os
import random as random_module
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tools.faults.damage import copy_tree, damage_bytes, damage_entry, files_of
from tools.faults.damaged_json import damage_json
from tools.faults.verdicts import WRONG, run_dsinga, say_damage

STEPS = (10, 20, 30)  # of the checkpoints
LAST = 40  # the step to which a damaged workspace is resumed

JOB = """name: "small"
train_steps: 30
disp_freq: 5
checkpoint_freq: 10
updater { type: kSGD momentum: 0.9 learning_rate { type: kFixed base_lr: 0.1 } }
extension { type: kKeepBest monitor: "train/loss" }
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { path: "blobs.zarr" batchsize: 30 shape: 2 } }
  layer { name: "norm" type: kBM srclayers: "data" }
  layer { name: "ip" type: kInnerProduct srclayers: "norm" innerproduct_conf { num_output: 3 }
    param { name: "w" init { type: kGaussian std: 0.1 } } param { name: "b" } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "ip" srclayers: "data" }
}
"""


def create(folder: Path) -> None:
    """Write a job, its records, a workspace with checkpoints, and the params of an undisturbed run."""
    from dsinga.data import write_store

    labels = np.arange(300) % 3
    write_store("blobs.zarr", [(np.random.default_rng(0).normal(labels[:, None], 0.1, (300, 2)), labels)])
    (folder / "job.conf").write_text(JOB, encoding="utf-8")
    assert run_dsinga(["train", "job.conf", "--workspace", "run"]) == 0
    shutil.copytree("run", "whole")
    assert run_dsinga(["train", "job.conf", "--workspace", "whole", "--resume", "--set", f"train_steps={LAST}"]) == 0


def read_params(path: Path) -> dict[str, bytes]:
    """Return the bits of the params of a checkpoint."""
    from safetensors.numpy import load_file

    return {name: array.tobytes() for name, array in load_file(path / "params.safetensors").items()}


def run(random: random_module.Random, original: Path, folder: Path) -> int:
    """Damage a copy of the workspace, use it, and return the status of dsinga."""
    copy_tree(original, folder)
    workspace = folder / "run"
    say_damage(random.choice(DAMAGES)(random, workspace))
    use = random.choice((resume, resume, resume, resume_from, test, auto_resume))
    return use(random, original, folder)


def resume(random: random_module.Random, original: Path, folder: Path, option: str = "--resume") -> int:
    """Resume, and compare the last params with those of the undisturbed run."""
    status = run_dsinga(["train", "job.conf", "--workspace", "run", option, "--set", f"train_steps={LAST}"])
    if status:
        return status
    last = f"checkpoint/step{LAST}"
    return 0 if read_params(folder / "run" / last) == read_params(original / "whole" / last) else WRONG


def auto_resume(random: random_module.Random, original: Path, folder: Path) -> int:
    """Resume if there is a checkpoint; a workspace without any begins anew, and ends with the same bits."""
    return resume(random, original, folder, "--resume=auto")


def resume_from(random: random_module.Random, original: Path, folder: Path) -> int:
    """Resume from a certain checkpoint."""
    return resume(random, original, folder, f"--resume=run/checkpoint/step{random.choice(STEPS)}")


def test(random: random_module.Random, original: Path, folder: Path) -> int:
    """Export the params that the newest checkpoint has, or a certain one."""
    step = random.choice(STEPS)
    path = folder / "run" if step == STEPS[-1] else folder / "run" / "checkpoint" / f"step{step}"
    names = {path.name for path in (folder / "run" / "checkpoint").glob("step*")}
    renamed = f"step{step}" not in names or (step == STEPS[-1] and len(names) > len(STEPS))
    arguments = ["predict", "job.conf", "--checkpoint", str(path), "--layer", "ip", "--out", "out.zarr"]
    status = run_dsinga([*arguments, "--phase", "train"])
    if status or renamed:  # where folders have been renamed or added, another one may be the newest
        return status
    from dsinga.checkpoint import read_params as read

    right = read_params(original / "run" / "checkpoint" / f"step{step}")
    return 0 if {name: array.tobytes() for name, array in read(path).items()} == right else WRONG


def damage_any_bytes(random: random_module.Random, workspace: Path) -> str:
    """Damage the bytes of a file."""
    return damage_bytes(random, random.choice(files_of(workspace)))


def damage_newest_bytes(random: random_module.Random, workspace: Path) -> str:
    """Damage the bytes of a file of the newest checkpoint."""
    return damage_bytes(random, random.choice(files_of(workspace / "checkpoint" / f"step{STEPS[-1]}")))


def damage_metadata(random: random_module.Random, workspace: Path) -> str:
    """Change a place of ``checkpoint.json``, whose checksum stays; what is copied there is of another checkpoint."""
    paths = [workspace / "checkpoint" / f"step{step}" / "checkpoint.json" for step in random.sample(STEPS, 2)]
    return damage_json(random, paths[0], json.loads(paths[1].read_text(encoding="utf-8")))


def mix_files(random: random_module.Random, workspace: Path) -> str:
    """Put a file of one checkpoint into another one."""
    source, target = random.sample(STEPS, 2)
    name = random.choice(files_of(workspace / "checkpoint" / f"step{source}")).name
    shutil.copy(workspace / "checkpoint" / f"step{source}" / name, workspace / "checkpoint" / f"step{target}" / name)
    return f"{name} of step {source} in step {target}"


def rename_folder(random: random_module.Random, workspace: Path) -> str:
    """Give a checkpoint another name."""
    source = workspace / "checkpoint" / f"step{random.choice(STEPS)}"
    name = random.choice(("step35", "step5", "step999999999999999999999", "step-1", "step1e3", "backup", "step0030"))
    source.rename(source.with_name(name))
    return f"{source.name} is called {name}"


def leave_over(random: random_module.Random, workspace: Path) -> str:
    """Add what killed runs, other programs and people leave."""
    name = random.choice((
        "checkpoint/.step40.partial", "checkpoint/.step40.replaced", "checkpoint/step40", "checkpoint/step50/x",
        "checkpoint/.nfs0001", "metrics.jsonl.draft", "run-1", "run-x/y", "best.safetensors.partial", "lock",
    ))  # fmt: skip
    path = workspace / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        if random.random() < 0.5:
            path.mkdir()
        else:
            path.write_bytes(random.randbytes(random.randrange(100)))
    return f"left over: {name}"


def damage_history(random: random_module.Random, workspace: Path) -> str:
    """Change the rows of ``metrics.jsonl``."""
    path = workspace / "metrics.jsonl"
    rows = path.read_text(encoding="utf-8").splitlines(keepends=True)
    row = random.choice(
        ["{}\n", "null\n", "[]\n", '{"step": "x"}\n', '{"step": null}\n', '{"step": 1e400}\n', "\n", "x", "{" * 9999]
    )
    rows.insert(random.randrange(len(rows) + 1), row)
    path.write_text("".join(rows), encoding="utf-8")
    return f"metrics.jsonl has the row {row[:30]!r}"


def damage_lock(random: random_module.Random, workspace: Path) -> str:
    """Write nonsense into the file of the lock, or the lock of a process that is not there."""
    text = random.choice(("", "\0" * 10, "{}", "null", '{"pid": 999999999}', '{"host": 1, "pid": "x"}', "x" * 100_000))
    (workspace / "running.json").write_text(text, encoding="utf-8")
    return f"running.json has {text[:30]!r}"


def damage_job(random: random_module.Random, workspace: Path) -> str:
    """Put a checkpoint of another job into the workspace: the same names in other shapes, or other names."""
    job = workspace.parent / "other.conf"
    change = random.choice((("num_output: 3", "num_output: 4"), ('name: "w"', 'name: "other"'), ("kSGD", "kAdaGrad")))
    job.write_text(JOB.replace(*change).replace("train_steps: 30", "train_steps: 35"), encoding="utf-8")
    assert run_dsinga(["train", str(job), "--workspace", "other"]) == 0
    shutil.copytree("other/checkpoint/step35", workspace / "checkpoint" / "step35")
    os.unlink(job)
    return f"a checkpoint of another job: {change[1]}"


DAMAGES: list[Callable[[random_module.Random, Path], str]] = [
    damage_any_bytes, damage_newest_bytes, damage_newest_bytes, damage_entry, damage_entry, damage_metadata,
    damage_metadata, mix_files, rename_folder, leave_over, damage_history, damage_lock, damage_job,
]  # fmt: skip
