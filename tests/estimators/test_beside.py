"""Threads share an estimator: each answer is that of the whole forest after some row."""

from __future__ import annotations

import contextlib
import copy
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator, clone

from dmondrian import (
    AMFClassifier,
    AMFRegressor,
    ConvexLoss,
    GeneralizedMondrianForestClassifier,
    GeneralizedMondrianForestRegressor,
    MondrianDensity,
    MondrianFeatures,
    MondrianForestClassifier,
    MondrianForestRegressor,
    MondrianKernelClassifier,
    MondrianKernelRegressor,
    OnlineRandomForestClassifier,
    OnlineRandomForestRegressor,
)
from dmondrian.displays.partition import cells_of
from dmondrian.ensemble import threads
from dmondrian.ensemble.ensemble import Ensemble
from dmondrian.ensemble.threads import Turns
from dmondrian.ensemble.tree_store import TreeStore
from dmondrian.errors import ParameterError
from dmondrian.estimators import ALGORITHMS
from dmondrian.estimators.one_state import one_state
from dmondrian.estimators.same_forest import without_names
from dmondrian.estimators.single_row import SingleRow
from dmondrian.export import shap_trees, to_c, to_onnx
from dmondrian.forest.forest import Forest
from tests.estimators.beside import (
    ROWS,
    Answer,
    Call,
    answer,
    read_beside,
    states,
    stream,
    switching_often,
    together,
)
from tests.estimators.test_custom_loss import expectile, expectile_slope
from tests.estimators.test_own_cost import logistic, logistic_slope

PATIENCE = 60.0  # seconds that anything may take on a busy machine, kernels compiled on the way

RNG = np.random.default_rng(0)
X = RNG.random((ROWS, 2)).astype(np.float32)
LABELS = np.where(X[:, 0] + 0.3 * RNG.normal(size=ROWS) > 0.5, "b", "a")
OTHERS = np.where(X[:, 1] > 0.5, "z", "y")
TARGETS = X[:, 0] + 0.1 * RNG.normal(size=ROWS)
NEW = RNG.random((9, 2)).astype(np.float32)
LIVES = [0.5, 1.0, 2.0]


def saved(forest: Any) -> list[str]:
    """Return the names, which are digests, of what ``save`` writes of the trees."""
    with tempfile.TemporaryDirectory() as folder:
        forest.save(Path(folder) / "model")
        return sorted(path.name for path in Path(folder).glob("model/blobs/*"))


# How each public method and fitted attribute is asked; those that learn are not here.
ASKS: dict[str, Answer] = {
    **{
        name: lambda f, name=name: getattr(f, name)  # type: ignore[misc]  # bound here
        for name in (
            "age_weights_", "alpha_", "calibration_exponent_", "calibration_weight_",
            "charge_opening_", "empty_mass_",
            "feature_importances_", "feature_scales_", "feature_units_", "lifetime_",
            "lifetime_path_", "lifetimes_", "n_clipped_", "n_columns_", "n_late_", "n_waiting_",
            "normalization_error_",
            "variance_factor_",
        )
    },
    "apply": lambda f: f.apply(NEW),
    "confidence_interval": lambda f: f.confidence_interval(NEW, X[:20]),
    "decision_function": lambda f: f.decision_function(NEW),
    "decision_path": lambda f: f.decision_path(NEW),
    "get_feature_names_out": lambda f: f.get_feature_names_out(),
    "merge": lambda f: f.merge(f),
    "nodes": lambda f: f.nodes(1),
    "predict": lambda f: f.predict(NEW),
    "predict_debiased": lambda f: f.predict_debiased(NEW),
    "predict_interval": lambda f: f.predict_interval(NEW, calibrated=True),
    "predict_link": lambda f: f.predict_link(NEW),
    "predict_log_proba": lambda f: f.predict_log_proba(NEW),
    "predict_proba": lambda f: f.predict_proba(NEW),
    "predict_quantiles": lambda f: f.predict_quantiles(NEW, [0.2, 0.8]),
    "sample": lambda f: f.sample(3, random_state=0),
    "save": saved,
    "score": lambda f: f.score(X, LABELS),
    "score_samples": lambda f: f.score_samples(NEW),
    "staged_decision_function": lambda f: f.staged_decision_function(NEW, LIVES),
    "staged_predict": lambda f: f.staged_predict(NEW, LIVES),
    "staged_predict_proba": lambda f: f.staged_predict_proba(NEW, LIVES),
    "transform": lambda f: f.transform(NEW),
    "weighted_depth": lambda f: f.weighted_depth(NEW),
}  # fmt: skip
# Other ways to ask, of those that have the methods named.
MORE: dict[str, tuple[str, Answer]] = {
    "predict a row": ("predict", lambda f: f.predict(NEW[:1])),
    "predict_proba of a row": ("predict_proba", lambda f: f.predict_proba(NEW[:1])),
    "predict without names": ("predict", lambda f: without_names(f).predict(NEW)),
    "pickle": ("fit", lambda f: f.__getstate__()),
    "copy": ("fit", lambda f: copy.copy(f)),
    "repr": ("fit", repr),
}
TRAITS = {
    "return_std": lambda f: f.predict(NEW, return_std=True),
    "shap": shap_trees,
    "onnx": lambda f: to_onnx(f).SerializeToString(),
    "c": to_c,
    "cells": lambda f: cells_of(f, 0, np.array([0.0, 1.0, 0.0, 1.0])),
}
LEARN = {"fit", "partial_fit", "fit_transform", "calibrate_intervals", "choose_lifetime"}
OF_CLASS = {"algorithm", "aggregation", "calibrate", "categorical_features", "class_weight", "clip",
            "criterion", "domain", "empty_cell", "experts", "feature_scales", "feature_units",
            "max_nodes", "missing_values", "monotonic_cst", "n_estimators", "predict_extension",
            "set_output", "warmup_rows"}  # fmt: skip

SMALL: dict[str, Any] = {"n_estimators": 2, "random_state": 0}
CUBE: dict[str, Any] = {**SMALL, "domain": "cube", "lifetime": 2.0}
KERNEL: dict[str, Any] = {**SMALL, "lifetime": 2.0}
AMF: dict[str, Any] = {**SMALL, "warmup_rows": 32, "feature_scales": None}
CASES: dict[str, tuple[Any, np.ndarray, list[str]]] = {
    "amf-classifier": (AMFClassifier(**AMF, calibrate=True), LABELS, ["shap", "onnx", "c"]),
    "amf-classifier, rows alone": (
        AMFClassifier(**SMALL, alpha=0.5, calibrate=False),
        LABELS,
        [],
    ),
    "amf-classifier, mixed": (AMFClassifier(**AMF), LABELS, ["onnx", "c"]),
    "amf-classifier, following": (AMFClassifier(**SMALL, drift="follow"), LABELS, []),
    "amf-classifier, boosted": (
        AMFClassifier(**SMALL, drift="follow", experts=("mondrian", "boosted")),
        LABELS,
        [],
    ),
    "amf-regressor, following": (
        AMFRegressor(**SMALL, drift="follow", delay=5),
        TARGETS,
        ["return_std"],
    ),
    "amf-regressor, boosted": (
        AMFRegressor(**SMALL, drift="follow", experts=("mondrian", "boosted")),
        TARGETS,
        ["return_std"],
    ),
    "amf-regressor": (AMFRegressor(**AMF, calibrate=True), TARGETS, ["return_std"]),
    "mondrian-classifier": (MondrianForestClassifier(**SMALL), LABELS, ["cells"]),
    "mondrian-regressor": (MondrianForestRegressor(**CUBE), TARGETS, ["return_std"]),
    "hierarchy": (
        MondrianForestRegressor(**SMALL, aggregation="hierarchy", lifetime=3.0),
        TARGETS,
        ["return_std"],
    ),
    "generalized-classifier": (
        GeneralizedMondrianForestClassifier(**SMALL, lifetime="penalized"),
        LABELS,
        ["shap"],
    ),
    "generalized-regressor": (
        GeneralizedMondrianForestRegressor(
            **SMALL, loss="quantile", quantile=[0.9, 0.1], lifetime=None
        ),
        TARGETS,
        ["shap"],
    ),
    "own-loss": (
        GeneralizedMondrianForestRegressor(
            **SMALL, loss=ConvexLoss(expectile, expectile_slope), lifetime=3.0
        ),
        TARGETS,
        [],
    ),
    "own-cost": (
        GeneralizedMondrianForestClassifier(
            **SMALL, loss=ConvexLoss(logistic, logistic_slope), lifetime=3.0
        ),
        LABELS,
        [],
    ),
    "density": (
        MondrianDensity(**SMALL, max_lifetime=3.0, lifetime=None, n_draws=40),
        TARGETS,
        [],
    ),
    "features": (MondrianFeatures(2, lifetime=2.0, random_state=0), TARGETS, []),
    "kernel-classifier": (MondrianKernelClassifier(**KERNEL, solver="sgd"), LABELS, []),
    "kernel-regressor": (MondrianKernelRegressor(**KERNEL), TARGETS, ["return_std"]),
    "online-classifier": (
        OnlineRandomForestClassifier(**SMALL, min_samples_leaf=2.0),
        LABELS,
        ["onnx"],
    ),
    "online-regressor": (
        OnlineRandomForestRegressor(**SMALL, min_samples_leaf=2.0, max_fringe=2),
        TARGETS,
        [],
    ),
}
# Cases that are asked outside of the thorough run too, of kinds that other tests compile: trees
# with aggregated answers, and kept labels with a lifetime that is chosen.
QUICK = ("amf-classifier", "generalized-regressor")
# Others are pickled, which is sooner, and have their depths by the same code, compiled anew.
ASKED_OF = {"save": ("amf-classifier",), "weighted_depth": ("amf-classifier", "amf-regressor")}


def public(kind: type) -> set[str]:
    """Return the names of the public methods and attributes that a class defines itself."""
    requests = {name for name in dir(kind) if name.startswith("set_") and name.endswith("_request")}
    its = {name for name in dir(kind) if not name.startswith("_")}
    return its - set(dir(BaseEstimator)) - requests - OF_CLASS


@pytest.mark.parametrize("kind", ALGORITHMS.values(), ids=lambda kind: kind.__name__)
def test_all_that_is_public_is_asked_beside_a_learner(kind: type) -> None:
    assert public(kind) <= set(ASKS) | LEARN
    assert kind in {type(estimator) for estimator, *_ in CASES.values()}


def asks_of(case: str) -> dict[str, Answer]:
    """Return all ways to ask an estimator."""
    estimator, y, traits = CASES[case]
    left_out = {name for name, cases in ASKED_OF.items() if case not in cases}
    names = public(type(estimator)) - LEARN - left_out
    found = {name: ASKS[name] for name in names}
    if "score" in found:
        found["score"] = lambda f: f.score(X, y)
    found |= {name: ask for name, (of, ask) in MORE.items() if hasattr(type(estimator), of)}
    return found | {name: TRAITS[name] for name in traits}


def calls_of(case: str) -> list[Call]:
    """Return calls that learn the rows, and calls that calibrate and choose in between."""
    estimator, y, _ = CASES[case]
    first = {"classes": np.unique(y)} if y.dtype.kind == "U" else {}
    calls = stream(X, y, first)
    if hasattr(estimator, "calibrate_intervals"):
        for at in (9, 4):
            calls.insert(at, lambda f: f.calibrate_intervals(X, y))
    if hasattr(estimator, "choose_lifetime") and case != "own-loss":
        with_labels = () if case == "density" else (y,)
        calls.insert(8, lambda f: f.choose_lifetime(X, *with_labels))
    return calls


@pytest.mark.filterwarnings("ignore:cells without rows", "ignore:divide by zero")
@pytest.mark.parametrize("n_times", [1, pytest.param(4, marks=pytest.mark.thorough)])
@pytest.mark.parametrize(
    "case",
    [each if each in QUICK else pytest.param(each, marks=pytest.mark.thorough) for each in CASES],
)
def test_answers_beside_a_learner_are_those_of_some_row(case: str, n_times: int) -> None:
    check_beside_a_learner(case, asks_of(case), n_times)


def check_beside_a_learner(case: str, asks: dict[str, Answer], n_times: int = 1) -> None:
    """Ask an estimator while it learns; also see that it learns what it learns alone."""
    calls, alone = calls_of(case), clone(CASES[case][0])
    allowed = states(alone, calls, asks)

    def work(estimator: Any) -> None:
        for call in calls:
            call(estimator)

    for _ in range(n_times):
        beside = clone(alone)
        found = read_beside(beside, work, asks)
        strange = {name: found[name] - allowed[name] for name in asks}
        assert not {name: reported for name, reported in strange.items() if reported}
        assert whole(beside) == whole(alone)


def whole(estimator: Any) -> Any:
    """Return all that an estimator is."""
    return answer(lambda one: one.__getstate__(), estimator)


BOTH_FITS = [
    *("amf-classifier", "density", "kernel-classifier"),
    *(
        pytest.param(each, marks=pytest.mark.thorough)
        for each in ("mondrian-regressor", "own-loss")
    ),
]


@pytest.mark.filterwarnings("ignore:cells without rows", "ignore:divide by zero")
@pytest.mark.parametrize("case", BOTH_FITS)
def test_a_fit_is_seen_when_it_has_ended_and_at_once(case: str) -> None:
    estimator, y, _ = CASES[case]
    asks = asks_of(case)
    other = OTHERS if y is LABELS else 1.0 - TARGETS
    calls: list[Call] = [
        lambda f: f.fit(X, y),
        lambda f: f.fit(np.ascontiguousarray(X[:, ::-1]), other),
        lambda f: f.fit(X[:20, :1], y[:20]),  # of fewer columns: the rows asked about are refused
    ]
    one = clone(estimator).fit(X, other)
    allowed = {name: {answer(ask, one)} for name, ask in asks.items()}
    for call in calls:
        alone = clone(estimator)
        call(alone)
        for name, ask in asks.items():
            allowed[name].add(answer(ask, alone))

    def work(estimator: Any) -> None:
        for call in calls * 2:
            call(estimator)

    found = read_beside(one, work, asks)
    strange = {name: found[name] - allowed[name] for name in asks}
    assert not {name: reported for name, reported in strange.items() if reported}


@pytest.mark.parametrize(
    ("case", "inner"),
    [
        ("amf-classifier", "predict_proba"),
        ("mondrian-classifier", "predict_proba"),
        ("generalized-classifier", "decision_function"),
    ],
)
def test_a_fit_that_ends_amid_an_answer_changes_no_part_of_it(
    case: str, inner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    forest = clone(CASES[case][0]).fit(X, LABELS)
    other = clone(forest).fit(X, OTHERS)
    ask, is_first = getattr(type(forest), inner), True

    def ask_and_fit(self: Any, *given: Any) -> np.ndarray:
        nonlocal is_first
        reported: np.ndarray = ask(self, *given)
        if is_first:
            is_first = False
            begun(lambda: forest.fit(X, OTHERS)).join(PATIENCE)
        return reported

    monkeypatch.setattr(type(forest), inner, ask_and_fit)
    assert (forest.predict(NEW) == other.predict(NEW)).all()


@pytest.mark.parametrize("case", ["amf-classifier, rows alone", "hierarchy", "online-regressor"])
def test_learners_take_turns(case: str) -> None:
    estimator, y, _ = CASES[case]
    first = {"classes": np.unique(y)} if y is LABELS else {}
    forest = clone(estimator)

    def learn(size: int) -> None:
        for start in range(0, ROWS, size):
            part = slice(start, start + size)
            forest.partial_fit(X[part], y[part], **first)
            forest.predict(NEW)

    with switching_often():
        together([lambda size=size: learn(size) for size in (1, 1, 3, 16)])  # type: ignore[misc]
    assert forest.forest_.total_weight == 4 * ROWS
    assert whole(pickle.loads(pickle.dumps(forest))) == whole(forest)  # checked when it is read


def test_rows_that_come_while_a_fit_goes_on_are_learned_before_or_after_it() -> None:
    forest = AMFRegressor(**SMALL).fit(X[:10], TARGETS[:10])
    fitted = AMFRegressor(**SMALL).fit(X, TARGETS)
    later = copy.deepcopy(fitted).partial_fit(NEW, NEW[:, 0])
    for _ in range(5):
        with switching_often():
            together([lambda: forest.fit(X, TARGETS), lambda: forest.partial_fit(NEW, NEW[:, 0])])
        assert whole(forest) in (whole(fitted), whole(later))


def begun(work: Any) -> threading.Thread:
    """Return a thread that does the work."""
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_an_answer_does_not_wait_for_the_whole_call(monkeypatch: pytest.MonkeyPatch) -> None:
    forest = AMFRegressor(**SMALL).fit(X, TARGETS)
    is_begun, is_answered = threading.Event(), threading.Event()
    update = Forest._update

    def slow(self: Forest, *given: Any) -> None:
        update(self, *given)
        is_begun.set()
        assert is_answered.wait(PATIENCE)  # learning goes on when somebody was answered

    monkeypatch.setattr(Forest, "_update", slow)
    with switching_often():
        learner = begun(lambda: forest.partial_fit(X, TARGETS))
        assert is_begun.wait(PATIENCE)
        forest.predict(X)
        assert forest.forest_.total_weight < 2 * ROWS
        is_answered.set()
        learner.join()
    assert forest.forest_.total_weight == 2 * ROWS


def test_who_reads_for_long_keeps_no_reader_waiting() -> None:
    forest = AMFRegressor(**SMALL).fit(X, TARGETS)
    answers: list[np.ndarray] = []
    with one_state(forest):
        before = forest.predict(NEW)
        learner = begun(lambda: forest.partial_fit(X[:7], TARGETS[:7]))
        for _ in range(20):
            reader = begun(lambda: answers.append(forest.predict(NEW)))
            reader.join(PATIENCE)
        assert learner.is_alive()
    learner.join()
    assert len(answers) == 20
    assert all((reported == before).all() for reported in answers)
    assert (forest.predict(NEW) != before).any()


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_a_learner_that_fails_lets_others_in(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    forest = MondrianForestRegressor(**CUBE).fit(X, TARGETS).calibrate_intervals(X, TARGETS)
    expected = copy.deepcopy(forest).partial_fit(X[:6], TARGETS[:6])
    update, n_parts = Forest._update, 0

    def fail(self: Forest, *given: Any) -> None:
        nonlocal n_parts
        n_parts += 1
        if n_parts > 2:
            raise error
        update(self, *given)

    with monkeypatch.context() as patch, switching_often():
        patch.setattr(Forest, "_update", fail)
        with pytest.raises(error) as failed:
            forest.partial_fit(X, TARGETS)
    assert failed.value.__notes__ == [f"the forest has learned the first 6 of the {ROWS} rows"]
    assert not hasattr(forest, "interval_scores_")  # of the rows before
    answers: list[np.ndarray] = []
    begun(lambda: answers.append(forest.predict(NEW))).join(PATIENCE)
    begun(lambda: forest.partial_fit(X[:1], TARGETS[:1])).join(PATIENCE)
    assert (answers[0] == expected.predict(NEW)).all()
    assert whole(forest) == whole(expected.partial_fit(X[:1], TARGETS[:1]))


def test_a_refused_call_forgets_nothing() -> None:
    forest = MondrianForestRegressor(**CUBE).fit(X, TARGETS).calibrate_intervals(X, TARGETS)
    with pytest.raises(ParameterError, match="weights"):
        forest.partial_fit(X[:2], TARGETS[:2], sample_weight=[1e300, 1e308])
    forest.predict_interval(NEW, calibrated=True)


def until(is_so: Callable[[], Any]) -> None:
    """Wait until something is so; fail if it is not soon."""
    end = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < end
        threading.Event().wait(0.01)


def in_time(work: Any) -> None:
    """Do the work on a thread of its own; fail if it is stuck."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001  # raised again below
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    if errors:
        raise errors[0]


def rows_alone() -> AMFRegressor:
    """Return a forest that learns and predicts one row by the way for one row."""
    forest = AMFRegressor(n_estimators=2, random_state=0, feature_scales=None).fit(X, TARGETS)
    forest.partial_fit(X[:1], TARGETS[:1])
    forest.predict(X[:1])
    return forest


def handle_once(
    monkeypatch: pytest.MonkeyPatch, where: tuple[type, str], handle: Callable[[], Any]
) -> None:
    """Call what a signal handler would do where a method is entered first, on its thread."""
    kind, name = where
    method, is_first = getattr(kind, name), True

    def interrupted(*given: Any) -> Any:
        nonlocal is_first
        if is_first:
            is_first = False
            handle()
        return method(*given)

    monkeypatch.setattr(kind, name, interrupted)


@pytest.mark.parametrize(
    ("n", "where"),
    [(1, (SingleRow, "learn")), (2, (Turns, "_await_readers")), (2, (TreeStore, "encode"))],
)
def test_a_signal_handler_reads_amid_learning(
    n: int, where: tuple[type, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    forest = rows_alone()
    before, expected = forest.predict(NEW), copy.deepcopy(forest).partial_fit(X[:n], TARGETS[:n])
    answers: list[np.ndarray] = []

    def handle() -> None:
        answers.append(forest.predict(NEW))
        answers.append(pickle.loads(pickle.dumps(forest)).predict(NEW))

    handle_once(monkeypatch, where, handle)
    in_time(lambda: forest.partial_fit(X[:n], TARGETS[:n]))
    assert len(answers) == 2
    assert all((reported == before).all() for reported in answers)
    assert whole(forest) == whole(expected)


def test_a_signal_handler_cannot_learn_amid_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    forest = rows_alone()
    expected = copy.deepcopy(forest).partial_fit(X[:1], TARGETS[:1])

    def handle() -> None:
        for n in (1, 2):
            with pytest.raises(ParameterError, match="signal handler cannot learn"):
                forest.partial_fit(NEW[:n], NEW[:n, 0])

    handle_once(monkeypatch, (SingleRow, "learn"), handle)
    in_time(lambda: forest.partial_fit(X[:1], TARGETS[:1]))
    assert whole(forest) == whole(expected)


@pytest.mark.parametrize("n", [0, 1, 2])
def test_a_row_is_predicted_as_if_no_handler_came(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    forest = rows_alone()
    one, other = forest.predict(NEW)[:2]
    assert one != other

    def handle() -> None:
        if n:
            forest.partial_fit(NEW[:n], 10.0 + NEW[:n, 0])
        else:
            assert forest.predict(NEW[1:2])[0] == other

    # the row lies where it is looked for by now
    handle_once(monkeypatch, (SingleRow, "_frozen_call"), handle)
    answers: list[np.ndarray] = []
    in_time(lambda: answers.append(forest.predict(NEW[:1])))
    assert answers[0] == forest.predict(NEW)[:1]
    assert (answers[0] == one) == (n == 0)


@pytest.mark.parametrize("is_learner", [False, True])
@pytest.mark.parametrize("others", [False, True])
def test_an_interrupt_leaves_nobody_in(is_learner: bool, others: bool) -> None:
    """Raise KeyboardInterrupt where each Python function is entered, one after the other."""
    files = {threads.__file__, contextlib.__file__, threading.__file__}
    turns = Turns()

    def use() -> None:
        if is_learner:
            with turns.learning(), turns.alone():
                pass
        else:
            with turns.reading():
                pass

    def interrupted_at(n: int) -> bool:
        def trace(frame: Any, event: str, _: Any) -> None:
            nonlocal n
            if event == "call" and frame.f_code.co_filename in files:
                n -= 1
                if n < 0:
                    raise KeyboardInterrupt

        sys.settrace(trace)
        try:
            use()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(None)
        return False

    def learn_and_read() -> None:
        with turns.learning(), turns.alone():
            pass
        with turns.reading():
            assert turns.is_occupied

    for n in range(200):
        is_over, is_in = threading.Event(), threading.Event()

        def read(is_over: Any = is_over, is_in: Any = is_in) -> None:
            with turns.reading():
                is_in.set()
                is_over.wait(0.02)

        other = threading.Thread(target=read, daemon=True)
        if others:
            other.start()
            assert is_in.wait(PATIENCE)
        was_interrupted: list[bool] = []
        in_time(lambda n=n, found=was_interrupted: found.append(interrupted_at(n)))  # type: ignore[misc]
        is_over.set()
        if others:
            other.join(PATIENCE)
        in_time(learn_and_read)
        assert not turns.is_occupied
        assert not turns.is_taken
        if not was_interrupted[0]:
            break
    assert 3 < n < 199


def test_one_row_opens_no_forest_to_readers_that_others_learn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forest = rows_alone()
    turns, is_found = forest._turns, Turns.is_occupied.fget  # type: ignore[attr-defined]  # a property
    is_begun, is_looked, found = threading.Event(), threading.Event(), []
    size, learn = Turns.rows_at_once, Ensemble._learn

    def look(self: Turns) -> Any:
        if threading.current_thread() is row:
            is_looked.set()
            is_begun.wait(0.5)  # the other goes on to where it has to wait for the row
            threading.Event().wait(0.3)
        return is_found(self)

    def begin(self: Turns, n_trees: int) -> int:
        is_begun.set()
        is_looked.wait(PATIENCE)
        return size(self, n_trees)

    def see(self: Any, *given: Any) -> None:
        found.append(turns.is_taken)
        learn(self, *given)

    monkeypatch.setattr(Turns, "is_occupied", property(look))
    monkeypatch.setattr(Turns, "rows_at_once", begin)
    monkeypatch.setattr(Ensemble, "_learn", see)
    many = begun(lambda: forest.partial_fit(X, TARGETS))
    assert is_begun.wait(PATIENCE)
    row = threading.Thread(target=lambda: forest.partial_fit(X[:1], TARGETS[:1]))
    row.start()
    many.join(PATIENCE)
    row.join(PATIENCE)
    assert found
    assert all(found)


@pytest.mark.parametrize("n", [1, 9])
def test_who_comes_while_a_row_is_learned_is_let_in(
    n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    forest, readers, are_seen = rows_alone(), [], []
    monkeypatch.setattr(threads, "_LOOK_AGAIN", 1000.0)  # nobody finds out without being shown

    def handle() -> None:
        reader = threading.Thread(target=lambda: forest.predict(NEW[:n]), daemon=True)
        reader.start()
        readers.append(reader)
        for _ in range(300):
            if forest._turns.is_occupied:  # so that the next row lets it in first
                are_seen.append(True)
                break
            threading.Event().wait(0.01)

    handle_once(monkeypatch, (SingleRow, "learn"), handle)
    forest.partial_fit(X[:1], TARGETS[:1])
    readers[0].join(PATIENCE)
    assert not readers[0].is_alive()
    assert are_seen


def test_who_is_let_in_before_it_waits_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns()
    monkeypatch.setattr(threads, "_LOOK_AGAIN", 1000.0)

    def read() -> None:
        with turns.reading():
            pass

    with turns.learning():
        reader = threading.Thread(target=read, daemon=True)
        with turns.mutex:
            reader.start()
            until(lambda: turns._readers)
            turns._admit()
            turns.is_taken = True  # as the learner goes on before the reader has the mutex
        reader.join(PATIENCE)
        turns.is_taken = False
    assert not reader.is_alive()


def test_a_signal_handler_that_learns_leaves_readers_out(monkeypatch: pytest.MonkeyPatch) -> None:
    forest, found = rows_alone(), []

    def handle() -> None:
        forest.partial_fit(X[:2], TARGETS[:2])
        found.append(forest._turns.is_taken)  # as what it interrupted had set it

    handle_once(monkeypatch, (Turns, "_await_readers"), handle)
    in_time(lambda: forest.partial_fit(X[:3], TARGETS[:3]))
    assert found == [True]
    assert not forest._turns.is_taken


def test_two_who_read_for_long_keep_no_reader_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    forest = rows_alone()
    is_over, is_in, has_third = threading.Event(), threading.Event(), threading.Event()
    wait, n_waits, answers = Turns._await_readers, 0, []

    def count(self: Turns, *given: Any) -> bool:
        nonlocal n_waits
        n_waits += 1
        if n_waits == 3:
            has_third.set()
        return wait(self, *given)

    def read() -> None:
        with one_state(forest):
            is_in.set()
            is_over.wait(PATIENCE)

    monkeypatch.setattr(Turns, "_await_readers", count)
    first = begun(read)
    assert is_in.wait(PATIENCE)
    learner = begun(lambda: forest.partial_fit(X[:7], TARGETS[:7]))
    while n_waits < 2 and learner.is_alive():
        threading.Event().wait(0.01)
    with one_state(forest):
        is_over.set()
        first.join(PATIENCE)
        assert has_third.wait(PATIENCE)
        reader = threading.Thread(target=lambda: answers.append(forest.predict(NEW)), daemon=True)
        reader.start()
        reader.join(PATIENCE)
        assert answers
    learner.join(PATIENCE)
    assert not learner.is_alive()


def test_who_left_is_not_let_in() -> None:
    turns, is_in, is_over = Turns(), threading.Event(), threading.Event()

    class Leaving(dict[int, Any]):
        """Readers that leave while a learner looks at them."""

        def values(self) -> Any:
            found = list(super().values())
            self.clear()
            return found

    def learn() -> None:
        with turns.learning(), turns.alone():
            is_in.set()
            is_over.wait(PATIENCE)

    def read() -> None:
        with turns.reading():
            pass

    turns._readers = Leaving()
    learner = begun(learn)
    assert is_in.wait(PATIENCE)
    reader = begun(read)
    until(lambda: turns._readers)
    is_over.set()
    learner.join(PATIENCE)
    reader.join(PATIENCE)
    assert not turns.is_occupied
    in_time(learn)


class WithItsOwnState(AMFRegressor):
    """An estimator that is pickled as all of its attributes."""

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__)


def test_copies_have_turns_of_their_own() -> None:
    forest = WithItsOwnState(**SMALL).fit(X, TARGETS)
    for copied in (pickle.loads(pickle.dumps(forest)), copy.deepcopy(forest)):
        assert copied._turns is not forest._turns
        assert (copied.predict(NEW) == forest.predict(NEW)).all()
    assert copy.copy(forest)._turns is forest._turns  # of the same forest


def test_parts_are_of_as_many_rows_as_threads_pay_for(monkeypatch: pytest.MonkeyPatch) -> None:
    many, labels = np.tile(X, (3, 1)), np.tile(TARGETS, 3)
    sizes: list[int] = []
    update = Forest._update

    def count(self: Forest, rows: Any, *given: Any) -> None:
        sizes.append(len(rows[1]))
        update(self, rows, *given)

    monkeypatch.setattr(Forest, "_update", count)
    monkeypatch.setattr(threads, "_MOST_AT_ONCE", 100)
    for n_jobs, expected in ((1, [50, 50, 44]), (2, [65, 65, 14])):
        forest = AMFRegressor(**SMALL, n_jobs=n_jobs).fit(X, TARGETS)
        sizes.clear()
        forest.partial_fit(many, labels)
        assert sizes == expected


def test_parts_are_long_again_when_nobody_waits() -> None:
    turns = Turns()
    long = turns.rows_at_once(1)
    is_in = threading.Event()

    def read() -> None:
        with turns.reading():
            pass

    with turns.learning(), turns.alone():
        reader = begun(read)
        while not turns._is_awaited and reader.is_alive():
            is_in.wait(0.01)
    reader.join(PATIENCE)
    with turns.learning():
        assert turns.rows_at_once(1) < long
    with turns.learning():
        assert turns.rows_at_once(1) == long


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_a_forked_process_answers_or_explains_why_not() -> None:
    run_here("forked", {})


def forked() -> None:
    """Fork while other threads read, and while one learns."""
    forest = AMFRegressor(**SMALL).fit(X, TARGETS)
    expected = copy.deepcopy(forest).partial_fit(NEW[:1], NEW[:1, 0]).predict(NEW)

    def go_on() -> None:
        forest.partial_fit(NEW[:1], NEW[:1, 0])
        assert (forest.predict(NEW) == expected).all()

    def say_why_not() -> None:
        for call in (forest.predict, lambda X: forest.partial_fit(X, X[:, 0])):
            for rows in (NEW[:1], NEW):
                with pytest.raises(ParameterError, match="forked while another thread"):
                    call(rows)
        assert (forest.fit(X, TARGETS).predict(NEW[:1]) == forest.predict(NEW)[:1]).all()

    @contextmanager
    def changing() -> Iterator[None]:
        with forest._turns.learning(), forest._turns.alone():
            yield

    for others, in_child in ((one_state(forest), go_on), (changing(), say_why_not)):
        is_in, is_done = threading.Event(), threading.Event()

        def stay(others: Any = others, is_in: Any = is_in, is_done: Any = is_done) -> None:
            with others:
                is_in.set()
                is_done.wait(PATIENCE)

        thread = begun(stay)
        assert is_in.wait(PATIENCE)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                in_child()
                status = 0
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        is_done.set()
        thread.join()
        assert status == 0
    go_on()


# NumPy checks the bounds in plain Python; to compile kernels that check them takes half a minute.
BOUNDS_CHECKED = [
    "NUMBA_DISABLE_JIT",
    pytest.param("NUMBA_BOUNDSCHECK", marks=pytest.mark.thorough),
]


@pytest.mark.slow
@pytest.mark.parametrize("flag", BOUNDS_CHECKED)
@pytest.mark.thorough
def test_no_kernel_leaves_its_arrays_beside_a_learner(flag: str) -> None:
    run_here("with_bounds", {flag: "1", "PYTHONWARNINGS": "ignore::RuntimeWarning"})


def with_bounds() -> None:
    """Ask an estimator whose kernels other tests of bounds compile too."""
    case = "amf-classifier, rows alone"
    reported = "predict_proba", "predict_proba of a row", "weighted_depth", "nodes", "pickle"
    check_beside_a_learner(
        case, {name: ask for name, ask in asks_of(case).items() if name in reported}
    )


def run_here(function: str, flags: dict[str, str]) -> None:
    """Call a function of this file in a process of its own, which may be ended by a signal."""
    program = f"from tests.estimators.test_beside import {function}; {function}()"
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", program],
        env={**os.environ, **flags},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
