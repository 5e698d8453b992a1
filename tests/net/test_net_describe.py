"""A net as a table."""

from netcases import FLAT, build, dense, layer

from dsinga.net import describe


def test_rows_tell_what_show_prints():
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
