"""Small forests in a process of its own: forests.py [ALGORITHM ...], by default all.

Writes a line of JSON: the digest of each forest's state and predictions, the kernels that had to be
compiled for them, the processor that Numba compiles for, and whether it had nothing to compile.
"""

from __future__ import annotations

import hashlib
import json
import sys
from typing import Any

import numpy as np
from numba.core import event
from numba.core.registry import cpu_target

from dmondrian import (
    AMFClassifier,
    AMFRegressor,
    MondrianForestClassifier,
    MondrianForestRegressor,
    MondrianKernelClassifier,
    MondrianKernelRegressor,
    OnlineRandomForestClassifier,
    OnlineRandomForestRegressor,
)
from dmondrian._numba.jit import compilations

LEARNED, BEHIND = 500, 100  # rows
LEARNED_BY_SCALED = 1600  # of which scaled trees have some to forecast
D = 40  # wide enough for loops over columns to fill the registers of any processor
CLASSES: dict[str, Any] = {
    "alpha": 0.25,
    "charge_opening": True,
    "feature_scales": None,
    "predict_extension": "expected",
    "calibrate": True,
    "random_state": 0,
}
FOLLOWING: dict[str, Any] = {"drift": "follow", "random_state": 0}
BOOSTED: dict[str, Any] = {**FOLLOWING, "experts": ("mondrian", "boosted")}
SCALED: dict[str, Any] = {**FOLLOWING, "experts": ("mondrian", "boosted", "scaled")}
LABELS: dict[str, Any] = {
    "feature_scales": "learned", "warmup_rows": 64, "calibrate": True, "random_state": 0,
}  # fmt: skip
FORESTS = {
    "amf-classifier": AMFClassifier(3, **CLASSES, feature_units=None),
    "amf-classifier, rounded": AMFClassifier(3, **CLASSES, warmup_rows=64),
    "amf-classifier, mixed": AMFClassifier(3, **{**CLASSES, "calibrate": "auto"}),
    "amf-classifier, following": AMFClassifier(6, **FOLLOWING),
    "amf-classifier, following in blocks": AMFClassifier(6, delay=64, **FOLLOWING),
    "amf-classifier, boosted": AMFClassifier(6, delay=64, **BOOSTED),
    "amf-classifier, following, boosted": AMFClassifier(6, **BOOSTED),
    "amf-classifier, following in blocks, boosted": AMFClassifier(6, delay=64, **BOOSTED),
    "amf-classifier, following by time": AMFClassifier(6, delay="16", **FOLLOWING),
    "amf-classifier, following by time, boosted": AMFClassifier(6, delay="16", **BOOSTED),
    "amf-classifier, following, scaled": AMFClassifier(3, **SCALED),
    "amf-regressor, following in blocks, scaled": AMFRegressor(3, delay=64, **SCALED),
    "amf-regressor": AMFRegressor(3, **LABELS, feature_units=None),
    "amf-regressor, following": AMFRegressor(6, **FOLLOWING),
    "amf-regressor, following in blocks": AMFRegressor(6, delay=64, **FOLLOWING),
    "amf-regressor, following, boosted": AMFRegressor(6, **BOOSTED),
    "amf-regressor, following in blocks, boosted": AMFRegressor(6, delay=64, **BOOSTED),
    "amf-regressor, following by time": AMFRegressor(6, delay="16", **FOLLOWING),
    "amf-regressor, rounded": AMFRegressor(3, **LABELS),
    "mondrian-forest-classifier": MondrianForestClassifier(
        3, aggregation="hierarchy", domain="cube", random_state=0
    ),
    "mondrian-forest-regressor": MondrianForestRegressor(
        3, aggregation="hierarchy", feature_units=None, random_state=0
    ),
    "mondrian-forest-regressor, rounded": MondrianForestRegressor(
        3, aggregation="hierarchy", warmup_rows=64, random_state=0
    ),
    "mondrian-kernel-classifier": MondrianKernelClassifier(
        3, lifetime=0.3, solver="sgd", n_passes=2, random_state=0
    ),
    "mondrian-kernel-regressor": MondrianKernelRegressor(
        5, lifetime="validation", max_lifetime=0.5, domain="cube", random_state=0
    ),
    "mondrian-kernel-regressor, likelihood": MondrianKernelRegressor(
        5, lifetime="marginal_likelihood", max_columns=60, random_state=0
    ),
    "mondrian-kernel-regressor, average": MondrianKernelRegressor(
        5, lifetime="average", max_columns=60, domain="cube", random_state=0
    ),
    "online-forest-classifier": OnlineRandomForestClassifier(
        3, min_samples_leaf=2.0, min_gain=0.05, calibrate=True, random_state=0
    ),
    "online-forest-regressor": OnlineRandomForestRegressor(
        3, min_samples_leaf=2.0, min_gain=0.05, random_state=0
    ),
}


def n_learned(name: str) -> int:
    """Return how many rows a forest learns."""
    return LEARNED_BY_SCALED if "scaled" in name else LEARNED


def rows_of(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the rows that a forest learns, and predicts something of: X, y and weights."""
    draw, n = np.random.default_rng(0), n_learned(name) + BEHIND
    X = draw.random((n, D), dtype=np.float32)
    w = draw.choice([0.0, 0.5, 1.0, 3.0], n)  # passed over, scaled, plain and repeated
    signal = X @ np.linspace(1.0, 0.0, D, dtype=np.float32) > 0.25 * D
    y = signal if "classifier" in name else signal + draw.integers(0, 1000, n) / 256.0
    if "following" in name:  # the range of columns by which jobs scale them
        X[:2] = [[0.0], [1.0]]
    return X, y, w


def times_of(name: str) -> np.ndarray | None:
    """Return the times of a forest's rows, by which their labels come: some late, with a gap."""
    if "by time" not in name:
        return None
    draw, n = np.random.default_rng(1), n_learned(name) + BEHIND
    times = np.cumsum(draw.integers(0, 3, n) / 4.0) + 99.0 * (np.arange(n) > 300)
    return np.where(draw.random(n) < 0.009, times - draw.integers(0, 60, n), times)


def digest(name: str) -> str:
    """Return the digest of what a forest learned and predicts."""
    (X, y, w), times, n = rows_of(name), times_of(name), n_learned(name)
    named = {} if times is None else {"times": times[:n]}
    forest = FORESTS[name].fit(X[:n], y[:n], sample_weight=w[:n], **named)
    return digest_of(forest, X)


def digest_of(forest: Any, X: np.ndarray) -> str:
    """Return the digest of what an estimator has learned, and predicts of rows amid its stream."""
    if hasattr(forest.forest_, "labels_are_known"):
        forest.forest_.labels_are_known = False
    header, trees = forest.forest_.state()
    found = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for tree in trees:
        for field in sorted(tree):
            found.update(np.ascontiguousarray(tree[field]).tobytes())
    for reported in getattr(forest, "lifetime_path_", ()):
        if reported is not None:
            found.update(np.ascontiguousarray(reported).tobytes())
    ask = forest.predict_proba if hasattr(forest, "predict_proba") else forest.predict
    predicted = ask(X)
    for alone in (X[:1], X[:1].astype(np.float64)):  # a way of their own
        assert np.array_equal(ask(alone), predicted[:1])
    found.update(np.ascontiguousarray(predicted).tobytes())
    return found.hexdigest()


def main() -> None:
    with event.install_recorder("numba:compile") as made:
        digests = {name: digest(name) for name in sys.argv[1:] or FORESTS}
    processor = list(cpu_target.target_context.codegen().magic_tuple())
    reported = {"digests": digests, "compiled": compilations(), "processor": processor}
    reported["is_idle"] = not made.buffer  # nothing beside kernels either
    sys.stdout.write(json.dumps(reported) + "\n")


if __name__ == "__main__":
    main()
