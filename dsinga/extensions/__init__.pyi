# ruff: noqa: I001  several names a line
from collections.abc import Mapping as _Mapping

from dsinga.addons.lora.unfreezing import Unfreeze as Unfreeze
from dsinga.addons.search.metric_values import MetricValues as MetricValues
from dsinga.addons.trackers.csv_files import CSV as CSV, CSVLogger as CSVLogger
from dsinga.addons.trackers.mlflow import MLflow as MLflow
from dsinga.addons.trackers.tensorboard import TensorBoard as TensorBoard
from dsinga.extensions.best_value import BestValue as BestValue
from dsinga.extensions.extension import Extension as Extension, LoopView as LoopView, State as State
from dsinga.extensions.keras_callbacks import (
    BackupAndRestore as BackupAndRestore, Callback as Callback, KerasEvents as KerasEvents,
    LambdaCallback as LambdaCallback, LearningRateScheduler as LearningRateScheduler,
    ModelCheckpoint as ModelCheckpoint, TerminateOnNaN as TerminateOnNaN, is_keras_callback as is_keras_callback,
)  # fmt: skip
from dsinga.extensions.plateaus import (
    EarlyStopping as EarlyStopping, KeepBest as KeepBest, ReduceLROnPlateau as ReduceLROnPlateau,
    ReduceOnPlateau as ReduceOnPlateau, StopBeyond as StopBeyond, StopOnTime as StopOnTime,
)  # fmt: skip
from dsinga.extensions.runner import ExtensionRunner as ExtensionRunner
from dsinga.extensions.standard import (
    Checkpointing as Checkpointing, Display as Display, Evaluation as Evaluation, ExtensionLike as ExtensionLike,
    FunctionExtension as FunctionExtension, check_extensions as check_extensions, check_metric as check_metric,
    create_extension as create_extension, create_extensions as create_extensions,
)  # fmt: skip
from dsinga.extensions.triggers import (
    AtEnd as AtEnd, Either as Either, EverySeconds as EverySeconds, EverySteps as EverySteps,
    LoopPosition as LoopPosition, OnMetric as OnMetric, Trigger as Trigger, WhenBest as WhenBest,
)  # fmt: skip

__all__ = [
    "CSV", "AtEnd", "BackupAndRestore", "BestValue", "CSVLogger", "Callback", "Checkpointing", "Display",
    "EarlyStopping", "Either", "Evaluation", "EverySeconds", "EverySteps", "Extension", "ExtensionLike",
    "ExtensionRunner", "FunctionExtension", "KeepBest", "KerasEvents", "LambdaCallback", "LearningRateScheduler",
    "LoopPosition", "LoopView", "MLflow", "MetricValues", "ModelCheckpoint", "OnMetric", "ReduceLROnPlateau",
    "ReduceOnPlateau", "State", "StopBeyond", "StopOnTime", "TensorBoard", "TerminateOnNaN", "Trigger", "Unfreeze",
    "WhenBest", "check_extensions", "check_metric", "create_extension", "create_extensions", "is_keras_callback",
]  # fmt: skip

def classes() -> _Mapping[str, type]: ...
