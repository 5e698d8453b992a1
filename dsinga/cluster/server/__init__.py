"""Parameter servers without Dask: shards (a server's slices of params), their updates, and exchange between servers."""

from dsinga.cluster.server.compression import Codec, create_codec
from dsinga.cluster.server.gradient_accumulator import GroupStaleness, Push
from dsinga.cluster.server.group_sync import GroupSync, LinkedShard, Policy, Route, Routes, routes
from dsinga.cluster.server.served_slice import ShardCopy, SliceSpec
from dsinga.cluster.server.shard import Shard
from dsinga.cluster.server.slicing import Bucket, Slice, cut_into_pieces, fill_buckets, slice_for_servers
from dsinga.cluster.server.sum_sync import SumSync
from dsinga.cluster.server.update_executors import BackgroundExecutor, CooperativeExecutor, InlineExecutor

__all__ = [
    "BackgroundExecutor",
    "Bucket",
    "CooperativeExecutor",
    "GroupStaleness",
    "GroupSync",
    "InlineExecutor",
    "LinkedShard",
    "Policy",
    "Push",
    "Route",
    "Routes",
    "Shard",
    "ShardCopy",
    "Slice",
    "SliceSpec",
    "SumSync",
    "create_codec",
    "cut_into_pieces",
    "fill_buckets",
    "routes",
    "slice_for_servers",
]
