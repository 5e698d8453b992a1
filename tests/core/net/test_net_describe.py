"""The tables that describe nets and partitioned nets."""

from dsinga.layers import RecordInfo
from dsinga.net import bridge_traffic, cut_reasons, describe, describe_parts, partition
from tests.support.net_cases import FLAT, build, dense, layer, net_of


def test_rows_have_the_figures_that_show_prints():
    net = build(
        layer("data", "kCSVInput"),
        dense("a", "data", 6, param=[{"name": "w"}]),
        dense("b", "a", 6, param=[{"share_from": "w"}]),
        layer("loss", "kSoftmaxLoss", "b", "data"),
        data=FLAT,
    )
    rows = {row.layer: row for row in describe(net)}
    assert list(rows) == ["data", "a", "b", "loss"]
    assert (rows["a"].type, rows["a"].shape, rows["loss"].sources) == ("kInnerProduct", (4, 6), ("b", "data"))
    assert (rows["a"].params, rows["a"].shared, rows["a"].count, rows["a"].bytes) == (("w", "a_bias"), (), 42, 168)
    assert (rows["b"].params, rows["b"].shared, rows["b"].count, rows["b"].bytes) == (("w", "b_bias"), ("w",), 6, 24)
    assert sum(row.count for row in rows.values()) == sum(param.size for param in net.params.values())


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


def test_layers_over_time_steps_say_how_many_they_compute_together():
    net = net_of(
        """
        unroll_len: 4
        layer { name: "data" type: kRecordInput unroll_len: 1 store_conf { path: "x" batchsize: 5 } }
        layer { name: "onehot" type: kOneHot srclayers: "data" unroll_conn_type: kUnrollOneToAll
          onehot_conf { vocab_size: 6 } }
        layer { name: "ip" type: kInnerProduct srclayers: "onehot" innerproduct_conf { num_output: 6 } }
        """,
        data=RecordInfo((4,), 5, has_labels=False),
    )
    assert [row.typed for row in describe(net)] == ["kRecordInput", "kOneHot x4", "kInnerProduct x4"]
