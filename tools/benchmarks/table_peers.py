"""The peers whose accuracy on tables is measured: boosted trees, RealMLP, TabM and scikit-learn's perceptron.

A peer is a function of a frame to learn from, its targets, a frame to test, the number of classes (0 for a regression)
and a seed; it returns probabilities (n, classes), or predicted numbers (n,). Each peer has its own defaults, and the
same columns: parts of dates as numbers, and categories numbered where they were seen while learning.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

Frame, Predictions = pd.DataFrame, np.ndarray
Peer = Callable[[Frame, np.ndarray, Frame, int, int], Predictions]
MOST_OF_A_TREE = 254  # categories that HistGradientBoosting takes; a column of more is given to it as numbers


def dates_apart(frame: Frame) -> Frame:
    """Return a frame in which each date is replaced by its days since 1970, month, day of the week and hour."""
    frame = frame.copy()
    for name in frame.select_dtypes("datetime").columns:
        date = frame.pop(name)
        frame[f"{name} days"] = (date - pd.Timestamp(0)) / pd.Timedelta(days=1)
        for part in ("month", "day_of_week", "hour"):
            frame[f"{name} {part}"] = getattr(date.dt, part)
    return frame


def coded(learnt: Frame, tested: Frame) -> tuple[Frame, Frame]:
    """Return both frames with strings as categories of those seen while learning; others count as missing."""
    learnt, tested = dates_apart(learnt), dates_apart(tested)
    for name in learnt.columns:
        if learnt[name].dtype.kind not in "biuf":
            learnt[name] = learnt[name].astype("category")
            known = learnt[name].cat.categories
            tested[name] = pd.Categorical(tested[name].where(tested[name].isin(known)), categories=known)
        else:
            learnt[name], tested[name] = learnt[name].astype(np.float64), tested[name].astype(np.float64)
    return learnt, tested


def outputs(model: Any, tested: Any, classes: int) -> Predictions:
    """Return the probabilities or numbers that a fitted model predicts."""
    return np.asarray(model.predict_proba(tested) if classes else model.predict(tested))


def part_for_validation(learnt: int, targets: np.ndarray, classes: int, share: float, seed: int) -> Any:
    """Return indices to learn from and to validate."""
    from sklearn.model_selection import train_test_split

    return train_test_split(
        np.arange(learnt), test_size=share, random_state=seed, stratify=targets if classes else None
    )


def ridge(x: Frame, y: np.ndarray, tested: Frame, classes: int, seed: int) -> Predictions:
    """Return what scikit-learn's Ridge predicts of scaled numbers and one-hot vectors; medians stand for gaps."""
    from sklearn.compose import make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    assert not classes, "Ridge predicts numbers"
    x, tested = coded(x, tested)
    numbers = [name for name in x.columns if x[name].dtype.kind == "f"]
    texts = [name for name in x.columns if name not in numbers]
    scaled = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    columns = make_column_transformer((scaled, numbers), (OneHotEncoder(handle_unknown="ignore"), texts))
    return outputs(make_pipeline(columns, Ridge()).fit(x, y), tested, classes)


def hist_gradient_boosting(x: Frame, y: np.ndarray, tested: Frame, classes: int, seed: int) -> Predictions:
    """Return what scikit-learn's HistGradientBoosting predicts."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    x, tested = coded(x, tested)
    for name in x.select_dtypes("category").columns:
        if len(x[name].cat.categories) > MOST_OF_A_TREE:
            x[name], tested[name] = x[name].cat.codes, tested[name].cat.codes
    kind = HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor
    return outputs(kind(random_state=seed).fit(x, y), tested, classes)


def xgboost(x: Frame, y: np.ndarray, tested: Frame, classes: int, seed: int) -> Predictions:
    """Return what XGBoost predicts."""
    from xgboost import XGBClassifier, XGBRegressor

    x, tested = coded(x, tested)
    kind = XGBClassifier if classes else XGBRegressor
    return outputs(kind(random_state=seed, enable_categorical=True).fit(x, y), tested, classes)


def lightgbm(x: Frame, y: np.ndarray, tested: Frame, classes: int, seed: int) -> Predictions:
    """Return what LightGBM predicts."""
    from lightgbm import LGBMClassifier, LGBMRegressor

    x, tested = coded(x, tested)
    model = (LGBMClassifier if classes else LGBMRegressor)(random_state=seed, verbose=-1)
    return outputs(model.fit(x, y), tested, classes)


def lightgbm_stopped(x: Frame, y: np.ndarray, tested: Frame, classes: int, seed: int) -> Predictions:
    """Return what LightGBM predicts with a rate of 0.03 and as many trees as serve a tenth for validation."""
    from lightgbm import LGBMClassifier, LGBMRegressor, early_stopping

    x, tested = coded(x, tested)
    few, held = part_for_validation(len(x), y, classes, 0.1, seed)
    model = (LGBMClassifier if classes else LGBMRegressor)(
        random_state=seed, verbose=-1, learning_rate=0.03, n_estimators=3000
    )
    quiet = early_stopping(100, verbose=False)
    model.fit(x.iloc[few], y[few], eval_X=x.iloc[held], eval_y=y[held], callbacks=[quiet])
    return outputs(model, tested, classes)


def catboost(x: Frame, y: np.ndarray, tested: Frame, classes: int, seed: int) -> Predictions:
    """Return what CatBoost predicts; it takes categories as strings, a missing one as a string of its own."""
    from catboost import CatBoostClassifier, CatBoostRegressor

    x, tested = dates_apart(x), dates_apart(tested)
    names = [name for name in x.columns if x[name].dtype.kind not in "biuf"]
    for name in names:
        x[name], tested[name] = (frame[name].astype(object).fillna("missing") for frame in (x, tested))
    kind = CatBoostClassifier if classes else CatBoostRegressor
    model = kind(random_seed=seed, verbose=0, cat_features=names, allow_writing_files=False, thread_count=2)
    return outputs(model.fit(x, y), tested, classes)


def real_mlp(x: Frame, y: np.ndarray, tested: Frame, classes: int, seed: int) -> Predictions:
    """Return what pytabkit's RealMLP with its tuned defaults predicts; medians and flags stand for missing numbers."""
    from pytabkit import RealMLP_TD_Classifier, RealMLP_TD_Regressor

    x, tested = filled(*coded(x, tested))
    model = (RealMLP_TD_Classifier if classes else RealMLP_TD_Regressor)(
        random_state=seed, device="cpu", n_threads=2, verbosity=0
    )
    return outputs(model.fit(x, y), tested, classes)


def filled(x: Frame, tested: Frame) -> tuple[Frame, Frame]:
    """Return both frames with the medians of what is learnt from in place of missing numbers, and flags of them."""
    for name in x.select_dtypes("float").columns:
        if x[name].isna().any():
            x[f"{name} missing"], tested[f"{name} missing"] = (
                frame[name].isna().astype(np.float64) for frame in (x, tested)
            )
        median = x[name].median()
        x[name], tested[name] = x[name].fillna(median), tested[name].fillna(median)
    return x, tested


def perceptron(x: Frame, y: np.ndarray, tested: Frame, classes: int, seed: int) -> Predictions:
    """Return what scikit-learn's perceptron predicts on scaled numbers and categories one-hot."""
    from sklearn.compose import make_column_selector, make_column_transformer
    from sklearn.neural_network import MLPClassifier, MLPRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    x, tested = filled(*coded(x, tested))
    columns = make_column_transformer(
        (StandardScaler(), make_column_selector(dtype_include="float")),
        (OneHotEncoder(handle_unknown="ignore"), make_column_selector(dtype_include="category")),
    )
    kind = MLPClassifier if classes else MLPRegressor
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that 200 epochs did not converge
        return outputs(make_pipeline(columns, kind(random_state=seed)).fit(x, y), tested, classes)


def tabm(x: Frame, y: np.ndarray, tested: Frame, classes: int, seed: int) -> Predictions:
    """Return what the package ``tabm`` predicts, with its own defaults."""
    from tools.benchmarks import table_tabm

    return table_tabm.predictions(*filled(*coded(x, tested)), y, classes, seed)


PEERS: dict[str, Peer] = {
    "Ridge": ridge,
    "HistGradientBoosting": hist_gradient_boosting,
    "XGBoost": xgboost,
    "LightGBM": lightgbm,
    "LightGBM, stopped": lightgbm_stopped,
    "CatBoost": catboost,
    "MLP of scikit-learn": perceptron,
    "RealMLP": real_mlp,
    "TabM": tabm,
}
