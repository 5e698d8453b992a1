"""Contrastive divergence (kCD), which trains the restricted Boltzmann machines (RBMs) of a net."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, NamedTuple

from dsinga.base.errors import UserError
from dsinga.base.registry import register
from dsinga.job.component import Configured, Settings, setting
from dsinga.job.limits import Range
from dsinga.layers.interface.context import Context, Records
from dsinga.layers.interface.layer import Array, Arrays
from dsinga.layers.rbm import RBMHid, RBMVis, Reconstruction
from dsinga.net import NeuralNet
from dsinga.training.bp import Push, with_zero_rows
from dsinga.training.forward_pass import TapeEntry, forward_pass, sources_of_layer
from dsinga.training.metrics import Metrics, read_metrics, report_metrics


class Machine(NamedTuple):
    """The two layers of an RBM after the forward pass, with their params."""

    visible: RBMVis
    hidden: RBMHid
    visible_params: Arrays
    hidden_params: Arrays
    visible_names: tuple[str, ...]
    hidden_names: tuple[str, ...]


class UnitStatistics(NamedTuple):
    """Visible units (B, n), and the means of the hidden units given them, (B, hdim)."""

    visible: Array
    hidden: Array


@register("algorithm", kCD=2)
class ContrastiveDivergence(Configured):
    """Trains restricted Boltzmann machines by contrastive divergence (CD-k), with ``cd_k`` Gibbs steps.

    The gradient for W is (h'ᵀv' - hᵀv)/B, as in SINGA (Hinton, Training Products of Experts by Minimizing Contrastive
    Divergence, 2002). The biases' have the same form. Here v are the data, and h the means of the hidden units given
    the data. The reconstruction v' comes from the last sample of the hidden units, without sampling, and h' are the
    means given v'.

    If the hidden layer is ``persistent``, v' is a sample after ``cd_k`` steps of Markov chains, one chain for each row
    of the batch. The chains continue from iteration to iteration (Tieleman, Training Restricted Boltzmann Machines
    using Approximations to the Likelihood Gradient, 2008). Both sides are sampled then. Chains start from hidden units
    that are all 0.

    Of several machines each is trained on the output of those below it: a deep belief net.

    Machines are always cut by rows; several workers compute the same as one, up to rounding.
    """

    class Conf(Settings, name="CDConf"):
        """Settings of contrastive divergence (kCD)."""

        cd_k: Annotated[int, Range(1, 10_000)] = setting(1, "the number of Gibbs steps")

    settings: Conf

    def __call__(
        self, net: NeuralNet, values: Mapping[str, Array], records: Mapping[str, Records], ctx: Context, push: Push
    ) -> Metrics:
        """Train on the records of a batch, or of a part of it, like :func:`dsinga.training.bp`.

        Only params of RBMs are pushed. Raises UserError if the sides of an RBM are on different workers.
        """
        metrics = []
        hidden: dict[str, TapeEntry] = {}
        for entry in forward_pass(net, values, records, ctx):
            layer = entry.stage.layer
            metrics.append((layer.name, entry.output.metrics))
            if isinstance(layer, RBMHid):
                hidden[layer.name] = entry
            elif isinstance(layer, Reconstruction):
                self.train(entry, hidden.pop(layer.hidden.name, None), push)
            del entry  # or it would keep its features alive while the next layer computes
        return report_metrics(net, read_metrics(metrics, ctx.ops))

    def train(self, reconstruction: TapeEntry, hidden: TapeEntry | None, push: Push) -> None:
        """Push the gradients of an RBM, and the states of its Markov chains if it is persistent."""
        layer, ctx = reconstruction.stage.layer, reconstruction.ctx
        assert isinstance(layer, Reconstruction)
        if hidden is None:
            raise UserError(
                f"{layer.visible.name!r} and {layer.hidden.name!r} are on different workers; kCD needs both on one"
            )
        names = reconstruction.stage.params, hidden.stage.params
        machine = Machine(layer.visible, layer.hidden, reconstruction.params, hidden.params, *names)
        data = UnitStatistics(*sources_of_layer(layer, reconstruction.sources, ctx))
        if layer.hidden.persistent:
            model, chain = follow_chain(machine, hidden.params[-1], self.settings.cd_k, ctx)
            push(machine.hidden_names[-1], with_zero_rows(chain, layer.hidden.params[-1], ctx))
        else:
            model = reconstruct(machine, reconstruction.output.feature, self.settings.cd_k, ctx)
        push_gradients(machine, data, model, ctx, push)


def reconstruct(machine: Machine, visible: Array, steps: int, ctx: Context) -> UnitStatistics:
    """Return visible and hidden units after ``steps`` Gibbs steps; ``visible`` are the means after the first."""
    visible_side, hidden_side, visible_params, hidden_params, *_ = machine
    for step in range(1, steps):
        sample = hidden_side.sample(hidden_side.mean(hidden_params, visible, ctx.ops), ctx, f"/{step}")
        visible = visible_side.mean(visible_params, sample, ctx.ops)
    return UnitStatistics(visible, hidden_side.mean(hidden_params, visible, ctx.ops))


def follow_chain(machine: Machine, hidden: Array, steps: int, ctx: Context) -> tuple[UnitStatistics, Array]:
    """Continue a persistent Markov chain by ``steps`` Gibbs steps: return its units, and its last hidden samples."""
    visible_side, hidden_side, visible_params, hidden_params, *_ = machine
    for step in range(steps):
        visible = visible_side.sample(visible_side.mean(visible_params, hidden, ctx.ops), ctx, f"/{step}")
        mean = hidden_side.mean(hidden_params, visible, ctx.ops)
        hidden = hidden_side.sample(mean, ctx, f"/chain/{step}")
    return UnitStatistics(visible, mean), hidden


def push_gradients(machine: Machine, data: UnitStatistics, model: UnitStatistics, ctx: Context, push: Push) -> None:
    """Hand over an RBM's gradients of biases and weight: model minus data statistics, averaged over the batch."""
    weight, ops, share = machine.visible_params[0], ctx.ops, 1.0 / ctx.rows.total
    visible = ops.xp.concatenate((model.visible, data.visible))
    hidden = ops.xp.concatenate((model.hidden * share, data.hidden * -share))
    _, dw, db = ops.inner_product_grad(visible, weight, hidden, False, False, machine.hidden.bias)
    if machine.hidden.bias:
        push(machine.hidden_names[1], db)
    push(machine.visible_names[0], dw)
    if machine.visible.bias:
        difference = ops.channel_sums(model.visible) - ops.channel_sums(data.visible)
        push(machine.visible_names[1], (difference * share).astype(weight.dtype))
