"""The tables that describe nets."""

from dsinga.layers import RecordInfo
from dsinga.net import describe
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
