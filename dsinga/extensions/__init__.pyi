from collections.abc import Mapping

from dsinga.addons.lora.unfreezing import Unfreeze
from dsinga.addons.search.metric_values import MetricValues
from dsinga.addons.trackers.csv_files import CSV, CSVLogger
from dsinga.addons.trackers.mlflow import MLflow
from dsinga.addons.trackers.tensorboard import TensorBoard
from dsinga.extensions.best_value import BestValue
from dsinga.extensions.extension import Extension, LoopView, State
from dsinga.extensions.keras_callbacks import (
    BackupAndRestore,
    Callback,
    KerasEvents,
    LambdaCallback,
    LearningRateScheduler,
    ModelCheckpoint,
    TerminateOnNaN,
    is_keras_callback,
)
from dsinga.extensions.plateaus import (
    EarlyStopping,
    KeepBest,
    ReduceLROnPlateau,
    ReduceOnPlateau,
    StopBeyond,
    StopOnTime,
)
from dsinga.extensions.runner import ExtensionRunner
from dsinga.extensions.standard import (
    Checkpointing,
    Display,
    Evaluation,
    ExtensionLike,
    FunctionExtension,
    check_extensions,
    check_metric,
    create_extension,
    create_extensions,
)
from dsinga.extensions.triggers import (
    AtEnd,
    Either,
    EverySeconds,
    EverySteps,
    LoopPosition,
    OnMetric,
    Trigger,
    WhenBest,
)

__all__ = [
    "CSV", "AtEnd", "BackupAndRestore", "BestValue", "CSVLogger", "Callback", "Checkpointing", "Display",
    "EarlyStopping", "Either", "Evaluation", "EverySeconds", "EverySteps", "Extension", "ExtensionLike",
    "ExtensionRunner", "FunctionExtension", "KeepBest", "KerasEvents", "LambdaCallback", "LearningRateScheduler",
    "LoopPosition", "LoopView", "MLflow", "MetricValues", "ModelCheckpoint", "OnMetric",
    "ReduceLROnPlateau", "ReduceOnPlateau", "State", "StopBeyond", "StopOnTime", "TensorBoard", "TerminateOnNaN",
    "Trigger", "Unfreeze", "WhenBest", "check_extensions", "check_metric", "create_extension", "create_extensions",
    "is_keras_callback",
]  # fmt: skip

def classes() -> Mapping[str, type]: ...
