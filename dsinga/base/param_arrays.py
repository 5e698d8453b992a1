"""The type of what is kept by param: values, gradients, a slot of the updater's state."""

import numpy as np

ParamArrays = dict[str, np.ndarray]
"""Arrays by the names of params: values, gradients, or a slot of the updater's state."""
