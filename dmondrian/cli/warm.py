"""`dmondrian warm`: compile ahead of time whatever the estimators can need.

Relies on the estimators alone: small forests of every kind learn and predict, so that there is no
second list of kernels to maintain. Which kernels there are depends on the choices below; all other
parameters are values. Numba's cache holds for one kind of processor: ``NUMBA_CPU_NAME`` and
``NUMBA_CPU_FEATURES`` name it, if the machines that will use it have another.
"""

from __future__ import annotations

import argparse
import itertools
import pickle
import time
from collections.abc import Iterable, Iterator
from typing import Any

from dmondrian._text.wording import counted
from dmondrian.cli.output import Output
from dmondrian.errors import ParameterError, StoreError

DOMAINS = ("range", "cube")
# Parameters that choose a policy, and so kernels of its own, beside the domain: the products of
# each group.
CHOICES: dict[str, tuple[dict[str, tuple[Any, ...]], ...]] = {
    "amf-classifier": (
        {"use_aggregation": (True, False), "calibrate": (False, True)},
        {"drift": ("follow",), "experts": (("mondrian", "boosted"),)},  # all that others need
    ),
    "amf-regressor": (
        {"use_aggregation": (True, False), "calibrate": (False, True)},
        {"drift": ("follow",), "experts": (("mondrian", "boosted"),)},
    ),
    "generalized-mondrian-forest-classifier": (
        {},
        {
            "loss": ("logistic",),
            "aggregation": ("aggregate",),
            "lifetime": (None,),
            "bound": (2.0,),
        },
    ),
    "generalized-mondrian-forest-regressor": (
        {"loss": ("squared", "huber", "quantile")},
        {"loss": ("squared",), "aggregation": ("aggregate",), "lifetime": (None,), "bound": (2.0,)},
    ),
    "mondrian-density": ({"lifetime": ("penalized",), "max_lifetime": (2.0,)},),
    "mondrian-features": ({},),
    "mondrian-forest-classifier": (
        {"aggregation": ("mean", "vote", "hierarchy"), "calibrate": (False, True)},
    ),
    "mondrian-forest-regressor": ({"aggregation": ("mean", "hierarchy")},),
    "mondrian-kernel-classifier": ({},),
    "mondrian-kernel-regressor": ({},),
    "online-forest-classifier": ({"aggregation": ("mean", "vote"), "calibrate": (False, True)},),
    "online-forest-regressor": ({},),
}
_ON_THE_CUBE = "mondrian-density"  # has no other domain
_WITHOUT_DOMAIN = ("online-forest-classifier", "online-forest-regressor")  # split the whole space
_ROWS = 40
_WARMUP_ROWS = 32  # the fewest there can be: settings are chosen from them


def warm(arguments: argparse.Namespace, output: Output) -> int:
    """Run the command; see `dmondrian warm --help`."""
    from dmondrian._numba.cache import cache_folder, not_kept
    from dmondrian._numba.jit import compilations, is_compiling

    if not is_compiling():
        raise ParameterError("NUMBA_DISABLE_JIT is set, so nothing is compiled: unset it")
    algorithms = tuple(dict.fromkeys(arguments.algorithm)) or tuple(CHOICES)
    domains = (arguments.domain,) if arguments.domain else DOMAINS
    start, kinds = time.monotonic(), list(_kinds(algorithms, domains))
    for done, (algorithm, chosen) in enumerate(kinds):
        values = ", ".join(f"{name}={value}" for name, value in chosen.items())
        text = f"{done} of {len(kinds)} done; now {algorithm}: {values}"
        output.progress(text, done, len(kinds), important=True)
        _use(algorithm, chosen)
    output.close_bar()
    n, folder = sum(compilations().values()), str(cache_folder())
    if not_kept:
        raise StoreError(
            f"of {counted(n, 'kernel')} {len(not_kept):,} could not be kept in {folder} "
            f"({not_kept[0]}): free some space there or set DMONDRIAN_CACHE_DIR, then run again"
        )
    output.event("warmed", {"algorithms": algorithms, "compiled": n, "folder": folder})
    seconds = time.monotonic() - start
    text = f"compiled {counted(n, 'kernel')} in {seconds:.0f} s" if n else "nothing to compile"
    on = " and ".join(f"the {domain}" for domain in domains)
    output.text(f"{text}: {folder} has all that {', '.join(algorithms)} can need on {on}")
    return 0


def _kinds(
    algorithms: Iterable[str], domains: Iterable[str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return each way to choose the policies of these algorithms."""
    for algorithm in algorithms:
        for group in CHOICES[algorithm]:
            choices = {"domain": tuple(domains), **group}
            if algorithm in _WITHOUT_DOMAIN:
                del choices["domain"]
            for values in itertools.product(*choices.values()):
                chosen = dict(zip(choices, values, strict=True))
                if chosen.get("drift") is not None and chosen["domain"] == "cube":
                    continue  # young trees split the range of their own rows
                if algorithm != _ON_THE_CUBE or chosen.pop("domain") == "cube":
                    yield algorithm, chosen


def _use(algorithm: str, chosen: dict[str, Any]) -> None:
    """Train a small forest, with settings chosen from the rows, and call all its predictions."""
    import numpy as np

    from dmondrian.estimators import ALGORITHMS
    from dmondrian.prequential.forecasts import forecast_and_learn_all

    X = np.random.default_rng(0).random((_ROWS, 6), dtype=np.float32)
    X[:, 2:] = X[:, 2:] > 0.5  # boxes write features of two values as bits
    kind: Any = ALGORITHMS[algorithm]
    if algorithm == _ON_THE_CUBE:
        density = kind(n_estimators=2, random_state=0, **chosen).fit(X)
        density.score_samples(X)
        _store(density)
        return
    if algorithm == "mondrian-features":
        features = kind(2, random_state=0, **chosen)
        features.fit_transform(X)
        _store(features)
        return
    if algorithm.startswith("mondrian-kernel"):
        _use_kernel(kind, X, chosen)
        return
    if chosen.get("drift") is not None:
        _use_following(kind, X, chosen)
        return
    settings: dict[str, Any] = {}
    if algorithm not in _WITHOUT_DOMAIN:
        scales = "learned" if chosen["domain"] == "range" else None
        settings = {"feature_scales": scales, "warmup_rows": _WARMUP_ROWS}
    forest = kind(n_estimators=2, random_state=0, **settings, **chosen)
    y = np.where(X[:, 0] > X[:, 1], 1, 0)
    forest.fit(X, y)
    if chosen.get("calibrate"):  # with one row alone
        forest.partial_fit(X[:1], y[:1])
    forest.predict(X)
    forest.predict(X[:1])  # one row has its own kernels, and others once the trees are compiled
    forest.forest_.freeze()  # and its compiled predictor
    forest.predict(X)
    forest.predict(X[:1])
    forest.weighted_depth(X)
    _store(forest)
    assert len(forest.feature_importances_) == X.shape[1]
    if algorithm == "mondrian-forest-regressor":
        forest.predict_interval(X)
        forest.predict(X, return_std=True)
    if algorithm == "amf-regressor":
        forest.predict(X, return_std=True)
    mixes = algorithm.startswith("amf") or chosen.get("aggregation") == "aggregate"
    if algorithm.startswith("generalized"):
        forest.nodes(0)  # as the sweep over lifetimes does
        if not mixes:
            forest.choose_lifetime(X, y)
        if chosen.get("loss") in ("huber", "quantile"):
            forest.predict_quantiles(X, [0.5])
    if chosen.get("domain") == "cube" and not mixes:
        if not chosen.get("calibrate"):
            forest.merge(forest)
        if algorithm == "mondrian-forest-regressor" and chosen["aggregation"] == "mean":
            forest.confidence_interval(X, X, lifetime=1.0, debias=True)
    for w in (None, np.ones(len(X))):  # as runs do
        forecast_and_learn_all(
            forest.forest_, X, y.astype(np.float64), w, position=len(X), n_trees=2
        )


def _use_following(kind: Any, X: Any, chosen: dict[str, Any]) -> None:
    """Train forests that follow the stream, with labels that come at once and in blocks."""
    import numpy as np

    y = (X[:, 0] > X[:, 1]).astype(int)
    for delay, w in itertools.product((1, 4), (None, np.ones(len(X)))):
        model = kind(2, delay=delay, random_state=0, **chosen).fit(X, y, sample_weight=w)
        for _ in range(2):  # a tree of an octave of age forecasts
            model.partial_fit(X, y, sample_weight=w)
        model.predict(X)
        model.predict(X[:1])
        model.forest_.freeze()  # as forecasts of many rows do
        model.predict(X)
        model.weighted_depth(X)
        _store(model)


def _use_kernel(kind: Any, X: Any, chosen: dict[str, Any]) -> None:
    """Train a kernel machine exactly and by batches, and choose its lifetime."""
    y, parameters = (X[:, 0] > X[:, 1]).astype(int), {"n_passes": 1, "random_state": 0, **chosen}
    for solver in ("cholesky", "sgd"):
        model = kind(2, lifetime="validation", max_lifetime=1.0, solver=solver, **parameters).fit(
            X, y
        )
        model.predict(X)
        model.predict(X[:1])
        model.weighted_depth(X)
        _store(model)
    kind(2, **parameters).fit(X, y).partial_fit(X, y)  # a row is an update of the factor
    if chosen["domain"] == "cube":
        kind(2, lifetime="average", max_lifetime=1.0, **parameters).fit(X, y).partial_fit(X, y)
    if kind.algorithm == "mondrian-kernel-classifier":
        for loss in ("log_loss", "hinge"):
            kind(2, loss=loss, **parameters).fit(X, y).predict(X)
    if kind.algorithm == "mondrian-kernel-regressor":
        kind(2, **parameters).fit(X, y).predict(X, return_std=True)


def _store(model: Any) -> None:
    """Store a forest with its summary, and load it, which checks it."""
    from dmondrian.checkpoint.summary import Summary

    pickle.loads(pickle.dumps(model))
    Summary.of(model.forest_)
