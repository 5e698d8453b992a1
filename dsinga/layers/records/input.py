"""Input layers that read stored records: kRecordInput, kCSVInput, kLMDBData, kShardData, and kDummy for random ones."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dsinga.base.registry import register
from dsinga.job import DataConf, LayerConf, StoreConf
from dsinga.job.component import Settings, setting
from dsinga.job.limits import Count
from dsinga.layers.interface.checks import shape_text
from dsinga.layers.interface.context import Columns, Context, RecordInfo, Records
from dsinga.layers.interface.declarations import Connection, Cut, Keeps, SourceKind
from dsinga.layers.interface.layer import Arrays, Gradients, Layer, Output, Shape
from dsinga.layers.interface.region import Region
from dsinga.ops import AsyncCopy, Ops
from dsinga.ops.layout import LAST, to_image
from dsinga.ops.types import PointRanges


@register("layer", kRecordInput=103, kCSVInput=100)
class RecordInput(Layer):
    """Records of a store, normalised: (record - mean) / std as float32 (B, ...), and their labels.

    Labels are integers or floats, (B,) or (B, K), for sequences (B, T). Codes, such as words, stored as int32 are
    passed on unchanged.

    ``store_conf.shape`` reshapes a record. With ``channels_last`` the shape is (H, W, C), or (D, H, W, C) for volumes,
    and the feature (B, C, H, W). ``mean_file`` and ``std_file`` override ``mean_value`` and ``std_value``; each
    broadcasts against a record.
    """

    required_fields = ("store_conf",)
    source_count = 0
    cut = Cut(gathered_because="reads whole records", by_space=True)
    is_input = True

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        assert info is not None, "an input layer is made with the RecordInfo of its store"
        store = conf.store_conf or StoreConf()
        self.codes = info.codes
        self.stored = tuple(info.shape)
        self.record = self._record_shape(store, self.stored)
        self.shape = (info.batchsize, *self._channels_first(store))
        self.mean = self._per_record(info.mean, store.mean_value, store, "mean")
        self.std = self._per_record(info.std, store.std_value, store, "std")
        if self.std is not None and not np.all(self.std):
            raise self.fail("records are divided by std, but std_file has zeros; give numbers above 0", store)
        self.channels_last = store.channels_last
        if self.channels_last:
            self.mean, self.std = (
                np.moveaxis(np.broadcast_to(array, self.record), -1, 0) if np.ndim(array) else array
                for array in (self.mean, self.std)
            )

    def regions_read(self) -> tuple[PointRanges | None, PointRanges | None]:
        data = labels = None
        if self.region is not None and self.record == self.stored:
            data = self.region.points_of(self.region.whole(self.shape))
            data = (*data[1:], data[0]) if self.channels_last else data
        if self.label_region is not None:
            labels = self.label_region.points_of((0, *self.label_format.shape))
        return data, labels

    def take_region(self, records: Records) -> Records:
        data, labels = records
        if self.region is None:
            return records
        if math.prod(data.shape[1:]) == math.prod(self.shape[1:]):  # read so
            data = to_image(data) if self.channels_last else data.reshape(len(data), *self.shape[1:])
        else:
            data = self._part(data).copy(order="K")
        if self.label_region is not None and labels is not None:
            part = self.label_region.take(labels)
            labels = part if part is labels else part.copy()
        return Records(data, labels)

    def _part(self, data: Any) -> Any:
        """Return records as (B, C, ...), as a view; for a layer cut by space, only this worker's points."""
        if self.region is not None and data.shape[1:] == self.shape[1:]:  # by take_region
            return data
        if data.shape[1:] != self.record:
            data = data.reshape(len(data), *self.record)
        if self.channels_last:
            data = to_image(data)  # whose memory is as kernels take it
        return data if self.region is None else self.region.of(data)

    def send_ahead(self, records: Records, ops: Ops) -> Records:
        return records if self._are_codes(records.data) else records._replace(data=ops.upload(records.data))

    def _are_codes(self, data: Any) -> bool:
        """Whether ``data`` are integer codes, which stay in host memory with every backend."""
        return self.mean is None and self.std is None and data.dtype == np.int32

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        records: Records = sources[0]
        data = records.data.result() if isinstance(records.data, AsyncCopy) else records.data
        data, labels = self._part(data), records.labels
        if type(data) is np.ndarray:
            data = data.view()  # a feature becomes read-only, the batch of a caller must not
        if self.label_region is not None and labels is not None:
            labels = self.label_region.take(labels)
        if self._are_codes(data):
            return Output(data, labels=labels)
        unchanged = self.mean is None and self.std is None and data.dtype == np.float32 and data.ndim not in LAST
        feature = ctx.ops.asarray(data) if unchanged else ctx.ops.images(data, mean=self.mean, std=self.std)
        return Output(feature, labels=labels)

    def region_part(self, region: Region, source_shapes: Sequence[Shape]) -> Layer:
        part = copy.copy(self)
        part.shape = region.part(self.shape)
        part.mean, part.std = (
            region.of(np.broadcast_to(array, self.shape[1:]), missing=1) if np.ndim(array) else array
            for array in (self.mean, self.std)
        )
        return part

    def _channels_first(self, store: StoreConf) -> Shape:
        """Return the shape of a row of the feature: the record's shape, for images channels first."""
        if not store.channels_last:
            return self.record
        if len(self.record) not in (3, 4):
            raise self.fail(
                f"takes images (height, width, channels), or volumes with a depth before the height, as channels_last "
                f"says, but records are {shape_text(self.record)}; leave channels_last out, or give the shape of an "
                "image",
                store,
                "channels_last",
            )
        *size, channels = self.record
        return channels, *size

    def _record_shape(self, store: StoreConf, stored: Shape) -> Shape:
        """Return the shape of a record: the job's, if it has one, or the store's."""
        shape = tuple(store.shape)
        if not shape or store.augment:  # which take records of this shape, and may give others
            return stored
        if math.prod(shape) != math.prod(stored):
            raise self.fail(
                f"store_conf gives a record the shape {shape_text(shape)} ({math.prod(shape)} numbers), but the store "
                f"has records of {shape_text(stored)} ({math.prod(stored)} numbers); leave shape out, or make them "
                "equal",
                store,
                "shape",
            )
        return shape

    def _per_record(self, array: Any, scalar: float | None, store: StoreConf, what: str) -> Any:
        """Load the mean or std, shaped as a record or a number; None if the job gives neither."""
        if array is None:
            return scalar
        array = np.asarray(array, np.float32)
        if array.size == math.prod(self.record):
            return array.reshape(self.record)
        try:
            fits = np.broadcast_shapes(array.shape, self.record) == self.record
        except ValueError:
            fits = False
        if not fits:
            raise self.fail(
                f"the {what} has the shape {shape_text(array.shape)}, a record {shape_text(self.record)}; "
                f"give the {what}_file that was made from this store",
                store,
                f"{what}_file",
            )
        return array


@register("layer", kLMDBData=190)
class LMDBData(RecordInput):
    """Records of an LMDB database, read by kRecordInput with SINGA's older settings."""

    required_fields = ("lmdbdata_conf",)

    @classmethod
    def reads(cls, conf: LayerConf) -> StoreConf | None:
        return conf.store_conf or _older_store(conf.lmdbdata_conf, "lmdb")


@register("layer", kShardData=194)
class ShardData(RecordInput):
    """Records of SINGA's shard files, read by kRecordInput with SINGA's older settings."""

    required_fields = ("sharddata_conf",)

    @classmethod
    def reads(cls, conf: LayerConf) -> StoreConf | None:
        return conf.store_conf or _older_store(conf.sharddata_conf)


def _older_store(conf: DataConf | None, backend: str | None = None) -> StoreConf | None:
    """Convert SINGA's older store settings to settings of kRecordInput."""
    if conf is None:
        return None
    return StoreConf(backend=backend, path=conf.path, batchsize=[conf.batchsize], random_skip=conf.random_skip)


@register("layer", kDummy=204)
class Dummy(Layer):
    """Pass on the source; with ``input``, make uniform random numbers in [0, 1) of ``dummy_conf.shape`` instead.

    With ``output`` the layer is an end of the net and has no gradient.
    """

    source_kind = SourceKind.kVectors

    class Conf(Settings):
        """Settings of kDummy."""

        input: bool = setting(False, "whether the layer makes random numbers, in place of passing on its source")
        output: bool = setting(False, "whether the layer is an end of the net")
        shape: list[Count] = setting([], "the shape of the random numbers, the batch first")

    settings: Conf
    cut = Cut(Connection.kOneToOne, by_space=True)
    keeps = Keeps(sources=0, feature=False)

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        dummy = self.settings
        self.makes_numbers, self.is_output = dummy.input, dummy.output
        if dummy.input:
            self.expect_sources(0)
            if len(dummy.shape) < 2:
                raise self.fail("needs dummy_conf { shape: ... }, the batch first, at least two numbers above 0", dummy)
            self.shape, self.cut = tuple(dummy.shape), Cut(Connection.kOneToAll)  # it has no source
        else:
            self.expect_sources(1)

    def cut_conf(self, columns: Columns) -> LayerConf:
        if not self.makes_numbers:
            return self.conf
        rows, _, *rest = self.shape
        return self.conf.replace(dummy_conf=self.settings.replace(shape=[rows, columns.stop - columns.start, *rest]))

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        if not self.makes_numbers:
            return Output(sources[0])
        rows = self.random(ctx)
        return Output(rows if len(self.shape) == 2 else ctx.ops.unflatten(rows, (rows.shape[0], *self.shape[1:])))

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        return [grad if need else None for need in needs], ()
