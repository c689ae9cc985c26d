"""The learners of the benchmark of drift: of this package, of peers, and baselines.

A row of `LEARNERS` is all that a new learner takes. Learners but baselines run in a process of
their own, `benchmarks.peers.worker`, that forecasts and learns row by row.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.peers.build import CAPYMOA, java
from benchmarks.peers.runner import ENVIRONMENTS, interpreter
from dmondrian import AMFClassifier
from dmondrian.drift.waiting_rows import LONGEST_ADVISED

OWN, PEER, BASELINE = "own", "peer", "baseline"


class Learner(NamedTuple):
    """How a learner is run.

    Parameters
    ----------
    kind
        "own", "peer" or "baseline".
    worker
        Its name in `benchmarks.peers.worker`.
    members
        Trees, or members of the ensemble.
    parameters
        Of an estimator of this package; `DELAY` stands for the delay of the stream.
    most_columns
        Streams with more are left out: it would take too long.
    in_calls
        It forecasts and learns many rows in a call; what it forecasts is what it would have row by
        row, at a fraction of the time.
    most_waiting
        Rows of a block at most, where labels come late: what is known waits for fewer others, and
        weights are learned from fresher forecasts than those that count. It is run where this makes
        a difference.
    """

    kind: str
    worker: str = ""
    members: int = 10
    parameters: dict[str, Any] = {}  # noqa: RUF012 - never written to
    most_columns: int | None = None
    in_calls: bool = False
    most_waiting: int | None = None


DELAY = "the delay of the stream"
FOLLOW = {"drift": "follow", "delay": DELAY}
BOOSTED = {**FOLLOW, "experts": ["mondrian", "boosted"]}
SCALED = {**FOLLOW, "experts": ["mondrian", "boosted", "scaled"]}
LEARNERS: dict[str, Learner] = {
    "AMF plain 10": Learner(OWN, "dmondrian", 10, {"feature_scales": None, "calibrate": False}),
    "AMF calibrated 10": Learner(OWN, "dmondrian", 10, {"calibrate": True}),
    "AMF follow 10": Learner(OWN, "dmondrian", 10, FOLLOW, in_calls=True),
    "AMF boosted 10": Learner(OWN, "dmondrian", 10, BOOSTED, in_calls=True),
    "AMF scaled 10": Learner(OWN, "dmondrian", 10, SCALED, in_calls=True),
    "AMF follow 10 in 64s": Learner(OWN, "dmondrian", 10, FOLLOW, in_calls=True, most_waiting=64),
    "AMF boosted 10 in 64s": Learner(OWN, "dmondrian", 10, BOOSTED, in_calls=True, most_waiting=64),
    "AMF scaled 10 in 64s": Learner(OWN, "dmondrian", 10, SCALED, in_calls=True, most_waiting=64),
    "AMF follow 10 in 16s": Learner(OWN, "dmondrian", 10, FOLLOW, in_calls=True, most_waiting=16),
    "AMF boosted 10 in 16s": Learner(OWN, "dmondrian", 10, BOOSTED, in_calls=True, most_waiting=16),
    "AMF follow 4": Learner(OWN, "dmondrian", 4, FOLLOW, in_calls=True),
    "CapyMOA ARF 10": Learner(PEER, "capymoa_arf"),
    "CapyMOA SRP 10": Learner(PEER, "capymoa_srp"),
    "CapyMOA LB 10": Learner(PEER, "capymoa_leveraging"),
    "river HAT": Learner(PEER, "river_hat", 1),
    "river ARF 10": Learner(PEER, "river_arf"),
    "river SRP 10": Learner(PEER, "river_srp", most_columns=5),
    "class frequencies": Learner(BASELINE),
    "last label": Learner(BASELINE),
}


def parameters_of(learner: Learner, delay: int, in_blocks: bool) -> dict[str, Any]:
    """Return the parameters of an estimator of this package on a stream of this delay.

    Where labels come in blocks, forests that follow the stream have the delay that is advised for
    files that are scored later. Where labels each come so many rows late, they take them in blocks
    of a quarter as many, as their docstring advises, or of fewer.
    """
    if in_blocks:
        delay = min(delay, LONGEST_ADVISED)
    else:
        delay = min(max(1, delay // 4), learner.most_waiting or delay)
    own = learner.parameters.items()
    return {name: delay if value is DELAY else value for name, value in own}


def is_asked(learner: Learner, delay: int, in_blocks: bool) -> bool:
    """Return whether a learner is another where labels are this late than without its bound."""
    return learner.most_waiting is None or (not in_blocks and delay // 4 > learner.most_waiting)


def why_not(learner: Learner, peers: str | Path | None) -> str | None:
    """Return why a learner cannot be run here, or None if it can."""
    if learner.kind == OWN:
        known = AMFClassifier().get_params()
        lacking = [name for name in learner.parameters if name not in known]
        return f"AMFClassifier takes no {' and no '.join(lacking)} yet" if lacking else None
    if learner.kind == PEER:
        if interpreter(learner.worker, peers) is None:
            its = ENVIRONMENTS[learner.worker]
            return f"no environment: python -m benchmarks.peers.build FOLDER {its}; --peers FOLDER"
        needs_java = ENVIRONMENTS[learner.worker] == CAPYMOA
        if needs_java and java() is None:
            return "no Java 17: install it, or name its folder in JAVA_HOME"
    return None


def class_frequencies(y: np.ndarray, n_classes: int, known: np.ndarray) -> np.ndarray:
    """Return shares of the classes among the labels known so far, one of each beforehand.

    Parameters
    ----------
    y : int64 [n]
    n_classes
    known : int64 [n]
        Labels known when each row is forecast, as `streams.Arrival.known` has them.
    """
    counts = np.ones((len(y) + 1, n_classes))
    counts[1:] += np.cumsum(np.eye(n_classes)[y], axis=0)
    found = counts[known]
    return found / found.sum(axis=1, keepdims=True)


def last_label(y: np.ndarray, n_classes: int, known: np.ndarray) -> np.ndarray:
    """Return forecasts of the newest known label: the share of times that it was right so far.

    The other classes share the rest. A row before any label is known has all classes alike.
    Parameters are those of `class_frequencies`.
    """
    n, has_newest = len(y), known > 0
    newest = y[np.maximum(known - 1, 0)]
    tried, rights = np.zeros(n + 1), np.zeros(n + 1)
    tried[1:] = np.cumsum(has_newest)
    rights[1:] = np.cumsum(has_newest & (newest == y))
    share = (rights[known] + 1.0) / (tried[known] + n_classes)
    found = np.repeat((1.0 - share)[:, None] / max(1, n_classes - 1), n_classes, axis=1)
    found[np.arange(n), newest] = share
    found[~has_newest] = 1.0 / n_classes
    return found


BASELINES: dict[str, Callable[[np.ndarray, int, np.ndarray], np.ndarray]] = {
    "class frequencies": class_frequencies,
    "last label": last_label,
}
