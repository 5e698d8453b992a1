"""kBP: gradients are right, pushed in the right order, and no array is kept longer than needed."""

import weakref
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsinga.base.registry import register
from dsinga.job import ParamConf
from dsinga.layers import Layer, Output
from dsinga.training import bp, forward
from dsinga.training.bp import back_propagate
from tests.support.refusals import refused
from tests.support.small_job import assert_same
from tests.support.training_cases import build, context, conv, dense, gradients, layer, records_of, values_of

LOSS = layer("loss", "kSoftmaxLoss", "top", "data")


def convnet():
    pool = {"pooling_conf": {"kernel": 3, "stride": 2, "pool": "AVG"}}
    return build(
        conv("conv1", "data", 3),
        layer("tanh", "kSTanh", "conv1"),
        layer("norm", "kLRN", "tanh", lrn_conf={"local_size": 3}),
        layer("pool", "kPooling", "norm", **pool),
        conv("conv2", "pool", 2),
        layer("sigmoid", "kSigmoid", "conv2"),
        dense("top", "sigmoid"),
        LOSS,
        shape=(2, 7, 6),
    )


def numerical_gradients(net, values, records, ctx, step=1e-6):
    """Central differences of the total loss, in float64."""

    def loss():
        _, metrics = forward(net, values, records, ctx)
        return metrics["loss"][0] / ctx.rows.total

    slopes = {}
    for name, value in values.items():
        slopes[name] = np.zeros_like(value)
        for index in np.ndindex(value.shape):
            kept = value[index]
            value[index] = kept + step
            above = loss()
            value[index] = kept - step
            slopes[name][index] = (above - loss()) / (2 * step)
            value[index] = kept
    return slopes


def assert_same_gradients(actual, expected, atol=1e-8):
    assert set(actual) == set(expected)
    for name in expected:
        np.testing.assert_allclose(actual[name], expected[name], rtol=1e-6, atol=atol, err_msg=name)


def test_gradients_of_fused_layers_are_the_slopes_of_the_loss_and_those_of_single_layers():
    """A residual block; the slopes are those of ``forward``, which does not fuse layers."""
    net = build(
        conv("low", "data", 2),
        layer("low_bn", "kBM", "low"),
        layer("low_relu", "kReLU", "low_bn"),
        conv("high", "low_relu", 2),
        layer("high_bn", "kBM", "high"),
        layer("add", "kAdd", "high_bn", "low_relu"),
        layer("relu", "kReLU", "add"),
        dense("top", "relu"),
        LOSS,
        shape=(2, 4, 4),
    )
    values, records = values_of(net), records_of(net)
    pushed, metrics = gradients(net, values, records)
    assert len(net.fused.nodes) == len(net.nodes) - 3
    expected, others = gradients(net, values, records, algorithm=back_propagate)
    assert metrics == {name: pytest.approx(metric, rel=1e-12) for name, metric in others.items()}
    assert_same_gradients(pushed, expected, atol=1e-14)
    slopes = numerical_gradients(net, values, records, context(net))
    trained = [name for name, param in net.params.items() if param.trainable]
    assert_same_gradients({name: pushed[name] for name in trained}, {name: slopes[name] for name in trained})


def test_an_observer_is_called_for_each_pass_and_changes_no_number():
    net = convnet()
    values, records = values_of(net), records_of(net)
    passes = []

    def observe(layer, name, compute, *arguments):
        passes.append((layer.name, name))
        return compute(*arguments)

    observed, _ = gradients(net, values, records, replace(context(net), observer=observe))
    names = [node.layer.name for node in net.nodes]
    assert passes == [(name, "forward") for name in names] + [(name, "backward") for name in names[:0:-1]]
    assert_same(gradients(net, values, records)[0], observed)


@st.composite
def random_nets(draw):
    """Branches, joins, slices, shared params, several losses."""
    layers, outputs = [], {"data": 6}
    for k in range(draw(st.integers(1, 5))):
        name, earlier = f"n{k}", sorted(outputs)
        source = draw(st.sampled_from(earlier))
        kinds = ["dense", "shared", "kSTanh", "kConcate", "loss"] + ["kSlice"] * (outputs[source] > 1)
        kind = draw(st.sampled_from(kinds))
        if kind == "dense" or kind == "loss":
            layers.append(dense(name, source, draw(st.integers(2, 4)) if kind == "dense" else 3))
            outputs[name] = layers[-1].innerproduct_conf.num_output
            if kind == "loss":
                layers.append(layer(f"{name}_loss", "kSoftmaxLoss", name, "data"))
        elif kind == "shared":
            first, second = dense(f"{name}a", source, outputs[source]), dense(name, f"{name}a", outputs[source])
            second.param = [ParamConf(share_from=f"{name}a_weight")]
            layers += [first, second]
            outputs[name] = outputs[f"{name}a"] = outputs[source]
        elif kind == "kSTanh":
            layers.append(layer(name, kind, source))
            outputs[name] = outputs[source]
        elif kind == "kConcate":
            sources = [source, *draw(st.lists(st.sampled_from(earlier), min_size=1, max_size=2))]
            layers.append(layer(name, kind, *sources, concate_conf={"concate_dim": 1}))
            outputs[name] = sum(outputs[source] for source in sources)
        else:
            layers.append(layer(f"{name}cut", kind, source, slice_conf={"slice_dim": 1, "num_slices": 2}))
            layers += [layer(f"{name}left", "kSTanh", f"{name}cut"), layer(name, "kSTanh", f"{name}cut")]
            outputs[name] = outputs[source] // 2
    layers += [dense("top", name), LOSS]
    return build(*layers, shape=(6,))


def test_no_gradient_passes_through_a_loss():
    """A layer after a loss can be trained by another loss, but passes no gradient to the layers below the first one."""
    aux = layer("aux", "kSoftmaxLoss", "a", "data")
    net = build(dense("a", "data"), aux, dense("top", "aux"), LOSS)
    alone = build(dense("a", "data"), aux)
    values, records = values_of(net), records_of(net)
    pushed, _ = gradients(net, values, records)
    assert pushed["top_weight"].any()
    np.testing.assert_array_equal(pushed["a_weight"], gradients(alone, values, records)[0]["a_weight"])


@settings(max_examples=25)
@given(random_nets())
def test_gradients_of_random_nets_are_the_slopes_of_their_losses(net):
    values, records = values_of(net), records_of(net)
    pushed, _ = gradients(net, values, records)
    assert_same_gradients(pushed, numerical_gradients(net, values, records, context(net)))


def test_tied_transposed_weights_get_one_gradient():
    net = build(
        dense("code", "data", 2, {"name": "w"}),
        dense("out", "code", 5, {"share_from": "w"}, transpose=True),
        layer("loss", "kEuclideanLoss", "out", "data"),
    )
    values, records = values_of(net), records_of(net)
    pushed, _ = gradients(net, values, records)
    assert_same_gradients(pushed, numerical_gradients(net, values, records, context(net)))


class Watched(Mapping):
    """A mapping that records its look-ups."""

    def __init__(self, inner, log):
        self.inner, self.log = inner, log

    def __getitem__(self, name):
        self.log.append(("value", name))
        return self.inner[name]

    def __iter__(self):
        raise AssertionError("looking up a value may block, so all of them must not be read")

    __len__ = __iter__


def test_values_are_looked_up_bottom_first_and_gradients_pushed_top_first():
    """A param is looked up right before its layer; a gradient is pushed before the next layer's backward pass."""
    net = build(dense("a", "data"), layer("spy", "Spy", "a"), dense("top", "spy"), LOSS)
    log = net.layer("spy").log = []
    bp(
        net, Watched(values_of(net), log), records_of(net), context(net),
        lambda name, _: log.append(("push", name)),
    )  # fmt: skip
    assert log == [
        ("value", "a_weight"), ("value", "a_bias"), "forward", ("value", "top_weight"), ("value", "top_bias"),
        ("push", "top_weight"), ("push", "top_bias"), "backward", ("push", "a_weight"), ("push", "a_bias"),
    ]  # fmt: skip


@register("layer", "Spy")
class Spy(Layer):
    """The identity; records its calls, its features and its gradients."""

    def __init__(self, conf, source_shapes, info=None):
        super().__init__(conf, source_shapes, info)
        self.shape, self.log, self.alive = self.source_shapes[0], [], []

    def compute_feature(self, params, sources, ctx):
        self.log.append("forward")
        return Output(self._made(sources[0].copy()), saved=self._made(np.ones(3)))

    def compute_gradient(self, params, sources, output, grad, needs, ctx):
        self.log.append("backward")
        return (self._made(grad.copy()),), ()

    def _made(self, array):
        self.alive.append(weakref.ref(array))
        return array


def alive(net):
    return [sum(ref() is not None for ref in node.layer.alive) for node in net.nodes if isinstance(node.layer, Spy)]


def spies(count):
    names = ["a", *(f"s{k}" for k in range(count))]
    chain = [layer(name, "Spy", below) for below, name in zip(names, names[1:], strict=False)]
    return build(dense("a", "data"), *chain, dense("top", names[-1]), LOSS)


def test_forward_frees_each_feature_as_soon_as_the_next_is_computed():
    net, seen = spies(4), []
    below = [net.layer(f"s{k}") for k in range(4)]
    for k in (1, 2, 3):
        original = below[k].compute_feature

        def watched(params, sources, ctx, k=k, original=original):
            seen.append([sum(ref() is not None for ref in spy.alive) for spy in below[:k]])
            return original(params, sources, ctx)

        below[k].compute_feature = watched
    forward(net, values_of(net), records_of(net), context(net))
    assert [counts[:-1] for counts in seen] == [[], [0], [0, 0]]  # only the feature right below is alive
    assert alive(net) == [0, 0, 0, 0]


def test_forward_returns_the_outputs_of_the_named_layers():
    net = spies(2)
    outputs, metrics = forward(net, values_of(net), records_of(net), context(net), keep=["s0", "loss"])
    assert list(outputs) == ["s0", "loss"]
    assert outputs["loss"].feature.shape == (4, 3)
    np.testing.assert_allclose(outputs["loss"].feature.sum(axis=1), 1)
    assert list(metrics) == ["loss", "accuracy"]
    refused(lambda: forward(net, values_of(net), records_of(net), context(net), keep=["s00"]), "did you mean 's0'")


def test_backward_frees_features_and_gradients_on_its_way_down():
    net = spies(3)
    counts = []
    bp(net, values_of(net), records_of(net), context(net), lambda name, _: counts.append((name, alive(net))))
    # At the top layer's push all features and its gradient are alive; at the bottom only the last gradient.
    assert counts[0] == ("top_weight", [2, 2, 2])
    assert counts[-1][0] == "a_bias"
    assert counts[-1][1][1:] == [0, 0]
    assert alive(net) == [0, 0, 0]


def test_features_below_all_params_are_freed_before_the_backward_pass():
    """For instance whole images before a crop: only the crop is needed again, by the first layer with params."""
    net = build(layer("image", "Spy", "data"), layer("crop", "Spy", "image"), dense("top", "crop"), LOSS)
    counts = []
    bp(net, values_of(net), records_of(net), context(net), lambda name, _: counts.append(alive(net)))
    assert counts[0] == [0, 1]


def test_pushed_gradients_belong_to_the_callee():
    """The callee may write to a pushed gradient without changing any other."""
    net = convnet()
    values, records = values_of(net), records_of(net)
    expected, _ = gradients(net, values, records)
    kept = {name: gradient.copy() for name, gradient in expected.items()}

    def spoil(name, gradient):
        np.testing.assert_array_equal(gradient, kept[name])
        gradient[...] = np.nan

    bp(net, values, records, context(net), spoil)


def test_the_new_state_is_pushed_in_place_of_a_gradient():
    net = build(layer("mean", "LastingMean", "data"), dense("top", "mean"), LOSS)
    records = records_of(net)
    pushed, _ = gradients(net, values_of(net), records)
    assert list(pushed) == ["top_weight", "top_bias", "mean_scale", "mean_mean"]
    np.testing.assert_allclose(pushed["mean_mean"], records["data"].data.mean(axis=0))


def test_unchanged_state_is_pushed_as_a_copy():
    net = build(layer("still", "LastingMean", "data"), dense("top", "still"), LOSS)
    values = values_of(net)
    pushed, _ = gradients(net, values, records_of(net))
    np.testing.assert_array_equal(pushed["still_mean"], values["still_mean"])
    assert not np.shares_memory(pushed["still_mean"], values["still_mean"])


def test_params_that_no_loss_depends_on_get_zeros():
    """Servers wait for a gradient of every param in each step."""
    net = build(dense("a", "data"), dense("unused", "a", 2), layer("s", "kArgSort", "unused"), dense("top", "a"), LOSS)
    pushed, _ = gradients(net, values_of(net), records_of(net))
    assert set(pushed) == set(net.params)
    assert not pushed["unused_weight"].any()
    assert pushed["unused_weight"].shape == (2, 3)
    assert pushed["a_weight"].any()


def test_an_error_in_a_layer_names_it():
    net = build(dense("a", "data"), layer("spy", "Spy", "a"), dense("top", "spy"), LOSS)

    def fail(*_):
        raise ZeroDivisionError("of the user's own")

    net.layer("spy").compute_gradient = fail
    with pytest.raises(ZeroDivisionError) as caught:
        gradients(net, values_of(net), records_of(net))
    assert caught.value.__notes__ == ["in compute_gradient of layer 'spy'"]
    net.layer("spy").compute_feature = fail
    with pytest.raises(ZeroDivisionError) as caught:
        forward(net, values_of(net), records_of(net), context(net))
    assert caught.value.__notes__ == ["in compute_feature of layer 'spy'"]


@pytest.mark.parametrize("above", ["kDropout", "kBM", "kSTanh"])
def test_gradients_over_joined_rows_are_the_slopes_of_the_loss_over_all_of_them(above):
    net = build(
        dense("a", "data"),
        dense("b", "data"),
        layer("both", "kConcate", "a", "b", concate_conf={"concate_dim": 0}),
        layer("above", above, "both"),
        dense("top", "above"),
        layer("loss", "kSoftmaxLoss", "top", "both"),
    )
    values, records = values_of(net), records_of(net)
    pushed, metrics = gradients(net, values, records)
    assert metrics["loss"][1] == 8
    expected = numerical_gradients(net, values, records, context(net))
    slopes = [name for name, param in net.params.items() if param.spec.trainable]
    for name in slopes:  # the loss is a mean over twice the rows of the net's batch
        np.testing.assert_allclose(pushed[name], expected[name] / 2, rtol=1e-5, atol=1e-7, err_msg=name)
