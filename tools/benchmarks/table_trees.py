"""Trains boosted trees of xgboost.dask and LightGBM.dask on the made table, as their documentation shows.

Numbers are float32, categories are of the dtype "category", and of dates the trees get the hour, the day of the week
and the days since 2023: half the memory of the frame that pandas reads, so that both have it as light as they can.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import Client

from tools.benchmarks.made_table import CATEGORIES, TARGET, names_of

ROUNDS = 100


def light_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a partition in dtypes that take little memory, in which dates are three numbers."""
    columns: dict[str, Any] = {}
    for name in frame.columns:
        column = frame[name]
        if name in CATEGORIES:
            columns[name] = column.astype(pd.CategoricalDtype(names_of(name)))
        elif column.dtype.kind == "M":
            columns[f"{name}.hour"] = column.dt.hour.astype(np.float32)
            columns[f"{name}.weekday"] = column.dt.weekday.astype(np.float32)
            columns[f"{name}.day"] = ((column - pd.Timestamp("2023-01-01")) / pd.Timedelta("1D")).astype(np.float32)
        else:
            columns[name] = column.astype(np.int8 if name == TARGET else np.float32)
    return pd.DataFrame(columns)


def frame_of(folder: Path) -> tuple[Any, Any]:
    """Return the lazy frame of a folder, a partition for each row group, and its target."""
    frame = dd.read_parquet(folder, split_row_groups=True).map_partitions(light_frame)
    return frame.drop(columns=TARGET), frame[TARGET]


def xgboost(client: Client, folder: Path, test: Path | None) -> Any:
    """Train xgboost.dask with the histogram method; return the area under the curve of a test folder."""
    from xgboost import dask as dxgb

    x, y = frame_of(folder)
    matrix = dxgb.DaskQuantileDMatrix(client, x, y, enable_categorical=True)
    settings = {"objective": "binary:logistic", "tree_method": "hist", "nthread": 1}
    booster = dxgb.train(client, settings, matrix, num_boost_round=ROUNDS)
    return None if test is None else _auc(test, lambda frame: dxgb.inplace_predict(client, booster, frame))


def lightgbm(client: Client, folder: Path, test: Path | None) -> Any:
    """Train LightGBM.dask; return the area under the curve of a test folder."""
    from lightgbm import DaskLGBMClassifier

    x, y = frame_of(folder)
    model = DaskLGBMClassifier(n_estimators=ROUNDS, client=client, verbose=-1)
    model.fit(x, y)
    return None if test is None else _auc(test, lambda frame: model.predict_proba(frame)[:, 1])


def _auc(test: Path, predict: Callable[[Any], Any]) -> float:
    from sklearn.metrics import roc_auc_score

    x, y = frame_of(test)
    return float(roc_auc_score(y.compute(), np.asarray(predict(x).compute())))


TREES = {"xgboost": xgboost, "lightgbm": lightgbm}
