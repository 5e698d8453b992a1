"""Finds a zarr group's first array with unreadable metadata or coordinates."""

from __future__ import annotations

import itertools
from typing import Any

import zarr

from dsinga.base.errors import UserError
from dsinga.base.redaction import redact, redacted_cause
from dsinga.data.filesystem import zarr_store
from dsinga.data.stores.store_faults import chunk_fault, member_names, metadata_remedy

MOST_MEMBERS = 1000  # of a group that are looked at


def check_members(location: str) -> None:
    """Raise UserError for the first array of a group with unreadable metadata or coordinates."""
    node = zarr.open(store=zarr_store(location, read_only=True), mode="r")
    if not isinstance(node, zarr.Group):
        return
    for name in itertools.islice(member_names(location, node.store), MOST_MEMBERS):
        try:
            member = node[name]
        except KeyError:
            continue
        except Exception as error:  # of damaged metadata: any class
            fault = redact(f"{type(error).__name__}: {error}", location)
            remedy = metadata_remedy(location, name) or "write it again, or put back a copy of its metadata"
            raise UserError(
                f"{redact(location)}: the metadata of {name!r} cannot be read ({fault}); {remedy}"
            ) from redacted_cause(error, location)
        if isinstance(member, zarr.Array) and member.ndim == 1 and _is_coordinate(member, name):
            region = (slice(0, member.shape[0]),)
            try:
                member[region]
            except Exception as error:  # of codecs and file systems: any class
                raise chunk_fault(member, region, error) from redacted_cause(error, location)


def _is_coordinate(array: Any, name: str) -> bool:
    names = getattr(array.metadata, "dimension_names", None) or dict(array.attrs).get("_ARRAY_DIMENSIONS", ())
    return tuple(names) == (name,)
