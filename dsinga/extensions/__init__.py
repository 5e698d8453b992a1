"""Extensions of the training loop (callbacks): display, evaluation, checkpoints, early stopping, and your own.

An :class:`Extension` runs when its :class:`Trigger` fires, in the driver's process, and sees the run as a
:class:`LoopView`. The loop is in ``dsinga.loop.training_loop``.
"""

from dsinga.base.arguments import missing_names
from dsinga.base.components import lazy_names
from dsinga.base.registry import entries, is_user_code
from dsinga.extensions.extension import CALLBACKS


def classes() -> dict[str, type]:
    """Return the extension classes that come with dsinga, by name."""
    types = entries("extension").values()
    return {cls.__name__: cls for cls in types if isinstance(cls, type) and not is_user_code(cls)}


# The names of __init__.pyi, those of add-ons included.
__getattr__, __dir__ = lazy_names(__name__, missing_names(__name__, derived=classes, instead=CALLBACKS))
