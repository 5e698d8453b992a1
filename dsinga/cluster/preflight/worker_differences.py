"""Warns of differences between the processes of a run that do not keep it from running.

Kernels of oneDNN and of numpy compute the same up to rounding. So where one of several machines has no oneDNN, the run
is right, but it is as slow as the slowest, and its last bits depend on which machine has which worker; an error would
keep people from a cluster that they cannot change. Other versions of Dask than the driver's often work, too.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Mapping
from typing import Any

from dsinga.cluster.preflight.worker_lacks import ALL_DIFFERENCES, listed, sentence
from dsinga.cluster.preflight.worker_report import versions
from dsinga.errors import UserError
from dsinga.ops import get_ops

_log = logging.getLogger(__name__)
_warn_once = functools.cache(_log.warning)


def warn_of_differences(reports: Mapping[str, Mapping[str, Any]]) -> None:
    """Log a warning, once in a process, where kernels or versions of packages differ.

    ``reports`` are those of the processes, by address (:func:`dsinga.cluster.preflight.worker_report.report`).
    """
    for warning in (*_kernel_differences(reports), *_package_differences(reports)):
        _warn_once(warning)


def _kernel_differences(reports: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    by_kernels: dict[str, list[str]] = {}
    for address, report in reports.items():
        if report["kernels"]:
            by_kernels.setdefault(report["kernels"], []).append(address)
    reason = next((report["no_onednn"] for report in reports.values() if report["no_onednn"]), "")
    if len(by_kernels) > 1:
        named = min(by_kernels, key=lambda name: (name != "numpy", len(by_kernels[name])))
        others = " and ".join(sorted(by_kernels.keys() - {named}))
        yield (
            f"{sentence(by_kernels[named], f'computes with {named}')}, others with {others}: the run is as slow as "
            f"the slowest of them, and its last bits depend on where its workers are placed"
            f"{f' ({reason})' if reason else ''}; DSINGA_OPS=numpy in the environment of all gives the same bits"
        )
    elif reason and _driver_has_onednn():
        slow = by_kernels["numpy"]
        yield f"{sentence(slow, 'computes with numpy')}, several times slower than with oneDNN: {reason}"


def _package_differences(reports: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    own = versions()
    groups: dict[str, list[str]] = {}
    for address, report in reports.items():
        packages = report["packages"]
        others = {name: version for name, version in packages.items() if own.get(name, version) != version}
        if others:
            groups.setdefault(f"has {listed(others)}, the driver {listed(own, others)}", []).append(address)
    for predicate, addresses in groups.items():
        yield f"{sentence(addresses, predicate)}; if tasks fail, give all the same versions ({ALL_DIFFERENCES})"


def _driver_has_onednn() -> bool:
    try:
        return get_ops().name == "onednn"
    except UserError:
        return False
