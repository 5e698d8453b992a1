"""Slices of params and the shards that keep them: plain thread-safe objects, with no idea where they run."""

from dsinga.server.shard import Push, Shard, Snapshot
from dsinga.server.slicing import Slice, slice_for_servers
from dsinga.server.slot import SliceSpec

__all__ = ["Push", "Shard", "Slice", "SliceSpec", "Snapshot", "slice_for_servers"]
