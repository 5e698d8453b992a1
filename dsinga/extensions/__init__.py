"""Extensions of the training loop: display, evaluation, checkpoints, early stopping, and a user's own.

An :class:`Extension` runs at the moments that its :class:`Trigger` names, and sees the run as a :class:`LoopView`. All
of this runs in the driver's process and knows no Dask: the loop itself is in ``dsinga.loop.training_loop``.
"""

from typing import TYPE_CHECKING

from dsinga.base.arguments import missing_names
from dsinga.base.lazy_names import lazy_names
from dsinga.base.registry import entries, is_user_code
from dsinga.extensions.extension import CALLBACKS

if TYPE_CHECKING:
    from dsinga.extensions.best_value import BestValue
    from dsinga.extensions.csv_table import CSV
    from dsinga.extensions.extension import Extension, LoopView, State
    from dsinga.extensions.keras_callbacks import (
        BackupAndRestore,
        Callback,
        CSVLogger,
        KerasEvents,
        LambdaCallback,
        LearningRateScheduler,
        ModelCheckpoint,
        ReduceLROnPlateau,
        TerminateOnNaN,
        is_keras_callback,
    )
    from dsinga.extensions.median_stopping import MedianRule, MedianStopping, MetricValues
    from dsinga.extensions.mlflow import MLflow
    from dsinga.extensions.plateaus import EarlyStopping, KeepBest, ReduceOnPlateau
    from dsinga.extensions.runner import ExtensionRunner
    from dsinga.extensions.standard import (
        Checkpointing,
        Display,
        Evaluation,
        ExtensionLike,
        FunctionExtension,
        create_extension,
        create_extensions,
    )
    from dsinga.extensions.stop_on_time import StopOnTime
    from dsinga.extensions.tensorboard import TensorBoard
    from dsinga.extensions.triggers import AtEnd, Either, EverySeconds, EverySteps, Moment, OnMetric, Trigger, WhenBest
    from dsinga.extensions.validation import check_extensions, check_metric

__all__ = [
    "CSV", "AtEnd", "BackupAndRestore", "BestValue", "CSVLogger", "Callback", "Checkpointing", "Display",
    "EarlyStopping", "Either", "Evaluation", "EverySeconds", "EverySteps", "Extension", "ExtensionLike",
    "ExtensionRunner", "FunctionExtension", "KeepBest", "KerasEvents", "LambdaCallback", "LearningRateScheduler",
    "LoopView", "MLflow", "MedianRule", "MedianStopping", "MetricValues", "ModelCheckpoint", "Moment", "OnMetric",
    "ReduceLROnPlateau", "ReduceOnPlateau", "State", "StopOnTime", "TensorBoard", "TerminateOnNaN", "Trigger",
    "WhenBest", "check_extensions", "check_metric", "create_extension", "create_extensions", "is_keras_callback",
]  # fmt: skip


def classes() -> dict[str, type]:
    """Return the classes of the built-in extensions by name."""
    types = entries("extension").values()
    return {cls.__name__: cls for cls in types if isinstance(cls, type) and not is_user_code(cls)}


if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, missing_names(__name__, __all__, classes, instead=CALLBACKS))
