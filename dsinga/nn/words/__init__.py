"""The public functions and classes of ``dsinga.nn``: layers, losses, metrics, optimizers and schedules, as in Keras."""
