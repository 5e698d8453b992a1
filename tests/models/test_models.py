"""The jobs of dsinga.models: they pass the checks, can be written, and have the nets of the papers."""

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsinga
from dsinga import models, nn
from dsinga.api.argument_types import typed
from dsinga.base.errors import UserError
from dsinga.engine.local_net import LocalNet
from dsinga.job import Job, Phase, check, load, loads, to_text
from dsinga.layers import RecordInfo
from dsinga.net import NeuralNet, create_net
from tests.support.refusals import check_refusal, refusal, refused

DATASETS = Path(__file__).parents[2] / "datasets"
Jobs = dict[str, Callable[[], Job]]  # each is made by the tests of it, not by every process that collects them
MADE: Jobs = {
    name: getattr(models, name)
    for name in ("alexnet", "autoencoder", "char_rnn", "convnet", "lenet", "mlp", "resnet", "softmax_regression", "vgg")
}
WNUT17 = {"words": 3706, "shapes": 429, "prefixes": 2290, "suffixes": 2116}
PAIRS = {"train_steps": 4520, "disp_freq": 50, "validate_freq": 452, "test_freq": 4520, "checkpoint_freq": 452}
RBMS: dict[str, Any] = {"sizes": (784, 400, 100, 2), "name": "mnist-rbm", "train_steps": 1200, "test_freq": 600}
MDNN_STORES = {
    "image_store": {"mean_value": 0.0078, "std_value": 0.0147},
    "text_store": {"mean_value": 0.1, "std_value": 0.117},
}


def halving(job: Job, rate: float, steps: int) -> Job:
    """Return the job with a learning rate that is halved every ``steps`` steps."""
    schedule = {"type": "kStep", "base_lr": rate, "step_conf": {"gamma": 0.5, "change_freq": steps}}
    return job.replace(updater=job.updater.replace(learning_rate=schedule))


# The jobs of which datasets/ has the files, by their names.
FILES: Jobs = {
    "char-rnn/job": MADE["char_rnn"],
    "cifar10/resnet": MADE["resnet"],
    "cifar10/vgg": MADE["vgg"],
    "diabetes/line": lambda: models.line(learning_rate=0.02),
    "imagenet/alexnet": MADE["alexnet"],
    "mnist/autoencoder": lambda: models.autoencoder(
        RBMS["sizes"], pretrained="mnist-rbm", name="mnist-autoencoder", train_steps=6000
    ),
    **{f"mnist/rbm{number}": partial(models.rbm, number, **RBMS) for number in (1, 2, 3)},
    "mnist/softmax": MADE["softmax_regression"],
    "movie-reviews/convolution": lambda: models.sentiment_convolution(9698),
    "movie-reviews/lstm": lambda: models.sentiment_lstm(9698),
    "movielens/cosine": lambda: models.recommender(943, 1682, 664),
    "movielens/product": lambda: models.recommender(943, 1682, 664, similarity="product"),
    "multi30k/gru": lambda: halving(models.gru_translator(7809, 5896, **PAIRS), 0.001, 1356),
    "multi30k/transformer": lambda: halving(models.transformer(7809, 5896, **PAIRS), 0.0005, 2260),
    "tinyshakespeare/ngram": lambda: models.word_ngram(3099, "ngrams", name="shakespeare-ngram"),
    "wikipedia/job": lambda: models.mdnn(name="wikipedia-mdnn", **MDNN_STORES),
    "wnut17/job": lambda: models.bigru_crf(WNUT17, 13),
}
JOBS: Jobs = {
    **MADE, **FILES, **{f"rbm{number}": partial(models.rbm, number) for number in (1, 2, 3, 4)},
    "mdnn": lambda: models.mdnn(image=(8, 6), text=(), code=4, dropout=0.0),
    "rnnlm": lambda: models.rnnlm([50, 20, 10, 5, 5, 4, 3, 2, 1], classes=2, hidden=4, steps=3, batchsize=2),
    "skip-gram": lambda: models.skip_gram([50, 30, 20, 9, 1]),
}  # fmt: skip


def net_of(job: Job, phase: Phase = Phase.kTrain) -> NeuralNet:
    store = job.net.layer[0].store_conf
    return create_net(job.net, phase, {"data": RecordInfo(tuple(store.shape), store.batchsize[0])})


@pytest.mark.parametrize("make", JOBS.values(), ids=JOBS)
def test_every_model_is_a_sound_job_that_can_be_written(make: Callable[[], Job]):
    job = make()
    check(job, [Phase.kTrain, Phase.kVal, Phase.kTest])
    assert loads(to_text(job)) == job
    assert max(map(len, to_text(job).splitlines())) <= 120


@pytest.mark.parametrize("file", FILES)
def test_the_job_files_are_what_the_functions_write(file: str):
    assert load(DATASETS / f"{file}.conf") == FILES[file]()


@pytest.mark.parametrize(
    ("file", "make"),
    [
        ("cifar10/convnet", JOBS["convnet"]),
        ("mnist/mlp", partial(models.mlp, (2500, 2000, 1500, 1000, 500), activation="kSTanh")),
    ],
)
def test_the_nets_are_those_of_the_job_files_written_by_hand(file: str, make: Callable[[], Job]):
    theirs, ours = net_of(load(DATASETS / f"{file}.conf")), net_of(make())
    layers = [[(type(node.layer), node.layer.shape[1:]) for node in net.nodes] for net in (ours, theirs)]
    assert layers[0] == layers[1]
    shapes = [[param.shape for param in net.params.values()] for net in (ours, theirs)]
    assert shapes[0] == shapes[1]


def count(net: NeuralNet) -> int:
    return sum(param.size for param in net.params.values() if param.trainable)


@pytest.mark.parametrize(("depth", "millions"), [(20, 0.27), (32, 0.46), (56, 0.85)])
def test_residual_nets_have_as_many_weights_as_in_the_paper(depth: int, millions: float):
    net = net_of(models.resnet(depth))
    kinds = [node.layer.conf.type.name for node in net.nodes]
    assert kinds.count("kConvolution") - 2 + kinds.count("kInnerProduct") == depth  # two make shortcuts fit
    shortcuts = 16 * 32 + 32 * 64 + 2 * (32 + 64)  # the paper counts those of option A, which have none
    assert round((count(net) - shortcuts) / 1e6, 2) == millions


def test_alexnet_has_its_61_million_weights_and_more_for_its_column():
    assert count(net_of(models.alexnet(batchsize=1))) == 62_378_344  # 60,965,224 in two columns


def test_net_d_of_vgg_has_the_weights_of_its_thirteen_convolutions():
    net = net_of(models.vgg(((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)), batchsize=1))
    weights = sum(p.size for p in net.params.values() if p.spec.role == "weight" and p.name.startswith("conv"))
    assert weights == 9 * (3 * 64 + 64 * 64 + 64 * 128 + 128**2 + 128 * 256 + 2 * 256**2 + 256 * 512 + 5 * 512**2)


def test_data_and_fields_of_the_job_are_the_callers():
    job = models.resnet(8, data="s3://bucket/cifar10/", train_steps=7, updater={"type": "kAdam"})
    store = job.net.layer[0].store_conf
    assert (store.path, store.mean_file) == (
        "s3://bucket/cifar10/train_data.zarr",
        "s3://bucket/cifar10/image_mean.zarr",
    )
    assert (job.train_steps, job.updater.type.name) == (7, "kAdam")


def test_given_epochs_replace_steps_and_frequencies():
    by_steps, by_epochs = models.mlp(train_steps=30), models.mlp(epochs=3, test_freq=7)
    assert (by_steps.train_steps, by_steps.epochs, by_steps.test_freq) == (30, 0, 1000)
    assert (by_epochs.train_steps, by_epochs.epochs, by_epochs.test_freq, by_epochs.disp_freq) == (0, 3, 7, 0)
    tagger = models.bigru_crf({"words": 9}, 5, train_steps=20)
    assert (tagger.train_steps, tagger.epochs) == (20, 0)


# Nets of the models cut by rows and by features, for two and four workers, have the gradients of the uncut nets.
RNG, ROWS = np.random.default_rng(0), 8
SMALL = {"batchsize": ROWS, "dropout": 0.2}
ONE_FEATURE = "score", "scores", "similarity", "user_mean", "film_mean", "output"  # too few features to cut
Batch = dict[str, np.ndarray]


def codes(count: int, steps: int, ended: np.ndarray | None = None) -> np.ndarray:
    """Return sentences below ``count``, -1 from the steps ``ended`` on, random ones if that is None."""
    ended = RNG.integers(2, steps, ROWS) if ended is None else ended
    return np.where(np.arange(steps) < ended[:, None], RNG.integers(count, size=(ROWS, steps)), -1).astype(np.int32)


def translated() -> tuple[Batch, Batch]:
    ended = RNG.integers(3, 7, ROWS)
    return {"source": codes(15, 6), "target": codes(15, 7, ended)}, {"target": codes(15, 7, ended).astype(int)}


def rated() -> tuple[Batch, Batch]:
    numbers = {name: RNG.integers(count, size=ROWS).astype(np.int32) for name, count in (("users", 12), ("films", 20))}
    genres = RNG.integers(2, size=(ROWS, 19)).astype(np.float32)
    return {**numbers, "titles": codes(30, 5), "genres": genres}, {"users": RNG.uniform(1, 5, ROWS).astype(np.float32)}


def resnet() -> Job:
    """Return the job of a residual net without the file of the mean image."""
    job = models.resnet(8, 4, size=8, batchsize=ROWS)
    layers = [
        conf.replace(store_conf=conf.store_conf.replace(mean_file=None)) if conf.store_conf else conf
        for conf in job.net.layer
    ]
    return job.replace(net=job.net.replace(layer=layers))


def trainable(model: nn.Model) -> Job:
    """Return the job of a net for fields of four channels with a target of one."""
    model.compile("sgd", "mse")
    return model.job(train_steps=1, batch_size=ROWS)


FIELDS = (
    {"data": RNG.normal(size=(ROWS, 4, 8, 8)).astype(np.float32)},
    {"data": RNG.normal(size=(ROWS, 64)).astype(np.float32)},
)
IMAGES = {"data": RNG.integers(256, size=(ROWS, 3, 8, 8)).astype(np.uint8)}, {"data": RNG.integers(4, size=ROWS)}
TABLE = {"data": np.concatenate([RNG.normal(size=(ROWS, 3)), RNG.integers(0, 4, (ROWS, 2))], axis=1).astype(np.float32)}
REVIEWS = {"data": codes(30, 9)}, {"data": RNG.integers(2, size=ROWS)}
# A job is made by the tests of it, not by every process that collects them.
CASES: dict[str, tuple[Callable[[], Job], tuple[Batch, Batch]]] = {
    "resnet": (resnet, IMAGES),
    "gru": (lambda: models.gru_translator(20, 15, embedding=8, hidden=8, **SMALL), translated()),
    "transformer": (lambda: models.transformer(20, 15, width=8, heads=4, hidden=8, blocks=1, **SMALL), translated()),
    "convolution": (lambda: models.sentiment_convolution(30, embedding=8, batchsize=ROWS, filters=6), REVIEWS),
    "unet": (lambda: trainable(models.unet((4, 8, 8), width=8, depth=2, padding="periodic")), FIELDS),
    "unet by groups": (lambda: trainable(models.unet((4, 8, 8), width=16, depth=1, normalisation="group")), FIELDS),
    "field_resnet": (lambda: trainable(models.field_resnet((4, 8, 8), width=8, blocks=1, dropout=0.2)), FIELDS),
    "deepesd": (lambda: trainable(models.deepesd((4, 8, 8), 64, filters=(8, 6, 4))), FIELDS),
    "convlstm": (lambda: trainable(models.convlstm((4, 8, 8), 2, out_steps=1, filters=(6, 4))), FIELDS),
    "tabm": (
        lambda: models.tabm(3, 0, [4, 12], 4, bins=[[-1.0, 0.0, 1.0]] * 3, members=4, width=8).job(
            train_steps=1, batch_size=ROWS
        ),
        (TABLE, {"data": RNG.integers(4, size=ROWS)}),
    ),
    "realmlp": (
        lambda: models.realmlp(3, 0, [4, 12], 4, width=8).job(train_steps=1, batch_size=ROWS),
        (TABLE, {"data": RNG.integers(4, size=ROWS)}),
    ),
    "lstm": (lambda: models.sentiment_lstm(30, embedding=8, batchsize=ROWS, hidden=5), REVIEWS),
    "cosine": (lambda: models.recommender(12, 20, 30, similarity="cosine", width=8, batchsize=ROWS), rated()),
    "product": (lambda: models.recommender(12, 20, 30, similarity="product", width=8, batchsize=ROWS), rated()),
}


@pytest.mark.parametrize("name", CASES)
def test_a_net_that_is_cut_has_the_gradients_of_the_whole(name: str):
    make, (x, y) = CASES[name]
    job = make()
    narrow = () if name in ("gru", "transformer") else ONE_FEATURE  # a translator has a score for each word
    whole = LocalNet(job, x, y, workers=1)
    params = whole.initial_params()
    expected = whole.backward(params, x, y, step=0)
    for dimension, workers in ((0, 4), (1, 2)):
        layers = [conf.replace(partition_dim=0 if conf.name in narrow else dimension) for conf in job.net.layer]
        net = LocalNet(job.replace(net=job.net.replace(layer=layers)), x, y, workers=workers)
        found = net.backward(params, x, y, step=0)
        assert found.loss == pytest.approx(expected.loss, rel=1e-5)
        for param, gradient in expected.gradients.items():
            limit, what = 1e-5 * max(np.abs(_dense(gradient)).max(), 0.2), f"{param}, cut along {dimension}"
            np.testing.assert_allclose(
                _dense(found.gradients[param]), _dense(gradient), rtol=0, atol=limit, err_msg=what
            )


def _dense(gradient: Any) -> np.ndarray:
    return gradient if isinstance(gradient, np.ndarray) else gradient.dense()


# Arguments of a wrong type, of every ready net and of a search, are errors that name function and argument.
WRONG = (None, "5", [3], float("nan"), -1, 2.5, True, {"a": 1}, object())
SEARCH: dict[str, Any] = {"job": "job.conf", "space": {"seed": [0, 1]}}


@pytest.mark.parametrize("name", models.__all__)
def test_ready_nets_take_or_refuse_arguments_of_every_type(name):
    function = getattr(models, name)
    named = [p for p in inspect.signature(function).parameters.values() if p.kind is not p.VAR_KEYWORD]
    required = {p.name: 10 for p in named if p.default is p.empty}
    for parameter in named:
        for value in WRONG:
            try:
                function(**{**required, parameter.name: value})
            except UserError:
                pass  # any other error fails the test
            except Exception as error:
                error.add_note(f"{name}({parameter.name}={value!r})")
                raise


@pytest.mark.parametrize(
    ("argument", "value"),
    [("samples", "5"), ("seed", None), ("monitor", 3), ("mode", None), ("only", 3), ("only", ["a"]), ("resume", "yes"),
     ("halving", "3"), ("workspace", 3), ("progress", [3])],
)  # fmt: skip
def test_a_search_names_an_argument_of_a_wrong_type(argument, value):
    refused(lambda: dsinga.search(**SEARCH, **{argument: value}), f"^search: {argument} is .*, not ")


def test_which_values_fit_which_annotations():
    @typed("net.")
    def f(n: int = 1, x: float = 1, shape: tuple[int, int] = (1, 2), names: list[str] | None = None, other: Any = 0):
        return n, x, shape, names

    assert f(2, 3, [4, 5], ["a"], object()) == (2, 3, [4, 5], ["a"])
    for arguments, text in (
        ({"n": True}, "n is a whole number, not True"),
        ({"x": float("nan")}, "x is a number, not nan"),
        ({"shape": (1, 2, 3)}, r"shape is .whole number, whole number., not"),
        ({"names": "ab"}, "names is a list of texts or None, not 'ab'"),
    ):
        with pytest.raises(UserError, match=f"net.f: {text}"):
            f(**arguments)


# What ``models`` refuses: each mistake in a line, with the name and the remedy that its error must have.
MISTAKES = [
    refusal(lambda: models.unet((1, 12, 16), depth=3), "3 times", "points cannot be"),
    refusal(lambda: models.unet((16, 16)), "takes fields of the", "not (16, 16"),
    refusal(lambda: models.unet((1, 8, 8), normalisation="layer"), 'normalisation is "batch", "group"', 'or "none"'),
    refusal(lambda: models.unet((1, 8, 8), padding="circular"), "'circular'", "these are zero"),
    refusal(lambda: models.field_resnet((8, 8)), "takes fields of the shape"),
    refusal(lambda: models.tabm(0), "0 numbers", "give at least"),
    refusal(lambda: models.realmlp(0), "0 numbers", "give at least"),
    refusal(lambda: models.tabm(2, 0, (-1,)), "2 numbers", "give at least"),
    refusal(lambda: models.realmlp(2, 0, (-1,)), "2 numbers", "give at least"),
    refusal(lambda: models.tabm(2, 0, (), 1, "regression"), "'regression'", 'or "numbers", not'),
    refusal(lambda: models.realmlp(2, 0, (), 1, "regression"), "'regression'", 'or "numbers", not'),
    refusal(lambda: models.recommender(1, 1, 1, similarity="dot"), "'dot'", "give one of"),
    refusal(lambda: models.vgg(()), "which 32 pixels cannot be; give"),
    refusal(lambda: models.vgg([(8, 1)] * 6), "which 32 pixels cannot be; give"),
    refusal(lambda: models.resnet(18), "6n + 2 layers, such as 8, 14 or 20, not 18"),
    refusal(lambda: models.tabm(2, depth=0), "depth is 0", "an ensemble has at least one layer before its heads"),
    refusal(lambda: models.tabm(2, bins=[[0.0, 1.0]]), "bins has edges of 1 numbers, but a record has 2; give those"),
    refusal(lambda: models.rbm(0), "5 sizes make machines 1 to 4; there is no machine 0"),
    refusal(lambda: models.rbm(5), "5 sizes make machines 1 to 4; there is no machine 5"),
    refusal(lambda: models.char_rnn(7, cell="GRU"), "there is no LayerType 'GRU'; did you mean 'kGRU'?"),
    refusal(lambda: models.bigru_crf({"chars": 4}, tags=3), "'words' and may have others of ", ", not ['chars']"),
]


@pytest.mark.parametrize(("call", "words", "error"), MISTAKES)
def test_a_mistake_is_named_with_its_remedy(call: Any, words: Any, error: Any, request: pytest.FixtureRequest) -> None:
    check_refusal(call, words, error, request)
