"""Reads batches of sites (worker groups) that each have their own stores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dsinga.base.errors import UserError
from dsinga.base.registry import implements, register
from dsinga.data import RecordSource
from dsinga.layers import RecordInfo
from dsinga.reading.batch_reader import BatchReader, ReaderOfSites


@dataclass(frozen=True)
class SiteReader(BatchReader):
    """Gives each worker group a reader of its own stores, which only its processes open.

    ``open_site`` opens a site's stores and returns their reader; ``opened`` has the readers of this process's sites.
    """

    open_site: Callable[[int], BatchReader] | None = None
    opened: dict[int, BatchReader] = field(default_factory=dict, compare=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        sampler = replace(self.sampler, lengths=None)  # lengths refer to a store
        return {**vars(self), "stores": {}, "sampler": sampler, "opened": {}}

    @property
    def shared_stores(self) -> Mapping[str, RecordSource]:
        """The stores that all processes read: none."""
        return {}

    def of_group(self, group: int) -> BatchReader:
        """Open a site's stores, if necessary, and return their reader."""
        if group not in self.opened:
            assert self.open_site is not None
            try:
                reader = self.open_site(group)
                for name, info in reader.infos.items():
                    _check_alike(name, info, self.infos[name])
            except UserError as error:
                raise UserError(f"the records of site {group}: {error}") from None
            self.opened[group] = reader
        return self.opened[group]


def _check_alike(name: str, info: RecordInfo, expected: RecordInfo) -> None:
    """Raise UserError if a site's records are unlike the records with which the job was checked."""
    for fact in ("shape", "label_shape", "codes", "words", "label_names"):
        value, checked = getattr(info, fact), getattr(expected, fact)
        if value == checked or fact == "label_names" and not (value and checked):  # a store may name no classes
            continue
        values = f"{fact.replace('_', ' ')} {value}, and {checked} in"
        raise UserError(
            f"layer {name!r} has {'other words than' if fact == 'words' else values} the store by which the job was "
            "checked; give all sites records of the same kind, with the same vocabulary and classes"
        )


@register("hook", "site_reader")
@implements(ReaderOfSites)
def site_reader(reader: BatchReader, open_site: Callable[[int], BatchReader]) -> SiteReader:
    """Create a reader of each site's own stores, from the reader with which the job was checked."""
    return SiteReader(**{**vars(reader), "groups": 1}, open_site=open_site)
