"""Names and arguments of Keras's callbacks that extensions lack, with what to write instead."""

from __future__ import annotations

_FUNCTION = "write a function of (step, metrics), which may return True to end training"

CALLBACKS = {
    "BackupAndRestore": 'give fit workspace=, resume="auto" and checkpoint_freq=',
    "CSVLogger": 'write dsinga.extensions.CSV("metrics.csv")',
    "Callback": f"{_FUNCTION}, or a subclass of dsinga.extensions.Extension",
    "CallbackList": "give fit a list: callbacks=[...]",
    "EarlyStopping": 'write dsinga.extensions.EarlyStopping("val_loss")',
    "History": "fit returns it",
    "LambdaCallback": _FUNCTION,
    "LearningRateScheduler": "give the optimizer a schedule, such as nn.ExponentialDecay(...)",
    "ModelCheckpoint": 'write dsinga.extensions.KeepBest("val_loss"), or fit(workspace=..., checkpoint_freq=...)',
    "ProgbarLogger": "fit shows progress; progress=False ends that",
    "ReduceLROnPlateau": 'write dsinga.extensions.ReduceOnPlateau("val_loss")',
    "RemoteMonitor": "write a function of (step, metrics)",
    "SwapEMAWeights": "give the optimizer use_ema=True (docs/ema.md)",
    "TensorBoard": 'write dsinga.extensions.TensorBoard("FOLDER")',
    "TerminateOnNaN": "training always ends where a loss is not finite",
}

ARGUMENTS = {
    "verbose": "fit(progress=False) shows nothing",
    "baseline": "there is none; " + _FUNCTION,
    "start_from_epoch": "there is none; " + _FUNCTION,
    "min_lr": "use min_factor, the least product of all factors",
    **dict.fromkeys(("filename", "filepath"), "use path"),
    **dict.fromkeys(("separator", "append"), "leave it out; a resumed run appends lines"),
    "save_best_only": "KeepBest keeps the best params only",
    "save_weights_only": "params are always written as params",
    "save_freq": "give fit checkpoint_freq=, a number of steps",
    **dict.fromkeys(("write_graph", "write_images", "write_steps_per_second", "update_freq"), "leave it out"),
    **dict.fromkeys(("profile_batch", "embeddings_freq", "embeddings_metadata"), "there is none"),
}
