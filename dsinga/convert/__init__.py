"""Turns PyTorch modules into models of ``dsinga.nn``, and exchanges weights by PyTorch's names.

Only :func:`from_torch` imports PyTorch. docs/howto/pytorch.md has examples.

These modules of ``torch.nn``, and the equivalent functions of ``torch.nn.functional``, are converted:

- ``Linear``, ``Embedding``, ``PReLU``
- ``Conv1d`` to ``Conv3d`` with groups, dilation, ``padding="same"`` and any ``padding_mode``; ``ConvTranspose1d`` to
  ``ConvTranspose3d``
- ``BatchNorm``, ``InstanceNorm``, ``GroupNorm``, ``LayerNorm``, ``RMSNorm``. Running statistics continue from the
  module's. A batch normalisation that stays in ``eval()`` keeps them.
- ``MultiheadAttention``, also with ``key_padding_mask``, and Transformer layers
- ``MaxPool`` and ``AvgPool``, also with ``ceil_mode`` and ``dilation``; ``AdaptiveAvgPool``, ``AdaptiveMaxPool``
- ``Upsample`` to any size in any mode, ``PixelShuffle``, ``PixelUnshuffle``, ``ChannelShuffle``, all pads
- ``Dropout``, timm's ``DropPath``, torchvision's ``StochasticDepth``; ``Flatten``, ``Unflatten``
- ``ReLU``, ``ReLU6``, ``LeakyReLU``, ``ELU``, ``SELU``, ``CELU``, ``GELU`` in both forms, ``SiLU``, ``Mish``,
  ``Softplus``, ``Softsign``, ``LogSigmoid``, ``Sigmoid``, ``Tanh``, ``Hardtanh``, ``Hardsigmoid``, ``Hardswish``,
  ``Softmax`` over the last axis

Functions and methods of tensors:

- ``linear``, ``conv1d`` to ``conv3d``, ``layer_norm``, ``group_norm``, ``batch_norm``, ``embedding`` with params of the
  module
- ``+ - * / ** @``, ``bmm``, ``sqrt``, ``rsqrt``, ``square``, ``abs``, ``exp``, ``log``, ``erf``, ``sin``, ``cos``,
  ``clamp``, ``maximum``, ``minimum``; comparisons, ``& | ~``, ``where``, ``masked_fill``
- ``cat``, ``stack``, ``split``, ``chunk``, ``unbind``, indices and slices; ``view``, ``reshape``, ``flatten``,
  ``permute``, ``transpose``, ``squeeze``, ``unsqueeze``, ``expand``, ``repeat``, ``flip``; ``zeros_like`` and similar
- ``mean``, ``sum``, ``amax``, ``amin``, ``max``, ``min``, ``var``, ``std``, ``normalize`` along any axes but the batch
- ``interpolate``, ``pad``, ``scaled_dot_product_attention`` with any mask of two axes, also with ``enable_gqa``

``LSTM``, ``GRU`` and ``RNN`` support several layers, ``bidirectional``, ``dropout`` between layers, ``bias=False`` and
``batch_first=True``. With ``batch_first=False`` the forward must move the batch to the second axis. A forward can use
the output and the last states ``h``. Initial states can be zeros made in the forward or, in one direction, another
layer's last states, computed or learnt states. Refused are:

- ``proj_size``, ``nonlinearity="relu"``, ``LSTMCell`` and similar cells, packed sequences
- other constant states, initial states of both directions, and the cell states ``c`` of both directions

A module ``lstm`` of two layers becomes the layers "lstm" and "lstm.stacked1"; :func:`to_torch` returns
``lstm.weight_ih_l0`` and so on.

Two layers can share a weight. Buffers become params that keep their values. Params with ``requires_grad=False`` become
static. Rows of ``Embedding`` that a batch lacks move as in PyTorch, unless the module is ``sparse=True``.

The function :func:`load_weights` also reads ``in_proj_weight`` of ``MultiheadAttention`` as three arrays,
``in_proj_q.weight``, ``in_proj_k.weight`` and ``in_proj_v.weight``.
"""

from dsinga.convert.from_torch import from_torch
from dsinga.convert.weights import load_weights, save_weights, to_torch

__all__ = ["from_torch", "load_weights", "save_weights", "to_torch"]
