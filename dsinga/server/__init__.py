"""Slices of params and the shards that keep them: plain thread-safe objects, with no idea where they run."""

from dsinga.server.buckets import Bucket, fill_buckets
from dsinga.server.compression import Codec, create_codec
from dsinga.server.messages import Push, Snapshot
from dsinga.server.revision import AsideRevisions, Revisions, SharedRevisions
from dsinga.server.routes import Route, Routes, routes
from dsinga.server.shard import Shard
from dsinga.server.slicing import Slice, slice_for_servers
from dsinga.server.slot import SliceSpec

__all__ = [
    "AsideRevisions",
    "Bucket",
    "Push",
    "Revisions",
    "Route",
    "Routes",
    "Shard",
    "SharedRevisions",
    "Slice",
    "SliceSpec",
    "Snapshot",
    "create_codec",
    "fill_buckets",
    "routes",
    "slice_for_servers",
]
