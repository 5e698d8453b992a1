"""Captures training iterations as CUDA graphs, between which params are exchanged with parameter servers.

The iteration is cut before the first layer that needs a group's params, and after the layer that completes its
gradients. Between graphs the host only starts copies, so the exchange overlaps the following graphs. Gradients leave
the worker only if all metrics are finite.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from dsinga.addons.gpu.device_params import Block, DeviceParams
from dsinga.layers import Context, Records
from dsinga.net import NeuralNet
from dsinga.ops import Array, SparseRows
from dsinga.ops.types import AsyncCopy, NotCapturable
from dsinga.passes.captured_pass import PARAM, CapturedPass, Compute
from dsinga.passes.captured_passes import CapturedPasses
from dsinga.passes.replayed import without_peers
from dsinga.passes.training_step import TrainingStep
from dsinga.training import Metrics, bp

if TYPE_CHECKING:
    from dsinga.addons.gpu.cupy.device_pass import CupyPass

# One graph that waits for servers is not made: CuPy has no nodes that wait for a number in memory, and if a run is
# aborted, a stream would wait for ever.
GROUP_BYTES = 1 << 20  # a card copies them in about the time that the host needs to start a copy

Group = Sequence[Block]


class ExchangedPass(CapturedPass, Mapping[str, Array]):
    """A training pass with its params: values in fixed memory, gradients in one array for each block.

    ``groups`` are the params on servers, as exchanged, in forward order, ``static`` the params without gradients.
    """

    def __init__(
        self, memory: CupyPass, params: DeviceParams, groups: Sequence[Group], static: Collection[str], ops: Any
    ):
        super().__init__(memory)
        self._cut = memory.cut
        self._params, self._groups, self._ops = params, groups, ops
        self._group_of = {name: n for n, group in enumerate(groups) for block in group for name in block}
        trained = [[tuple(name for name in block if name not in static) for block in group] for group in groups]
        self._trained: list[Group] = [[block for block in group if block] for group in trained]
        self._values: dict[str, Array] = {}
        self._gradients: dict[str, Array] = {}  # those that are not in a block yet
        self._blocks: dict[Block, Array] = {}  # the gradients of a block, flat
        self._missing: list[set[str]] = []  # by group: the params with missing gradients
        self._fetched: set[int] = set()  # groups with values fetched before the present layer
        self._sent: set[int] = set()  # groups that are sent between two graphs
        self._after: Group | None = None  # the blocks that are sent after the pass

    def __getitem__(self, name: str) -> Array:
        """Return the memory of a value; the pass is cut before the first layer that needs its group."""
        if name not in self._group_of:
            return self._params[name]
        if (group := self._group_of[name]) not in self._fetched:
            self._fetched.add(group)
            self._cut(partial(self._fetch, group))
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._params)

    def __len__(self) -> int:
        return len(self._params)

    def push(self, name: str, gradient: Array) -> None:
        """Store a gradient; after a group's last one (except for the last group), end the graph and begin another."""
        if isinstance(gradient, SparseRows) or type(gradient) is np.ndarray:
            raise NotCapturable(f"the gradient of {name!r} is in host memory")
        if name not in self._group_of:
            self._blocks[name,] = gradient.reshape(-1)
            return
        self._gradients[name] = gradient
        group = self._group_of[name]
        self._missing[group].remove(name)
        if self._missing[group]:
            return
        for block in self._trained[group]:
            self._blocks[block] = self._join([self._gradients.pop(name).reshape(-1) for name in block])
        if any(self._missing):
            self._sent.add(group)
            self._cut(partial(self._send, self._trained[group]))

    def _join(self, gradients: list[Array]) -> Array:
        if len(gradients) == 1:
            return gradients[0]
        joined = self._ops.xp.empty(sum(gradient.size for gradient in gradients), np.float32)
        start = 0
        for gradient in gradients:
            joined[start : start + gradient.size] = gradient
            start += gradient.size
        return joined

    def compute_or_launch(
        self, records: Mapping[str, Records], ctx: Context, compute: Compute, values: Mapping[str, Array] | None = None
    ) -> bool:
        """Compute the pass; gradients are pushed once :meth:`DeviceParams.release` accepts it."""
        if not self.memory.captured:
            for group in range(len(self._groups)):
                self._fetch(group)
            self._blocks, self._gradients, self._fetched, self._sent = {}, {}, {0}, set()
            self._missing = [{name for block in group for name in block} for group in self._trained]
            self._after = None
        was_launched = super().compute_or_launch(records, ctx, compute, values)
        if self._after is None:
            sent = self._sent if self.memory.captured else set()
            between = {block for group in sent for block in self._trained[group]}
            self._after = [block for block in self._blocks if block not in between]
        self._send(self._after)
        return was_launched

    def launch(self, step: int, records: Mapping[str, Records]) -> None:
        """Launch the graphs, starting with the first group's values."""
        if self._groups:
            self._fetch(0)
        super().launch(step, records)

    def _fetch(self, group: int) -> None:
        for block in self._groups[group]:
            value = self._params.value_of(block)
            if isinstance(value, AsyncCopy):
                value = self._params.split(block, self.memory.put(f"{PARAM}{block[0]}", value))
            elif not self._params.stays(block[0]):
                value = [self.memory.put(f"{PARAM}{name}", array) for name, array in zip(block, value, strict=True)]
            self._values.update(zip(block, value, strict=True))

    def _send(self, blocks: Group) -> None:
        for block in blocks:
            self._params.push_block(block, self._blocks[block])


class ExchangedIterations:
    """Captures and repeats the training iterations of a worker that exchanges params with servers."""

    def __init__(self, ops: Any, step: TrainingStep, params: DeviceParams):
        self._net, self._params = step.net, params
        groups = groups_of(step.net.fused_for(ops), [name for name in step.net.params if params.is_served(name)])
        self._blocks = [block for group in groups for block in group]
        create = partial(ExchangedPass, params=params, groups=groups, static=step.net.static, ops=ops)
        self._passes = CapturedPasses(ops, "training iterations", create)

    def train(self, records: Mapping[str, Records], ctx: Context) -> Metrics | None:
        """Run an iteration; return its metrics, or None if it changed nothing and must run eagerly."""
        result = None

        def compute(on_device: Mapping[str, Records], _: Mapping[str, Array], ctx: Context) -> None:
            exchanged = self._passes.values()[-1]
            assert isinstance(exchanged, ExchangedPass)
            bp(self._net, exchanged, on_device, without_peers(ctx), exchanged.push)

        self._params.hold()
        try:
            result = self._passes.compute(ctx.rows, self._net, records, ctx, compute)
        finally:
            self._params.release(result is not None)
        self._params.blocks = [] if result is None else self._blocks
        if result is None:
            return None
        self._params.finish()
        return result.metrics

    def clear(self) -> None:
        """Drop all captured graphs."""
        self._passes.clear()


def groups_of(net: NeuralNet, served: Collection[str]) -> list[Group]:
    """Group the params on servers that are exchanged together, in forward order.

    A group ends with the layer that fills GROUP_BYTES.
    """
    groups: list[list[str]] = [[]]
    left, nbytes = set(served), 0
    for stage in net.stages:
        for name in dict.fromkeys(name for name in stage.params if name in left):
            left.remove(name)
            groups[-1].append(name)
            nbytes += 4 * net.params[name].size
        if nbytes >= GROUP_BYTES:
            groups.append([])
            nbytes = 0
    return [_blocks(net, names) for names in groups if names]


def _blocks(net: NeuralNet, names: Sequence[str]) -> Group:
    large = [name for name in names if 8 * net.params[name].size >= GROUP_BYTES]
    small = tuple(name for name in names if name not in large)
    return [*((name,) for name in large), *([small] if small else [])]
