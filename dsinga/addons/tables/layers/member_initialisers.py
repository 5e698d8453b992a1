"""Initialisers of ensembles: the initial factors of members, and equal biases."""

from __future__ import annotations

import numpy as np

from dsinga.base.registry import register
from dsinga.job import ParamGenConf
from dsinga.job.component import Settings, setting
from dsinga.job.limits import Count
from dsinga.layers.interface.layer import Shape
from dsinga.training.initialisers import Initialiser, uniform


@register("initialiser", kMemberScales=8)
class MemberScales(Initialiser):
    """Draws -1 or 1, or N(0, 1), for each member and each block of neighbouring columns: the r of kBatchEnsemble.

    A block has the columns of one number or category of a record. Gorishniy et al., TabM (2024), use signs where
    numbers have no embeddings, else N(0, 1).
    """

    class Conf(Settings):
        """Settings of kMemberScales."""

        block: list[Count] = setting([], "the columns of each block, from left to right; by default one each")
        normal: bool = setting(False, "whether the factors are drawn from N(0, 1)")

    settings: Conf

    def __call__(self, shape: Shape, rng: np.random.Generator) -> np.ndarray:
        """Return the factors, (members, columns)."""
        members, columns = shape
        block = self.settings.block or [1] * columns
        if sum(block) != columns:
            text = f"block has {sum(block)} columns in all, but the param has {columns}; give the columns of each block"
            raise self.settings.error(text, "block")
        size = members, len(block)
        drawn = rng.standard_normal(size) if self.settings.normal else 2.0 * rng.integers(0, 2, size) - 1
        return np.repeat(drawn, block, axis=1)


@register("initialiser", kUniformRow=9)
def uniform_row(shape: Shape, conf: ParamGenConf, rng: np.random.Generator) -> np.ndarray:
    """Draw one row from value·U[low, high), and repeat it for each member."""
    return np.broadcast_to(uniform(shape[1:], conf, rng), shape)
