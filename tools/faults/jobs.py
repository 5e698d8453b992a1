"""Damages job files, and trains what dsinga accepts of them for two steps.

The bits of an accepted job are right where they equal those of an independent way to train it. If the damaged job is,
as data, equal to the undamaged one (only comments, white space or spelling have changed), its params must be those of
the undamaged file. Any other job is written by :func:`dsinga.job.to_text`, read again, and trained by
:func:`tests.support.train_in_threads.train_in_threads`, without Dask, the command line and its driver; the params must
be equal to those in the checkpoint of ``dsinga train``. That proves that what was trained is the job that was read, and
that its numbers do not depend on what happened around. With several worker groups, which are asynchronous, and where a
job loads params or stops by the time, finite params in a complete checkpoint must do.
"""

from __future__ import annotations

import random as random_module
import resource
from pathlib import Path

import numpy as np

from tools.faults.damage import copy_tree, damage_bytes
from tools.faults.damage_jobs import damage_structure
from tools.faults.job_files import JOBS, write_job_inputs
from tools.faults.verdicts import WRONG, run_dsinga, say_damage

# A valid job may run for as long as it says: these fields end it soon.
SHORT = ("train_steps=2", "epochs=0", "test_steps=1", "validate_steps=1")
MEMORY_BYTES = 3 << 30  # of a case


def create(folder: Path) -> None:
    """Write jobs, stores, and a checkpoint of each job."""
    write_job_inputs(folder)
    for name in JOBS:
        assert run_dsinga(_train(name, f"right-{name}")) == 0, name


def run(random: random_module.Random, original: Path, folder: Path) -> int:
    """Damage a job in one to three places and train it; return the status, or WRONG."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    copy_tree(original, folder)
    name = random.choice([*JOBS])
    path = folder / f"{name}.conf"
    damages = []
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        if random.random() < 0.25:
            damages.append(damage_bytes(random, path))
            continue
        text, damage = damage_structure(random, path.read_text(errors="replace"), JOBS[random.choice([*JOBS])])
        path.write_text(text, errors="surrogateescape")
        damages.append(damage)
    say_damage(f"{name}: " + "; ".join(damages))
    status = run_dsinga(_train(name, "workspace"))
    return status if status else _compare(name, folder)


def _train(name: str, workspace: str) -> list[str]:
    overrides = [word for field in SHORT for word in ("--set", field)]
    return ["train", f"{name}.conf", "--workspace", workspace, *overrides]


def _compare(name: str, folder: Path) -> int:
    """Return 0 where the params of the checkpoint are the right ones, else WRONG."""
    from dsinga.checkpoint import latest, read_checkpoint
    from dsinga.job import load, loads, to_text
    from tests.support.train_in_threads import train_in_threads

    job = load(folder / f"{name}.conf", SHORT)
    newest = latest("workspace/checkpoint")
    if newest is None:
        print("no checkpoint was written")
        return WRONG
    checkpoint = read_checkpoint(newest)
    groups = job.cluster.nworker_groups if job.cluster else 1
    if groups == 1 and job == loads(JOBS[name], overrides=SHORT):
        expected = read_checkpoint(latest(f"right-{name}/checkpoint")).params
    else:
        again = loads(to_text(job))
        if again != job:
            print("the job that was written is not the job that was read")
            return WRONG
        if groups > 1 or job.checkpoint_path:
            expected = {name: np.nan_to_num(value) for name, value in checkpoint.params.items()}
        else:
            expected = train_in_threads(again.replace(train_steps=checkpoint.step)).params
    different = [n for n in expected | checkpoint.params if not _same(expected.get(n), checkpoint.params.get(n))]
    if different:
        print(f"params differ: {different}")
    return WRONG if different else 0


def _same(first: np.ndarray | None, second: np.ndarray | None) -> bool:
    return first is not None and second is not None and np.array_equal(first, second)
