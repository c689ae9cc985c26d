"""The picture of the page: accuracy where a rule changes, and the trees that forecast then."""

from __future__ import annotations

from pathlib import Path

from benchmarks.drift.streams import load
from dmondrian import AMFClassifier

STREAM, NAME = "Agrawal, abrupt", "drift_ages.png"
MEMBERS = 10


def draw(folder: Path, max_rows: int | None = None) -> None:
    """Draw it: a stream whose rule changes at once, learned with ``drift="follow"`` and without.

    Above the accuracy of the last 1,024 rows, each forecast just before it was learned; below the
    shares of trees of each age in the forecasts.
    """
    from matplotlib.figure import Figure

    from dmondrian.displays import AgeWeightsDisplay, LearningCurveDisplay

    rows = load(STREAM, None, max_rows)
    figure = Figure(figsize=(8.0, 5.6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    settings = {"n_estimators": MEMBERS, "random_state": 0}
    follow = AMFClassifier(drift="follow", **settings)
    plain = AMFClassifier(feature_scales=None, calibrate=False, **settings)
    for estimator, label in ((follow, 'drift="follow"'), (plain, "drift=None")):
        LearningCurveDisplay.from_estimator(
            estimator, rows.X, rows.y, metric="accuracy", label=label, span="window", ax=above
        )
    AgeWeightsDisplay.from_estimator(follow, rows.X, rows.y, ax=below)
    figure.suptitle(f"{STREAM}: accuracy of the last 1,024 rows, and ages of trees in forecasts")
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / NAME, dpi=90)
