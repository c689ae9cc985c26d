"""The parameters of a run: draws the seed and chooses "auto" settings before shards are made.

Relies on the frozen plan, whose first rows this process reads once. Promises the parameters that
the estimator itself chooses when it learns the same rows (if the plan does not shuffle), equal for
every shard and worker, and kept when the same job is run again. The choice takes seconds, so its
begin and result go to the logger "dmondrian" (INFO), which the command line shows.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from joblib import effective_n_jobs

from dmondrian._text.wording import counted
from dmondrian.checkpoint import Run
from dmondrian.data import Plan, read_block, read_chunk
from dmondrian.drift.scaled_trees import never_grown
from dmondrian.ensemble.settings.parameters import ForestParameters
from dmondrian.errors import CheckpointError
from dmondrian.prequential.progressive_validation import RowArrays
from dmondrian.tuning.auto_settings import LAST, Warmup, choose, rows_for

_log = logging.getLogger("dmondrian")
_NAMED = 5  # most columns named in the log

SAMPLED_BLOCKS = 16
"""Row groups used to choose settings for the shuffled runs of earlier versions."""


def resolve_parameters(
    estimator: Any, plan: Plan, url: str, is_logged: bool = True
) -> dict[str, Any]:
    """Return the parameters of every forest of the run, as JSON.

    Parameters
    ----------
    estimator : estimator of this package
    plan : Plan
    url : str
        The run's folder. An existing run keeps its parameters; `Run.create` checks whether it is
        of the same job.
    is_logged : bool
        Whether what is chosen is logged at the level INFO; else at DEBUG. And whether it is warned
        of experts that there will be none of.
    """
    try:
        return dict(Run.open(url).run_json["parameters"])
    except (CheckpointError, KeyError):
        pass  # a new folder
    estimator._check_run()
    schema = plan.schema
    n_classes = len(schema.classes) if schema.classes is not None else 0
    drawn = estimator._run_parameters(schema.n_features, n_classes, schema.feature_names)
    auto = estimator._auto_settings(schema.n_features, n_classes)
    if is_logged and (why := never_grown(drawn)) is not None:
        _log.warning(why)
    n_threads = int(effective_n_jobs(-1))  # the choice does not depend on it
    if not auto:
        return drawn.to_json()
    n = rows_for(auto, int(estimator.warmup_rows))
    source = "the stream"
    if _is_interleaved(plan):
        source = f"the first {SAMPLED_BLOCKS} row groups"
    settings = ", ".join(name.replace("_", " ") for name in auto)
    how_many = counted(min(n, plan.n_rows), "row")
    level = logging.INFO if is_logged else logging.DEBUG
    _log.log(level, "choosing %s from %s of %s", settings, how_many, source)
    began = time.monotonic()
    rows = first_rows(plan, n)
    chosen = choose(drawn, auto, rows, n_threads, n)
    seconds = time.monotonic() - began
    varies = (rows[0] != rows[0][:1]).any(axis=0)  # without rows no feature varies
    text = summary_of(chosen, auto, schema.feature_names, varies)
    _log.log(level, "chosen in %.1f seconds: %s", seconds, text)
    return chosen.to_json()


def summary_of(
    chosen: ForestParameters, auto: Sequence[str], names: Sequence[str], varies: np.ndarray
) -> str:
    """Return the chosen settings as a line, with the features of the largest scales.

    Features that do not vary (`varies`, bool [d]) are left out: they have no scales.
    """
    parts = []
    if "alpha" in auto:
        parts.append(f"alpha = {chosen.alpha:.3g}")
    if "charge_opening" in auto:
        parts.append(f"charge_opening = {str(chosen.charge_opening).lower()}")
    if "feature_scales" in auto and chosen.feature_scales is None:
        parts.append("no feature scales")
    elif "feature_scales" in auto:
        scales = np.array(chosen.feature_scales)
        varying = np.flatnonzero(varies)
        first = varying[np.argsort(-scales[varying], kind="stable")][:_NAMED]
        text = ", ".join(f"{names[j]} {scales[j]:.3g}" for j in first)
        parts.append(f"largest feature scales of {len(scales)}: {text}")
    if "feature_units" in auto:
        n_rounded = np.count_nonzero(chosen.feature_units or ())
        parts.append(f"{n_rounded} of {chosen.n_features} columns rounded to 16 bits")
    return ", ".join(parts)


def first_rows(plan: Plan, warmup_rows: int = LAST) -> RowArrays:
    """Return the rows to choose settings from, one more than the choice needs: X, y, w.

    These are the first rows of the stream. Shuffles of earlier versions permute row groups and the
    rows within them, so that the first rows may all be of one row group and unlike the rest: for
    these, the rows of the first row groups are interleaved.
    """
    if _is_interleaved(plan):
        return _interleaved_rows(plan, warmup_rows)
    first = Warmup.without_rows((), plan.schema.n_features, warmup_rows)
    for chunk in plan.chunks:
        read = read_chunk(plan, chunk)
        assert read.y is not None  # a plan to learn from has a target
        first = first.after(read.X, read.y, read.weight)
        if first.is_done:
            break
    return first.rows


def _is_interleaved(plan: Plan) -> bool:
    """Return whether the stream is shuffled without bands, as by earlier versions."""
    return plan.shuffle and not plan.bands


def _interleaved_rows(plan: Plan, warmup_rows: int) -> RowArrays:
    shares: list[RowArrays] = []
    for block in plan.blocks:
        read = read_block(plan, block)
        assert read.y is not None  # a plan to learn from has a target
        weights = np.ones(len(read.y)) if read.weight is None else read.weight
        weighted = np.flatnonzero(weights > 0)[: warmup_rows + 1]
        shares.append((read.X[weighted], read.y[weighted], weights[weighted]))
        n_rows = sum(len(y) for _, y, _ in shares)
        if len(shares) >= SAMPLED_BLOCKS and n_rows > warmup_rows:
            break
    turns = np.concatenate([np.arange(len(y)) for _, y, _ in shares])
    interleaved = np.argsort(turns, kind="stable")
    X, y, w = (np.concatenate(columns)[interleaved] for columns in zip(*shares, strict=True))
    return X, y, w
