"""Batches of a job whose sites each train on a store of their own, which no other process opens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dsinga.base.errors import UserError
from dsinga.data import RecordSource
from dsinga.job import Job
from dsinga.layers import RecordInfo
from dsinga.reading.batch_reader import BatchReader


def site_job(job: Job, site: int) -> Job:
    """Return the job that trains on the stores of a site: its ``site_path`` in place of ``path``."""
    layers = [
        layer.replace(store_conf=layer.store_conf.replace(path=layer.store_conf.site_path[site], site_path=[]))
        if layer.store_conf is not None and layer.store_conf.site_path
        else layer
        for layer in job.neuralnet.layer
    ]
    return job.replace(neuralnet=job.neuralnet.replace(layer=layers))


@dataclass(frozen=True)
class SiteReader(BatchReader):
    """A reader of which each worker group takes the part that reads its own stores, by :meth:`of_group`.

    Its own stores, order and epochs are those of the process that made it, which checks the job by them. A pickle has
    none of these: each process opens the stores of its groups only.

    Attributes:
        open_site: opens the stores of a site and returns their reader.
        opened: the readers of the sites of this process.
    """

    open_site: Callable[[int], BatchReader] | None = None
    opened: dict[int, BatchReader] = field(default_factory=dict, compare=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        sampler = replace(self.sampler, lengths=None)  # lengths refer to a store
        return {**vars(self), "stores": {}, "sampler": sampler, "opened": {}}

    @property
    def shared_stores(self) -> Mapping[str, RecordSource]:
        """No store is read by all processes."""
        return {}

    def of_group(self, group: int) -> BatchReader:
        """Return the reader of a site's own records.

        Raises UserError where they are missing or unlike those that the job was checked with.
        """
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
    """Raise UserError where the records of a site are not of the kind of those by which the job was checked."""
    for fact in ("shape", "label_shape", "codes", "words", "label_names"):
        here, there = getattr(info, fact), getattr(expected, fact)
        if here == there or fact == "label_names" and not (here and there):  # a store may name no classes
            continue
        values = f"{fact.replace('_', ' ')} {here}, and {there} in"
        raise UserError(
            f"layer {name!r} has {'other words than' if fact == 'words' else values} the store by which the job was "
            "checked; give all sites records of the same kind, with the same vocabulary and classes"
        )
