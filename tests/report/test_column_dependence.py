"""Partial dependence of columns of a run: the forest's, at values encoded as the run does."""

from __future__ import annotations

import datetime
import html
import re
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dmondrian import (
    AMFClassifier,
    AMFRegressor,
    MondrianForestRegressor,
    ParameterError,
    load,
)
from dmondrian.data import Column
from dmondrian.distributed import TrainedRun, train
from dmondrian.export import column_dependence, column_spread, partial_dependence
from dmondrian.export.column_dependence import (
    _PART_OF,
    Dependence,
    Dependences,
    encoded,
    name_of_value,
    shown_of,
    spread_of,
    values_of,
)
from dmondrian.export.column_spread import read_some
from dmondrian.export.plain_trees import plain_trees
from dmondrian.export.tree_dependence import dependence_of
from dmondrian.frames import FrameModel
from dmondrian.report import dependence_charts, write_report
from dmondrian.report.dependence_charts import dependence, find_dependence, quick_dependence
from dmondrian.report.facts import gather
from dmondrian.report.sections import inputs
from tests.cli.command import call
from tests.drift.streams import numbers


@pytest.fixture(scope="module")
def product(client, tmp_path_factory) -> tuple[TrainedRun, pa.Table]:
    """Rows that are a product of a category, a number with nulls, a time and a whole number."""
    folder = tmp_path_factory.mktemp("product")
    day = datetime.datetime(2024, 1, 1)
    rows = [
        {"kind": kind, "x": x, "when": day + datetime.timedelta(days=days, hours=days), "n": n}
        for kind in ("a", "b", "c") for x in (None, 0.0, 0.5, 2.0) for days in (0, 3, 9)
        for n in (1, 2, 4)
    ]  # fmt: skip
    order = np.random.default_rng(0).permutation(len(rows))
    late = day + datetime.timedelta(days=4)
    labels = ["low" if (row["x"] or 0.0) < 0.4 else "late" if row["when"] > late
              else "b" if row["kind"] == "b" else str(row["n"]) for row in rows]  # fmt: skip
    table = pa.Table.from_pylist(rows).append_column("y", pa.array(labels)).take(order)
    pq.write_table(table, folder / "rows.parquet")
    forest = AMFClassifier(3, random_state=0, calibrate=False)
    run = train(
        forest, folder / "rows.parquet", target="y", run=folder / "run", client=client
    )  # fmt: skip
    return run, table.drop_columns(["y"])


def test_columns_that_cannot_be_drawn_are_named(client, tmp_path) -> None:
    words = ["red car", "blue car", "red bus", "blue bus"]
    rows = [{"about": about, "x": x, "y": float("red" in about)}
            for about in words for x in range(20)]  # fmt: skip
    order = np.random.default_rng(0).permutation(len(rows))
    pq.write_table(pa.Table.from_pylist(rows).take(order), tmp_path / "rows.parquet")
    run = train(
        AMFRegressor(3, random_state=0), tmp_path / "rows.parquet", target="y", text=["about"],
        run=tmp_path / "run", client=client,
    )  # fmt: skip
    text = write_report(run.run_url, tmp_path / "page.html", partial_dependence=1).read_text()
    assert "Not drawn: about." in text


def test_it_is_the_mean_prediction_of_rows_with_the_column_set(product) -> None:
    run, table = product
    model = FrameModel(run.run_url)
    (found, *_), reason = find_dependence(gather(run.run_url), 10)
    assert reason == ""
    assert {one.column.name for one in found} == {"kind", "x", "when", "n"}

    def mean(name: str, value: object) -> np.ndarray:
        at = table.column_names.index(name)
        fixed = pa.array([value] * len(table), table.schema.field(name).type)
        return np.asarray(model.predict_proba(table.set_column(at, name, fixed))).mean(axis=0)

    estimator = load(run.run_url)
    features = estimator.feature_names_in_.tolist()
    shown = [(one.column.name, one.part) for one in found]
    assert len(shown) == len(set(shown))
    assert {part for name, part in shown if name != "when"} == {""}
    assert ("when", "date") in shown
    for one in found:
        name, values = one.column.name, one.values
        if name == "when":  # each part by itself, where the others vary as in the rows
            (feature,) = (
                one.column.parts[[_PART_OF[p] for p in one.column.parts].index(one.part)],
            )
            place = features.index(f"when.{feature}" if feature != "linear" else "when")
            at = encoded(run.plan.schema, one.column, values)
            at = at[:, [one.column.parts.index(feature)]]
            wanted = partial_dependence(estimator, [place], at)
        else:
            if name == "n":
                assert values == [1.0, 2.0, 3.0, 4.0]
                values = [int(value) for value in values]
            wanted = [mean(name, value) for value in values]
        np.testing.assert_allclose(one.means, wanted, rtol=1e-9, atol=1e-12, err_msg=name)
        if name == "x":
            np.testing.assert_allclose(one.missing, mean("x", None), rtol=1e-9)
            assert len(values) == 33
        else:
            assert one.missing is None
    assert max(np.ptp(one.means, axis=0).max() for one in found) > 0.1


def test_shares_of_rows_are_those_of_the_data(product) -> None:
    run, table = product
    (found, _, _, rows, _), _ = find_dependence(gather(run.run_url), 10)
    assert rows == "Shares of rows are of 108 rows: all rows learned."
    for one in found:
        column = table[one.column.name].drop_null()
        if one.part not in ("", "date"):
            assert one.shares is None
            continue
        if one.column.name == "kind":
            counts = {pair["values"]: pair["counts"] for pair in column.value_counts().to_pylist()}
            expected = [counts[level] / len(table) for level in one.values]
        else:
            kind = pa.int64() if one.column.name == "when" else pa.float64()
            numbers = column.cast(kind).to_numpy().astype(np.float64)
            expected = np.histogram(numbers, one.ends)[0] / len(column)
        np.testing.assert_allclose(one.shares, expected, rtol=1e-12)


def test_rows_are_read_in_parts_spread_over_those_learned(classified, monkeypatch) -> None:
    plan = classified.plan
    whole = read_some(plan, plan.n_rows, [0])
    assert whole.are_all
    assert len(whole.X) == plan.n_rows
    first = read_some(plan, 100, [0])
    assert np.array_equal(first.X, whole.X[:100])
    monkeypatch.setattr(column_spread, "_MOST_PARTS", 2)
    blocks = plan.blocks
    assert len(blocks) > 2
    some = read_some(plan, plan.n_rows, [0])
    assert not some.are_all
    ends = [*range(blocks[0].rows), *range(blocks[-1].position, plan.n_rows)]
    assert np.array_equal(some.X, whole.X[ends])


def test_rows_that_are_gone_are_not_shown(client, tmp_path) -> None:
    table = pa.table({"x": [0.0, 1.0] * 20, "y": ["a", "b"] * 20})
    pq.write_table(table, tmp_path / "rows.parquet")
    forest = AMFClassifier(2, random_state=0)
    run = train(forest, tmp_path / "rows.parquet", target="y", run=tmp_path / "run", client=client)
    (tmp_path / "rows.parquet").unlink()
    text = write_report(run.run_url, tmp_path / "page.html", partial_dependence=1).read_text()
    assert "Where rows lie is not shown: the data cannot be read again: " in text
    assert "<figcaption>x<" in text
    assert "shares of rows" not in text


def test_the_page_has_shares_of_missing_values(product, tmp_path) -> None:
    run, _ = product
    text = write_report(run.run_url, tmp_path / "page.html").read_text()
    share = {name: re.search(rf"<td>{name}</td>(?:<td>[^<]*</td>){{3}}<td>([^<]*)</td>", text)[1]
             for name in ("x", "kind", "when", "n")}  # fmt: skip
    assert share == {"x": "25%", "kind": "0%", "when": "0%", "n": "0%"}
    assert "Missing: of the 108 rows with a target that were read." in text
    assert "Values met" not in text
    reported, _ = call("describe", run.run_url)
    assert "rows_read" not in reported
    assert "values met" not in reported
    facts = gather(run.run_url)
    facts.counts = {}  # as of a run that an earlier version trained
    assert "<td>some</td>" in inputs(facts)
    assert "Missing: of" not in inputs(facts)


def test_the_page_draws_as_many_as_are_asked_for(product, of_numbers, tmp_path) -> None:
    run, _ = product
    page = tmp_path / "page.html"
    assert (
        "Partial dependence"
        not in write_report(run.run_url, page, partial_dependence=0).read_text()
    )
    text = write_report(run.run_url, page, partial_dependence=3).read_text()
    assert "<h2>Partial dependence</h2>" in text
    (found, *_), _ = find_dependence(gather(run.run_url), 3)
    assert len({one.column.name for one in found}) == 3
    for one in found:
        name = f"{one.column.name}, {one.part}" if one.part else one.column.name
        if one.part in ("", "date"):
            assert f"<figcaption>{name}: shares of rows<" in text
        is_drawn = one.column.kind != "category" and one.part in ("", "date")
        assert (f"<figcaption>{name}<" if is_drawn else f"<h3>{name}<") in text
    call("report", of_numbers.run_url, "-o", page, "--partial-dependence", "1")
    text = page.read_text()
    assert "Mean forecast at values of a column" in text
    estimator = load(of_numbers.run_url)
    ((one,), *_), _ = find_dependence(gather(of_numbers.run_url), 1)
    feature = estimator.feature_names_in_.tolist().index(one.column.name)
    low, high = one.column.lower, one.column.upper
    places = [[(value - low) / (high - low)] for value in one.values]
    np.testing.assert_allclose(one.means, partial_dependence(estimator, [feature], places))
    _, stderr = call("report", run.run_url, "-o", page, "--partial-dependence", "-1", code=2)
    assert "expected 0 or more" in stderr


def test_a_regressor_that_follows_the_stream_is_a_sum_over_all_its_trees(
    client, monkeypatch, tmp_path
) -> None:
    X, y = numbers(300)
    columns = {name: X[:, j] for j, name in enumerate("abcd")}
    pq.write_table(pa.table({**columns, "y": y}), tmp_path / "rows.parquet")
    forest = AMFRegressor(
        3, drift="follow", experts=("mondrian", "boosted"), delay=100, random_state=0
    )
    run = train(
        forest, tmp_path / "rows.parquet", target="y", run=tmp_path / "run", client=client
    )  # fmt: skip
    (found, *_), reason = find_dependence(gather(run.run_url), 2)
    assert reason == ""
    estimator = load(run.run_url)
    for one in found:
        place = estimator.feature_names_in_.tolist().index(one.column.name)
        X = encoded(run.plan.schema, one.column, one.values)
        assert np.array_equal(one.means, partial_dependence(estimator, [place], X))
    monkeypatch.setattr(column_dependence, "_MOST_NODES", 1)
    _, reason = quick_dependence(gather(run.run_url))
    assert "--partial-dependence" in reason
    assert find_dependence(gather(run.run_url), 2)[1] == ""


def test_columns_that_boosted_sets_alone_see_are_drawn_and_named(client, tmp_path) -> None:
    """They have no importance: permanent trees do not see them."""
    X, y = numbers(300)
    columns = {name: X[:, j] for j, name in enumerate("abcd")}
    pq.write_table(pa.table({**columns, "y": y}), tmp_path / "rows.parquet")
    forest = AMFRegressor(
        2, drift="follow", experts=("mondrian", "boosted"), monotonic_cst={"c": 1}, random_state=0
    )
    run = train(
        forest, tmp_path / "rows.parquet", target="y", run=tmp_path / "run", client=client
    )  # fmt: skip
    facts = gather(run.run_url)
    assert dict(facts.importances)["c"] == 0.0
    (found, *_), _ = find_dependence(facts, 2)
    assert found[0].column.name == "c"
    assert (np.diff(found[0].means.ravel()) >= -1e-12).all()
    assert len(found) == 2
    text = write_report(run.run_url, tmp_path / "page.html").read_text()
    assert "do not see the numbers of c: boosted sets alone do" in " ".join(text.split())


def test_what_takes_seconds_is_drawn_unasked(product, density, monkeypatch, tmp_path) -> None:
    run, _ = product
    page, facts = tmp_path / "page.html", gather(run.run_url)
    text = write_report(run.run_url, page).read_text()
    assert text.count("shares of rows<") == 4
    (quick, reason), (whole, _) = quick_dependence(facts), find_dependence(facts, 6)
    assert reason == ""
    for one, other in zip(quick.columns, whole.columns, strict=True):
        assert np.array_equal(one.means, other.means)
    # Of many nodes the first trees alone: the mean over them.
    monkeypatch.setattr(column_dependence, "_MOST_NODES", 1)
    (first, _) = quick_dependence(facts)
    trees = plain_trees(load(run.run_url))
    column = next(one for one in first.columns if one.column.name == "n")
    place = load(run.run_url).feature_names_in_.tolist().index("n")
    X = encoded(run.plan.schema, column.column, column.values)
    assert np.array_equal(column.means, dependence_of(trees[:1], [place], X))
    assert "The first 1 of 3 trees count." in write_report(run.run_url, page).read_text()
    monkeypatch.setattr(dependence_charts, "_QUICK_BYTES", 1000)
    text = write_report(run.run_url, page).read_text()
    assert re.search(
        "There is none: the trees take .* are loaded with --partial-dependence N", text
    )
    assert "Partial dependence" not in write_report(density.run_url, page).read_text()


def test_rows_that_are_read_unasked_are_few_and_local(classified, monkeypatch) -> None:
    plan = classified.plan
    whole = read_some(plan, plan.n_rows, [0])
    some = read_some(plan, plan.n_rows, [0], is_quick=True)
    assert whole.are_all
    assert (len(some.X), some.are_all) == (2000, False)  # 4 of 6 blocks
    monkeypatch.setattr(column_spread, "is_local", lambda uri: False)
    assert "with --partial-dependence N" in read_some(plan, 1, [0], is_quick=True).reason
    assert read_some(plan, 1, [0]).reason == ""
    monkeypatch.undo()
    monkeypatch.setattr(column_spread, "_MOST_QUICK_VALUES", 10)
    assert "so many features" in read_some(plan, 1, [0], is_quick=True).reason


def test_a_run_without_its_trees_gives_the_reason(product, tmp_path) -> None:
    run, _ = product
    shutil.copytree(run.run_url, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "blobs")
    text = write_report(tmp_path / "run", tmp_path / "page.html").read_text()
    assert re.search("There is none: .* is missing", text)


def test_a_run_that_has_none_gives_the_reason(kernel, density, tmp_path) -> None:
    reasons = {
        kernel.run_url: "no split has its own worth",
        density.run_url: "a density has no labels",
    }
    AMFClassifier(1, random_state=0).fit([[0.0], [1.0]], [0, 1]).save(tmp_path / "m")
    reasons[str(tmp_path / "m")] = "fitted on arrays"
    for url, reason in reasons.items():
        found, why = find_dependence(gather(url), 3)
        assert found == ([], [], 0, "", [])
        assert reason in why
        text = write_report(url, tmp_path / "page.html", partial_dependence=3).read_text()
        assert f"There is none: {why[:30]}" in text
    with pytest.raises(ParameterError, match="expected 0 or more"):
        write_report(kernel.run_url, tmp_path / "page.html", partial_dependence=-1)


def test_forests_of_which_there_is_none_are_named(of_numbers) -> None:
    estimators = {
        "for forests on the cube: ": MondrianForestRegressor(domain="cube", random_state=0),
        "for classifiers that follow the stream: ": AMFClassifier(drift="follow", random_state=0),
        "for predict_extension": AMFRegressor(predict_extension="expected", random_state=0),
    }
    for wanted, estimator in estimators.items():
        facts = gather(of_numbers.run_url)
        estimator._validate_params()
        estimator._seed = 0
        n_classes = 2 if isinstance(estimator, AMFClassifier) else 0
        parameters = estimator._run_parameters(3, n_classes).to_json()
        facts.run_json = {**facts.run_json, "parameters": parameters}
        facts.dependence = find_dependence(facts, 3)
        text = html.unescape(str(dependence(facts)))
        assert f"There is none {wanted}" in text
        assert "export" not in text


def test_columns_are_drawn_in_one_range_and_booleans_as_bars(of_numbers) -> None:
    def column(name: str, kind: str) -> Column:
        return Column(name, "number", kind, 0.0, 1.0, ("value",))

    ends, shares = np.linspace(0.0, 1.0, 26).tolist(), np.full(25, 0.04)
    two = np.zeros(25)
    two[[0, -1]] = 0.75, 0.25
    found = [
        Dependence(column(name, kind), [0.0, 1.0], np.array([[a], [b]]), None, "", ends, own)
        for name, kind, a, b, own in (
            ("much", "double", 10.0, 95.0, shares),
            ("little", "double", 50.0, 50.03, shares),
            ("yes", "bool", 40.0, 60.0, two),
        )
    ]
    facts = gather(of_numbers.run_url)
    facts.dependence = Dependences(found, [], 1, "", []), ""
    text = str(dependence(facts))
    heights = [
        abs(float(a) - float(b))
        for a, b in re.findall(r'class="s0 line" d="M\S+ (\S+)L\S+ (\S+)"', text)
    ]
    assert len(heights) == 2
    assert heights[0] > 100.0
    assert heights[1] < 0.5
    for name, value in (
        ("false", "40.0000"),
        ("true", "60.0000"),
        ("false", "75%"),
        ("true", "25%"),
    ):
        assert f"<title>{name}: {value}</title>" in text
    assert re.findall(r'text-anchor="end">(4%|0\.04)<', text) == ["4%"] * 2


def test_values_of_a_column_are_of_its_range(classified) -> None:
    columns = {column.name: column for column in classified.plan.schema.columns}
    assert values_of(columns["education-num"])[:2] == [1.0, 2.0]
    gains = values_of(columns["capital-gain"])
    assert (len(gains), gains[0], gains[-1]) == (33, 0.0, columns["capital-gain"].upper)
    assert values_of(columns["sex"]) == ["Female", "Male"]


def test_columns_that_act_together_are_named(client, tmp_path) -> None:
    rng = np.random.default_rng(0)
    X = rng.random((3000, 4)).round(3)
    y = 1.0 * ((X[:, 0] > 0.5) != (X[:, 1] > 0.5)) + 1.5 * X[:, 2]
    names = ["one", "other", "alone", "noise"]
    table = pa.table({name: X[:, j] for j, name in enumerate(names)} | {"y": y})
    pq.write_table(table, tmp_path / "rows.parquet")
    run = train(
        AMFRegressor(10, random_state=0), tmp_path / "rows.parquet", target="y",
        run=tmp_path / "run", client=client,
    )  # fmt: skip
    (found, pairs, *_), _ = find_dependence(gather(run.run_url), 4)
    assert len(found) == 4
    assert set(pairs[0].names) == {"one", "other"}
    assert pairs[0].share > 0.8
    assert pairs[0].size > 0.2
    assert all(pair.size < 0.2 * pairs[0].size for pair in pairs[1:])
    text = write_report(run.run_url, tmp_path / "page.html", partial_dependence=4).read_text()
    assert "<h3>Columns that act together</h3>" in text
    assert f"<td>{' and '.join(pairs[0].names)}</td>" in text
    assert "For pairs of the 4 most important columns" in text
    text = write_report(run.run_url, tmp_path / "page.html", partial_dependence=1).read_text()
    assert "act together" not in text


def test_parts_of_times_are_shown_by_themselves() -> None:
    parts = ("linear", "hour", "weekday_sin", "weekday_cos", "month")
    column = Column("t", "time", "timestamp[us]", 0, 400 * 86_400_000_000, parts)
    shown = dict(shown_of(column))
    assert list(shown) == ["date", "hour", "weekday", "month"]
    assert [len(values) for values in shown.values()] == [33, 24, 7, 12]
    hours = [name_of_value("hour", value) for value in shown["hour"]]
    assert (hours[0], hours[-1]) == ("00:00", "23:00")
    days = [datetime.datetime.fromtimestamp(v / 1e6, datetime.UTC) for v in shown["weekday"]]
    names = [name_of_value("weekday", value) for value in shown["weekday"]]
    assert names == [day.strftime("%A") for day in days]
    assert names[0] == "Monday"
    months = [name_of_value("month", value) for value in shown["month"]]
    assert (months[0], months[-1]) == ("January", "December")


def test_rows_beyond_the_range_are_in_bins_of_their_own() -> None:
    column = Column("x", "number", "double", 0.0, 10.0, ("value",))
    ends, shares = spread_of(column, "", [], np.array([[-0.5], [0.0], [1.0], [1.1]], np.float32))
    assert (ends[0], ends[-1]) == (-np.inf, np.inf)
    assert ends[1:-1] == np.linspace(0.0, 10.0, 26).tolist()
    assert shares[[0, 1, -2, -1]].tolist() == [0.25, 0.25, 0.25, 0.25]
    ends, shares = spread_of(column, "", [], np.array([[0.0], [1.0]], np.float32))
    assert (len(ends), len(shares), ends[0], ends[-1]) == (26, 25, 0.0, 10.0)
    assert shares[[0, -1]].tolist() == [0.5, 0.5]
