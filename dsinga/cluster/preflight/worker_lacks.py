"""Writes one message on all that Dask workers lack for a run, and warns of differences between them.

If a machine has no oneDNN, the run is right, but as slow as the slowest, and its last bits depend on the placement.
This is a warning: an error would keep people from a cluster that they cannot change.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dsinga.base.errors import UserError
from dsinga.base.version import __version__
from dsinga.cluster.preflight.worker_report import ONEDNN_AND_NUMBA, versions
from dsinga.ops import get_ops

_log = logging.getLogger(__name__)
_warn_once = functools.cache(_log.warning)
# The scheduler's report is under this name, a Dask worker's under its address.
SCHEDULER = "scheduler"
# The oldest version of Dask that dsinga runs with, as in setup.cfg.
OLDEST_DASK = "2026.8"
PYTHON = "{}.{}".format(*sys.version_info)
# How many Dask workers a message names of those that lack the same; the others are counted.
NAMED_WORKERS = 4
PLURALS = {"is": "are", "has": "have", "runs": "run", "computes": "compute"}
ALL_DIFFERENCES = "client.get_versions(check=True) shows all differences"


class Lack(NamedTuple):
    """What a process lacks, as a predicate that follows its name in messages, and the remedy."""

    predicate: str
    remedy: str


PAUSED = Lack("is paused by Dask, because its memory is nearly full", "start it with --memory-limit 0, or with more")


def find_lacks(report: Mapping[str, Any], objects: Mapping[str, Any]) -> Iterator[Lack]:
    """Yield what a process lacks, found in its report (:func:`dsinga.cluster.preflight.worker_report.report`)."""
    if report["python"] != PYTHON:
        remedy = "Dask sends functions between processes of the same Python only: use one environment for all"
        yield Lack(f"runs Python {report['python']}, the driver {PYTHON}", remedy)
        return
    packages = report["packages"]
    old = [
        name for name in ("dask", "distributed") if name in packages and release(packages[name]) < release(OLDEST_DASK)
    ]
    if old:
        remedy = f"dsinga needs {OLDEST_DASK} or newer: install {listed(versions(), old)} there, as the driver has"
        yield Lack(f"has {listed(packages, old)}", f"{remedy} ({ALL_DIFFERENCES})")
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
            what = trouble.removeprefix(f"{location}: ").removeprefix(f"{location} is damaged: ")
            here = versions().get("zarr")
            if packages.get("zarr", here) != here:  # other releases of zarr may not load its objects
                what = f"{what} (it has zarr {packages['zarr']}, the driver {here})"
                remedy = "install the driver's zarr there, or give the path of the records in place of objects of zarr"
            yield Lack(f"cannot read {location}: {what}", remedy)


def describe_lacks(lacks: Mapping[str, Sequence[Lack]]) -> str:
    """Return one message on what processes lack, by address; those with the same lack are named together."""
    groups: dict[Lack, list[str]] = {}
    for address, process_lacks in lacks.items():
        for lack in process_lacks:
            groups.setdefault(lack, []).append(address)
    lines = [f"{sentence(addresses, lack.predicate)}; {lack.remedy}" for lack, addresses in groups.items()]
    if len(lines) < 2:
        return "".join(lines)
    return "\n- ".join(["the Dask cluster is not ready for this run:", *lines])


def sentence(addresses: Sequence[str], predicate: str) -> str:
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


def listed(packages: Mapping[str, str], names: Iterable[str] | None = None) -> str:
    """Return packages with versions as text, as in "dask 2026.8.0, numpy 2.4.6"."""
    return ", ".join(f"{name} {packages[name]}" for name in names or packages)


def release(version: str) -> tuple[int, ...]:
    """Return the year and the month of a version of Dask, such as "2026.8.0"."""
    return tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())


def _how_to_install(report: Mapping[str, Any], restart: str = "") -> str:
    package = f"dsinga=={__version__}"
    return (
        f"install it there with `{report['executable']} -m pip install {package}`, or on the whole cluster with "
        f'client.register_plugin(distributed.PipInstall(["{package}"]{restart}))'
    )


def _how_to_send(value: Any) -> str:
    name = (value if hasattr(value, "__name__") else type(value)).__module__
    package = name.partition(".")[0]
    file = getattr(sys.modules.get(package), "__file__", None)
    if name == "__main__" or not file:  # pickled by value: what is missing is a module that it imports
        return "install the missing module there"
    if file.endswith("__init__.py"):
        return f"install the package {package!r} there"
    return f'install the module of its class there, or send it to all by client.upload_file("{file}")'


def warn_of_differences(reports: Mapping[str, Mapping[str, Any]]) -> None:
    """Log a warning, once in a process, if kernels or versions of packages differ."""
    for warning in (*_kernel_differences(reports), *_package_differences(reports)):
        _warn_once(warning)


def describe_mixed_bf16(reports: Mapping[str, Mapping[str, Any]], has_bf16: bool | None = None) -> str:
    """Return why processes cannot train together in kBF16 (only some have it), or ""."""
    lacks = {address: report["no_bf16"] for address, report in reports.items() if report["kernels"]}
    if has_bf16 is False and not all(lacks.values()):
        computing = [address for address, reason in lacks.items() if not reason]
        return f"{sentence(computing, 'computes in kBF16')} where the workers of this run compute in float32"
    without = [address for address, reason in lacks.items() if reason]
    if not without or (len(without) == len(lacks) and not has_bf16):
        return ""
    return (
        f"{sentence(without, 'computes in float32')} where others compute in kBF16 "
        f"({reports[without[0]]['no_bf16']}): the numbers would depend on where workers are placed; leave precision "
        "out, or choose the hosts that have it (--hosts)"
    )


def warn_without_bf16(reports: Mapping[str, Mapping[str, Any]]) -> None:
    """Log a warning, once in a process, if all processes compute a kBF16 job in float32."""
    reasons = {report["no_bf16"] for report in reports.values() if report["kernels"]}
    if reasons and all(reasons):
        _warn_once(f"precision kBF16 computes in float32 on the Dask workers: {min(reasons)}")


def _kernel_differences(reports: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    by_kernels: dict[str, list[str]] = {}
    for address, report in reports.items():
        if report["kernels"]:
            by_kernels.setdefault(report["kernels"], []).append(address)
    reason = next((report["no_onednn"] for report in reports.values() if report["no_onednn"]), "")
    if len(by_kernels) > 1:
        named = min(by_kernels, key=lambda name: (name != "numpy", len(by_kernels[name])))
        others = " and ".join(sorted(by_kernels.keys() - {named}))
        remedy = "DSINGA_COMPILED=0" if by_kernels.keys() <= {"onednn", ONEDNN_AND_NUMBA} else "DSINGA_OPS=numpy"
        yield (
            f"{sentence(by_kernels[named], f'computes with {named}')}, others with {others}: the run is as slow as "
            f"the slowest of them, and its last bits depend on where its workers are placed"
            f"{f' ({reason})' if reason else ''}; {remedy} in the environment of all gives the same bits"
        )
    elif reason and _driver_has_onednn():
        slow = by_kernels["numpy"]
        yield f"{sentence(slow, 'computes with numpy')}, several times slower than with oneDNN: {reason}"


def _package_differences(reports: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    driver_packages = versions()
    groups: dict[str, list[str]] = {}
    for address, report in reports.items():
        packages = report["packages"]
        unequal = {name: version for name, version in packages.items() if driver_packages.get(name, version) != version}
        if unequal:
            predicate = f"has {listed(unequal)}, the driver {listed(driver_packages, unequal)}"
            groups.setdefault(predicate, []).append(address)
    for predicate, addresses in groups.items():
        yield f"{sentence(addresses, predicate)}; if tasks fail, give all the same versions ({ALL_DIFFERENCES})"


def _driver_has_onednn() -> bool:
    try:
        return get_ops().name == "onednn"
    except UserError:
        return False
