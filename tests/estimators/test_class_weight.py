"""Weights of classes: the forest of rows with these weights, to the byte."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.utils.class_weight import compute_class_weight

import dmondrian
from dmondrian import (
    AMFClassifier,
    GeneralizedMondrianForestClassifier,
    MondrianForestClassifier,
    MondrianKernelClassifier,
    OnlineRandomForestClassifier,
    ParameterError,
)
from dmondrian.checkpoint import encode_forest
from dmondrian.estimators.class_weight import balanced_weights, weights_of_classes

SMALL: dict[str, Any] = {"n_estimators": 2, "random_state": 0}
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "amf": (AMFClassifier, {**SMALL, "warmup_rows": 64}),
    "calibrated": (AMFClassifier, {**SMALL, "calibrate": True}),
    "following": (AMFClassifier, {**SMALL, "drift": "follow", "delay": 5}),
    "boosted": (
        AMFClassifier,
        {**SMALL, "drift": "follow", "experts": ("mondrian", "boosted")},
    ),
    "mondrian": (MondrianForestClassifier, SMALL),
    "online": (OnlineRandomForestClassifier, SMALL),
    "kernel": (MondrianKernelClassifier, {**SMALL, "lifetime": 2.0}),
    "log loss": (MondrianKernelClassifier, {**SMALL, "loss": "log_loss"}),
    "generalized": (GeneralizedMondrianForestClassifier, {**SMALL, "loss": "logistic"}),
    "held out": (GeneralizedMondrianForestClassifier, {**SMALL, "lifetime": "validation"}),
}
X = np.random.default_rng(0).random((300, 3))
LABELS = np.where(X[:, 0] + np.random.default_rng(1).normal(0.0, 0.3, 300) > 0.9, "yes", "no")
ROW_WEIGHTS = np.random.default_rng(2).integers(0, 4, 300).astype(np.float64)
BY_CLASS = np.where(LABELS == "yes", 2.5, 1.0)


def of_all(case: str) -> list[pytest.MarkDecorator]:
    """Return the marks of a case: of those that weigh rows in the same place, few are quick."""
    quick = ("amf", "boosted", "kernel", "held out")
    return [] if case in quick else [pytest.mark.thorough]


def state_of(model: Any) -> bytes:
    return encode_forest(*model.forest_.stored())


@pytest.mark.parametrize(
    ("case", "w"),
    # weights of rows meet those of classes in one place
    [
        *(pytest.param(case, None, marks=of_all(case)) for case in CASES),
        ("calibrated", ROW_WEIGHTS),
        ("kernel", ROW_WEIGHTS),
    ],
    ids=[*CASES, "calibrated, weighted rows", "kernel, weighted rows"],
)
def test_it_multiplies_weights_of_rows(case: str, w: np.ndarray | None) -> None:
    kind, settings = CASES[case]
    own = kind(**settings, class_weight={"yes": 2.5}).fit(X, LABELS, w)
    by_hand = kind(**settings).fit(X, LABELS, BY_CLASS if w is None else w * BY_CLASS)
    assert state_of(own) == state_of(by_hand)
    assert state_of(own) != state_of(kind(**settings).fit(X, LABELS, w))


@pytest.mark.parametrize(
    "case",
    [pytest.param(c, marks=of_all(c)) for c in CASES if c not in ("held out", "log loss")],
)
def test_chunks_and_single_rows_change_no_byte(case: str) -> None:
    kind, settings = CASES[case]
    whole, parts, alone = (kind(**settings, class_weight={"yes": 2.5, "no": 1}) for _ in range(3))
    classes = ["no", "yes"]
    whole.partial_fit(X, LABELS, classes)
    for part in (slice(0, 7), slice(7, 8), slice(8, 131), slice(131, 300)):
        parts.partial_fit(X[part], LABELS[part], classes)
    assert state_of(parts) == state_of(whole)
    for i in range(100):
        alone.partial_fit(X[i : i + 1], LABELS[i : i + 1], classes)
    alone.partial_fit(X[100:], LABELS[100:])
    if case != "kernel":  # whose mini-batches and exact sums are of calls
        assert state_of(alone) == state_of(whole)


def test_balanced_is_scikit_learns_and_counts_weights() -> None:
    codes = np.array([0, 0, 0, 1, 2, 2])
    known = compute_class_weight("balanced", classes=np.arange(3), y=codes)
    np.testing.assert_array_equal(balanced_weights(codes, None, 3), known)
    w = np.array([1.0, 0.0, 2.0, 3.0, 1.0, 1.0])
    repeated = np.repeat(codes, w.astype(int))
    known = compute_class_weight("balanced", classes=np.arange(3), y=repeated)
    np.testing.assert_array_equal(balanced_weights(codes, w, 3), known)
    found = balanced_weights(codes, np.where(codes == 1, 0.0, 1.0), 3)
    np.testing.assert_array_equal(found, [5 / 6, 1.0, 5 / 4])  # no row of the class weighs


@pytest.mark.parametrize("case", [pytest.param(case, marks=of_all(case)) for case in CASES])
def test_balanced_is_of_fit_alone(case: str) -> None:
    kind, settings = CASES[case]
    counts = np.array([(LABELS == "no").sum(), (LABELS == "yes").sum()])
    weights = (300 / (2 * counts))[(LABELS == "yes").astype(int)]
    own = kind(**settings, class_weight="balanced").fit(X, LABELS)
    assert state_of(own) == state_of(kind(**settings).fit(X, LABELS, weights))
    before = state_of(own)
    for model in (own, kind(**settings, class_weight="balanced")):
        with pytest.raises(ParameterError, match="only fit knows"):
            model.partial_fit(X[:1], LABELS[:1], ["no", "yes"])
    assert state_of(own) == before
    with pytest.raises(ParameterError, match="only fit knows"):
        own._check_run()


def test_one_class_and_labels_of_all_kinds() -> None:
    own = AMFClassifier(**SMALL, class_weight="balanced").fit(X, np.ones(300, int))
    assert state_of(own) == state_of(AMFClassifier(**SMALL).fit(X, np.ones(300, int)))
    for labels in ([3, 7], [False, True], [1.0, 2.0]):
        y = np.array(labels)[(LABELS == "yes").astype(int)]
        known = AMFClassifier(**SMALL).fit(X, y, BY_CLASS)
        for name in (labels[1], np.array(labels)[1], str(labels[1]).lower()):
            own = AMFClassifier(**SMALL, class_weight={name: 2.5}).fit(X, y)
            assert state_of(own) == state_of(known)


def test_a_class_of_weight_zero_is_not_learned() -> None:
    own = AMFClassifier(**SMALL, class_weight={"yes": 0}).partial_fit(X, LABELS, ["no", "yes"])
    some = LABELS == "no"
    known = AMFClassifier(**SMALL).partial_fit(X[some], LABELS[some], ["no", "yes"])
    np.testing.assert_array_equal(own.predict_proba(X), known.predict_proba(X))
    with pytest.raises(ValueError, match="at least one non-zero"):
        AMFClassifier(**SMALL, class_weight={"yes": 0, "no": 0}).fit(X, LABELS)


@pytest.mark.parametrize("weight", [-1, np.nan, np.inf, True, "2", None, [1.0]])
def test_weights_are_finite_numbers_from_zero(weight: Any) -> None:
    model = AMFClassifier(**SMALL, class_weight={"yes": weight})
    for learn in (
        lambda: model.fit(X, LABELS),
        lambda: model.partial_fit(X, LABELS, ["no", "yes"]),
        model._check_run,
    ):
        with pytest.raises(ParameterError, match=r"class_weight=.* finite number >= 0"):
            learn()
    assert not hasattr(model, "forest_")


def test_labels_that_are_not_there_are_refused_where_a_class_lacks_its_weight() -> None:
    for given in ({"maybe": 2}, {"yes": 2, "maybe": 2}, {"Yes": 2}, {1: 2}):
        with pytest.raises(ParameterError, match="not among the 2 classes"):
            AMFClassifier(**SMALL, class_weight=given).fit(X, LABELS)
        with pytest.raises(ParameterError, match="not among the 2 classes"):
            AMFClassifier(**SMALL, class_weight=given).partial_fit(X, LABELS, ["no", "yes"])
    # a fold may lack a class
    weights = weights_of_classes({"no": 1, "yes": 2, "maybe": 3}, ["no", "yes"])
    assert weights.tolist() == [1.0, 2.0]
    with pytest.raises(ParameterError, match="twice"):
        weights_of_classes({1: 2.0, "1": 2.0}, [0, 1])
    with pytest.raises(ValueError, match="class_weight"):
        AMFClassifier(**SMALL, class_weight=[1, 2]).fit(X, LABELS)


def test_products_that_vanish_or_overflow_are_refused() -> None:
    model = AMFClassifier(**SMALL, class_weight={"yes": 1e300})
    with pytest.raises(ParameterError, match="infinite"):
        model.fit(X, LABELS, np.full(300, 1e300))
    model = AMFClassifier(**SMALL, class_weight={"yes": 1e-30})
    with pytest.raises(ParameterError, match="does not change the total weight"):
        model.fit(X, LABELS)
    with pytest.raises(ValueError, match="sample_weight"):
        model.fit(X, LABELS, np.where(LABELS == "yes", np.nan, 1.0))


def test_it_is_fixed_from_the_first_row_on() -> None:
    weights = {"yes": 2.5}
    model = AMFClassifier(**SMALL, class_weight=weights).fit(X, LABELS)
    weights["yes"] = 3.0
    for rows in (slice(0, 1), slice(0, 5)):
        with pytest.raises(ParameterError, match="changed after the first rows"):
            model.partial_fit(X[rows], LABELS[rows])
    model.class_weight = None
    with pytest.raises(ParameterError, match="changed after the first rows"):
        model.partial_fit(X[:1], LABELS[:1])


@pytest.mark.parametrize("given", [{"yes": 2.5}, {"yes": 2, "no": np.float32(0.5)}, "balanced"])
def test_it_is_stored_and_goes_on(tmp_path: Path, given: Any) -> None:
    model = AMFClassifier(**SMALL, class_weight=given).fit(X[:200], LABELS[:200])
    model.save(tmp_path / "m")
    others = dmondrian.load(tmp_path / "m"), pickle.loads(pickle.dumps(model))
    for other in others:
        assert other.class_weight == given
        assert state_of(other) == state_of(model)
    if given == "balanced":
        return
    model.partial_fit(X[200:], LABELS[200:])
    for other in others:
        assert state_of(other.partial_fit(X[200:], LABELS[200:])) == state_of(model)


def test_a_model_without_it_is_stored_as_before(tmp_path: Path) -> None:
    AMFClassifier(**SMALL).fit(X, LABELS).save(tmp_path / "m")
    assert "class_weight" not in (tmp_path / "m" / "run.json").read_text()


def test_held_out_rows_choose_a_lifetime_with_it() -> None:
    settings = {**SMALL, "loss": "logistic", "bound": 3.0}
    own = GeneralizedMondrianForestClassifier(**settings, class_weight={"yes": 2.5})
    other = GeneralizedMondrianForestClassifier(**settings)
    own.fit(X[:200], LABELS[:200]).choose_lifetime(X[200:], LABELS[200:])
    other.fit(X[:200], LABELS[:200], BY_CLASS[:200])
    other.choose_lifetime(X[200:], LABELS[200:], BY_CLASS[200:])
    np.testing.assert_array_equal(own.lifetimes_, other.lifetimes_)
    np.testing.assert_array_equal(own._held_out_path.risks, other._held_out_path.risks)


def test_forests_of_other_weights_are_not_merged() -> None:
    def part(rows: slice, weight: Any) -> MondrianForestClassifier:
        forest = MondrianForestClassifier(**SMALL, domain="cube", class_weight=weight)
        return forest.fit(X[rows], LABELS[rows])

    first, last = slice(0, 200), slice(200, len(X))
    whole = part(slice(None), {"yes": 2.0}).predict_proba(X)
    merged = part(first, {"yes": 2.0}).merge(part(last, {"yes": 2.0}))
    assert (merged.predict_proba(X) == whole).all()
    for one, other in (({"yes": 2.0}, {"yes": 3.0}), (None, {"yes": 2.0}), ("balanced",) * 2):
        with pytest.raises(ParameterError, match="class_weight"):
            part(first, one).merge(part(last, other))
