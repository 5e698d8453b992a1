"""Recurrent layers kGRU, kLSTM and kRNN, over whole sequences or, in an unrolled net, for one step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from dsinga.base.registry import register
from dsinga.job import CellActivation, LayerConf
from dsinga.job.component import Settings, required, setting
from dsinga.job.limits import Count
from dsinga.layers.interface.checks import shape_text
from dsinga.layers.interface.context import Context, RecordInfo
from dsinga.layers.interface.declarations import Bfloat16, Cut, Labels, ParamSpec, SourceKind
from dsinga.layers.interface.layer import FLOAT_BYTES, Array, Arrays, Gradients, Layer, Output, Shape, float_bytes
from dsinga.layers.records.label import step_lengths
from dsinga.ops.numpy.cells import CELLS
from dsinga.ops.numpy.recurrent import GAP
from dsinga.ops.types import CellActivations


class RecurrentConf(Settings):
    """Settings shared by recurrent layers: hidden size, direction, bias, initial and carried state."""

    dim_hidden: Count = required("the width of the hidden state")
    bias_term: bool = setting(True, "whether a bias is added")
    bidirectional: bool = setting(
        False, "whether a second direction, from the last step to the first, is joined to it; beyond SINGA"
    )
    carry: bool | None = setting(
        None,
        "whether a batch starts with the last state of the batch before; by default for kCharRNN in a job with one "
        "worker group",
    )
    initial_state: bool = setting(False, "whether the last of the srclayers gives the state before the first step")
    last_state: bool = setting(
        False,
        "whether the feature is the last state, (B, H), of kLSTM (B, 2H), h then c",
    )
    recurrent_bias: bool = setting(
        False, "whether the product with the state has a bias of its own, as in PyTorch; beyond SINGA"
    )


class Recurrent(Layer):
    """Base of recurrent layers: (B, T, n) to (B, T, H) with H = ``dim_hidden``, or (B, T, 2H) if ``bidirectional``.

    The labels of the optional second source give the lengths of the sequences; features after the end are 0. The state
    begins with zeros or, with ``carry``, with the same row's last state in the previous batch (truncated
    back-propagation through time, Williams and Peng 1990). A bidirectional layer's feature has the forward direction
    first.

    With ``initial_state`` the last source gives the state before the first step, (B, S). S is H, or 2H for an LSTM with
    the state h, then c. With ``last_state`` the feature is the last state, (B, S).

    For one step, (B, n) to (B, H), the second source is the feature of the previous step, by default 0. An LSTM accepts
    whole sequences only.

    A subclass names its ``cell`` of :meth:`dsinga.ops.Ops.recurrent`, and the params of one direction. With
    ``recurrent_bias`` the biases follow again, called "hb" in place of "b", then the other direction's params,
    ``back_<role>``. With ``carry`` the last param is ``state`` (B, S).
    """

    Conf: ClassVar[type[RecurrentConf]] = RecurrentConf
    settings: RecurrentConf
    source_kind = SourceKind.kRecurrent
    cut = Cut(gathered_because="computes each unit of a step from all of the step before")
    bf16 = Bfloat16.kProducts
    rounds_source = True
    cell: ClassVar[str]
    one_step: ClassVar[bool] = True
    state_parts: ClassVar[int] = 1
    biases: ClassVar[int] = 1

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        shape = source_shapes[0] if source_shapes else ()
        self.sequences = len(shape) == 3
        settings = conf.settings_of(self.Conf)
        self.state_source = len(source_shapes) - 1 if settings.initial_state else None
        if self.sequences:
            self.labels = Labels(next((k for k in range(1, len(source_shapes)) if k != self.state_source), None))
        super().__init__(conf, source_shapes, info)
        self.size = settings.dim_hidden
        self.activations = cell_activations(settings)
        self._check_sources()
        self._check_settings(settings)
        self.directions = 2 if settings.bidirectional else 1
        specs = self.weights(shape[-1], self.size, settings.bias_term)
        if settings.recurrent_bias:
            specs += [(role.replace("b", "hb"), shape) for role, shape in specs[-self.biases :]]
        self.count = len(specs)
        self.params = tuple(ParamSpec(role, shape) for role, shape in specs)
        if settings.bidirectional:
            self.params += tuple(ParamSpec(f"back_{role}", shape) for role, shape in specs)
        if settings.carry:
            state = (shape[0], self.state_parts * self.size)
            self.params += (ParamSpec("state", state, cut_axis=None, trainable=False, by_rows=True),)
        self.shape = (*shape[:-1], self.directions * self.size)
        if settings.last_state:
            self.shape = (shape[0], self.state_parts * self.size)

    def weights(self, inputs: int, size: int, bias: bool) -> list[tuple[str, Shape]]:
        """Return the role and shape of each param of one direction."""
        raise NotImplementedError

    def _check_sources(self) -> None:
        shapes = self.source_shapes
        if not 1 <= len(shapes) <= 2 + (self.state_source is not None):
            raise self.fail(
                f"takes 1 source layer, and a second one for the lengths of sequences, not {len(shapes)}; correct its "
                "srclayers, or set initial_state if the last one gives the state before the first step",
                field="srclayers",
            )
        remedy = "put a kOneHot or kEmbedding layer between, if these are characters or words"
        self.expect_axes((2, 3), "sequences (batch, steps, inputs)", remedy)
        if not self.sequences and len(shapes) == 2 and shapes[1] != (shapes[0][0], self.size):
            raise self.fail(
                f"takes the state of the step before, {shape_text((shapes[0][0], self.size))}, from its second source, "
                f"but {self.source_name(1)} gives {shape_text(shapes[1])}",
                field="srclayers",
            )

    def _check_settings(self, settings: RecurrentConf) -> None:
        if not self.sequences and not self.one_step:
            raise self.fail("takes whole sequences (batch, steps, inputs), not one step", field="srclayers")
        if not self.sequences and settings.bidirectional:
            raise self.fail("is bidirectional and takes whole sequences, not one step", settings, "bidirectional")
        if settings.bidirectional and settings.carry:
            raise self.fail(
                "cannot carry over the state of both directions: the batch before ends where this one begins; leave "
                "carry or bidirectional out",
                field="carry",
            )
        if settings.last_state and (settings.bidirectional or not self.sequences):
            raise self.fail(
                "gives the last state of sequences in one direction; leave last_state or bidirectional out, or give it "
                "sequences",
                field="last_state",
            )
        if settings.recurrent_bias and not settings.bias_term:
            raise self.fail("has a recurrent_bias, but no bias_term; leave one of them out", settings, "recurrent_bias")
        if settings.initial_state:
            self._check_initial_state(settings)

    def _check_initial_state(self, settings: RecurrentConf) -> None:
        if not self.state_source or not self.sequences:
            text = "takes sequences (batch, steps, inputs), and the initial_state from its last source"
            raise self.fail(text, field="initial_state")
        if settings.bidirectional or settings.carry:
            text = "has an initial_state, and cannot be bidirectional or carry its state over as well"
            raise self.fail(text, field="initial_state")
        shape, expected = self.source_shapes[-1], (self.source_shapes[0][0], self.state_parts * self.size)
        if shape != expected:
            raise self.fail(
                f"takes an initial_state {shape_text(expected)}, but {self.source_name(self.state_source)} gives "
                f"{shape_text(shape)}; put a kInnerProduct layer with num_output: {expected[1]} between",
                field="initial_state",
            )

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        x, lengths, begin = sources[0], self._lengths(sources), self._begin(params, sources)
        if not self.sequences:
            x = x.reshape(x.shape[0], 1, x.shape[1])
        features, saved, last = [], [], None
        for back in range(self.directions):
            weights = self._joined(params[back * self.count : (back + 1) * self.count], ctx)
            y, last, workspace = ctx.ops.recurrent(
                self.cell, x, weights, begin, lengths, bool(back), ctx.training, self.activations
            )
            features.append(y)
            saved.append(workspace)
        feature = features[0] if len(features) == 1 else ctx.ops.xp.concatenate(features, axis=2)
        if self.settings.last_state:
            feature = last
        state = {"state": last} if len(params) > self.directions * self.count else {}
        return Output(self._like_sources(feature), saved=saved if ctx.training else None, state=state)

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        dy = grad if self.sequences else grad.reshape(grad.shape[0], 1, grad.shape[1])
        dlast = None
        if self.settings.last_state:
            dlast, dy = grad, ctx.ops.xp.zeros((*sources[0].shape[:2], self.size), grad.dtype)
        state_source = self.state_source if self.sequences else 1
        need_state = state_source is not None and state_source < len(needs) and needs[state_source]
        dx, dstate = None, None
        for_params: list[Array | None] = []
        for back, workspace in enumerate(output.saved):
            weights = self._joined(params[back * self.count : (back + 1) * self.count], ctx)
            part_dy = dy[..., back * self.size : (back + 1) * self.size]
            part_dx, dstate, gradients = ctx.ops.recurrent_grad(
                self.cell, weights, workspace, part_dy, needs[0], need_state, dlast
            )
            dx = part_dx if dx is None or part_dx is None else ctx.ops.add(dx, part_dx)
            for_params.extend(self._parted(gradients))
        for_params.extend([None] * (len(params) - len(for_params)))
        for_sources: list[Array | None] = [None] * len(sources)
        for_sources[0] = None if dx is None else self._like_sources(dx)
        if need_state:
            assert state_source is not None
            for_sources[state_source] = dstate
        return for_sources, for_params

    def _joined(self, params: Arrays, ctx: Context) -> Arrays:
        """Return one direction's params as kernels expect them, with the sum of a gate's two biases."""
        if not self.settings.recurrent_bias:
            return params
        summed, count = self._summed, self.biases
        first, second = params[-2 * count : -count], params[-count:]
        sums = map(ctx.ops.add, first[:summed], second[:summed])
        return [*params[: -2 * count], *sums, *first[summed:], *second[summed:]]

    def _parted(self, gradients: Sequence[Array]) -> list[Array]:
        """Undo :meth:`_joined` for gradients: both biases get the gradient of their sum."""
        if not self.settings.recurrent_bias:
            return list(gradients)
        summed, begin = self._summed, len(gradients) - 2 * self.biases + self._summed
        end = begin + self.biases
        return [*gradients[:end], *(gradient.copy() for gradient in gradients[begin:][:summed]), *gradients[end:]]

    @property
    def _summed(self) -> int:
        """The number of biases that :meth:`_joined` adds to others."""
        return self.biases - (self.cell == "gru")

    def _like_sources(self, array: Array) -> Array:
        """Return steps (B, T, n) unchanged, or as (B, n) if the layer computes one step."""
        return array if self.sequences else array.reshape(array.shape[0], array.shape[2])

    def _begin(self, params: Arrays, sources: Arrays) -> Array | None:
        """Return the initial states (B, S); None for zeros."""
        if self.state_source is not None:
            return sources[self.state_source]
        if not self.sequences and len(sources) > 1:
            return sources[1]
        return params[-1] if len(params) > self.directions * self.count else None

    def _lengths(self, sources: Arrays) -> Array | None:
        """Return the sequence lengths, (B,); None if all have T steps."""
        if self.labels.source is None:
            return None
        return step_lengths(self, sources[self.labels.source], self.source_shapes[0][1])

    def _states_size(self, rows: int) -> int:
        return float_bytes(rows, (*self.source_shapes[0][:-1], self.size))

    def saved_sizes(self, rows: int) -> list[int]:
        cell, states = CELLS[self.cell], self._states_size(rows)
        return self.directions * [cell.width * states, cell.parts * states, float_bytes(rows, self.source_shapes[0])]

    def backward_sizes(self, rows: int) -> list[int]:
        states, width = self._states_size(rows), CELLS[self.cell].width
        padding = states // self.size * GAP  # between rows of the gradients of gates
        weight_gradient = FLOAT_BYTES * width * self.size**2  # transposed, as the product makes it
        # Gradients of gates, gradients of states, previous states, gradient of a weight.
        return [width * states + padding, states, states, weight_gradient]


def cell_activations(settings: RecurrentConf) -> CellActivations:
    """Return the gates', candidate's and cell's activations in these settings."""
    chosen = {}
    if isinstance(settings, GRU.Conf | LSTM.Conf):
        chosen = {"gate": settings.gate_activation, "candidate": settings.candidate_activation}
    if isinstance(settings, LSTM.Conf):
        chosen["cell"] = settings.cell_activation
    return CellActivations(**{part: activation.name.lower() for part, activation in chosen.items()})


@register("layer", kGRU=215)
class GRU(Recurrent):
    """Gated recurrent units (Cho et al. 2014), (B, T, n) to (B, T, H), as in SINGA.

    z = σ(x z_hxᵀ + h z_hhᵀ + z_b), r = σ(x r_hxᵀ + h r_hhᵀ + r_b), c = tanh(x c_hxᵀ + r∘(h c_hhᵀ) + c_b), h' = z∘h + (1
    - z)∘c. ``gate_activation`` replaces σ, and ``candidate_activation`` replaces tanh.

    Params in SINGA's order: z_hx, r_hx, c_hx (H, n), z_hh, r_hh, c_hh (H, H) and, unless ``bias_term`` is false, z_b,
    r_b, c_b (H,). With ``recurrent_bias`` z_hb, r_hb, c_hb follow, and c = tanh(x c_hxᵀ + c_b + r∘(h c_hhᵀ + c_hb)), as
    in PyTorch.
    """

    class Conf(RecurrentConf):
        """Settings of kGRU; the activations are as in PaddlePaddle."""

        gate_activation: CellActivation = setting(CellActivation.SIGMOID, "the activation of the gates z and r")
        candidate_activation: CellActivation = setting(CellActivation.TANH, "the activation of the candidate c")

    cell, biases = "gru", 3

    def weights(self, inputs: int, size: int, bias: bool) -> list[tuple[str, Shape]]:
        kinds: list[tuple[str, Shape]] = [("hx", (size, inputs)), ("hh", (size, size))]
        if bias:
            kinds.append(("b", (size,)))
        return [(f"{gate}_{kind}", shape) for kind, shape in kinds for gate in "zrc"]


class _StackedGates(Recurrent):
    """Base of recurrent layers with the gates stacked in one matrix."""

    gates: ClassVar[int] = 1

    def weights(self, inputs: int, size: int, bias: bool) -> list[tuple[str, Shape]]:
        rows = self.gates * size
        specs: list[tuple[str, Shape]] = [("hx", (rows, inputs)), ("hh", (rows, size))]
        return [*specs, ("b", (rows,))] if bias else specs


@register("layer", kLSTM=710)
class LSTM(_StackedGates):
    """Long short-term memory (Hochreiter and Schmidhuber 1997) with forget gates (Gers et al. 2000).

    From (B, T, n) to (B, T, H): i, f, o = σ and g = tanh of x hxᵀ + h hhᵀ + b, c' = f∘c + i∘g, h' = o∘tanh(c').
    ``gate_activation`` replaces σ, ``candidate_activation`` the first tanh and ``cell_activation`` the second. The
    state is h, then c.

    Params: hx (4H, n), hh (4H, H) and, unless ``bias_term`` is false, b (4H,), with the gates i, f, g, o stacked in
    this order.
    """

    class Conf(RecurrentConf):
        """Settings of kLSTM."""

        gate_activation: CellActivation = setting(CellActivation.SIGMOID, "the activation of the gates i, f and o")
        candidate_activation: CellActivation = setting(CellActivation.TANH, "the activation of the candidate g")
        cell_activation: CellActivation = setting(CellActivation.TANH, "the activation of the cell state c'")

    cell, one_step, state_parts, gates = "lstm", False, 2, 4


@register("layer", kRNN=711)
class RNN(_StackedGates):
    """A simple recurrent layer (Elman 1990): h' = tanh(x hxᵀ + h hhᵀ + b), from (B, T, n) to (B, T, H).

    Params: hx (H, n), hh (H, H) and, unless ``bias_term`` is false, b (H,).
    """

    class Conf(RecurrentConf):
        """Settings of kRNN."""

    cell = "rnn"
