"""The optimizers LAMB and Muon, which need norms of whole params, or whole matrices."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

import numpy as np

from dsinga.base.registry import register
from dsinga.job import UpdaterConf, UpdaterType
from dsinga.job.component import Settings, setting
from dsinga.job.limits import Positive, Share
from dsinga.ops import Array
from dsinga.ops.update import sum_of_squares
from dsinga.training.updater import Block, Change, Updater
from dsinga.training.updaters import AdamW, average, set_corrected_step

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # the coefficients of Jordan's quintic iteration
ITERATIONS = 5


@register("updater", kLamb=10)
class Lamb(Updater):
    """LAMB of You et al. (2020): u = â / (√v̂ + δ) + λ·w; w -= lr·‖w‖ / ‖u‖·u.

    â and v̂ are the corrected moments of Adam, and λ is the weight decay, as in optax. If a norm is 0, w -= lr·u.
    """

    class Conf(Settings):
        """Settings of kLamb."""

        beta1: Share = setting(0.9, "the decay of the first moment, the running mean of gradients")
        beta2: Share = setting(0.999, "the decay of the second moment, the running mean of squared gradients")

    settings: Conf
    slots = ("mean", "squares")
    whole = True

    def change_at(self, step: int) -> Change:
        """Return a function that writes the unscaled direction of update ``step`` + 1 to ``t``."""
        return functools.partial(self._direct, step + 1)

    def change(self, lr: float, w: Block, g: Block, slots: Sequence[Block], t: Block, s: Block) -> None:
        """Write the direction of the first update to ``t``."""
        self._direct(1, lr, w, g, slots, t, s)

    def _direct(self, count: int, lr: float, w: Block, g: Block, slots: Sequence[Block], t: Block, s: Block) -> None:
        """Write Adam's step with bias correction, at a learning rate of 1, to ``t``."""
        set_corrected_step(count, 1.0, self.settings, self.conf.delta, g, slots, t, s)

    def decay_and_change(
        self, change: Change, lr: float, decay: float, w: Block, g: Block, slots: Sequence[Block], t: Block, s: Block
    ) -> None:
        """Apply LAMB's formula, weight decay included, to a whole param."""
        change(lr, w, g, slots, t, s)
        if decay:
            t += np.multiply(w, decay, out=s)
        norms = math.sqrt(sum_of_squares(w)), math.sqrt(sum_of_squares(t))
        t *= lr * (norms[0] / norms[1] if all(norms) else 1.0)
        w -= t


@register("updater", kMuon=11)
class Muon(Updater):
    """Muon of Jordan (2024) for matrices, scaled as in Liu et al. (2025), and AdamW for all other params.

    For a matrix: a = β·a + (1 - β)·g; u = β·a / (1 - βᵗ⁺¹) + (1 - β)·g / (1 - βᵗ); w -= lr·``rms``·√max(rows,
    columns)·O(u). O(u) is about the nearest matrix with orthonormal rows or columns: five Newton-Schulz iterations in
    float32.

    With ``rms`` 0.2, learning rates and decays of AdamW fit, as with optax's consistent_rms=0.2 and torch's
    adjust_lr_fn="match_rms_adamw". Embeddings and the last layer do better with AdamW: name them in ``adamw_match``.
    The weight decay is decoupled.
    """

    class Conf(Settings):
        """Settings of kMuon."""

        beta: Share = setting(0.95, "the decay of the running mean of a matrix's gradients")
        rms: Positive = setting(0.2, "the root mean square of a step of a square matrix of full rank, times lr")
        adamw_match: list[str] = setting(
            [],
            'names of matrices that AdamW updates, such as "embedding*": embeddings and the last layer are better so',
        )
        beta1: Share = setting(0.9, "the decay of the first moment of AdamW")
        beta2: Share = setting(0.999, "the decay of the second moment of AdamW")

    settings: Conf
    slots = ("mean",)
    whole = True
    decoupled = True
    pattern_settings = ("adamw_match",)

    def __init__(self, conf: UpdaterConf):
        super().__init__(conf)
        betas = {"beta1": self.settings.beta1, "beta2": self.settings.beta2}
        self._adamw = AdamW(conf.replace(type=UpdaterType.kAdamW, muon_conf=None, adamw_conf=betas, param_settings=[]))

    def for_param(self, param: str, shape: tuple[int, ...]) -> Updater:
        """Return the updater of a param: Muon for a matrix, AdamW for others and matches of ``adamw_match``."""
        matches = any(fnmatchcase(param, pattern) for pattern in self.settings.adamw_match)
        return self._adamw if matches or len(shape) != 2 else self

    def set_rate_factors(self, factors: Mapping[int, float]) -> None:
        """Multiply the learning rates of all params by factors, each starting at the step that is its key."""
        super().set_rate_factors(factors)
        self._adamw.set_rate_factors(factors)

    def change_at(self, step: int) -> Change:
        """Return the function that applies Muon at ``step``."""
        return functools.partial(self._change, step + 1)

    def change(self, lr: float, w: Block, g: Block, slots: Sequence[Block], t: Block, s: Block) -> None:
        """Change a matrix, or a vector as a one-row matrix, by the formula of the first update."""
        self._change(1, lr, w, g, slots, t, s)

    def _change(self, count: int, lr: float, w: Block, g: Block, slots: Sequence[Block], t: Block, s: Block) -> None:
        """Apply Muon's formula, as update number ``count``, to a matrix."""
        (m,), beta = slots, self.settings.beta
        average(m, g, beta, s)
        np.multiply(g, (1.0 - beta) / (1.0 - beta**count), out=t)
        t += np.multiply(m, beta / (1.0 - beta ** (count + 1)), out=s)
        step = orthogonal(t if t.ndim == 2 else t.reshape(1, -1), self.conf.delta)
        step *= lr * self.settings.rms * math.sqrt(max(step.shape))
        w -= step.reshape(w.shape)


def orthogonal(matrix: Array, delta: float) -> Array:
    """Return nearly the closest matrix with orthonormal rows or columns (singular values 0.7 to 1.2).

    Five Newton-Schulz iterations x = a·x + (b·A + c·A²)·x with A = x·xᵀ start at x = matrix / (‖matrix‖ + delta).
    """
    a, b, c = NEWTON_SCHULZ
    rows, columns = matrix.shape
    x = (matrix.T if rows > columns else matrix) * (1.0 / (math.sqrt(sum_of_squares(matrix)) + delta))
    for _ in range(ITERATIONS):
        products = x @ x.T
        x = a * x + (b * products + c * (products @ products)) @ x
    return x.T if rows > columns else x
