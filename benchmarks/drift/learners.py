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
    """

    kind: str
    worker: str = ""
    members: int = 10
    parameters: dict[str, Any] = {}  # noqa: RUF012 - never written to
    most_columns: int | None = None


DELAY = "the delay of the stream"
FOLLOW = {"drift": "follow", "delay": DELAY}
LEARNERS: dict[str, Learner] = {
    "AMF plain 10": Learner(OWN, "dmondrian", 10, {"feature_scales": None}),
    "AMF calibrated 10": Learner(OWN, "dmondrian", 10, {"calibrate": True}),
    "AMF follow 10": Learner(OWN, "dmondrian", 10, FOLLOW),
    "AMF follow 4": Learner(OWN, "dmondrian", 4, FOLLOW),
    "CapyMOA ARF 10": Learner(PEER, "capymoa_arf"),
    "CapyMOA SRP 10": Learner(PEER, "capymoa_srp"),
    "CapyMOA LB 10": Learner(PEER, "capymoa_leveraging"),
    "river HAT": Learner(PEER, "river_hat", 1),
    "river ARF 10": Learner(PEER, "river_arf"),
    "river SRP 10": Learner(PEER, "river_srp", most_columns=5),
    "class frequencies": Learner(BASELINE),
    "last label": Learner(BASELINE),
}


def parameters_of(learner: Learner, delay: int) -> dict[str, Any]:
    """Return the parameters of an estimator of this package on a stream of this delay."""
    own = learner.parameters.items()
    return {name: delay if value is DELAY else value for name, value in own}


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


def class_frequencies(y: np.ndarray, n_classes: int, delay: int) -> np.ndarray:
    """Return shares of the classes among the labels known so far, one of each beforehand."""
    counts = np.cumsum(np.eye(n_classes)[y], axis=0)
    known = np.ones((len(y), n_classes))
    known[delay:] += counts[: max(0, len(y) - delay)]
    return known / known.sum(axis=1, keepdims=True)


def last_label(y: np.ndarray, n_classes: int, delay: int) -> np.ndarray:
    """Return forecasts of the newest known label: the share of times that it was right so far.

    The other classes share the rest. A row before any label is known has all classes alike.
    """
    n = len(y)
    places, newest = np.arange(n), y[: max(0, n - delay)]
    # What is known of row t when row t + delay is forecast: its label, and so whether the newest
    # label at its forecast was right.
    was_right = np.zeros(n)
    was_right[delay:] = newest == y[delay:]
    rights = np.cumsum(was_right)[: len(newest)]
    tried = np.maximum(0, places[: len(newest)] - delay + 1)
    share = (rights + 1.0) / (tried + n_classes)
    found = np.full((n, n_classes), 1.0 / n_classes)
    found[delay:] = ((1.0 - share) / max(1, n_classes - 1))[:, None]
    found[places[delay:], newest] = share
    return found


BASELINES: dict[str, Callable[[np.ndarray, int, int], np.ndarray]] = {
    "class frequencies": class_frequencies,
    "last label": last_label,
}
