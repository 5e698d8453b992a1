"""What the processes of a Dask cluster lack for a run, as one message that says how to put it right.

Errors are what a run cannot do without. Other kernels than oneDNN's, and other versions of Dask that dsinga runs with,
are warnings: the run is right, but slower, or its last bits depend on where its workers are placed. An error would keep
people from a cluster in which one machine has no oneDNN.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any, NamedTuple

from dsinga.errors import UserError
from dsinga.ops import get_ops
from dsinga.version import __version__

# The report of the scheduler is under this name, that of a Dask worker under its address.
SCHEDULER = "scheduler"
# The oldest version of Dask that dsinga runs with, as in setup.cfg.
OLDEST_DASK = "2026.8"
PYTHON = "{}.{}".format(*sys.version_info)
# How many Dask workers a message names of those that lack the same; the others are counted.
NAMED_WORKERS = 4
PLURALS = {"has": "have", "runs": "run", "computes": "compute"}

_log = logging.getLogger(__name__)
_warn_once = functools.cache(_log.warning)


class Lack(NamedTuple):
    """Something that a process lacks: a predicate, to which its name is the subject, and the remedy."""

    predicate: str
    remedy: str


def find_lacks(report: Mapping[str, Any], objects: Mapping[str, Any]) -> Iterator[Lack]:
    """Yield what a process lacks by its report (:func:`dsinga.cluster.worker_report.report`).

    ``objects`` are those of the user's classes that were sent to it, by their names in errors.
    """
    if report["python"] != PYTHON:
        remedy = (
            "Dask sends functions between processes of one version of Python only: use the same environment for all"
        )
        yield Lack(f"runs Python {report['python']}, the driver {PYTHON}", remedy)
        return
    for package in ("dask", "distributed"):
        if report[package] and release(report[package]) < release(OLDEST_DASK):
            remedy = (
                f"dsinga {__version__} needs {package} {OLDEST_DASK} or newer: install that of the driver there, "
                f"{metadata.version(package)} (client.get_versions(check=True) shows all differences)"
            )
            yield Lack(f"has {package} {report[package]}", remedy)
    if report["import"]:
        yield Lack(f"cannot import dsinga: {report['import']}", _how_to_install(report))
    elif report["dsinga"] is None:
        yield Lack("has no dsinga", _how_to_install(report))
    elif report["dsinga"] != __version__:
        remedy = f"{_how_to_install(report, ', restart_workers=True')}, or give the driver version {report['dsinga']}"
        yield Lack(f"has dsinga {report['dsinga']}, the driver {__version__}", remedy)
    if report["no_kernels"]:
        yield Lack(f"has no kernels: {report['no_kernels']}", "correct it in the environment there")
    for name, trouble in report["objects"].items():
        if trouble:
            yield Lack(f"cannot load {name}: {trouble}", _how_to_send(objects[name]))
    for location, trouble in report["stores"].items():
        if trouble:
            remedy = "put the records where every worker finds them by the same path or URL"
            yield Lack(f"cannot read {location}: {trouble}", remedy)


def describe_lacks(lacks: Mapping[str, Sequence[Lack]]) -> str:
    """Return what processes lack, by address, as one message that groups those that lack the same; "" for nothing."""
    groups: dict[Lack, list[str]] = {}
    for address, process_lacks in lacks.items():
        for lack in process_lacks:
            groups.setdefault(lack, []).append(address)
    lines = [f"{_sentence(addresses, lack.predicate)}; {lack.remedy}" for lack, addresses in groups.items()]
    if len(lines) < 2:
        return "".join(lines)
    workers = [address for address in lacks if address != SCHEDULER]
    count = sum(bool(lacks[address]) for address in workers)
    return "\n- ".join([f"{count} of {len(workers)} Dask workers are not ready for this run:", *lines])


def warn_of_differences(reports: Mapping[str, Mapping[str, Any]]) -> None:
    """Log a warning, once in a process, where kernels or versions of Dask differ."""
    by_kernels: dict[str, list[str]] = {}
    for address, report in reports.items():
        if report["kernels"]:
            by_kernels.setdefault(report["kernels"], []).append(address)
    slow = by_kernels.get("numpy", [])
    reason = next((reports[address]["no_onednn"] for address in slow if reports[address]["no_onednn"]), "")
    if len(by_kernels) > 1:
        fewest = min(by_kernels, key=lambda name: len(by_kernels[name]))
        others = " and ".join(sorted(by_kernels.keys() - {fewest}))
        _warn_once(
            f"{_sentence(by_kernels[fewest], f'computes with {fewest}')}, others with {others}: the run is as fast as "
            f"the slowest, and its last bits depend on where its workers are placed"
            f"{f' ({reason})' if reason else ''}; set DSINGA_OPS=numpy for all to have the same bits everywhere"
        )
    elif reason and _driver_has_onednn():
        _warn_once(f"{_sentence(slow, 'computes with numpy')}, several times slower than with oneDNN: {reason}")
    for package in ("dask", "distributed"):
        version = metadata.version(package)
        other = [address for address, report in reports.items() if report[package] not in (version, None)]
        if other:
            _warn_once(
                f"{_sentence(other, f'has {package} {reports[other[0]][package]}')}, the driver {version}; if tasks "
                "fail, give all the same version: client.get_versions(check=True) shows all differences"
            )


def _sentence(addresses: Sequence[str], predicate: str) -> str:
    """Return "the Dask worker ADDRESS has ..." or, for several, "the Dask workers ADDRESSES have ..."."""
    workers = [address for address in addresses if address != SCHEDULER]
    names = ", ".join(workers[:NAMED_WORKERS])
    if len(workers) > NAMED_WORKERS:
        names += f" and {len(workers) - NAMED_WORKERS} more"
    subjects = ["the Dask scheduler"] * (SCHEDULER in addresses)
    if workers:
        subjects.append(f"the Dask worker{'s' if len(workers) > 1 else ''} {names}")
    verb, _, rest = predicate.partition(" ")
    return f"{' and '.join(subjects)} {PLURALS.get(verb, verb) if len(addresses) > 1 else verb} {rest}"


def _how_to_install(report: Mapping[str, Any], restart: str = "") -> str:
    package = f"dsinga=={__version__}"
    return (
        f"install it there with `{report['executable']} -m pip install {package}`, or on the whole cluster with "
        f'client.register_plugin(distributed.PipInstall(["{package}"]{restart}))'
    )


def _how_to_send(value: Any) -> str:
    """Return how a Dask worker gets the user's module that ``value`` needs."""
    name = (value if hasattr(value, "__name__") else type(value)).__module__
    file = getattr(sys.modules.get(name.partition(".")[0]), "__file__", None)
    if name == "__main__" or not file:  # pickled by value, so that it lacks a module that it imports
        return "install the missing module there"
    if file.endswith("__init__.py"):
        return f"install the package {name.partition('.')[0]!r} there"
    return f'install the module of its class there, or send it to all by client.upload_file("{file}")'


def release(version: str) -> tuple[int, ...]:
    """Return the year and the month of a version of Dask."""
    return tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())


def _driver_has_onednn() -> bool:
    try:
        return get_ops().name == "onednn"
    except UserError:
        return False
