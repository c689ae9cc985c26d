"""`dmondrian warm`: compile ahead of time whatever the estimators can need.

Relies on the estimators alone: small forests of every kind learn and answer, so that no second
list of kernels has to be kept true. Which kernels there are depends on the choices below; all
other parameters are values. Several processes compile at a time, each for some algorithms; what
two of them need one compiles, and the other finds. Numba's cache holds for one kind of processor:
``NUMBA_CPU_NAME`` and ``NUMBA_CPU_FEATURES`` say which, where the machines that will use it are of
another.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import os
import pickle
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, as_completed
from multiprocessing import active_children, get_context, parent_process
from operator import itemgetter
from typing import Any, TypeAlias

from dmondrian.cli.output import Output
from dmondrian.errors import DMondrianError, ParameterError

Kind: TypeAlias = tuple[str, dict[str, Any]]  # an algorithm, and parameters that choose kernels

DOMAINS = ("range", "cube")
# Parameters that choose a policy, and so kernels of its own, beside the domain: the products of
# each group.
CHOICES: dict[str, tuple[dict[str, tuple[Any, ...]], ...]] = {
    "amf-classifier": ({"use_aggregation": (True, False), "calibrate": (False, True)},),
    "amf-regressor": ({"use_aggregation": (True, False), "calibrate": (False, True)},),
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
    "mondrian-density": ({},),
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
_PROCESSES = 4  # at most, unless told otherwise: each takes 0.7 GB
_ROWS = 40
_WARMUP_ROWS = 32  # the fewest there can be: settings are chosen from them


def warm(arguments: argparse.Namespace, output: Output) -> int:
    """Run the command; see `dmondrian warm --help`."""
    from numba import config

    from dmondrian._cache import cache_folder

    if config.DISABLE_JIT:
        raise ParameterError("NUMBA_DISABLE_JIT is set, so nothing is compiled: unset it")
    algorithms = tuple(dict.fromkeys(arguments.algorithm)) or tuple(CHOICES)
    domains = (arguments.domain,) if arguments.domain else DOMAINS
    start, kinds = time.monotonic(), list(_kinds(algorithms, domains))
    families = [list(of) for _, of in itertools.groupby(kinds, key=itemgetter(0))]
    n_processes = _n_processes(arguments.processes, len(families))
    if n_processes == 1:
        n = _compiled(kinds, output)
    else:
        n = _compiled_apart(families, n_processes, output)
    output.close_line()
    folder, seconds = str(cache_folder()), time.monotonic() - start
    output.event("warmed", {"algorithms": algorithms, "compiled": n, "folder": folder})
    told = f"compiled {n} kernels in {seconds:.0f} s" if n else "nothing to compile"
    on = " and ".join(f"the {domain}" for domain in domains)
    output.text(f"{told}: {folder} has all that {', '.join(algorithms)} can need on {on}")
    return 0


def _n_processes(wanted: int | None, n_families: int) -> int:
    """Return how many processes compile."""
    from joblib import cpu_count

    if wanted is not None and wanted < 1:
        raise ParameterError(f"--processes should be 1 or more, got {wanted}")
    return min(n_families, wanted or min(_PROCESSES, cpu_count()))


def _compiled(kinds: Sequence[Kind], output: Output) -> int:
    """Use each kind, and tell how it goes; return how many kernels were compiled for them."""
    n = 0
    for done, kind in enumerate(kinds):
        output.progress(f"{done} of {len(kinds)} done; now {_name(kind)}", important=True)
        n += _count([kind])
    return n


def _compiled_apart(families: Sequence[Sequence[Kind]], n_processes: int, output: Output) -> int:
    """Do so in processes of their own, large families first.

    A family's kernels have many parts in common, each of which a process compiles once.
    """
    n, line = 0, f"of {len(families)} algorithms done; {n_processes} processes compile"
    output.progress(f"0 {line}", important=True)
    with ProcessPoolExecutor(n_processes, get_context("spawn"), _begin_apart) as pool:
        order = sorted(families, key=len, reverse=True)
        futures = [pool.submit(_count_apart, family) for family in order]
        try:
            for done, future in enumerate(as_completed(futures), 1):
                algorithm, counted = future.result()
                output.progress(f"{done} {line}; last was {algorithm}", important=True)
                n += counted
        except BaseException as error:  # Ctrl-C too
            for process in active_children():
                process.terminate()
            if isinstance(error, BrokenExecutor):
                raise DMondrianError(
                    "a process that compiled was stopped, perhaps for want of memory: use fewer "
                    "--processes; what they have compiled so far is kept"
                ) from error
            raise
    return n


def _name(kind: Kind) -> str:
    return f"{kind[0]}: {', '.join(f'{name}={value}' for name, value in kind[1].items())}"


def _count(kinds: Sequence[Kind]) -> int:
    """Use kinds; return how many kernels were compiled for them."""
    from dmondrian._jit import compilations

    before = sum(compilations().values())
    for kind in kinds:
        _use(*kind)
    return sum(compilations().values()) - before


def _begin_apart() -> None:
    """Leave it to the caller to tell how it goes, and what Ctrl-C means; end when it does."""
    logging.getLogger("dmondrian").setLevel(logging.ERROR)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_caller, daemon=True).start()


def _end_with_caller() -> None:
    caller = parent_process()
    if caller is not None:
        caller.join()
        os._exit(1)


def _count_apart(family: Sequence[Kind]) -> tuple[str, int]:
    """Return an algorithm, and how many kernels were compiled for it."""
    return family[0][0], _count(family)


def _kinds(algorithms: Iterable[str], domains: Iterable[str]) -> Iterator[Kind]:
    """Return each way to choose the policies of these algorithms."""
    for algorithm in algorithms:
        for group in CHOICES[algorithm]:
            choices = {"domain": tuple(domains), **group}
            if algorithm in _WITHOUT_DOMAIN:
                del choices["domain"]
            for values in itertools.product(*choices.values()):
                chosen = dict(zip(choices, values, strict=True))
                if algorithm != _ON_THE_CUBE or chosen.pop("domain") == "cube":
                    yield algorithm, chosen


def _use(algorithm: str, chosen: dict[str, Any]) -> None:
    """Let a forest learn, with settings left to the rows, and ask it all that it can be asked."""
    import numpy as np

    from dmondrian.estimators import ALGORITHMS

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
    settings: dict[str, Any] = {}
    if algorithm not in _WITHOUT_DOMAIN:
        scales = "learned" if chosen["domain"] == "range" else None
        settings = {"feature_scales": scales, "warmup_rows": _WARMUP_ROWS}
    forest = kind(n_estimators=2, random_state=0, **settings, **chosen)
    y = np.where(X[:, 0] > X[:, 1], 1, 0)
    forest.fit(X, y)
    forest.predict(X)
    forest.predict(X[:1])  # one row has a way of its own, in trees at rest another
    forest.forest_.move_nodes()  # as large forests do
    forest.forest_.freeze()  # likewise
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


def _use_kernel(kind: Any, X: Any, chosen: dict[str, Any]) -> None:
    """Let a kernel machine learn exactly and by batches, and choose its lifetime."""
    y, given = (X[:, 0] > X[:, 1]).astype(int), {"n_passes": 1, "random_state": 0, **chosen}
    for solver in ("cholesky", "sgd"):
        model = kind(2, lifetime="validation", max_lifetime=1.0, solver=solver, **given).fit(X, y)
        model.predict(X)
        model.predict(X[:1])
        model.weighted_depth(X)
        _store(model)
    kind(2, **given).fit(X, y).partial_fit(X, y)  # a row is an update of the factor
    if chosen["domain"] == "cube":
        kind(2, lifetime="average", max_lifetime=1.0, **given).fit(X, y)


def _store(model: Any) -> None:
    """Let a forest be stored and read, which looks for faults."""
    pickle.loads(pickle.dumps(model))
