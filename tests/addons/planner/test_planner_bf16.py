"""The bytes of bridges in bfloat16, as the planner has them."""

import math

import pytest

from dsinga.addons.planner.processes import WireBytes
from dsinga.cutting.bridges import BridgeDst, BridgeSrc
from dsinga.cutting.partitioned import PartitionedNet
from dsinga.cutting.partitioning import partition
from dsinga.ops import get_ops
from tests.core.training.test_training_bf16 import sends
from tests.support.partition_nets import net_of

pytestmark = pytest.mark.skipif(
    get_ops().name != "onednn" or bool(get_ops().lacks_bf16()), reason="the processor has no bfloat16"
)


def planned(cut: PartitionedNet) -> int:
    """Return the bytes of bridges in the precision kBF16, as the planner has them."""
    wire, ends = WireBytes(bf16=True), [node.layer for local in cut.locals for node in local.nodes]
    return sum(
        wire.bridge(layer, isinstance(layer, BridgeDst)) * math.prod(layer.shape)
        for layer in ends
        if isinstance(layer, BridgeSrc) or (isinstance(layer, BridgeDst) and layer.returns_gradient)
    )


@pytest.mark.parametrize("name", ["convnet", "zoo", "mdnn", "residual"])
def test_the_planner_counts_the_bytes_that_bridges_send(name, monkeypatch):
    cut = partition(net_of(name, "features", 2), 2)
    _, sent = sends(cut, monkeypatch)
    tolerance = 0.1 if name == "zoo" else 0  # where images of a source that has no gradient are joined with others
    assert sum(sent.values()) == pytest.approx(planned(cut), rel=tolerance, abs=0)
    assert sent["there", "bfloat16"]
