"""LoRA: PyTorch, cut nets, files and merged weights."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsinga
from dsinga import extensions, models, nn
from dsinga.addons.lora.low_rank_layers import LowRank, low_rank_shapes, with_low_rank, without_low_rank
from dsinga.addons.lora.model_methods import merged_lora
from dsinga.checkpoint.tensor_files import read_safetensors, write_tensors
from dsinga.job import Job
from dsinga.reading.checked_job import CheckedJob
from tests.support.refusals import refused

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(12, 5)).astype("float32"), RNG.integers(3, size=12)
STEPS = 20


def perceptron(optimizer: Any = "sgd") -> nn.Sequential:
    layers = [nn.Dense(7, activation="tanh", name="hidden"), nn.Dense(3, name="top")]
    model = nn.Sequential([nn.Input(5), *layers])
    model.compile(optimizer, "sparse_categorical_crossentropy")
    return model


def with_random_b(model: Any) -> Any:
    """Return the model with random numbers in place of the zeros of LoRA."""
    params = model.params
    model.params = {
        name: value if value.any() or "lora" not in name else RNG.normal(0, 0.5, value.shape).astype("float32")
        for name, value in params.items()
    }
    return model


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(nn.SGD(0.3, momentum=0.9), ("SGD", {"lr": 0.3, "momentum": 0.9})), (nn.Adam(0.01), ("Adam", {"eps": 1e-7}))],
    ids=["SGD", "Adam"],
)
def test_training_is_that_of_a_module_of_pytorch(ours: Any, theirs: tuple[str, dict[str, float]]) -> None:
    torch = pytest.importorskip("torch")

    class LoRALinear(torch.nn.Module):
        def __init__(self, inputs: int, outputs: int, rank: int, factor: float):
            super().__init__()
            self.base = torch.nn.Linear(inputs, outputs).requires_grad_(False)
            self.a, self.b = torch.nn.Linear(inputs, rank, bias=False), torch.nn.Linear(rank, outputs, bias=False)
            self.factor = factor
            torch.nn.init.zeros_(self.b.weight)

        def forward(self, x: Any) -> Any:
            return self.base(x) + self.factor * self.b(self.a(x))

    torch.manual_seed(0)
    peer = torch.nn.Sequential(LoRALinear(5, 7, 2, 2.0), torch.nn.Tanh(), LoRALinear(7, 3, 2, 2.0))
    plain = torch.nn.Sequential(peer[0].base, torch.nn.Tanh(), peer[2].base).requires_grad_(True)
    model = dsinga.convert.from_torch(plain, (5,))
    plain.requires_grad_(False)
    model.compile(ours, "sparse_categorical_crossentropy")
    before, scores = model.params, model.predict(X)
    model.add_lora(rank=2, alpha=4, layers=["0", "2"])
    assert (model.predict(X) == scores).all()
    begin = {f"{n}.lora_{r}_weight": getattr(peer[n], r).weight.detach().numpy().copy() for n in (0, 2) for r in "ab"}
    model.params = {**model.params, **begin}
    trained = [param for param in peer.parameters() if param.requires_grad]
    optimizer = getattr(torch.optim, theirs[0])(trained, **{"lr": 0.01, **theirs[1]})
    x, y = torch.tensor(X), torch.tensor(Y)
    for _ in range(STEPS):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(peer(x), y).backward()
        optimizer.step()
        model.train_on_batch(X, Y)
    for name in begin:
        module, role = name.partition(".lora_")[::2]
        np.testing.assert_allclose(model.params[name], getattr(peer[int(module)], role[0]).weight.detach(), atol=1e-5)
    assert all((model.params[name] == value).all() for name, value in before.items())
    assert {variable.name for variable in model.weights if variable.trainable} == begin.keys()
    model.merge_lora()
    np.testing.assert_allclose(model.predict(X), peer(x).detach(), atol=1e-5)


@pytest.mark.parametrize("dim", [0, 1])
def test_a_net_that_is_cut_in_two_has_the_same_gradients(dim: int) -> None:
    model = perceptron()
    model.add_lora(rank=2, alpha=3, layers="*")
    params = with_random_b(model).params
    job = model.job(train_steps=1)
    job = job.replace(neuralnet=job.neuralnet.replace(partition_dim=dim))
    whole = nn.LocalNet(job, X, Y).backward(params, X, Y)
    cut = nn.LocalNet(job, X, Y, workers=2).backward(params, X, Y)
    assert whole.gradients.keys() == {name for name in params if "lora" in name}
    for name, gradient in whole.gradients.items():
        np.testing.assert_allclose(cut.gradients[name], gradient, atol=1e-6, err_msg=name)


def test_saved_alone_loaded_into_a_copy_and_merged(tmp_path: Path) -> None:
    model, copy = perceptron(), perceptron()
    copy.params = model.params
    model.add_lora(rank=2, alpha=3, layers="*")
    model.fit(X, Y, epochs=3, progress=False)
    scores = model.predict(X)
    model.save_lora(tmp_path / "lora.safetensors")
    assert all("lora" in name for name in read_safetensors(tmp_path / "lora.safetensors"))
    copy.load_lora(tmp_path / "lora.safetensors")
    assert (copy.predict(X) == scores).all()
    assert str(copy.job(train_steps=1)) == str(model.job(train_steps=1))
    copy.load_lora(tmp_path / "lora.safetensors")  # a newer file of the same layers
    model.save(tmp_path / "model")
    loaded = nn.load_model(tmp_path / "model")
    assert (loaded.predict(X) == scores).all()
    for merged in (copy, loaded):
        merged.merge_lora()
        assert sorted(merged.params) == sorted(perceptron().params)
        np.testing.assert_allclose(merged.predict(X), scores, atol=1e-6)
    copy.add_lora(rank=1, layers="top")
    refused(lambda: copy.load_lora(tmp_path / "lora.safetensors"), "LoRA", r"merge_lora\(\)")


def test_layers_that_are_trained_as_a_whole() -> None:
    model = perceptron()
    before = model.params
    model.add_lora(layers="hidden", trainable="top")
    model.fit(X, Y, epochs=1, progress=False)
    changed = {name for name, value in before.items() if (model.params[name] != value).any()}
    assert changed == {"top_weight", "top_bias"}
    refused(lambda: perceptron().add_lora(layers="hidden", trainable="tap"), "'tap'", "did you mean 'top'")


def test_the_model_of_a_job_freezes_its_params_and_statistics() -> None:
    layers = [nn.Dense(4, name="hidden"), nn.BatchNormalization(name="norm"), nn.Dense(3, name="top")]
    described = nn.Sequential([nn.Input(5), *layers])
    described.compile("sgd", "sparse_categorical_crossentropy")
    model = nn.from_job(described.job(X, Y, train_steps=3))
    before = model.params
    model.add_lora(layers="hidden", trainable="top")
    model.add_lora(rank=1, layers="top")
    model.fit(X, Y, epochs=2, progress=False)
    assert all((model.params[name] == value).all() for name, value in before.items())
    assert "use_global_stats: true" in str(model)
    scores = model.predict(X)
    model.merge_lora()
    np.testing.assert_allclose(model.predict(X), scores, atol=1e-6)


@pytest.mark.parametrize("codes", [RNG.integers(6, size=(9, 4)), RNG.integers(6, size=9)], ids=["steps", "rows"])
def test_an_embedding(codes: np.ndarray) -> None:
    shape = codes.shape[1:] or ()
    flat = [nn.Flatten()] if shape else []
    model = nn.Sequential([nn.Input(shape), nn.Embedding(6, 5, name="codes"), *flat, nn.Dense(2, name="top")])
    model.compile(nn.Adam(0.01), "sparse_categorical_crossentropy")
    before = model.predict(codes)
    model.add_lora(rank=2, alpha=1, layers="codes")
    assert (model.predict(codes) == before).all()
    labels = RNG.integers(2, size=9)
    model.fit(codes, labels, epochs=4, progress=False)
    scores = model.predict(codes)
    assert (scores != before).any()
    model.merge_lora()
    np.testing.assert_allclose(model.predict(codes), scores, atol=1e-6)


def test_the_projections_of_attention() -> None:
    x = nn.Input((4, 6))
    model = nn.Model(x, nn.Dense(2, name="top")(nn.MultiHeadAttention(2, 3, name="attention")(x, x)))
    records = RNG.normal(size=(5, 4, 6)).astype("float32")
    before = model.predict(records)
    model.add_lora(rank=2, alpha=4)
    assert (model.predict(records) == before).all()
    names = [name for name in model.params if name.endswith("lora_b_weight")]
    assert names == [f"attention{role}.lora_b_weight" for role in ("_query", "_key", "_value", "")]
    scores = with_random_b(model).predict(records)
    assert abs(scores - before).max() > 0.01
    model.merge_lora()
    np.testing.assert_allclose(model.predict(records), scores, atol=1e-5)


def test_layers_that_share_a_weight_share_its_change() -> None:
    first, second = nn.Input(5, "first"), nn.Input(5, "second")
    twice = nn.Dense(4, name="twice")
    model = nn.Model([first, second], nn.Add()([twice(first), nn.ReLU()(twice(second))]))
    model.add_lora(rank=2, alpha=4, layers="twice")
    assert list(model.params) == ["twice_weight", "twice_bias", "twice.lora_a_weight", "twice.lora_b_weight"]
    scores = with_random_b(model).predict([X, X[::-1]])
    model.merge_lora()
    np.testing.assert_allclose(model.predict([X, X[::-1]]), scores, atol=1e-5)


def test_a_transformer_of_models_whose_scores_share_an_embedding() -> None:
    job = models.transformer(8, 9, blocks=1, width=6, heads=2, hidden=5, dropout=0.0)
    sentences = {"source": RNG.integers(8, size=(3, 4)), "target": RNG.integers(9, size=(3, 5))}
    labels = {"target": RNG.integers(9, size=(3, 5))}
    low_rank = {
        layer.name: LowRank(2, 4.0, True)
        for layer in job.neuralnet.layer
        if layer.name.endswith(("_query", "_value", "source_embedding"))
    }
    adapted = job.replace(neuralnet=job.neuralnet.replace(layer=with_low_rank(job.neuralnet.layer, low_rank)))
    net = nn.LocalNet(adapted, sentences, labels)
    params = net.initial_params()
    shapes = low_rank_shapes(adapted.neuralnet.layer, params)
    assert {name: params[name].shape for name in shapes} == shapes
    assert len(shapes) == 2 * len(low_rank)
    params |= {name: RNG.normal(0, 0.3, shape).astype("float32") for name, shape in shapes.items()}
    scores = net.forward(params, sentences, layers=["scores"]).outputs["scores"]
    plain, merged = merged_lora(adapted, params)
    assert [layer.name for layer in plain.neuralnet.layer] == [layer.name for layer in job.neuralnet.layer]
    again = nn.LocalNet(plain, sentences, labels).forward(merged, sentences, layers=["scores"]).outputs["scores"]
    np.testing.assert_allclose(again, scores, atol=1e-5)


@pytest.mark.parametrize(
    ("job", "layer"),
    [
        (models.char_rnn(5, hidden=6, steps=4, batchsize=3), "ip1"),
        (models.rnnlm([5, 4, 3, 2, 1], hidden=6, steps=4, batchsize=3), "embedding"),
    ],
)
def test_layers_that_are_unrolled_over_steps(job: dsinga.Job, layer: str) -> None:
    layers = with_low_rank(job.neuralnet.layer, {layer: LowRank(2, 4.0)})
    adapted = job.replace(neuralnet=job.neuralnet.replace(layer=layers))
    codes = RNG.integers(5, size=(3, 5))
    params = nn.LocalNet(adapted, codes).initial_params()
    params |= {name: RNG.normal(0, 0.3, s).astype("float32") for name, s in low_rank_shapes(layers, params).items()}
    plain, merged = merged_lora(adapted, params)
    loss = nn.LocalNet(adapted, codes).backward(params, codes).loss
    assert loss == pytest.approx(nn.LocalNet(plain, codes).backward(merged, codes).loss, rel=1e-6)


def test_taking_out_leaves_the_layers_that_were_there() -> None:
    layers = perceptron().job(train_steps=1).neuralnet.layer
    added = with_low_rank(layers, {"hidden": LowRank(2, 6.0), "top": LowRank(1, 1.0)})
    assert [layer.name for layer in without_low_rank(added)] == [layer.name for layer in layers]


def test_a_model_with_lora_is_not_called_on_features() -> None:
    model = perceptron()
    model.add_lora(layers="top")
    refused(lambda: model(nn.Input(5)), "has layers of an add-on", "would leave out")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, r"no layer is called '\*attention\*'; there are hidden, top"),
        ({"layers": "tap"}, r"no layer is called 'tap'; did you mean 'top'\?"),
        ({"layers": "hidden_*"}, r"no layer is called 'hidden_\*'; did you mean 'hidden'\?"),
        ({"layers": "hidden_tanh"}, r"'hidden_tanh' is a k\w+, no dense layer, embedding or convolution without"),
        ({"layers": []}, "layers takes names of layers or patterns"),
        ({"rank": 0}, "rank is 0; give a whole number of at least 1"),
        ({"rank": 1.5}, "rank is 1.5; give a whole number of at least 1"),
        ({"rank": 10**9, "layers": "top"}, "rank is 1000000000; give at most 4096"),
        ({"alpha": 0}, "alpha is 0; give a number"),
        ({"ranks": 2}, "add_lora"),
    ],
)
def test_refused_arguments(arguments: dict[str, Any], message: str) -> None:
    model = perceptron()
    text = str(model.job(train_steps=1))
    refused(lambda: model.add_lora(**arguments), message)
    assert str(model.job(train_steps=1)) == text


def test_refused_layers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = perceptron()
    refused(lambda: model.merge_lora(), "LoRA", "call add_lora or")
    refused(lambda: model.save_lora(tmp_path / "lora.safetensors"), "has no LoRA")
    model.add_lora(rank=2, layers="top")
    refused(lambda: model.add_lora(layers="*"), "LoRA", r"merge_lora\(\) makes")
    refused(lambda: model.save_lora(tmp_path), "is a folder; name a file")
    (tmp_path / "file").write_text("")
    refused(lambda: model.save_lora(tmp_path / "file" / "lora.safetensors"), "file cannot be written")
    model.save_lora(tmp_path / "new" / "lora.safetensors")
    assert (tmp_path / "new" / "lora.safetensors").is_file()
    codes = nn.Input(4)
    embedded = nn.Embedding(6, 5, name="codes")(codes)
    tied = nn.Dense(6, use_bias=False, name="scores", param=[nn.Param(share_from="codes_weight")])(embedded)
    refused(lambda: nn.Model(codes, tied).add_lora(layers="codes"), "'scores'", "name other layers")
    with caplog.at_level(logging.WARNING, "dsinga"):
        nn.Model(codes, nn.Dense(2, name="own")(tied)).add_lora(layers="*")
    assert "add_lora leaves out codes, scores, which share a weight" in caplog.text
    code = nn.Dense(4, use_bias=False, name="code")(codes)
    turned = nn.Dense(4, use_bias=False, transpose=True, name="turned", param=[nn.Param(share_from="code_weight")])
    refused(lambda: nn.Model(codes, turned(code)).add_lora(layers="turned"), "'turned'", "not its form")
    refused(lambda: nn.Sequential([nn.Dense(3)]).add_lora(layers="*"), "the shapes of the model's", "are not known")


def test_a_new_head_and_statistics_go_along(tmp_path: Path) -> None:
    def normalised(classes: int) -> nn.Sequential:
        layers = [nn.Dense(4, name="hidden"), nn.BatchNormalization(name="norm"), nn.Dense(classes, name="top")]
        model = nn.Sequential([nn.Input(5), *layers])
        model.compile("sgd", "sparse_categorical_crossentropy")
        return model

    model, copy, file = normalised(3), normalised(3), tmp_path / "lora.safetensors"
    model.add_lora(rank=2, layers="hidden", trainable=["top", "norm"])
    copy.params = {name: value for name, value in model.params.items() if "lora" not in name}
    model.fit(X, Y, epochs=3, progress=False)
    model.save_lora(file)
    names = {"norm_scale", "norm_bias", "norm_mean", "norm_variance", "top_weight", "top_bias"}
    assert read_safetensors(file).keys() == names | {f"hidden.lora_{role}_weight" for role in "ab"}
    copy.load_lora(file)
    assert (copy.predict(X) == model.predict(X)).all()
    assert {each.name for each in copy.trainable_variables} == {each.name for each in model.trainable_variables}
    refused(lambda: normalised(2).load_lora(file), "'top_weight'", r"needs \(2, 4")
    other = nn.Sequential([nn.Input(5), nn.Dense(4, name="hidden"), nn.Dense(3, name="last")])
    refused(lambda: other.load_lora(file), "'norm_bias'", "give the file")


def test_layers_that_are_called_as_those_of_lora_are_the_users() -> None:
    layers = [nn.Dense(4, name="own.lora_a"), nn.Dense(4, name="own.lora_b"), nn.Dense(4, name="own")]
    model = nn.Sequential([nn.Input(5), *layers, nn.Dense(3, name="top")])
    refused(lambda: model.merge_lora(), "has no LoRA")
    refused(lambda: model.add_lora(layers="own"), "own.lora_a", "LoRA would be")
    before, scores = model.params, model.predict(X)
    model.add_lora(rank=1, layers="top")
    model.merge_lora()
    assert model.params.keys() == before.keys()
    np.testing.assert_allclose(model.predict(X), scores, atol=1e-6)


def test_several_addons_change_the_layers_of_a_model() -> None:
    def with_slow_top(checked: CheckedJob) -> Job:
        net = checked.job.neuralnet
        slow = {layer.name: [param.replace(lr_scale=0.5) for param in layer.param] for layer in net.layer}
        layers = [layer.replace(param=slow["top"]) if layer.name == "top" else layer for layer in net.layer]
        return checked.job.replace(neuralnet=net.replace(layer=layers))

    model = perceptron()
    model.job_changes.append(with_slow_top)
    model.add_lora(rank=2, layers="hidden", trainable="top")
    for each in (model, nn.clone_model(model)):
        each.compile("sgd", "sparse_categorical_crossentropy")
        layers = {layer.name: layer for layer in each.job(X, Y, train_steps=1).neuralnet.layer}
        assert "hidden.lora_b" in layers
        assert layers["top"].param[0].lr_scale == 0.5
    before = model.params
    model.fit(X, Y, epochs=2, callbacks=extensions.Unfreeze(["hidden.lora_*", "top"], epochs=1), verbose=0)
    changed = {name for name, value in model.params.items() if (value != before[name]).any()}
    assert changed == {"hidden.lora_a_weight", "hidden.lora_b_weight", "top_weight", "top_bias"}
    model.merge_lora()
    assert model.job_changes == [with_slow_top]


def test_a_clone_has_low_rank_layers_too() -> None:
    for model in (perceptron(), nn.Model(x := nn.Input(5), nn.Dense(3, name="top")(x))):
        model.add_lora(rank=2, alpha=3, layers="top")
        clone = nn.clone_model(model)
        assert clone.params.keys() == model.params.keys()
        clone.params = with_random_b(model).params
        assert (clone.predict(X) == model.predict(X)).all()


@pytest.mark.parametrize("settings", [{"strides": 2, "padding": "same"}, {"dilation_rate": 2, "use_bias": False}])
def test_a_convolution(settings: dict[str, Any], tmp_path: Path) -> None:
    """W + alpha/rank·B·A, where A has the windows of the layer and B is of single points, as in PEFT."""
    layers = [nn.Conv2D(4, 3, name="conv", **settings), nn.Conv2D(4, 1, groups=2, name="groups"), nn.Flatten()]
    model = nn.Sequential([nn.Input((2, 6, 6)), *layers, nn.Dense(3, name="top")])
    model.compile(nn.SGD(0.1), "sparse_categorical_crossentropy")
    images = RNG.normal(size=(12, 2, 6, 6)).astype("float32")
    before, base = model.predict(images), model.params
    refused(lambda: model.add_lora(layers="groups"), "'groups'", "or convolution without")
    model.add_lora(rank=2, alpha=6, layers="conv*")
    assert (model.predict(images) == before).all()
    model.fit(images, Y, epochs=4, progress=False)
    params, scores = model.params, model.predict(images)
    assert {name for name in params if (params[name] != base.get(name)).any()} >= {"conv.lora_b_weight"}
    assert all((params[name] == value).all() for name, value in base.items())
    model.merge_lora()
    change = 3 * params["conv.lora_b_weight"] @ params["conv.lora_a_weight"]
    np.testing.assert_allclose(model.params["conv_weight"], base["conv_weight"] + change, atol=1e-6)
    np.testing.assert_allclose(model.predict(images), scores, atol=1e-5)


def test_refused_files(tmp_path: Path) -> None:
    file = tmp_path / "lora.safetensors"
    model = perceptron()
    model.add_lora(rank=2, layers="top")
    model.save_lora(file)
    arrays = read_safetensors(file)
    other = nn.Sequential([nn.Input(5), nn.Dense(4, name="tops")])
    refused(lambda: other.load_lora(file), "LoRA", "did you mean 'tops'")
    wide = nn.Sequential([nn.Input(5), nn.Dense(4, name="top")])
    refused(lambda: wide.load_lora(file), "lora_a_weight", r"needs \(2, 5")
    assert list(wide.params) == ["top_weight", "top_bias"]
    said = '{"top": {"rank": 2, "alpha": 2}}'
    write_tensors(file, {"top.lora_a_weight": arrays["top.lora_a_weight"]}, {"lora": said})
    refused(lambda: perceptron().load_lora(file), "lora_b_weight", r"needs \(3, 2")
    for metadata in (None, "no JSON", "[]", "{}", '{"top": 1}', '{"top": {"rank": 0, "alpha": 1}}', "[" * 100_000):
        write_tensors(file, arrays, {} if metadata is None else {"lora": metadata})
        refused(lambda: perceptron().load_lora(file), "LoRA", "and alpha of")
    file.write_bytes(b"damaged")
    refused(lambda: perceptron().load_lora(file), "cannot be read as safetensors")
    refused(lambda: perceptron().load_lora(tmp_path / "absent"), "cannot be read as safetensors")


def test_the_exported_net_has_merged_weights(tmp_path: Path) -> None:
    onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    model = perceptron()
    model.add_lora(rank=2, alpha=3, layers="*")
    scores = with_random_b(model).predict(X)
    model.export(tmp_path / "net.onnx")
    session = runtime.InferenceSession(tmp_path / "net.onnx", providers=["CPUExecutionProvider"])
    (outputs,) = session.run(None, {session.get_inputs()[0].name: X})
    np.testing.assert_allclose(outputs, scores, atol=1e-5)
    assert "lora" not in str(onnx.load(tmp_path / "net.onnx"))
    assert any("lora" in name for name in model.params)
