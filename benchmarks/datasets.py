"""The data sets that every benchmark runs on, as float32 matrices.

Real sets are read from Parquet under one folder (``--data``, or the environment variable
``DMONDRIAN_DATA``), one sub-folder per set: ``<folder>/<set>/*.parquet``, read in the order of the
file names. Synthetic sets need no folder.

Relies on NumPy, pandas, pyarrow and scikit-learn, not on dmondrian: the same matrices go to every
peer. Promises that the matrices depend on the files, the name, `max_rows` and seed 0 alone:

* strings are one-hot encoded over all rows (a null is a level of its own), timestamps become day
  of the month, weekday and hour plus minutes, numeric nulls become 0 with an indicator column;
* every column is min-max scaled with the bounds of the training rows, test rows are not clipped;
* the held-out rows are the official split where the literature has one, else 30 %: the last rows
  of a stream in time order, a seed-0 permutation of all other sets. Training rows are permuted
  too (seed 0) unless the set is a stream.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from sklearn.datasets import make_classification, make_friedman1

ENVIRONMENT_VARIABLE = "DMONDRIAN_DATA"
TEST_SHARE = 0.3
SEED = 0


@dataclass(frozen=True)
class Dataset:
    """Rows to learn from, in order, and rows held out.

    Attributes
    ----------
    X_train, X_test : float32 array, C-contiguous, shape (n, d)
    y_train, y_test : int64 array (class indices) or float64 array (targets), shape (n,)
    n_classes : int
        0 for regression.
    split : str
        How the held-out rows were chosen, in words.
    """

    name: str
    X_train: np.ndarray
    y_train: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray
    n_classes: int
    split: str

    @property
    def is_classification(self) -> bool:
        """Whether targets are class indices."""
        return self.n_classes > 0


@dataclass(frozen=True)
class RealSet:
    """How to read one real set."""

    target: str
    is_classification: bool
    drop: tuple[str, ...] = ()
    is_stream: bool = False
    has_official_split: bool = False
    max_rows: int | None = None


REAL = {
    "adult": RealSet("income", True, drop=("education-num",), has_official_split=True),
    "bank": RealSet("y", True),
    "spambase": RealSet("class", True),
    "satimage": RealSet("y", True, has_official_split=True),
    "usps": RealSet("target", True, has_official_split=True),
    "covtype": RealSet("Cover_Type", True, max_rows=100_000),
    "electricity": RealSet("class", True, is_stream=True),
    "bananas": RealSet("y", True),
    "phishing": RealSet("is_phishing", True),
    "car": RealSet("class", True),
    "churn": RealSet("Churn?", True, drop=("Phone",)),
    # Windows of a series: its rows in random order here, as stored for `stored`.
    "ijcnn1": RealSet("label", True, max_rows=100_000),
    "california_housing": RealSet("medianHouseValue", False),
    "cpu_act": RealSet("usr", False),
    "trump_approval": RealSet("five_thirty_eight", False, is_stream=True),
    # total_amount is the sum of the other amounts, the tip among them.
    "nyc_green_taxi": RealSet("tip_amount", False, drop=("total_amount", "ehail_fee")),
}


def _linear(n: int, d: int, informative: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    return make_classification(
        n_samples=n,
        n_features=d,
        n_informative=informative,
        n_redundant=0,
        n_classes=classes,
        random_state=SEED,
    )


SYNTHETIC: dict[str, tuple[Callable[[], tuple[np.ndarray, np.ndarray]], bool]] = {
    "synthetic_d20": (lambda: _linear(100_000, 20, 10, 2), True),
    "synthetic_d100_k5": (lambda: _linear(20_000, 100, 10, 5), True),
    "synthetic_k26": (lambda: _linear(20_000, 16, 12, 26), True),
    "friedman1": (
        lambda: make_friedman1(100_000, n_features=10, noise=1.0, random_state=SEED),
        False,
    ),
}

CLASSIFICATION = [name for name, spec in REAL.items() if spec.is_classification] + [
    name for name, (_, is_classification) in SYNTHETIC.items() if is_classification
]
REGRESSION = [name for name, spec in REAL.items() if not spec.is_classification] + ["friedman1"]
NAMES = CLASSIFICATION + REGRESSION
# Those that came when all defaults had been chosen.
LATER = ("car", "churn", "ijcnn1")
# The sets of scripts that choose defaults.
EARLIER = [name for name in NAMES if name not in LATER]


def add_arguments(parser: argparse.ArgumentParser, default: list[str] = EARLIER) -> None:
    """Add ``--data``, ``--sets`` and ``--max-rows`` to a benchmark's command line."""
    parser.add_argument(
        "--data",
        default=os.environ.get(ENVIRONMENT_VARIABLE),
        help=f"folder with one sub-folder of Parquet per real set (or ${ENVIRONMENT_VARIABLE})",
    )
    parser.add_argument("--sets", nargs="+", default=default, choices=NAMES, metavar="SET")
    parser.add_argument("--max-rows", type=int, help="keep at most this many rows of each set")


def load(name: str, folder: str | Path | None = None, max_rows: int | None = None) -> Dataset:
    """Return one set by name.

    Parameters
    ----------
    name : str
        One of `NAMES`.
    folder : path, optional
        Folder of the real sets; ``$DMONDRIAN_DATA`` when left out.
    max_rows : int, optional
        Rows to keep of all (a seed-0 sample; the first ones of a stream), before the split. An
        official split keeps its shares.

    Raises
    ------
    KeyError
        When no set has this name.
    FileNotFoundError
        When the folder is not given or has no Parquet file of this set.
    """
    if name in SYNTHETIC:
        make, is_classification = SYNTHETIC[name]
        X, y = make()
        rows = np.random.default_rng(SEED).permutation(len(y))
        return _finish(name, X, y, *_cut(rows[:max_rows]), is_classification, "70/30, seed 0")
    spec = REAL[name]
    X, target, is_test, rows = _matrix(name, folder)
    if not spec.is_stream:
        rows = np.random.default_rng(SEED).permutation(rows)
    rows = rows[: min(x for x in (max_rows, spec.max_rows, len(rows)) if x is not None)]
    if spec.has_official_split:
        train, test, split = rows[~is_test[rows]], rows[is_test[rows]], "official"
    else:
        train, test = _cut(rows)
        split = "last 30 % in time order" if spec.is_stream else "70/30, seed 0"
    return _finish(name, X, target, train, test, spec.is_classification, split)


def stored(name: str, folder: str | Path | None = None, max_rows: int | None = None) -> Dataset:
    """Return the first rows of a real set as they are stored, all to learn, none held out.

    The sets' own limits (100,000 rows of covtype) are those of `load`, not of these rows. Columns
    are scaled with the bounds of the rows that are returned. Parameters and errors are those of
    `load`.
    """
    X, target, _, rows = _matrix(name, folder)
    is_classification = REAL[name].is_classification
    return _finish(name, X, target, rows[:max_rows], rows[:0], is_classification, "none")


def drawn(dataset: Dataset, n_train: int, most_test: int, seed: int) -> Dataset:
    """Return a small cut of a set: some rows to learn, and others, held out.

    Rows are drawn from both parts of the set together, official test rows among them; of a stream
    they are a window that begins anywhere, in time order, and those held out, no more than are
    learned, come next. Columns are scaled with the bounds of the rows to learn.

    Parameters
    ----------
    dataset : Dataset
        Of `load`.
    n_train : int
        Rows to learn, as many.
    most_test : int
        Rows held out: as many, or what the set has beyond `n_train` where that is less.
    seed : int
        Of the draw.

    Raises
    ------
    ValueError
        When the set has no row beyond `n_train`.
    """
    X = np.concatenate([dataset.X_train, dataset.X_test])
    y = np.concatenate([dataset.y_train, dataset.y_test])
    is_window = dataset.name in REAL and REAL[dataset.name].is_stream
    n = min(n_train + (min(most_test, n_train) if is_window else most_test), len(y))
    if n <= n_train:
        raise ValueError(f"{dataset.name} has {len(y)} rows: {n_train} leave none to hold out")
    draw = np.random.default_rng(seed)
    if is_window:
        rows = draw.integers(len(y) - n + 1) + np.arange(n)
    else:
        rows = draw.permutation(len(y))[:n]
    split = f"{'a window' if is_window else 'drawn'}, seed {seed}"
    kind = dataset.is_classification
    found = _finish(dataset.name, X, y, rows[:n_train], rows[n_train:], kind, split)
    return replace(found, n_classes=dataset.n_classes)


def of_target(
    name: str, folder: str | Path | None, target: str, drop: tuple[str, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of a real set, as they are stored, that have another target, a number.

    Columns of ``drop`` are left out where there are such; none is scaled. Errors are those of
    `load`.
    """
    frame, _ = _read(_folder(name, folder))
    y = frame.pop(target)
    X = _encode(frame.drop(columns=[each for each in drop if each in frame]))
    known = y.notna().to_numpy()
    return X[known], y[known].to_numpy(np.float64)


def place_of(name: str, folder: str | Path | None, column: str) -> int:
    """Return the place of a column of numbers among those of `load`; errors are those of `load`."""
    spec = REAL[name]
    frame, _ = _read(_folder(name, folder))
    frame = frame.drop(columns=[spec.target, *spec.drop])
    before = frame.loc[:, : frame.columns[frame.columns.get_loc(column)]].iloc[:, :-1]
    return _encode(before).shape[1] if before.shape[1] else 0


def _matrix(
    name: str, folder: str | Path | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """All rows of a set, encoded; targets; which are official test rows; rows with a target."""
    spec = REAL[name]
    frame, is_test = _read(_folder(name, folder))
    y = frame.pop(spec.target)
    X = _encode(frame.drop(columns=list(spec.drop)))
    known = y.notna().to_numpy()
    y_values = np.unique(y[known], return_inverse=True)[1] if spec.is_classification else y
    target = np.zeros(len(y), dtype=np.int64 if spec.is_classification else np.float64)
    target[known] = y_values if spec.is_classification else y[known].to_numpy(np.float64)
    return X, target, is_test, np.flatnonzero(known)


def _folder(name: str, folder: str | Path | None) -> Path:
    root = folder or os.environ.get(ENVIRONMENT_VARIABLE)
    if not root:
        raise FileNotFoundError(
            f"set {name!r} is read from Parquet: give its folder with --data "
            f"or set {ENVIRONMENT_VARIABLE}"
        )
    path = Path(root) / name
    if not any(path.glob("*.parquet")):
        raise FileNotFoundError(f"expected Parquet files in {path}, found none")
    return path


def _read(path: Path) -> tuple[pd.DataFrame, np.ndarray]:
    """All files in order of name; and whether each row belongs to the official test rows."""
    files = sorted(path.glob("*.parquet"))
    frames = [pq.read_table(file).to_pandas() for file in files]
    is_test = np.repeat([f.stem.endswith("-test") for f in files], [len(f) for f in frames])
    return pd.concat(frames, ignore_index=True), is_test


def _encode(frame: pd.DataFrame) -> np.ndarray:
    columns: list[np.ndarray] = []
    for name in frame.columns:
        column = frame[name]
        if pd.api.types.is_datetime64_any_dtype(column):
            times = column.dt
            columns += [times.day, times.weekday, times.hour + times.minute / 60]
        elif pd.api.types.is_numeric_dtype(column):
            columns.append(column.fillna(0).to_numpy(np.float64))
            if column.isna().any():
                columns.append(column.isna().to_numpy(np.float64))
        else:
            text = column.astype(object).where(column.notna(), "?")
            columns += list(pd.get_dummies(text).to_numpy(np.float64).T)
    return np.column_stack([np.asarray(c, dtype=np.float64) for c in columns])


def _cut(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    n_train = len(rows) - round(TEST_SHARE * len(rows))
    return rows[:n_train], rows[n_train:]


def _finish(
    name: str,
    X: np.ndarray,
    y: np.ndarray,
    train: np.ndarray,
    test: np.ndarray,
    is_classification: bool,
    split: str,
) -> Dataset:
    lowest, highest = X[train].min(axis=0), X[train].max(axis=0)
    span = np.where(highest > lowest, highest - lowest, 1.0)
    scaled = ((X - lowest) / span).astype(np.float32)
    y = y.astype(np.int64 if is_classification else np.float64)
    n_classes = int(y.max()) + 1 if is_classification else 0
    return Dataset(
        name,
        np.ascontiguousarray(scaled[train]),
        y[train],
        np.ascontiguousarray(scaled[test]),
        y[test],
        n_classes,
        split,
    )
