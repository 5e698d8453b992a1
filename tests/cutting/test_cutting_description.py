"""The tables that describe cut nets."""

from dsinga.cutting import bridge_traffic, cut_reasons, describe_parts, partition
from tests.support.net_cases import FLAT, build, dense, layer


def test_parts_have_the_figures_that_show_prints():
    net = build(
        layer("data", "kCSVInput"),
        dense("a", "data", 7, partition_dim=1),
        layer("soft", "kSoftmax", "a", partition_dim=1),
        dense("b", "soft", 3, location=1),
        layer("loss", "kSoftmaxLoss", "b", "data", location=1),
        data=FLAT,
    )
    cut = partition(net, 2)
    rows = {(row.layer, row.location): row for row in describe_parts(cut)}
    assert list(rows) == [(name, k) for name in ("data", "a", "soft") for k in (0, 1)] + [("b", 1), ("loss", 1)]
    first, second = rows["a", 0], rows["a", 1]
    assert (first.part, first.shape, first.params, first.count) == (
        "features 0-3",
        (4, 4),
        ("a_weight@0", "a_bias@0"),
        28,
    )
    assert (second.part, second.shape, second.count) == ("features 4-6", (4, 3), 21)
    assert (rows["data", 1].part, rows["data", 1].shape, rows["b", 1].part) == ("rows 2-3", (2, 6), "all")
    (reason,) = cut_reasons(cut)
    assert reason == f"soft is computed by rows: {rows['soft', 0].reason}"
    # Forward: rows of data both ways (2 x 2 x 6), columns of a (2 x 4 + 2 x 3), rows of soft (2 x 7), labels (2);
    # of these, gradients come back for a and soft.
    assert bridge_traffic(cut) == (24 + 14 + 14 + 2, 14 + 14)
