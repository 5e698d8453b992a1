from dsinga.addons.fields.microscopes.instances import follow_flows, instance_scores, label_instances
from dsinga.addons.fields.microscopes.opening import open_ome_zarr
from dsinga.addons.fields.microscopes.writing import write_ome_zarr
from dsinga.addons.fields.records.climatology import FieldClimatology
from dsinga.addons.fields.records.climatology_of_data import field_climatology
from dsinga.addons.fields.records.dataset import open_stores
from dsinga.addons.fields.records.definition import WindowDefinition
from dsinga.addons.fields.records.field_windows import FieldWindows, windows
from dsinga.addons.fields.records.statistics import FieldStatistics, field_statistics
from dsinga.addons.fields.records.summary import describe_dataset, is_dataset
from dsinga.addons.fields.records.window_arguments import define_windows
from dsinga.addons.importers import import_records
from dsinga.addons.importers.batches import Batch, Record, StoreContents, stack
from dsinga.addons.text.text_windows import TextWindows, open_text
from dsinga.data.column import Column
from dsinga.data.filesystem import resolve
from dsinga.data.inspection import Verified, describe, verify_store
from dsinga.data.record_source import AlgorithmRecords, RecordSource, connect_sources, kept_bytes
from dsinga.data.sources.open_records import DataSource, RecordNames, check_names, open_like, open_records
from dsinga.data.sources.paths import open_labels, open_store, read_mean
from dsinga.data.sources.zarr_source import ZarrSource
from dsinga.data.stores.record_store import RecordStore
from dsinga.data.stores.writer import write_csv, write_store

__all__ = [
    "AlgorithmRecords", "Batch", "Column", "DataSource", "FieldClimatology", "FieldStatistics", "FieldWindows",
    "Record", "RecordNames", "RecordSource", "RecordStore", "StoreContents", "TextWindows", "Verified",
    "WindowDefinition", "ZarrSource", "check_names", "connect_sources", "define_windows", "describe",
    "describe_dataset", "field_climatology", "field_statistics", "follow_flows", "import_records", "instance_scores",
    "is_dataset", "kept_bytes", "label_instances", "open_labels", "open_like", "open_ome_zarr", "open_records",
    "open_store", "open_stores", "open_text", "read_mean", "resolve", "stack", "verify_store", "windows", "write_csv",
    "write_ome_zarr", "write_store",
]  # fmt: skip
