"""Estimators on dask and xarray collections: fit on the cluster, lazy results chunk by chunk."""

from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
from distributed import Client

import dsinga
from dsinga import UserError, nn
from dsinga.estimators import Classifier, Regressor, Transformer
from tests.support.refusals import refused
from tests.support.small_job import assert_same

RNG = np.random.default_rng(0)
X = RNG.normal(size=(900, 6)) * 3 + 5
Y = np.where(X[:, 0] + X[:, 1] > 10, "above", "below")
DX, DY = da.from_array(X, chunks=(200, 4)), da.from_array(Y, chunks=300)


def test_dask_arrays_in_lazy_predictions_out(threads: Client) -> None:
    classifier = Classifier(random_state=0, epochs=10).fit(DX, DY, validation_data=(DX, DY), client=threads)
    assert list(classifier.classes_) == ["above", "below"]
    probabilities = classifier.predict_proba(DX)
    assert isinstance(probabilities, da.Array)
    assert probabilities.chunks == (DX.chunks[0], (2,))
    prediction = classifier.predict(DX)
    assert prediction.chunks == (DX.chunks[0],)
    assert prediction.dtype == classifier.classes_.dtype
    assert (prediction.compute() == Y).mean() > 0.95
    assert classifier.score(DX, DY) == pytest.approx((prediction.compute() == Y).mean())
    assert classifier.history_[-1]["val_accuracy"] == pytest.approx(classifier.score(DX, DY))
    assert [row["epoch"] for row in classifier.history_] == list(range(1, 11))
    np.testing.assert_array_equal(probabilities.compute(), classifier.predict_proba(X))


def test_the_cluster_gives_what_training_here_gives(threads: Client) -> None:
    weights = RNG.random(900)
    here, there, lazily = (Classifier(random_state=0, epochs=3, blocks=3) for _ in range(3))
    here.fit(X, Y, sample_weight=weights)
    there.fit(X, Y, sample_weight=weights, client=threads)
    lazily.fit(DX, DY, sample_weight=da.from_array(weights, chunks=450))
    assert_same(there.params_, here.params_)
    assert_same(lazily.params_, here.params_)
    assert there.history_ == here.history_


def test_a_model_for_sites_trains_as_its_fit_does(threads: Client) -> None:
    model = nn.Sequential([nn.Dense(8, "relu"), nn.Dense(2)])
    model.compile(nn.AdamW(0.01), "sparse_categorical_crossentropy", cluster=nn.Cluster(sites=2, sync_freq=3))
    scaled = (X - 5) / 3
    classifier = Classifier(model, random_state=0, epochs=10, batchsize=50).fit(scaled, Y, client=threads)
    alone = Classifier(model, random_state=0, epochs=10, batchsize=50).fit(scaled, Y)
    assert classifier.history_[-1]["step"] == alone.history_[-1]["step"] / 2  # each of two sites reads half of an epoch
    assert classifier.score(scaled, Y) > 0.9


def test_regression_and_features_of_collections(threads: Client) -> None:
    targets = DX[:, :2] * 1e3
    regressor = Regressor(random_state=0, epochs=20).fit(DX, targets)
    assert regressor.score(DX, targets) == pytest.approx(regressor.score(X, X[:, :2] * 1e3))
    assert regressor.score(DX, targets) > 0.8
    assert regressor.predict(DX).chunks == (DX.chunks[0], (2,))
    assert Regressor(random_state=0, epochs=2).fit(DX, targets[:, 0]).predict(DX).shape == (900,)
    for method in ("autoencoder", "rbm"):
        transformer = Transformer(method=method, n_components=3, random_state=0, epochs=2).fit(DX)
        np.testing.assert_array_equal(transformer.transform(DX).compute(), transformer.transform(X))


def test_xarray_in_xarray_out(threads: Client) -> None:
    coordinates = {"time": np.arange(900), "band": list("abcdef"), "place": "here"}
    records = xr.DataArray(DX, dims=("time", "band"), coords=coordinates)
    labels = xr.DataArray(DY, dims="time")
    classifier = Classifier(random_state=0, epochs=3).fit(records, labels)
    result = classifier.predict_proba(records)
    assert result.dims == ("time", "class")
    assert set(result.coords) == {"time", "place"}
    assert isinstance(result.data, da.Array)
    np.testing.assert_array_equal(result.compute(), classifier.predict_proba(X))
    in_memory = classifier.predict(records.compute())
    assert isinstance(in_memory, xr.DataArray)
    assert in_memory.dims == ("time",)
    np.testing.assert_array_equal(in_memory, classifier.predict(X))


def test_data_frames_have_names_and_an_index(threads: Client) -> None:
    pd, dd = pytest.importorskip("pandas"), pytest.importorskip("dask.dataframe")
    names, index = list("abcdef"), np.arange(900)[::-1] * 3 + 7
    local = pd.DataFrame(X, index, columns=names)
    frame = dd.from_pandas(local, npartitions=4, sort=False)
    classifier = Classifier(random_state=0, epochs=3).fit(frame, pd.Series(Y, index))
    assert list(classifier.feature_names_in_) == names
    chances = classifier.predict_proba(frame)
    assert (chances.npartitions, list(chances.columns)) == (4, ["above", "below"])
    joined = frame.assign(of=classifier.predict(frame), chance=chances["below"]).compute()
    pd.testing.assert_frame_equal(joined[names], local)
    np.testing.assert_array_equal(joined["of"], classifier.predict(local))
    np.testing.assert_allclose(joined["chance"], classifier.predict_proba(local)[:, 1], rtol=1e-4)
    by_index = dd.from_pandas(local, npartitions=3)  # sorted
    assert by_index.assign(of=classifier.predict(by_index)).compute()["of"].equals(joined["of"][::-1])
    few = frame[frame["a"] > 12]  # none in some partitions
    np.testing.assert_array_equal(classifier.predict(few).compute(), classifier.predict(local[local["a"] > 12]))
    np.testing.assert_array_equal(classifier.to_local().predict(frame), joined["of"])
    refused(lambda: classifier.predict(frame[names[::-1]]), "X has the columns", error=ValueError)


def test_small_partitions_of_parquet_which_dask_joins_are_counted_as_they_are_read(threads: Client, tmp_path) -> None:
    pd, dd = pytest.importorskip("pandas"), pytest.importorskip("dask.dataframe")
    local = pd.DataFrame(X, columns=list("abcdef")).assign(of=Y)
    for number, start in enumerate(range(0, 900, 150)):
        local[start : start + 150].to_parquet(tmp_path / f"{number}.parquet")
    frame = dd.read_parquet(tmp_path)
    for names in (["a"], ["c", "b"], list("abcdef")):
        classifier = Classifier(random_state=0, epochs=1).fit(frame[names], frame["of"])
        answers = frame.assign(answer=classifier.predict(frame[names])).compute().answer
        np.testing.assert_array_equal(answers, classifier.predict(local[names]))
        assert classifier.score(frame[names], frame["of"]) == np.mean(answers == Y)


def test_results_of_several_columns_are_data_frames(threads: Client) -> None:
    pd, dd = pytest.importorskip("pandas"), pytest.importorskip("dask.dataframe")
    local = pd.DataFrame(X[:90], columns=list("abcdef"))
    frame = dd.from_pandas(local, npartitions=2)
    regressor = Regressor(loss="normal", random_state=0, epochs=1).fit(local, local[["a", "b"]])
    assert list(regressor.predict(frame).columns) == ["a", "b"]
    assert regressor.predict_interval(frame).compute().shape == (90, 2, 2)
    assert list(regressor.fit(local, local["a"]).predict(frame, quantiles=[0.1, 0.9]).columns) == [0.1, 0.9]
    features = Transformer(n_components=2, random_state=0, epochs=1).fit(local).transform(frame).compute()
    assert list(features.columns) == ["transformer0", "transformer1"]


def test_fit_goes_on_on_the_cluster(threads: Client) -> None:
    classifier = Classifier(random_state=0).partial_fit(DX, DY, classes=["above", "below", "level"])
    before = dict(classifier.params_)
    classifier.partial_fit(DX, DY, client=threads).partial_fit(X, Y)
    assert len(classifier.history_) == 3
    assert classifier.predict_proba(X).shape == (900, 3)
    assert not np.array_equal(before["fc1_weight"], classifier.params_["fc1_weight"])


def test_chunks_of_images_go_to_nets_that_take_them(threads: Client) -> None:
    images = da.from_array(RNG.integers(0, 255, (300, 1, 6, 6), dtype=np.uint8), chunks=(100, 1, 3, 6))
    labels = (images[:, 0, 0, 0] > 127).astype(int)
    blocks = dsinga.models.blocks
    layers = [*blocks.records("", 50, [1, 6, 6]), blocks.conv("conv", "data", 2), blocks.dense("ip", "conv", 2)]
    updater = {"type": "kSGD", "learning_rate": {"type": "kFixed", "base_lr": 1e-6}}
    classifier = Classifier(dsinga.Job(updater=updater, net={"layer": [*layers, blocks.loss("ip")]}, epochs=1))
    classifier.fit(images, labels)
    result = classifier.predict_proba(images)
    assert result.chunks == ((100,) * 3, (2,))
    np.testing.assert_allclose(result.compute(), classifier.predict_proba(images.compute()), atol=1e-5)


def test_a_local_copy_returns_numpy_arrays(threads: Client) -> None:
    local = Classifier(random_state=0, epochs=2).fit(DX, DY).to_local()
    assert type(local.predict(DX)) is np.ndarray
    np.testing.assert_array_equal(local.predict_proba(DX), local.predict_proba(X))
    assert type(local.predict_proba(xr.DataArray(X, dims=("time", "band")))) is np.ndarray


@pytest.mark.ci
def test_a_large_net_is_sent_once_to_each_worker(processes: Client) -> None:
    few = X[:90]
    wide = Classifier(random_state=0, epochs=1, hidden=(60_000,)).fit(few, Y[:90])
    assert wide.nbytes > 1 << 20
    prediction = wide.predict_proba(da.from_array(few, chunks=(3, 6)))
    assert max(len(str(task)) for task in dict(prediction.__dask_graph__()).values()) < 100_000
    np.testing.assert_allclose(prediction.compute(), wide.predict_proba(few), atol=1e-5)


def test_predictions_need_no_cluster() -> None:
    classifier = Classifier(random_state=0, epochs=2).fit(X, Y)
    with dask.config.set(scheduler="threads"):
        np.testing.assert_array_equal(classifier.predict(DX).compute(), classifier.predict(X))
    filtered = DX[DX[:, 0] > 5]  # of unknown length
    np.testing.assert_array_equal(classifier.predict(filtered).compute(), classifier.predict(X[X[:, 0] > 5]))


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (DX, DY[:800], "X has 900 records, but y has 800"),
        (DX[:, 0], DY, "X has one axis; give records"),
        (DX.astype(str), DY, "X has the dtype <U32; give numbers"),
        (da.where(DX > 12, np.nan, DX), DY, "NaN"),
        (DX[:0], DY[:0], "0 sample|empty|no records"),
        (DX, da.where(DX[:, 0] > 5, np.nan, 1.0), "y has a record without a class; leave such records out"),
        (DX, da.from_array(np.where(X[:, 0] > 5, None, Y), chunks=300), "y has a record without a class"),
        (DX, da.from_array(np.array([7] * 300 + ["a"] * 600, object), chunks=300), "y has classes of two kinds, 7 and"),
    ],
)
def test_bad_collections_are_refused(threads: Client, x: Any, y: Any, message: str) -> None:
    refused(lambda: Classifier(random_state=0, epochs=1).fit(x, y), message, error=ValueError)


@pytest.mark.parametrize("bad", [-1.0, np.nan])
def test_bad_weights_of_collections_are_refused(threads: Client, bad: float) -> None:
    with pytest.raises(ValueError, match="sample_weight has numbers from .*; give finite ones from 0 on"):
        Classifier(random_state=0, epochs=1).fit(DX, DY, sample_weight=da.where(DX[:, 0] > 5, bad, 1.0))


def test_mistakes_are_named_with_their_remedies(threads: Client) -> None:
    classifier = Classifier(random_state=0, epochs=1).fit(X, Y)
    refused(lambda: classifier.predict(DX[:, :4]), "has 4 features", "expecting 6 features", error=ValueError)
    lazily = classifier.predict(da.where(DX > 12, np.nan, DX))
    refused(lambda: lazily.compute(scheduler="threads"), "NaN", error=ValueError)
    refused(lambda: Classifier(dsinga.models.mdnn()).fit(X, Y), "one input layer")
    targets = X[:, 0].copy()
    targets[300] = np.inf
    refused(lambda: Regressor(epochs=1).fit(DX, da.from_array(targets, chunks=100)), "'y' has infinity", "300;")


@pytest.mark.parametrize("cls", [Classifier, Regressor, Transformer])
def test_nan_is_named_by_its_record_and_column_though_scaling_would_spread_it(threads: Client, cls: Any) -> None:
    bad = X.copy()
    bad[450, 1] = np.nan
    refused(lambda: cls(epochs=1).fit(da.from_array(bad, chunks=(100, 6)), DY), "'X' has NaN", "450, column 1")


@pytest.mark.parametrize("cls", [Classifier, Regressor])
def test_a_data_frame_is_scored_with_targets_in_numpy_and_keeps_its_kinds_of_columns(threads: Client, cls: Any) -> None:
    pd, dd = pytest.importorskip("pandas"), pytest.importorskip("dask.dataframe")
    local, targets = pd.DataFrame(X, columns=list("abcdef")).assign(f=X[:, 5] > 0), np.repeat([0, 1, 2], 300)
    frame = dd.from_pandas(local, npartitions=3)
    estimator = cls(random_state=0, epochs=2).fit(frame, targets)
    assert estimator.score(frame, targets) == pytest.approx(estimator.score(local, targets))
    refused(lambda: estimator.score(frame, targets[:800]), "has 900 records", "give both as", error=ValueError)
    times = pd.date_range("2026-01-01", periods=900, tz="Europe/Berlin")
    for dates in (times, times.tz_localize(None), times - times[0]):
        for dated in (local.assign(when=dates), dd.from_pandas(local.assign(when=dates), npartitions=3)):
            with pytest.raises(UserError, match="column 'when' of X has dtype .*, not numbers; make numbers of it"):
                estimator.predict(dated)


def test_a_matrix_of_labels_on_the_cluster(threads: Client) -> None:
    labels = (DX[:, :3] > 5).astype(int)
    classifier = Classifier(random_state=0, epochs=20).fit(DX, labels)
    assert (classifier.predict(DX) == labels).mean().compute() > 0.9
    assert 0 < classifier.score(DX, labels) < 1
