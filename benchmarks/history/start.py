"""Seconds of a fresh process, by the clock on the wall: asv has no other for these."""

from __future__ import annotations

FIRST_PREDICTION = """
import numpy as np
from dmondrian import AMFClassifier

X = np.random.default_rng(0).random((100, 5), dtype=np.float32)
AMFClassifier(random_state=0, n_jobs=1).fit(X, X[:, 0] > 0.5).predict_proba(X[:1])
"""


class Start:
    """After the interpreter's own start; kernels are on disk, as asv runs each once untimed."""

    repeat = (3, 10, 10.0)
    warmup_time = 0.1
    rounds = 2

    def timeraw_import(self) -> str:
        return "from dmondrian import AMFClassifier"  # the package alone imports next to nothing

    def timeraw_first_prediction(self) -> str:
        return FIRST_PREDICTION
