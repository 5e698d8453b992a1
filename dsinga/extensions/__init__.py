"""Extensions of the training loop: display, evaluation, checkpoints, early stopping, and a user's own.

An :class:`Extension` runs when its :class:`Trigger` fires, and sees the run as a :class:`LoopView`. Extensions run in
the driver's process, without Dask. The loop is in ``dsinga.loop.training_loop``.
"""

from dsinga.base.arguments import missing_names
from dsinga.base.components import lazy_names
from dsinga.base.registry import entries, is_user_code
from dsinga.extensions.extension import CALLBACKS


def classes() -> dict[str, type]:
    """Return the built-in extension classes by name."""
    types = entries("extension").values()
    return {cls.__name__: cls for cls in types if isinstance(cls, type) and not is_user_code(cls)}


# The names of __init__.pyi, those of add-ons included.
__getattr__, __dir__ = lazy_names(__name__, missing_names(__name__, derived=classes, instead=CALLBACKS))
