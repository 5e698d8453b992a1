"""Makes passes faster by recording them: one launch then calls all kernels, without Python.

A pass is recorded once, or twice as a GPU graph. All batches must have one shape, at fixed addresses. A pass that
cannot be captured is called, and the log says so once.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from dsinga.base.errors import RunError, UserError
from dsinga.base.registry import is_user_code
from dsinga.layers import Context, Records
from dsinga.net import NeuralNet
from dsinga.ops import Array, Ops
from dsinga.ops.interface import PassResult
from dsinga.ops.types import AsyncCopy, NotCapturable
from dsinga.passes.captured_pass import PARAM, CapturedPass, Compute
from dsinga.training import Metrics

_log = logging.getLogger(__name__)

CALLS_AFTER_LOSS = 64  # of a pass on a host that has lost its place among GRAPHS, before it is recorded again
KEYS = 64  # of passes on a host that are counted
GRAPHS = 8  # kept at most, each with the memory of its pass
PARAM_SETS = 4  # sets of params by which batches of the same shapes are computed, such as a net's and its target's
REJECTED = 3  # passes in a row that are computed again, eagerly, because their metrics are not finite


class CapturedPasses:
    """The recorded passes of one worker, for instance of training and of validation; for one thread.

    Args:
        what: the name of the passes in the log.

    Attributes:
        is_on_host: whether passes are lists of calls, not graphs of a GPU.
        last: the pass that computed the last result of :meth:`compute`; None if it returned none.
    """

    def __init__(self, ops: Ops, what: str, create: Callable[[Any], CapturedPass] = CapturedPass):
        self._ops, self._what, self._create = ops, what, create
        self.is_on_host = ops.calls_before_capture > 0
        self._passes: OrderedDict[Hashable, CapturedPass] = OrderedDict()
        self._calls: dict[Hashable, int] = {}  # of passes on a host before they are recorded, the latest last
        self._addresses: dict[Hashable, set[int]] = {}  # of the params of passes on a host, by key
        self._copying: set[Hashable] = set()  # keys of passes whose params are copied to it, as records are
        self.last: CapturedPass | None = None
        self._failed: dict[Hashable, str] = {}

    def __len__(self) -> int:
        return len(self._passes)

    def values(self) -> list[CapturedPass]:
        """Return the recorded passes, the last computed one at the end."""
        return list(self._passes.values())

    @property
    def failures(self) -> list[str]:
        """Why passes are not recorded: each reason once."""
        return list(dict.fromkeys(self._failed.values()))

    @property
    def nbytes(self) -> int:
        """How many bytes of device memory the recorded passes hold."""
        return sum(captured.memory.nbytes for captured in self._passes.values())

    def clear(self) -> None:
        """Forget all recordings, because params have new addresses."""
        self._passes.clear()

    def compute(
        self, key: Hashable, net: NeuralNet, records: Mapping[str, Records], ctx: Context, compute: Compute,
        params: Mapping[str, Array] | None = None, values: Mapping[str, Array] | None = None,
        replay: Callable[[], None] = lambda: None,
    ) -> PassResult | None:  # fmt: skip
        """Compute a pass by a launch, or record it; return None if the caller must compute it.

        With None no param has changed: the pass cannot be captured, or a metric is not finite. ``params`` may differ in
        each pass; ``values`` are params with fixed addresses. ``replay`` is called after a launch without a recording.
        """
        if (last := self.last) is not None and last.key == key:
            last.memory.rows = ctx.rows
            try:
                if result := last.launch_on_batch(params or values, records, ctx.step):
                    return result
            except Exception:  # which the launch below raises again
                pass
        if self.is_on_host and not all(map(_is_in_order, records.values())):
            return None  # sums over another order of memory may have other bits
        self.last, asked, key = None, key, _with_shapes(key, records)
        if params is not None and (with_address := self._with_address(key, params)) is not None:
            key, params, values = with_address, None, params
        if params is not None:
            given = {f"{PARAM}{name}": Records(value, None) for name, value in params.items()}
            key, records = _with_shapes(key, given), {**records, **given}
        if key in self._failed:
            return None
        try:
            captured = self._find(key, values)
            if captured is None:
                return None
            captured.memory.rows = ctx.rows
            if not captured.memory.captured and captured.memory.is_on_host:
                _check_layers(net)
            if captured.compute_or_launch(records, ctx, compute, values):
                replay()
        except RunError:  # not of the graph: a server was lost, or did not answer
            raise
        except Exception as error:  # whatever a device, or code of the user's, makes of it: a graph ends no run
            self._give_up(key, error)
            return None
        metrics = self.finish(captured, net)
        if metrics is None:
            return None
        self.last, captured.key, captured.net = captured, asked, net
        return PassResult(metrics, captured.outputs)

    def _with_address(self, key: Hashable, params: Mapping[str, Array]) -> tuple[Hashable, ...] | None:
        """Return the key of passes with params at these addresses; None if addresses change often."""
        if not self.is_on_host or key in self._copying:
            return None
        addresses = self._addresses.setdefault(key, set())
        addresses.add(address := id(next(iter(params.values()), None)))
        captured = self._passes.get((key, address))
        if len(addresses) <= PARAM_SETS and (captured is None or captured.uses(params)):
            return key, address
        self._copying.add(key)
        for address in self._addresses.pop(key):
            self._passes.pop((key, address), None)
        return None

    def launch(
        self, key: Hashable, records: Mapping[str, Records], step: int, after: CapturedPass | None = None
    ) -> CapturedPass | None:
        """Start a recorded pass, which :meth:`finish` ends; None without a recording."""
        captured = self._passes.get(key := _with_shapes(key, records))
        if captured is None or not captured.memory.captured or after not in (None, captured):
            return None
        self._passes.move_to_end(key)
        try:
            captured.launch(step, records)
        except Exception as error:  # as above
            self._give_up(key, error)
            return None
        return captured

    def finish(self, captured: CapturedPass, net: NeuralNet) -> Metrics | None:
        """Wait for the earliest running pass: return its metrics, None if not finite or unknown.

        With None neither this pass nor a later one has changed a param.
        """
        reason: Exception | None = None
        try:
            metrics = captured.read(net)
            captured.rejected = 0 if metrics is not None else captured.rejected + 1
            if metrics is None:
                captured.memory.cancel()
        except Exception as error:  # as above
            metrics, reason = None, error
        if captured.rejected == REJECTED:
            reason = NotCapturable(f"metrics of {REJECTED} of them in a row were not finite")
        if reason is not None:
            for key in [key for key, each in self._passes.items() if each is captured]:
                self._give_up(key, reason)
        return metrics

    def _find(self, key: tuple[Hashable, ...], values: Mapping[str, Array] | None) -> CapturedPass | None:
        """Return the recording for a key, perhaps a new one; None if the kernels cannot record yet."""
        captured = self._passes.get(key)
        if captured is not None and captured.uses(values):
            self._passes.move_to_end(key)
            return captured
        if self.is_on_host and not self._is_worth_recording(key):
            return None
        memory = self._ops.new_pass()
        if memory is None:
            return None
        while len(self._passes) >= GRAPHS:
            unused, _ = self._passes.popitem(last=False)
            self._calls[unused] = -CALLS_AFTER_LOSS
        self._passes[key] = self._create(memory)
        return self._passes[key]

    def _is_worth_recording(self, key: tuple[Hashable, ...]) -> bool:
        """Count the passes on a host; return whether there were enough to record one."""
        self._calls[key] = count = self._calls.pop(key, 0) + 1
        if len(self._calls) > KEYS:
            del self._calls[next(iter(self._calls))]
        return count > (0 if key[0] in self._copying else self._ops.calls_before_capture)

    def _give_up(self, key: Hashable, error: Exception) -> None:
        """Stop recording passes of this key, and log the reason once."""
        self._passes.pop(key, None)
        if isinstance(error, UserError):  # which the call will raise, too
            return
        if type(error).__name__ == "OutOfMemoryError":  # CuPy's: the memory of other graphs may be what is missing
            self._passes.clear()
        reason = reason_of(error)
        if reason not in self._failed.values():
            if self.is_on_host:
                _log.debug("%s are not replayed: %s", self._what, reason)
            else:
                level = logging.INFO if isinstance(error, NotCapturable) else logging.WARNING
                _log.log(level, "%s are not captured as CUDA graphs: %s", self._what, reason)
        self._failed[key] = reason


def _is_in_order(batch: Records) -> bool:
    arrays = (array.result() if isinstance(array, AsyncCopy) else array for array in batch)
    return all(array is None or array.flags.c_contiguous for array in arrays)


def passes_of(ops: Ops, what: str) -> CapturedPasses | None:
    """Return the recorder of a worker's passes, called ``what`` in the log; None if its kernels cannot record."""
    return CapturedPasses(ops, what) if ops.captures_passes else None


def _check_layers(net: NeuralNet) -> None:
    """Raise NotCapturable if a layer runs a user's code, which cannot be recorded."""
    for stage in net.stages:
        if stage.layer.runs_user_code or is_user_code(stage.layer):
            raise NotCapturable(f"layer {stage.layer.name!r} runs code of the user's")


def reason_of(error: Exception) -> str:
    """Say in one line why, and in which layer, a pass cannot be recorded."""
    reason = " ".join(f"{error}".split()) or type(error).__name__
    place = next((note for note in getattr(error, "__notes__", ()) if note.startswith("in ")), "")
    return f"{reason} ({place})" if place else reason


def _with_shapes(key: Hashable, records: Mapping[str, Records]) -> tuple[Hashable, ...]:
    return key, tuple((name, *map(_kind_of, batch)) for name, batch in records.items())


def _kind_of(array: Any) -> Hashable:
    if array is None:
        return None
    return array.kind if isinstance(array, AsyncCopy) else (array.shape, array.dtype)
