"""Names and arguments of Keras's callbacks that extensions lack, with what to write instead."""

from __future__ import annotations

_FUNCTION = "write a function of (step, metrics), which may return True to end training"

CALLBACKS = {
    "CallbackList": "give fit a list: callbacks=[...]",
    "History": "fit returns it",
    "ProgbarLogger": "fit shows progress; progress=False ends that",
    "RemoteMonitor": "write a function of (step, metrics)",
    "SwapEMAWeights": "give the optimizer use_ema=True; tests and the result use the averages (docs/updaters.md)",
}

ARGUMENTS = {
    "verbose": "fit(progress=False) shows nothing",
    "baseline": "there is none; " + _FUNCTION,
    "start_from_epoch": "there is none; " + _FUNCTION,
    "min_lr": "use min_factor, the least product of all factors",
    **dict.fromkeys(("filename", "filepath"), "use path"),
    **dict.fromkeys(("separator", "append"), "leave it out; a resumed run appends lines"),
    **dict.fromkeys(("write_graph", "write_images", "write_steps_per_second", "update_freq"), "leave it out"),
    **dict.fromkeys(("profile_batch", "embeddings_freq", "embeddings_metadata"), "there is none"),
}
