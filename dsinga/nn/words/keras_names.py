"""Names and arguments of Keras that ``nn`` lacks, with what to write instead: the tables of ``keras.toml``."""

from __future__ import annotations

import functools
from collections import ChainMap
from pathlib import Path

from dsinga.base.arguments import Remedies
from dsinga.base.arguments import missing_names as missing
from dsinga.extensions.extension import CALLBACKS

_FILE = Path(__file__).with_name("keras.toml")
OPTIMIZERS = Remedies(_FILE, "optimizers")
LOSS_NAMES = Remedies(_FILE, "loss_names")  # losses as compile names them
NAMES = ChainMap(Remedies(_FILE, "layers", "optimizers", "losses", "metrics", "pytorch", "others"), CALLBACKS)
ARGUMENTS = Remedies(_FILE, "arguments")  # by argument, and by "Function.argument" where it has several meanings
MODEL_ATTRIBUTES, LAYER_ATTRIBUTES = Remedies(_FILE, "model"), Remedies(_FILE, "layer")
STEP_METHODS = set("train_step test_step predict_step compute_loss compute_metrics make_train_function".split())

missing_names = functools.partial(missing, instead=NAMES)
