# ruff: noqa: I001  several names a line
from dsinga.addons.fields.microscopes.instances import (
    follow_flows as follow_flows, instance_scores as instance_scores, label_instances as label_instances,
)  # fmt: skip
from dsinga.addons.fields.microscopes.opening import open_ome_zarr as open_ome_zarr
from dsinga.addons.fields.microscopes.writing import write_ome_zarr as write_ome_zarr
from dsinga.addons.fields.records.climatology import FieldClimatology as FieldClimatology
from dsinga.addons.fields.records.climatology_of_data import field_climatology as field_climatology
from dsinga.addons.fields.records.dataset import open_stores as open_stores
from dsinga.addons.fields.records.definition import WindowDefinition as WindowDefinition
from dsinga.addons.fields.records.field_windows import FieldWindows as FieldWindows, windows as windows
from dsinga.addons.fields.records.statistics import (
    FieldStatistics as FieldStatistics, field_statistics as field_statistics,
)  # fmt: skip
from dsinga.addons.fields.records.summary import describe_dataset as describe_dataset, is_dataset as is_dataset
from dsinga.addons.fields.records.window_arguments import define_windows as define_windows
from dsinga.addons.importers import import_records as import_records
from dsinga.addons.importers.batches import (
    Batch as Batch, Record as Record, StoreContents as StoreContents, stack as stack,
)  # fmt: skip
from dsinga.addons.text.text_windows import TextWindows as TextWindows, open_text as open_text
from dsinga.data.column import Column as Column
from dsinga.data.filesystem import resolve as resolve
from dsinga.data.inspection import Verified as Verified, describe as describe, verify_store as verify_store
from dsinga.data.record_source import (
    AlgorithmRecords as AlgorithmRecords, RecordSource as RecordSource, connect_sources as connect_sources,
    kept_bytes as kept_bytes,
)  # fmt: skip
from dsinga.data.sources.open_records import (
    DataSource as DataSource, RecordNames as RecordNames, check_names as check_names, open_like as open_like,
    open_records as open_records,
)  # fmt: skip
from dsinga.data.sources.paths import open_labels as open_labels, open_store as open_store, read_mean as read_mean
from dsinga.data.sources.zarr_source import ZarrSource as ZarrSource
from dsinga.data.stores.record_store import RecordStore as RecordStore
from dsinga.data.stores.writer import write_csv as write_csv, write_store as write_store

__all__ = [
    "AlgorithmRecords", "Batch", "Column", "DataSource", "FieldClimatology", "FieldStatistics", "FieldWindows",
    "Record", "RecordNames", "RecordSource", "RecordStore", "StoreContents", "TextWindows", "Verified",
    "WindowDefinition", "ZarrSource", "check_names", "connect_sources", "define_windows", "describe",
    "describe_dataset", "field_climatology", "field_statistics", "follow_flows", "import_records",
    "instance_scores", "is_dataset", "kept_bytes", "label_instances", "open_labels", "open_like", "open_ome_zarr",
    "open_records", "open_store", "open_stores", "open_text", "read_mean", "resolve", "stack", "verify_store",
    "windows", "write_csv", "write_ome_zarr", "write_store",
]  # fmt: skip
