"""Restricted Boltzmann machines: their visible side kRBMVis, hidden side kRBMHid, and reconstructed data.

The energy of binary units is E(v, h) = -h·Wv - a·v - b·h (Hinton, Training Products of Experts by Minimizing
Contrastive Divergence, 2002). So P(h = 1 | v) = sigmoid(v Wᵀ + b) and P(v = 1 | h) = sigmoid(h W + a), with W (hidden,
visible). Gaussian units of variance 1 have linear means (Hinton and Salakhutdinov, Reducing the Dimensionality of Data
with Neural Networks, 2006). ``dsinga.training.cd`` trains them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dsinga.base.registry import register
from dsinga.job import LayerConf
from dsinga.job.component import Settings, required, setting
from dsinga.job.limits import Count
from dsinga.layers.interface.context import Context, RecordInfo
from dsinga.layers.interface.declarations import Bfloat16, Cut, ParamSpec, SourceKind
from dsinga.layers.interface.layer import Array, Arrays, Layer, Output, Shape, to_matrix
from dsinga.ops import Ops


class RBMSide(Layer):
    """Base of the visible and hidden sides of an RBM, each with a weight (hidden, visible) and a bias."""

    class Conf(Settings, name="RBMConf"):
        """Settings of kRBMVis and kRBMHid."""

        hdim: Count = required("the number of hidden units")
        bias_term: bool = setting(True, "whether the side has a bias")
        gaussian: bool = setting(False, "whether the units of the side are real numbers of variance 1, not 0 or 1")
        persistent: bool = setting(False, "whether the Gibbs chains of a hidden layer are persistent; beyond SINGA")

    settings: Conf
    source_count = 1
    cut = Cut(gathered_because="samples whole rows")

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        settings = self.settings
        self.rows, self.inputs = self.source_shapes[0][0], math.prod(self.source_shapes[0][1:])
        self.hdim, self.gaussian, self.persistent = settings.hdim, settings.gaussian, settings.persistent
        self.bias = settings.bias_term

    def specs(self, units: int) -> tuple[ParamSpec, ...]:
        """Return the declared params of a side with ``units`` units: weight and bias."""
        weight = ParamSpec("weight", (self.hdim, self.inputs))
        return (weight, ParamSpec("bias", (units,))) if self.bias else (weight,)

    def bias_of(self, params: Arrays) -> Array | None:
        """Return the side's bias, or None if ``bias_term`` is false."""
        return params[1] if self.bias else None

    def sample(self, mean: Array, ctx: Context, suffix: str = "") -> Array:
        """Sample units from their means (B, n): 0 or 1, or for gaussian units the mean plus noise."""
        units = mean.shape[1]
        if self.gaussian:
            return ctx.ops.add(mean, normal(ctx, self.name + suffix, units).astype(mean.dtype))
        return ctx.ops.bernoulli(mean, ctx.random(self.name + suffix, units))

    def activate(self, x: Array, ops: Ops) -> Array:
        """Return the means of units from their inputs: the sigmoid, or the inputs for gaussian units."""
        return x if self.gaussian else ops.sigmoid(x)


@register("layer", kRBMVis=210)
class RBMVis(RBMSide):
    """The visible side of a restricted Boltzmann machine: the data (B, ...) as (B, n), from 0 to 1 unless ``gaussian``.

    The hidden layer among its srclayers is the other side. The net adds a layer ``reconstruction(<name>)`` after both,
    which reports the reconstruction error (:class:`Reconstruction`).

    Weight (hdim, n), bias (n,). With ``gaussian`` the units are real numbers of variance 1, as in normalised data.
    """

    bf16 = Bfloat16.kProducts

    source_kind = SourceKind.kVectors

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        self.shape = (self.rows, self.inputs)
        self.params = self.specs(self.inputs)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        visible = to_matrix(sources[0], ctx.ops)
        low, high = ctx.ops.read((visible.min(), visible.max())) if visible.size else (0.0, 1.0)
        if not self.gaussian and not (low >= 0.0 and high <= 1.0):
            raise self.fail(
                f"{self.source_name(0)} gives numbers from {low:g} to {high:g}, but binary units need "
                "0 to 1; scale them (std_value: 255 in a store_conf), or set gaussian: true in rbm_conf"
            )
        return Output(visible)

    def mean(self, params: Arrays, hidden: Array, ops: Ops) -> Array:
        """Return the means of the visible units given ``hidden`` (B, hdim)."""
        return self.activate(ops.inner_product(hidden, params[0], self.bias_of(params), transpose=True), ops)


@register("layer", kRBMHid=209)
class RBMHid(RBMSide):
    """The hidden side of a restricted Boltzmann machine: means (B, hdim) of its units given the visible ones (B, n).

    The means are sigmoid(v·Wᵀ + b), or linear with ``gaussian``. Params: weight (hdim, n), shared with the visible side
    by ``share_from``, and bias (hdim,). With ``persistent``, its chains (B, hdim) continue from batch to batch.
    """

    bf16 = Bfloat16.kProducts

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        self.shape = (self.rows, self.hdim)
        self.params = self.specs(self.hdim)
        if self.persistent:
            self.params += (ParamSpec("chain", self.shape, cut_axis=None, trainable=False, by_rows=True),)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        return Output(self.mean(params, sources[0], ctx.ops))

    def mean(self, params: Arrays, visible: Array, ops: Ops) -> Array:
        """Return the means of the hidden units given ``visible`` (B, n)."""
        return self.activate(ops.inner_product(visible, params[0], self.bias_of(params)), ops)


class Reconstruction(Layer):
    """Reconstructs data with an RBM: the means (B, n) of visible units given a sample of hidden units.

    Metric: "reconstruction_error", the squared distance Σ(v - v')² of a row from the data, averaged over rows.
    """

    metric_names = ("reconstruction_error",)
    cut = Cut(gathered_because="samples whole rows")

    def __init__(self, visible: RBMVis, hidden: RBMHid):
        sources = [visible.name, hidden.name]
        conf = visible.conf.replace(name=f"reconstruction({visible.name})", srclayers=sources, param=[])
        super().__init__(conf, [visible.shape, hidden.shape])
        self.visible, self.hidden = visible, hidden
        self.shape, self.params = visible.shape, visible.params

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        visible, hidden = sources
        reconstructed = self.visible.mean(params, self.hidden.sample(hidden, ctx), ctx.ops)
        difference = visible - reconstructed
        error = ctx.ops.channel_sums(difference, difference).sum()
        return Output(reconstructed, metrics={"reconstruction_error": (error, visible.shape[0])})


def normal(ctx: Context, name: str, columns: int) -> Array:
    """Draw standard normal float64 numbers (rows, columns), by the Box-Muller transform of :meth:`Context.random`."""
    uniform, xp = ctx.random(name, 2 * columns).astype(np.float64), ctx.ops.xp
    radius = xp.sqrt(-2 * xp.log1p(-uniform[:, :columns]))
    return radius * xp.cos(2 * math.pi * uniform[:, columns:])
