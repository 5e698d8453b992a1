"""The small GPT compared with PyTorch on the same params, trained on a text, and generating with its cache."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsinga
from dsinga import models
from dsinga.addons.text.generation import generated_codes, generator
from dsinga.base.errors import UserError
from dsinga.data import import_records
from dsinga.job import Phase
from dsinga.layers import Context, RecordInfo, Records, Rows
from dsinga.net import create_net
from dsinga.ops import get_ops
from dsinga.training import forward
from tests.support.refusals import refused
from tests.support.training_cases import gradients

ROWS, STEPS, CODES = 3, 7, 11
SMALL: dict[str, Any] = {"blocks": 2, "width": 8, "heads": 2, "hidden": 12, "steps": STEPS, "batchsize": ROWS}
INFO = {"data": RecordInfo((STEPS,), ROWS, label_shape=(STEPS,))}


def torch_loss(params: dict[str, Any], codes: np.ndarray, labels: np.ndarray) -> Any:
    """Return the sum of cross-entropies by PyTorch's functions, with the rotations of Meta's LLaMA."""
    import torch
    from torch.nn import functional

    def norm(name: str, x: Any) -> Any:
        return functional.rms_norm(x, x.shape[-1:], params[f"{name}_norm_scale"], 1e-5)

    def dense(name: str, x: Any) -> Any:
        return functional.linear(x, params[f"{name}_weight"])

    def heads(x: Any) -> Any:
        return x.reshape(*x.shape[:2], SMALL["heads"], -1).transpose(1, 2)

    def rotate(x: Any) -> Any:
        size = x.shape[-1]
        angles = torch.outer(torch.arange(x.shape[2]), 10_000 ** (-torch.arange(0, size, 2, dtype=x.dtype) / size))
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * torch.polar(torch.ones_like(angles), angles)
        return torch.view_as_real(pairs).reshape(x.shape)

    x = params["embedding_weight"][torch.tensor(codes)]
    for number in (1, 2):
        name = f"block{number}_attention"
        normal = norm(name, x)
        q, k, v = (heads(dense(f"{name}_{role}", normal)) for role in ("query", "key", "value"))
        y = functional.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True)
        x = x + dense(f"{name}_output", y.transpose(1, 2).reshape(x.shape))
        name = f"block{number}_perceptron"
        normal = norm(name, x)
        product = functional.silu(dense(f"{name}_gate", normal)) * dense(f"{name}_up", normal)
        x = x + dense(f"{name}_output", product)
    scores = norm("last", x) @ params["embedding_weight"].T
    return functional.cross_entropy(scores.reshape(-1, CODES), torch.tensor(labels).reshape(-1), reduction="sum")


def draw_params(conf: Any, dtype: Any = np.float64, stddev: float = 0.4) -> dict[str, np.ndarray]:
    """Return random params of the training net."""
    net, rng = create_net(conf, Phase.kTrain, INFO), np.random.default_rng(1)
    return {
        name: (rng.normal(0, stddev, param.shape) + (param.spec.role == "scale")).astype(dtype)
        for name, param in net.params.items()
    }


def test_loss_and_gradients_are_pytorchs():
    torch = pytest.importorskip("torch")
    conf, rng = models.gpt(CODES, **SMALL).neuralnet, np.random.default_rng(0)
    values = draw_params(conf)
    codes, labels = rng.integers(0, CODES, (2, ROWS, STEPS))
    ctx = Context(get_ops("numpy"), Phase.kTrain, Rows(0, ROWS, ROWS))
    ours, metrics = gradients(create_net(conf, Phase.kTrain, INFO), values, {"data": Records(codes, labels)}, ctx)
    tensors = {name: torch.tensor(value, requires_grad=True) for name, value in values.items()}
    theirs = torch_loss(tensors, codes, labels)
    (theirs / ROWS).backward()
    total, count = metrics["loss"]
    assert count == ROWS * STEPS
    assert total == pytest.approx(float(theirs.detach()), rel=1e-10)
    assert ours.keys() == values.keys()
    for name, gradient in ours.items():
        expected = tensors[name].grad.numpy()
        np.testing.assert_allclose(gradient, expected, rtol=1e-7, atol=1e-9 * np.abs(expected).max(), err_msg=name)


@pytest.mark.parametrize("prompt", [1, 5])
def test_the_cache_gives_the_codes_of_the_whole_net(prompt: int):
    """The most probable code after each beginning of a text, by the training net on the whole beginning."""
    conf = models.gpt(CODES, **{**SMALL, "steps": 40}).neuralnet
    params = draw_params(conf, np.float32)
    begin = np.random.default_rng(2).integers(0, CODES, prompt).tolist()
    text = [*begin, *generated_codes(generator(conf, CODES), params, begin, 40 - prompt, temperature=0)]
    assert len(set(text)) > 3
    codes = np.array([text], np.int64)
    whole = create_net(conf, Phase.kTest, {"data": RecordInfo((40,), 1, label_shape=(40,))})
    ctx = Context(get_ops(), Phase.kTest, Rows(0, 1, 1))
    outputs, _ = forward(whole, params, {"data": Records(codes, codes)}, ctx, ("scores",))
    assert outputs["scores"].feature[0].argmax(axis=1)[prompt - 1 : -1].tolist() == text[prompt:]


def test_a_text_may_be_longer_than_the_net_sees():
    """With one block, the codes are those of the net on the last codes, as many as it sees at once."""
    conf = models.gpt(CODES, **{**SMALL, "blocks": 1}).neuralnet
    params, begin = draw_params(conf, np.float32), [1, 2, 3]
    text = [*begin, *generated_codes(generator(conf, CODES), params, begin, 20, temperature=0)]
    whole, ctx = create_net(conf, Phase.kTest, INFO), Context(get_ops(), Phase.kTest, Rows(0, 1, 1))
    for stop in range(STEPS, len(text)):
        seen = np.array([text[stop - STEPS : stop]], np.int64)
        outputs, _ = forward(whole, params, {"data": Records(seen, seen)}, ctx, ("scores",))
        assert outputs["scores"].feature[0, -1].argmax() == text[stop]


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a text of which each letter has one follower."""
    folder = tmp_path_factory.mktemp("letters")
    (folder / "input").write_text("abcdefgh" * 300)
    import_records("text", folder / "input", folder, held_out=0.1)
    return folder


def small_job(folder: Path, **fields: Any) -> Any:
    sizes = {"blocks": 1, "width": 16, "heads": 2, "steps": 8, "batchsize": 8, "learning_rate": 0.02}
    never = {"disp_freq": 0, "test_freq": 0, "checkpoint_freq": 0}
    return models.gpt(8, str(folder), **{**sizes, **never, "train_steps": 40, **fields})


def test_a_learned_text_is_continued(letters: Path):
    job = small_job(letters)
    result = dsinga.train(job, workers=1, progress=False)
    assert dsinga.evaluate(job, result.params)["loss"] < 0.1
    assert dsinga.generate(job, result.params, "cd", 20, temperature=0) == "efghabcdefghabcdefgh"


def test_nets_that_cannot_generate_are_refused():
    conf = models.gpt(CODES, **SMALL).neuralnet
    seeing = [
        layer.replace(attention_conf=layer.attention_conf.replace(causal=False)) if layer.attention_conf else layer
        for layer in conf.layer
    ]
    refused(lambda: generator(conf.replace(layer=seeing), CODES), "'block1_attention_heads'", "the next code")
    with pytest.raises(UserError, match=r"'data' has 12 different codes, but vocab_size is 11; make it 12"):
        create_net(conf, Phase.kTrain, {"data": RecordInfo((STEPS,), ROWS, label_shape=(STEPS,), codes=12)})
