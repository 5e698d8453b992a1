"""PyTorch's modules as models: outputs, training step by step, params in both directions; what is refused."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsinga import nn
from dsinga.base.errors import UserError
from dsinga.convert import from_torch, to_torch
from tests.support.later_import import functional, keys_of, torch
from tests.support.refusals import refused, refused_with

ROWS, STEPS = 16, 8


def nets() -> Any:
    """Return the module of nets, which imports PyTorch."""
    pytest.importorskip("torch")
    from tests.support import torch_nets

    return torch_nets


def with_statistics(module: Any) -> Any:
    """Return a module whose running statistics are not those with which it begins."""
    for layer in module.modules():
        if getattr(layer, "running_mean", None) is not None:
            layer.running_mean.normal_()
            layer.running_var.uniform_(0.5, 2)
    return module


def check_outputs(module: Any, model: nn.Model, x: Any) -> None:
    """Check that both give the same for records, and the module again with the params of the model."""
    module.eval()
    with torch.no_grad():
        theirs = module(x).numpy()
    ours = model.predict(x.numpy())
    np.testing.assert_allclose(ours.reshape(theirs.shape), theirs, rtol=1e-5, atol=1e-5)
    module.load_state_dict({name: torch.tensor(array) for name, array in to_torch(model).items()})
    with torch.no_grad():
        np.testing.assert_allclose(module(x).numpy(), theirs, rtol=1e-5, atol=1e-6)


def check_training(module: Any, model: nn.Model, x: Any, y: Any, rate: float) -> None:
    """Check that steps of SGD on batches have the same losses, and end with the same params and running statistics."""
    is_field = y.dtype.is_floating_point
    model.compile(nn.SGD(rate), "mse" if is_field else "sparse_categorical_crossentropy")
    optimizer = torch.optim.SGD([param for param in module.parameters() if param.requires_grad], rate)
    module.train()
    for records, labels in zip(x, y, strict=True):
        theirs = (functional.mse_loss if is_field else functional.cross_entropy)(module(records), labels)
        optimizer.zero_grad()
        theirs.backward()
        optimizer.step()
        flat = labels.reshape(len(labels), -1).numpy() if is_field else labels.numpy()
        ours = model.train_on_batch(records.numpy(), flat, return_dict=True)
        assert ours["loss"] == pytest.approx(theirs.item(), rel=1e-5, abs=1e-6)
    state = module.state_dict()
    for name, array in to_torch(model).items():
        np.testing.assert_allclose(array, state[name].numpy(), rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    ("net", "shape", "codes", "rate"),
    [
        pytest.param("ResNet18", (3, 64, 64), 0, 0.003, marks=pytest.mark.ci),
        ("UNet", (1, 16, 16), 0, 0.05),
        ("Bert", (12,), 20, 0.05),
        ("LanguageModel", (12,), 20, 0.003),
    ],
)
def test_a_net_gives_and_learns_what_it_does_in_pytorch(
    net: str, shape: tuple[int, ...], codes: int, rate: float, tmp_path: Path
) -> None:
    torch.manual_seed(1)
    module = with_statistics(getattr(nets(), net)())
    model = from_torch(module, shape)
    size = STEPS, ROWS, *shape
    x = torch.randint(codes, size) if codes else torch.randn(size)
    check_outputs(module, model, x[0])
    y = torch.randn(STEPS, ROWS, 2, *shape[1:]) if net == "UNet" else torch.randint(3, (STEPS, ROWS))
    check_training(module, model, x, y, rate)
    model.save(tmp_path / "model")
    loaded = nn.load_model(tmp_path / "model")
    check_outputs(module, loaded, x[0])


@pytest.mark.parametrize("name", keys_of("torch_nets", "LAYERS"))
def test_a_layer_gives_and_learns_what_it_does_in_pytorch(name: str) -> None:
    torch.manual_seed(1)
    shape, make = nets().LAYERS[name]
    module = with_statistics(make())
    model = from_torch(module, shape)
    x = torch.randn(2, 4, *shape)
    check_outputs(module, model, x[0])
    with torch.no_grad():
        y = torch.randn(2, *module(x[0]).shape)
    check_training(module, model, x, y, 0.05)


class Faults:
    """Modules that are refused, and what is said; made when PyTorch is there."""

    @staticmethod
    def several() -> tuple[Any, tuple[int, ...], str]:
        nn = torch.nn
        pool = nn.AvgPool2d(2, divisor_override=3)
        layers = [nn.Conv2d(3, 4, 3), nn.RReLU(), pool, nn.BatchNorm2d(4), nn.Softshrink()]
        said = r"for 1 \(RReLU\); 2 \(AvgPool2d\) with divisor_override; 4 \(Softshrink\): replace"
        return nn.Sequential(*layers), (3, 8, 8), said

    @staticmethod
    def operations() -> tuple[Any, tuple[int, ...], str]:
        def function(y: Any) -> Any:
            y = torch.einsum("bi,ij->bj", y, torch.eye(3)).view(-1, 1)
            return functional.log_softmax(y, dim=1)

        return (
            nets().Call(function, torch.nn.Linear(3, 3)),
            (3,),
            "for einsum; view that mixes the records of a batch: ",
        )

    @staticmethod
    def branch() -> tuple[Any, tuple[int, ...], str]:
        return (
            nets().Call(lambda y: y if y.sum() > 0 else -y, torch.nn.Linear(3, 3)),
            (3,),
            "for sum over the records of a batch; __bool__",
        )

    @staticmethod
    def changed_view() -> tuple[Any, tuple[int, ...], str]:
        def function(y: Any) -> Any:
            halves = y.view(-1, 2, 2)
            copy = y.clone()
            y.add_(1.0)
            return copy + halves.flatten(1)

        return nets().Call(function, torch.nn.Linear(4, 4)), (4,), "for flatten on a tensor that add_ changes in place"

    @staticmethod
    def size_of_batch() -> tuple[Any, tuple[int, ...], str]:
        return nets().Call(lambda y: y / len(y), torch.nn.Linear(3, 3)), (3,), "div by the number of records of a batch"

    @staticmethod
    def any_length() -> tuple[Any, tuple[Any, ...], str]:
        return torch.nn.Sequential(torch.nn.Embedding(5, 3)), (None,), r"in whole numbers above 0, .*, not \(None,\)"

    @staticmethod
    def steps_first() -> tuple[Any, tuple[int, ...], str]:
        layer = torch.nn.TransformerEncoderLayer(8, 2)
        return torch.nn.Sequential(layer), (5, 8), r"0.self_attn \(MultiheadAttention\) with batch_first=False"

    @staticmethod
    def recurrent() -> tuple[Any, tuple[int, ...], str]:
        nn, nets_ = torch.nn, nets()
        first = {"batch_first": True}
        layers = [
            nets_.Recurrent(nn.LSTM(8, 8, proj_size=4, **first), lambda layer, x: layer(x)[0]),
            nets_.Recurrent(nn.RNN(4, 4, nonlinearity="relu", **first), lambda layer, x: layer(x)[0]),
            nets_.Recurrent(nn.GRU(4, 4, **first), lambda layer, x: layer(x, torch.ones(1, len(x), 4))[0]),
            nets_.Recurrent(nn.GRU(4, 4), lambda layer, x: layer(x)[0]),
            nets_.Recurrent(nn.LSTM(4, 4, bidirectional=True, **first), lambda layer, x: torch.tanh(layer(x)[1][1])),
            nn.LSTMCell(4, 4),
        ]
        message = (
            r"0.layers \(LSTM\) with proj_size; 1.layers \(RNN\) with nonlinearity='relu'; "
            r"2.layers \(GRU\) with initial states that are constants other than zeros; "
            r"3.layers \(GRU\) with batch_first=False where another axis is the batch; "
            r"tanh in 4 on the last cell states of both directions of 4.layers \(LSTM\); 5 \(LSTMCell\): replace"
        )
        return nn.Sequential(*layers), (5, 8), message

    @staticmethod
    def packed() -> tuple[Any, tuple[int, ...], str]:
        def function(layer: Any, x: Any) -> Any:
            packed = torch.nn.utils.rnn.pack_padded_sequence(x, torch.full((len(x),), 5), batch_first=True)
            return torch.nn.utils.rnn.pad_packed_sequence(layer(packed)[0], batch_first=True)[0]

        layer = torch.nn.LSTM(8, 4, batch_first=True)
        return nets().Recurrent(layer, function), (5, 8), "for pack_padded_sequence: replace"

    @staticmethod
    def moved_batch() -> tuple[Any, tuple[int, ...], str]:
        def function(layer: Any, x: Any) -> Any:
            y, h = layer(x)
            first = h[:, :1], y.transpose(0, 1) + torch.ones(1, len(x), 4), h.sum(0)
            return first and h

        message = (
            "for getitem that cuts the batch, .*; add on a tensor whose axis 1 is the batch; "
            "a result whose axis 1 is the batch"
        )
        return nets().Recurrent(torch.nn.GRU(8, 4, batch_first=True), function), (5, 8), message

    @staticmethod
    def weight_of_another() -> tuple[Any, tuple[int, ...], str]:
        first = torch.nn.Linear(3, 3)
        return nets().Call(lambda y: y @ first.weight.T, first), (3,), "matmul of a param that belongs to another layer"

    @staticmethod
    def other_channels() -> tuple[Any, tuple[int, ...], str]:
        return (
            torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3)),
            (4, 8, 8),
            r"0.weight of .* \(4, 3, 3, 3\), but .* \(4, 4, 3, 3\)",
        )

    @staticmethod
    def own_fault() -> tuple[Any, tuple[int, ...], str]:
        return nets().Call(lambda y: y.nothing, torch.nn.Linear(3, 3)), (3,), "the forward of Call fails .*'nothing'"

    @staticmethod
    def single() -> tuple[Any, tuple[int, ...], str]:
        return torch.nn.Linear(3, 3), (3,), r"give torch.nn.Sequential\(Linear"

    @staticmethod
    def batch() -> tuple[Any, tuple[int, ...], str]:
        said = r"of one record, without the batch; give \(1, 8, 8\), not \(16, 1, 8, 8\)"
        return torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU()), (16, 1, 8, 8), said

    @staticmethod
    def shapes() -> tuple[Any, tuple[int, ...], str]:
        return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3)), (), r"from_torch\(module, \(3, 224, 224\)\)"


@pytest.mark.parametrize("name", [name for name in vars(Faults) if name[0] != "_"])
def test_what_has_no_counterpart_is_named_all_at_once_and_the_module_stays_as_it_was(name: str) -> None:
    pytest.importorskip("torch")
    module, shape, message = getattr(Faults, name)()
    module.eval()
    before = {key: value.clone() for key, value in module.state_dict().items()}
    refused(lambda: from_torch(module, *([shape] if shape else [])), message)
    assert not any(part.training or "forward" in vars(part) for part in module.modules())
    assert all(
        isinstance(param, torch.nn.Parameter)
        for part in module.modules()
        for param in part._parameters.values()
        if param is not None
    )
    assert all((value == before[key]).all() for key, value in module.state_dict().items())


def test_a_net_keeps_its_channels_first_where_other_inputs_have_them_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsinga.nn.words.inputs._data_format", ["channels_last"])
    module = torch.nn.Sequential(torch.nn.Conv2d(4, 2, 3), torch.nn.ReLU())
    check_outputs(module, from_torch(module, (4, 4, 4)), torch.randn(2, 4, 4, 4))


def test_what_is_no_module_is_refused_with_the_remedy() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 2))
    refused_with(lambda: from_torch(module.state_dict(), (4,)), "OrderedDict", "module.load_state_dict(...)")
    refused_with(lambda: from_torch(torch.nn.Linear, (4,)), "the class Linear", "from_torch(Linear(), ...)")
    refused_with(lambda: to_torch(module), "not a module of PyTorch", "dsinga.convert.from_torch(module, shape)")


def test_params_without_numbers_are_refused() -> None:
    for layer in (torch.nn.LazyLinear(3), torch.nn.Linear(3, 3, device="meta")):
        with pytest.raises(UserError, match="params have numbers: call it once on a batch, or load them"):
            from_torch(torch.nn.Sequential(layer), (3,))


def test_frozen_params_a_padding_vector_and_dropout_are_as_in_pytorch() -> None:
    torch.manual_seed(1)
    layers = [
        torch.nn.Embedding(5, 4, padding_idx=0), torch.nn.Flatten(), torch.nn.Linear(12, 3), torch.nn.Linear(3, 3),
    ]  # fmt: skip
    module = torch.nn.Sequential(*layers)
    module[0].weight.data[0] = 1.0
    module[2].requires_grad_(False)
    module[3].bias.requires_grad_(False)
    model = from_torch(module, (3,))
    x, y = torch.randint(5, (4, 8, 3)), torch.randint(3, (4, 8))
    check_training(module, model, x, y, 0.5)
    assert (model.params["0_weight"][0] == 1).all()
    assert (model.get_layer("2").trainable, model.get_layer("3").trainable) == (False, True)
    dropped = from_torch(nets().Bert(dropout=0.5), (12,))
    codes = np.arange(24).reshape(2, 12) % 20
    assert str(dropped).count("kDropout") == 2 * 4
    assert dropped.predict(codes).shape == (2, 3)
    layers = torch.nn.LSTM(8, 3, 3, batch_first=True, dropout=0.5)
    assert str(from_torch(nets().Recurrent(layers, lambda layer, x: layer(x)[0]), (4, 8))).count("kDropout") == 2


def test_recurrent_layers_with_a_common_or_frozen_param_train_as_in_pytorch() -> None:
    torch.manual_seed(1)
    first, second = (torch.nn.GRU(4, 4, batch_first=True) for _ in range(2))
    second.weight_hh_l0 = first.weight_hh_l0
    second.bias_ih_l0.requires_grad_(False)
    module = nets().Recurrent(torch.nn.ModuleList([first, second]), lambda layers, x: layers[1](layers[0](x)[0])[0])
    model = from_torch(module, (5, 4))
    x, y = torch.randn(3, 4, 5, 4), torch.randn(3, 4, 5, 4)
    check_outputs(module, model, x[0])
    check_training(module, model, x, y, 0.5)


def test_a_module_that_begins_with_a_linear_layer_needs_no_shape() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.Tanh())
    assert from_torch(module).predict(np.zeros((2, 5), np.float32)).shape == (2, 3)


JOB = """
  layer {
    name: "conv"
    type: kConvolution
    srclayers: "x"
    convolution_conf { kernel: 3 pad: 1 num_filters: 8 }
  }
  layer { name: "norm" type: kBM srclayers: "conv" bm_conf { keep_initial: true } }
  layer { name: "relu" type: kReLU srclayers: "norm" }
"""


def test_the_examples_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).parents[2] / "docs" / "howto" / "pytorch.md"
    blocks = re.findall(r"^```py\n(.*?)^```$", page.read_text(), re.M | re.S)
    assert len(blocks) == 3
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, str(page), "exec"), names)
    assert JOB in re.sub(r"\n    param \{.*", "", str(names["model"]))
