"""Names and arguments of Keras's callbacks that extensions lack, with what to write instead: ``keras.toml``."""

from __future__ import annotations

from pathlib import Path

from dsinga.base.arguments import Remedies

_FILE = Path(__file__).with_name("keras.toml")
CALLBACKS, ARGUMENTS = Remedies(_FILE, "callbacks"), Remedies(_FILE, "arguments")
