"""Weights of folders with safetensors: by tables of names, in shards, of several dtypes; what is refused."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from dsinga import nn
from dsinga.base.errors import UserError
from dsinga.convert import from_torch, load_weights, save_weights, to_torch
from tests.support.later_import import functional, keys_of, torch
from tests.support.refusals import refused

# Another library's names of the params of a net, and the model's.
TABLE = {
    "backbone.stage.*.conv.*": "conv*.*", "backbone.norm.*": "norm.*", "attention.query.*": "attend.in_proj_q.*",
    "pooler.*": None, "classifier.*": "head.*",
}  # fmt: skip


def model(seed: int = 0) -> nn.Model:
    """Return a net of images with params of many kinds."""
    x = nn.Input((2, 6, 6), "x")
    y = nn.Conv2D(4, 3, name="conv1", padding="same")(x)
    y = nn.Conv2DTranspose(3, 2, 2, name="conv2")(y)
    y = nn.BatchNormalization(name="norm")(y)
    made = nn.Model(x, nn.Dense(2, name="head")(y))
    rng = np.random.default_rng(seed)
    made.params = {name: rng.random(array.shape, np.float32) for name, array in made.params.items()}
    return made


def theirs(own: nn.Model) -> dict[str, np.ndarray]:
    """Return the weights of a model by the other library's names, with arrays that the model lacks."""
    back = {
        "conv1.": "backbone.stage.1.conv.", "conv2.": "backbone.stage.2.conv.", "norm.": "backbone.norm.",
        "head.": "classifier.",
    }  # fmt: skip
    arrays = {}
    for name, array in to_torch(own).items():
        ours = next(prefix for prefix in back if name.startswith(prefix))
        arrays[name.replace(ours, back[ours])] = array
    return arrays | {"pooler.weight": np.ones((2, 2), np.float32), "backbone.norm.num_batches_tracked": np.array(3)}


@pytest.mark.parametrize("form", ["file", "folder", "shards", "bfloat16"])
def test_weights_are_read_by_a_table_of_names_and_written_back(form: str, tmp_path: Path) -> None:
    source, target = model(1), model(2)
    assert to_torch(source)["conv1.weight"].shape == (4, 2, 3, 3)
    assert to_torch(source)["conv2.weight"].shape == (4, 3, 2, 2)
    arrays = theirs(source)
    if form == "bfloat16":
        arrays = {name: array.astype(ml_dtypes.bfloat16) if array.ndim else array for name, array in arrays.items()}
    if form == "shards":
        names = list(arrays)
        shards = {f"model-0000{number + 1}-of-00002.safetensors": names[number::2] for number in range(2)}
        for file, listed in shards.items():
            save_file({name: arrays[name] for name in listed}, tmp_path / file)
        weight_map = {name: file for file, listed in shards.items() for name in listed}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    else:
        save_file(arrays, tmp_path / "model.safetensors")
    load_weights(target, tmp_path / "model.safetensors" if form == "file" else tmp_path, TABLE)
    tolerance = 1e-2 if form == "bfloat16" else 0
    for name, array in source.params.items():
        np.testing.assert_allclose(target.params[name], array, rtol=tolerance, err_msg=name)
    save_weights(target, tmp_path / "out", TABLE, {"model_type": "own"})
    written = load_file(tmp_path / "out" / "model.safetensors")
    assert written.keys() == arrays.keys() - {"pooler.weight", "backbone.norm.num_batches_tracked"}
    assert written["backbone.stage.1.conv.weight"].shape == (4, 2, 3, 3)
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == {"model_type": "own"}


def test_params_that_are_left_out_keep_their_values(tmp_path: Path) -> None:
    source, target = model(1), model(2)
    before = target.params["head_weight"].copy()
    arrays = {name: array for name, array in to_torch(source).items() if not name.startswith("head")}
    save_file(arrays, tmp_path / "model.safetensors")
    refused(lambda: load_weights(target, tmp_path), "bias, which the model needs", "weight, head")
    refused(lambda: load_weights(target, tmp_path, without="haed.*"), r"'haed.\*'", "is called so")
    load_weights(target, tmp_path, without="head.*")
    np.testing.assert_array_equal(target.params["head_weight"], before)
    np.testing.assert_array_equal(target.params["conv1_weight"], source.params["conv1_weight"])


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "has neither model.safetensors nor model.safetensors.index.json: give its folder"),
        ({"pytorch_model.bin": b"\x80\x02"}, "pytorch_model.bin would run code; save the net with safe_serialization"),
        ({"model.safetensors": b"damaged"}, "model.safetensors cannot be read as safetensors"),
        (
            {"model.safetensors": b"\x80\x02"},
            r"is a pickle of PyTorch.*save_file\(torch.load\('model.safetensors'\), 'mo",
        ),
        ({"model.safetensors.index.json": b"[]"}, "index.json cannot be read as an index of weights"),
        ({"model.safetensors.index.json": b'{"weight_map": {"a": "../a"}}'}, "'../a', which is no file of the"),
        ({"model.safetensors.index.json": b'{"weight_map": {"a": "a.safetensors"}}'}, "a.safetensors cannot be read"),
    ],
)
def test_folders_without_weights_are_refused(files: dict[str, bytes], message: str, tmp_path: Path) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    refused(lambda: load_weights(model(), tmp_path), message)


@pytest.mark.parametrize(
    ("change", "names", "message"),
    [
        ({"pooler.weight": np.ones((2, 2), np.float32)}, {}, "'pooler.weight': None"),
        ({"head.bias": np.ones(3, np.float32)}, {}, r"head.bias of .* the shape \(3,\), but that .* is \(2,\)"),
        ({}, {"conv*.*": "conv*"}, "give both as many"),
        ({}, {"conv1.*": "conv2.*"}, "two arrays the name 'conv2.bias'"),
    ],
)
def test_arrays_that_do_not_fit_are_named(change: dict, names: dict, message: str, tmp_path: Path) -> None:
    save_file({**to_torch(model()), **change}, tmp_path / "model.safetensors")
    refused(lambda: load_weights(model(), tmp_path, names), message)


# PyTorch's modules by name: outputs in both phases, steps of SGD, params in both directions; or the sentence.
MODULES = [
    "equal branches", "dropout of 0", "frozen norm", "frozen under no_grad", "padded (4, 8), reflect",
    "padded (2, 4, 5, 3), reflect", "padded (4, 8), replicate", "padded (2, 4, 5, 3), replicate",
    "padded (4, 8), circular", "padded (2, 4, 5, 3), circular", "same, circular", "pads of steps", "causal",
    "upsampled", "means", "mean of channels", "extrema", "adaptive maxima", "absolute", "edges", "constants",
    "stacked", "unbound", "chosen", "lengths", "by hand", "transposed 1", "transposed 2", "transposed 3",
    "heads of a ViT", "heads that share keys", "repeated", "relative positions", "unseen keys", "unseen steps", "GRU",
    "RNN", "LSTM", "last cells",
    "states and cells", "states in the wrong order", "step by step", "one number a record", "learnt state",
    "functions", "norm of channels", "tied", "one weight in several calls",
]  # fmt: skip
REFUSED = keys_of("torch_table", "REFUSED")


def table() -> Any:
    """Return the module of tables, which imports PyTorch."""
    pytest.importorskip("torch")
    from tests.support import torch_table

    return torch_table


def check_module(module: Any, shapes: Any, codes: int, rate: float = 0.05, steps: int = 2, limit: float = 1e-5) -> None:
    """Check outputs in evaluation, then the losses of steps of SGD, and the params back in the module after these."""
    model = from_torch(module, *shapes)
    torch.manual_seed(2)
    x = [torch.randint(codes, (steps, 8, *shape)) if codes else torch.randn(steps, 8, *shape) for shape in shapes]
    y = check_outputs(module, model, [part[0] for part in x], limit)
    model.compile(nn.SGD(rate), "mse")
    optimizer = torch.optim.SGD([param for param in module.parameters() if param.requires_grad], rate)
    targets = torch.randn(steps, *y.shape)
    module.train()
    for step in range(steps):
        loss = functional.mse_loss(module(*(part[step] for part in x)), targets[step])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        records, target = given([part[step] for part in x]), targets[step].reshape(8, -1).numpy()
        assert model.train_on_batch(records, target) == pytest.approx(loss.item(), rel=limit, abs=limit)
    arrays, state = to_torch(model), module.state_dict()
    for name, array in arrays.items():
        scale = max(1, np.abs(array).max())
        np.testing.assert_allclose(array / scale, state[name].numpy() / scale, atol=limit, err_msg=name)
    missing, unexpected = module.load_state_dict({n: torch.tensor(array) for n, array in arrays.items()}, strict=False)
    buffers = dict(module.named_buffers())
    assert not unexpected
    assert [name for name in missing if name not in buffers] in ([], ["weight"])  # of the two names of a tied one
    check_outputs(module, model, [part[0] for part in x], limit)


def given(x: Any) -> Any:
    """Return the arrays of the arguments of a forward as a model takes them."""
    arrays = [part.numpy() for part in x]
    return arrays[0] if len(arrays) == 1 else arrays


def check_outputs(module: Any, model: nn.Model, x: Any, limit: float) -> Any:
    """Check the outputs in evaluation, and return those of the module."""
    module.eval()
    with torch.no_grad():
        y = module(*x)
    scale = max(1.0, float(y.abs().max()))
    np.testing.assert_allclose(model.predict(given(x)).reshape(y.shape) / scale, y.numpy() / scale, atol=limit)
    return y


@pytest.mark.parametrize("name", MODULES)
def test_a_module_gives_and_learns_what_it_does_in_pytorch(name: str) -> None:
    torch.manual_seed(1)
    shapes, codes, make = table().TABLE[name]
    check_module(make(), shapes, codes)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_the_same_is_refused_with_the_remedy(name: str) -> None:
    torch.manual_seed(1)
    (shapes, _, make), message = table().REFUSED[name]
    module = make()
    before = {key: value.clone() for key, value in module.state_dict().items()}
    random_numbers = torch.get_rng_state()
    refused(lambda: from_torch(module, *shapes), message)
    assert all(value.equal(before[key]) for key, value in module.state_dict().items())
    assert random_numbers.equal(torch.get_rng_state())


def test_the_tables_are_tested_whole() -> None:
    assert [*table().TABLE] == MODULES


def test_params_are_joined_along_their_first_axis() -> None:
    module = table().Run(lambda m, a, x: a(x) + torch.cat([m.first, m.second], 0), torch.nn.Linear(6, 5))
    module.first, module.second = (torch.nn.Parameter(torch.randn(size)) for size in (2, 3))
    check_module(module, ((6,),), 0)


def test_dropout_of_a_phase_is_there_in_training_only() -> None:
    tables = table()
    layers = torch.nn.TransformerEncoderLayer(8, 2, 16, 0.5, batch_first=True)
    forms = {
        "branch": (lambda m, a, x: functional.dropout(a(x), 0.5) if m.training else a(x), tables.linear(), (6,)),
        "argument": (lambda m, a, x: functional.dropout(a(x), 0.5, m.training), tables.linear(), (6,)),
        "module": (lambda m, a, x: a(x), torch.nn.Sequential(tables.linear(), torch.nn.Dropout(0.5)), (6,)),
        "attention": (
            lambda m, a, x: functional.scaled_dot_product_attention(
                *(a(x)[:, None],) * 3, dropout_p=0.5 if m.training else 0.0
            ), torch.nn.Linear(8, 8), (5, 8),
        ),
        "layers": (lambda m, a, x: a(x), layers, (5, 8)),
    }  # fmt: skip
    for name, (function, layer, shape) in forms.items():
        module = tables.Run(function, layer)
        model = from_torch(module, shape)
        assert "kDropout" in str(model), name
        check_outputs(module, model, [torch.randn(4, *shape)], 1e-5)


@pytest.mark.ci
@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")  # of torch.compile in itself
def test_a_wrapped_module_is_that_which_it_wraps() -> None:
    for wrap in (torch.compile, torch.nn.DataParallel):
        inner = torch.nn.Sequential(table().linear())
        assert [*to_torch(from_torch(wrap(inner)))] == [*inner.state_dict()]
    check_module(torch.nn.Sequential(torch.compile(inner), torch.nn.Linear(4, 2)), ((6,),), 0)


def test_weights_with_a_prefix_or_two_values_of_one_param_are_refused(tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Embedding(5, 4), torch.nn.Linear(4, 5, bias=False))
    module[1].weight = module[0].weight
    model = from_torch(module, (3,))
    for prefix in ("module.", "_orig_mod."):
        save_weights(model, tmp_path / prefix, {f"{prefix}*": "*"})
        with pytest.raises(UserError, match=rf'begin with .{prefix}., .* names={{"{prefix}\*": "\*"}}'):
            load_weights(model, tmp_path / prefix)
        load_weights(model, tmp_path / prefix, {f"{prefix}*": "*"})
    apart = from_torch(torch.nn.Sequential(torch.nn.Embedding(5, 4), torch.nn.Linear(4, 5, bias=False)), (3,))
    save_weights(apart, tmp_path / "apart")
    refused(lambda: load_weights(model, tmp_path / "apart"), "0_weight", "are one param")


@pytest.mark.ci
@pytest.mark.parametrize(
    ("library", "name", "settings"),
    [
        ("timm", "vit_tiny_patch16_224", {"init_values": 0.1, "qk_norm": True}),
        ("timm", "vit_tiny_patch16_224", {"global_pool": "avg", "class_token": False, "drop_path_rate": 0.0}),
        ("timm", "deit_tiny_distilled_patch16_224", {}),
        ("timm", "deit3_small_patch16_224", {}),
        ("timm", "resnet18", None),
        ("timm", "convnext_atto", None),
        ("torchvision", "resnet18", None),
        ("torchvision", "shufflenet_v2_x0_5", None),
    ],
)
def test_nets_of_timm_and_torchvision_give_and_learn_what_they_do_there(name: str, library: str, settings: Any) -> None:
    models = pytest.importorskip(f"{library}.models", exc_type=Exception)
    torch.manual_seed(1)
    if library == "timm":
        small = {"img_size": 32, "depth": 2, "embed_dim": 32, "num_heads": 2, "patch_size": 8}
        more = {} if settings is None else {**small, **settings}
        module = models.create_model(name, pretrained=False, num_classes=5, **more)
    else:
        module = getattr(models, name)(weights=None, num_classes=5)
    if settings is None:  # batch normalisation of few pixels enlarges rounding
        check_module(module, ((3, 64, 64),), 0, rate=0.003, steps=1, limit=1e-4)
    else:
        check_module(module, ((3, 32, 32),), 0, rate=0.003)
