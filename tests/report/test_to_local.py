"""A run in Python: what it is in a line, and its estimator asked with arrays."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest

import dmondrian
from dmondrian import AMFRegressor


def test_arrays_of_encoded_rows_are_nothing_to_warn_of(of_numbers) -> None:
    model = dmondrian.load(of_numbers.run_url)
    rows = np.random.default_rng(0).random((5, model.n_features_in_))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wanted = model.predict(rows)
        assert (model.predict(rows.tolist()) == wanted).all()
        assert (model.predict(rows.astype(np.float32)) == model.predict(rows)).all()
        frame = pd.DataFrame(rows, columns=model.feature_names_in_)
        assert (model.predict(frame) == wanted).all()
        model.partial_fit(rows, wanted)
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(frame.rename(columns={model.feature_names_in_[0]: "other"}))
    model.fit(frame, wanted)  # an estimator of frames from now on, as scikit-learn's are
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        model.predict(rows)


def test_an_estimator_of_frames_warns_as_those_of_scikit_learn_do(tmp_path) -> None:
    frame = pd.DataFrame({"a": [0.0, 1.0], "b": [1.0, 0.0]})
    AMFRegressor(n_estimators=1, random_state=0).fit(frame, [0.0, 1.0]).save(tmp_path / "m")
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        dmondrian.load(tmp_path / "m").predict(frame.to_numpy())


def test_a_run_is_reported_in_a_line(classified) -> None:
    reported = repr(classified)
    assert reported.startswith(f"TrainedRun({classified.run_url!r}, 3,000 rows, log_loss=0.")
    assert len(reported) - len(classified.run_url) < 100
    plan = repr(classified.plan)
    assert plan.startswith("Plan(3,000 rows, 1 file, Schema(")
    assert plan.endswith("target='income'))")
    assert len(plan) < 100
