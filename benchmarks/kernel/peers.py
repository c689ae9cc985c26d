"""Other random features for the Laplace kernel exp(-lifetime |x - x'|_1), and the set of B16.

Fourier features have Cauchy frequencies; binning drops a grid whose pitch is Gamma(2, lifetime) in
each column (Rahimi, Recht, 2007). Rows have ``n`` entries that are not zero.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.preprocessing import MinMaxScaler

from benchmarks import datasets
from benchmarks.pages import publish
from benchmarks.records import REPORTS, RESULTS, Records

Features = Callable[[np.ndarray, np.ndarray, int, float, int], tuple[Any, Any]]


class Split(NamedTuple):
    """Rows with columns scaled to [0, 1] on the training rows."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray

    def error(self, predicted: np.ndarray) -> float:
        """Return the error as B16 has it: of the size of the labels, in per cent."""
        misses = np.linalg.norm(predicted - self.y_test)
        return 100.0 * float(misses / np.linalg.norm(self.y_test))


TRAIN, TEST = 6554, 819  # rows of cpu_act in B16


def split_of(args: argparse.Namespace, seed: int = 0) -> Split:
    """Return the set of the arguments, cpu_act in the sizes of B16, in an order of the seed."""
    data = datasets.load(args.set, args.data, args.max_rows)
    X = np.concatenate([data.X_train, data.X_test])
    y = np.concatenate([data.y_train, data.y_test])
    order = np.random.default_rng(seed).permutation(len(y))[: TRAIN + TEST]
    X, y, train = X[order], y[order], min(TRAIN, len(order) * TRAIN // (TRAIN + TEST))
    scaler = MinMaxScaler().fit(X[:train])
    return Split(scaler.transform(X[:train]), y[:train], scaler.transform(X[train:]), y[train:])


def fourier(X: np.ndarray, Z: np.ndarray, n: int, lifetime: float, seed: int) -> tuple[Any, Any]:
    """Return Fourier features of two sets of rows, [., n] each."""
    random = np.random.default_rng(seed)
    w = lifetime * random.standard_cauchy((X.shape[1], -(-n // 2)))
    reported = []
    for rows in (X, Z):
        phase = rows @ w
        reported.append(np.hstack([np.cos(phase), np.sin(phase)])[:, :n] / np.sqrt(w.shape[1]))
    return reported[0], reported[1]


def binning(X: np.ndarray, Z: np.ndarray, n: int, lifetime: float, seed: int) -> tuple[Any, Any]:
    """Return binning features of two sets of rows; bins are those of either.

    Bins are equal where sums of their places with random 64-bit factors are.
    """
    factors = np.random.default_rng([seed, 1]).integers(1, 2**63, X.shape[1])

    def number(bins: np.ndarray) -> np.ndarray:
        found: np.ndarray = np.unique(bins @ factors, return_inverse=True)[1]
        return found

    return _binned(X, Z, n, lifetime, seed, number)


def compared_bins(
    X: np.ndarray, Z: np.ndarray, n: int, lifetime: float, seed: int
) -> tuple[Any, Any]:
    """Return the same features; bins are equal where their places in all columns are."""

    def number(bins: np.ndarray) -> np.ndarray:
        found: np.ndarray = np.unique(bins, axis=0, return_inverse=True)[1]
        return found.ravel()

    return _binned(X, Z, n, lifetime, seed, number)


def _binned(
    X: np.ndarray, Z: np.ndarray, n: int, lifetime: float, seed: int, number: Any
) -> tuple[Any, Any]:
    random = np.random.default_rng(seed)
    both, columns, size = np.vstack([X, Z]), [], 0
    for _ in range(n):
        pitch = random.gamma(2.0, 1.0 / lifetime, X.shape[1])
        bins = np.floor((both - random.random(X.shape[1]) * pitch) / pitch).astype(np.int64)
        found = number(bins)
        columns.append(found + size)
        size += int(found.max()) + 1
    indices = np.stack(columns, axis=1)
    ends = np.arange(len(both) + 1) * n
    values = np.full(indices.size, 1.0 / np.sqrt(n))
    phi = csr_matrix((values, indices.ravel(), ends), shape=(len(both), size))
    return phi[: len(X)], phi[len(X) :]


def laplace(X: np.ndarray, Z: np.ndarray, lifetime: float) -> np.ndarray:
    """Return the kernel of all pairs of rows, float64."""
    from scipy.spatial.distance import cdist

    kernel: np.ndarray = np.exp(-lifetime * cdist(X, Z, "cityblock"))
    return kernel


def parser_of(doc: str | None, takes_set: bool = False) -> argparse.ArgumentParser:
    """Return the parser that all scripts of this folder share."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", help="folder with one sub-folder of Parquet per set")
    if takes_set:
        parser.add_argument("--set", default="cpu_act")
        parser.add_argument("--max-rows", type=int, help="of the set")
    return parser


def write(name: str, record: dict[str, Any], figure: Any = None) -> None:
    """Store a result, draw its picture, and write its page."""
    records = Records(RESULTS / f"kernel_{name}.json", ("part",))
    records.add(record)
    if figure is not None:
        REPORTS.mkdir(parents=True, exist_ok=True)
        figure.savefig(REPORTS / f"kernel_{name}.png", dpi=80)
    publish(f"kernel.{name}", records)
