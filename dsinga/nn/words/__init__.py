"""The functions and classes of ``dsinga.nn``: layers, losses, metrics, optimizers and schedules, named as in Keras."""
