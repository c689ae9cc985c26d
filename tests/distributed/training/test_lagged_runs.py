"""Runs with lags: the forest of files whose lags were made by hand, whatever happens meanwhile."""

from __future__ import annotations

import copy
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client

from dmondrian import (
    AMFClassifier,
    AMFRegressor,
    CheckpointError,
    DataError,
    MondrianKernelRegressor,
    ParameterError,
    SchemaError,
)
from dmondrian.checkpoint import Run
from dmondrian.checkpoint.copying import copy_model
from dmondrian.checkpoint.merging import merge
from dmondrian.data import lagged_files
from dmondrian.distributed import (
    Searched,
    TrainedRun,
    evaluate,
    follow,
    forget,
    grow,
    score,
    search,
    submit,
    train,
)
from dmondrian.distributed.scoring.lagged_rows import FOLDER
from tests.distributed.conftest import PATIENCE, digests, table_of

FILE_ROWS = 150
CHEAP = {"learning_rate": 1.0, "feature_scales": None, "calibrate": False}
LAGS = {"columns": ["price", "sold"], "lags": [1, 4], "key": "shop"}
GIVEN = {"target": "sold", "lags": LAGS, "checkpoint_every": "300 rows"}
N = 1200
JOB = Path(__file__).with_name("lagged_job.py")
ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lagged_files, "FILE_ROWS", FILE_ROWS)


def small_forest(**parameters: Any) -> AMFRegressor:
    return AMFRegressor(**{"n_estimators": 3, "random_state": 1, **CHEAP, **parameters})


def series() -> pd.DataFrame:
    draw = np.random.default_rng(3)
    shop = draw.integers(0, 9, N)
    return pd.DataFrame(
        {
            "shop": shop,
            "price": np.round(draw.normal(size=N), 2),
            "day": draw.choice(["mo", "tu", "we"], N),
            "sold": np.round(5.0 + shop + np.sin(np.arange(N) / 30.0) + draw.normal(size=N), 2),
        }
    )


def by_hand() -> pd.DataFrame:
    frame = series()
    for name in ("price", "sold"):
        for lag in (1, 4):
            lagged = frame.groupby("shop")[name].shift(lag)
            frame[f"lag_{lag}({name})"] = lagged
            if name != "sold":
                frame[f"{name}-lag_{lag}({name})"] = frame[name] - lagged
    return frame


def put(frame: pd.DataFrame, folder: Path, start: int, stop: int, group: int = 50) -> Path:
    """Put rows into a folder, as a file that comes as a whole."""
    folder.mkdir(exist_ok=True)
    rows = pa.Table.from_pandas(frame.iloc[start:stop], preserve_index=False)
    pq.write_table(rows, folder / ".part", row_group_size=group)
    return (folder / ".part").rename(folder / f"{start:05d}.parquet")


def without_key(metrics: dict[str, Any]) -> dict[str, Any]:
    """Return metrics without the baseline that only a run with lags of its target has."""
    plain = copy.deepcopy(metrics)
    for span in (plain, plain["window"], plain["faded"], *plain["windows"]):
        span["baselines"].pop("last_label_of_key", None)
    return plain


Fit = Callable[..., TrainedRun]


@pytest.fixture
def fit(client: Client, tmp_path: Path) -> Fit:
    def call(name: str, data: str = "data", **options: Any) -> TrainedRun:
        given = {**GIVEN, "client": client, **options}
        estimator = given.pop("estimator", small_forest())
        return train(estimator, tmp_path / data, run=tmp_path / name, **given)

    return call


@pytest.fixture
def plain(fit: Fit, tmp_path: Path) -> Fit:
    """Train on files whose lags were made by hand."""
    return lambda name="hand", **options: fit(name, "made", lags=None, **options)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.thorough(but="False")
def test_the_forest_is_that_of_lags_made_by_hand(
    fit: Fit, plain: Fit, tmp_path: Path, shuffle: bool
) -> None:
    made, hand = by_hand(), []
    options: dict[str, Any] = {"shuffle": shuffle}
    if shuffle:  # lags of the label would be of rows that are forecast later
        made = made.drop(columns=["lag_1(sold)", "lag_4(sold)"])
        options["lags"] = {**LAGS, "columns": ["price"]}
    for start, stop in ((0, 330), (330, 700)):
        put(series(), tmp_path / "data", start, stop)
        put(made, tmp_path / "made", start, stop)
    run = fit("run", **options)
    hand.append(plain(shuffle=shuffle))
    assert digests(run) == digests(hand[-1])
    assert without_key(run.metrics) == hand[-1].metrics
    assert run.plan.schema == hand[-1].plan.schema
    columns = "'price'" if shuffle else "'price', 'sold'"
    note = f"columns of lags are added: {columns} by 'shop', 1, 4 back, with"
    assert note in " ".join(run.plan.notes)
    # The data that were learned are gone, and other files come; nothing is to be done twice.
    shutil.rmtree(tmp_path / "data")
    put(series(), tmp_path / "data", 700, N)
    put(made, tmp_path / "made", 700, N)
    run = fit("run", **options)
    assert run.summary["rows"] == 500
    assert digests(run) == digests(plain(shuffle=shuffle))
    assert fit("run", **options).summary["rows"] == 0
    if not shuffle:  # the same rows in other files
        for start in range(0, N, 170):
            put(series(), tmp_path / "divided", start, start + 170, 33)
        assert digests(fit("other", "divided")) != {}
        put(made, tmp_path / "whole", 0, N)
        assert digests(fit("other", "divided")) == digests(
            fit("whole run", "whole", lags=None, checkpoint_every=None)
        )


def last_of_key(frame: pd.DataFrame, lag: int) -> tuple[np.ndarray, np.ndarray]:
    """Return labels and, for each, that of an earlier row of its shop, or the mean so far."""
    y = frame["sold"].to_numpy(np.float64)
    mean = np.concatenate([y[:1], np.cumsum(y)[:-1] / np.arange(1, len(y))])
    earlier = frame.groupby("shop")["sold"].shift(lag).to_numpy(np.float64)
    return y, np.where(np.isnan(earlier), mean, earlier)


@pytest.mark.parametrize(
    ("lag", "options", "drop"),
    [
        pytest.param(1, {}, False, marks=pytest.mark.thorough),
        pytest.param(4, {}, False, marks=pytest.mark.thorough),
        (1, {}, True),
        (4, {"drift": "follow", "delay": 3, "learning_rate": "auto"}, False), (1, None, False),
    ],
)  # fmt: skip
@pytest.mark.thorough
def test_the_last_label_of_the_same_key_stands_beside_the_forest(
    fit: Fit, tmp_path: Path, lag: int, options: dict[str, Any] | None, drop: bool
) -> None:
    frame = series()
    if drop:  # rows without a label are no rows to forecast, and the lag of the next one is unknown
        frame.loc[[40, 41, 333, 700], "sold"] = np.nan
    name = "last_label_of_key" if lag == 1 else "label_4_back_of_key"
    lags = {**LAGS, "lags": [7, lag]}
    kernel = MondrianKernelRegressor(2, lifetime=1.5, random_state=7, n_passes=1, batch_size=128)
    forest = kernel if options is None else small_forest(**options)
    given: dict[str, Any] = {"estimator": forest, "lags": lags}
    if drop:
        given["null_target"] = "drop"
    for start, stop in ((0, 330), (330, 700), (700, N)):  # each goes on with what is stored
        put(frame, tmp_path / "data", start, stop)
        run = fit("run", **given)
    y, earlier = last_of_key(frame, lag)
    y, earlier = y[~np.isnan(y)], earlier[~np.isnan(y)]
    if drop:  # the mean is of rows that have a label
        of_key = frame.groupby("shop")["sold"].shift(lag).to_numpy(np.float64)
        of_key = of_key[frame["sold"].notna().to_numpy()]
        mean = np.concatenate([y[:1], np.cumsum(y)[:-1] / np.arange(1, len(y))])
        earlier = np.where(np.isnan(of_key), mean, of_key)
    found = run.metrics["baselines"][name]
    assert found["mae"] == pytest.approx(np.abs(earlier - y).mean(), rel=1e-9)
    assert found["rmse"] == pytest.approx(np.sqrt(((earlier - y) ** 2).mean()), rel=1e-9)
    assert found["mae"] < 0.75 * run.metrics["baselines"]["last_label"]["mae"]
    windows = run.metrics["windows"]
    whole = sum(own["baselines"][name]["mae"] * own["weight"] for own in windows)
    assert whole / sum(own["weight"] for own in windows) == pytest.approx(
        np.abs(earlier - y)[: windows[-1]["rows"]].mean()
    )
    assert list(fit("none", **{**given, "lags": {**lags, "key": None}}).metrics["baselines"]) == [
        other for other in run.metrics["baselines"] if other != name
    ]


def test_labels_of_classes_by_key(fit: Fit, tmp_path: Path) -> None:
    frame = series()
    frame["sold"] = np.where(frame["shop"] % 3 == 0, "many", "few")
    frame.loc[frame["price"] > 1.0, "sold"] = "none"
    put(frame, tmp_path / "data", 0, N)
    forest = AMFClassifier(n_estimators=2, random_state=1, alpha=0.5, charge_opening=True,
                           feature_scales=None, feature_units=None, calibrate=False)  # fmt: skip
    found = fit("run", estimator=forest).metrics["baselines"]
    earlier = frame.groupby("shop")["sold"].shift(1)
    hits = (earlier == frame["sold"]).sum()
    first = found["last_label_of_key"]["accuracy"] * N - hits
    assert 0 <= first <= earlier.isna().sum()  # by the most frequent class
    assert found["last_label_of_key"]["accuracy"] > found["last_label"]["accuracy"] + 0.2


@pytest.mark.parametrize(
    "n", [2, 9, *(pytest.param(n, marks=pytest.mark.thorough) for n in (1, 5, 10))]
)
@pytest.mark.thorough(but="2")
def test_a_job_that_is_killed_at_any_file_goes_on(
    fit: Fit, plain: Fit, tmp_path: Path, n: int
) -> None:
    for start in range(0, N, 300):
        put(series(), tmp_path / "data", start, start + 300)
        put(by_hand(), tmp_path / "made", start, start + 300)
    process = subprocess.run(
        [sys.executable, str(JOB), str(tmp_path / "data"), str(tmp_path / "run"), str(n)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        timeout=4 * PATIENCE,
        check=False,
    )
    assert process.returncode == -signal.SIGKILL, process.stderr.decode()
    there = sorted((tmp_path / "run" / "_lags").glob("*.parquet"))
    assert len(there) == max(0, n - 2)
    before = [path.stat().st_mtime_ns for path in there]
    assert digests(fit("run")) == digests(plain())
    assert [path.stat().st_mtime_ns for path in there] == before


def test_files_that_come_are_followed_and_scored(
    client: Client, plain: Fit, tmp_path: Path
) -> None:
    def look(**options: Any) -> TrainedRun | None:
        return follow(
            small_forest(), tmp_path / "data", target="sold", run=tmp_path / "run", client=client,
            once=True, lags=LAGS,
            score={"data": tmp_path / "new", "out": tmp_path / "scores", "keep": ["lag_1(price)"]},
            **options,
        )  # fmt: skip

    (tmp_path / "new").mkdir()
    for start in range(0, 900, 300):
        path = put(series(), tmp_path / "data", start, start + 300)
        put(by_hand(), tmp_path / "made", start, start + 300)
        found = look()
        assert found is not None
        assert found.summary["rows"] == 300
        path.unlink()
        hand = plain()
    assert digests(tmp_path / "run") == digests(hand)
    put(series(), tmp_path / "new", 900, 1000)
    look()
    (scored,) = (tmp_path / "scores").glob("00900-*")
    kept = table_of(scored)["lag_1(price)"].to_pylist()
    assert kept == by_hand()["lag_1(price)"][900:1000].tolist()
    assert not (scored / FOLDER).exists()


def test_scores_are_those_of_rows_with_lags_by_hand(
    fit: Fit, client: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = by_hand()
    for start in (0, 450):
        put(series(), tmp_path / "data", start, start + 450)
    run = fit("run").run_url
    later = [put(series(), tmp_path / "later", a, b) for a, b in ((900, 1040), (1040, N))]
    hand = put(made, tmp_path / "by_hand", 900, N)
    wanted = score(copy_without_lags(run, tmp_path), hand, tmp_path / "wanted", client=client)
    for _ in range(2):  # a finished job is checked
        found = score(run, later, tmp_path / "scored", client=client)
    assert found["rows"] == wanted["rows"] == 300
    assert table_of(tmp_path / "scored").equals(table_of(tmp_path / "wanted"))
    assert sorted(p.name for p in (tmp_path / "scored").iterdir() if p.is_dir()) == []
    measured = evaluate(run, later, client=client)
    as_plain = evaluate(tmp_path / "plain", hand, client=client)
    assert measured.pop("delay") == 1  # the label of the row before is a column
    reads = " It reads labels of earlier rows in lag_1(sold), lag_4(sold)."
    assert measured.pop("learned") == as_plain.pop("learned") + reads
    assert as_plain.pop("delay") == 300
    assert measured == as_plain
    assert "were learned" not in caplog.text
    evaluate(run, [tmp_path / "data", *later], client=client)
    assert "900 of the 1,200 rows were learned by the model" in caplog.text
    assert not list((tmp_path / "run" / "_lags").glob("_eval*"))


def copy_without_lags(run: str, folder: Path) -> Path:
    """Return a copy of a run that takes lags as plain columns."""
    import json

    from dmondrian.checkpoint import document

    copy = Path(copy_model(run, folder / "plain").store.address.path)
    about = document.unseal((copy / "run.json").read_bytes(), "run.json")
    assert json.loads(json.dumps(about.pop("lags"))) == {
        **LAGS, "differences": True, "n_rows": 1_000_000,
    }  # fmt: skip
    (copy / "run.json").write_bytes(document.seal(about))
    return copy


def test_a_scoring_that_fails_leaves_no_rows_and_goes_on(
    fit: Fit, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(series(), tmp_path / "data", 0, 900)
    run = fit("run").run_url
    later = put(series(), tmp_path / "later", 900, N)
    wanted = score(run, later, tmp_path / "whole", client=client)
    assert wanted["written"] == 1

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("dmondrian.distributed.scoring.score.finish", fail)
        with pytest.raises(KeyboardInterrupt):
            score(run, later, tmp_path / "scored", client=client)
    assert not (tmp_path / "scored" / FOLDER).exists()
    assert score(run, later, tmp_path / "scored", client=client)["written"] == 0
    assert table_of(tmp_path / "scored").equals(table_of(tmp_path / "whole"))
    for _ in range(2):  # as a job leaves it that is killed while it writes rows
        (tmp_path / "killed" / FOLDER).mkdir(parents=True, exist_ok=True)
        (tmp_path / "killed" / FOLDER / "000000000000900.parquet").write_bytes(b"PAR1")
        score(run, later, tmp_path / "killed", client=client)
    (tmp_path / "killed" / FOLDER).mkdir()
    (tmp_path / "killed" / FOLDER / "notes.txt").write_text("of somebody else")
    score(run, later, tmp_path / "killed", client=client)
    assert [path.name for path in (tmp_path / "killed" / FOLDER).iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("measure", [score, evaluate])
def test_errors_about_rows_with_lags_name_the_files_of_the_data(
    fit: Fit, client: Client, tmp_path: Path, measure: Callable[..., object]
) -> None:
    put(series(), tmp_path / "data", 0, 900)
    run = fit("run").run_url
    given = [] if measure is evaluate else [tmp_path / "scores"]
    first = put(series(), tmp_path / "later", 900, 1000)
    bad: list[tuple[str, Any, str]] = [
        ("price", np.inf, r"the column 'price' is infinite at {}, row 170: expected"),
        ("day", None, r"{} has columns of other types than the training data: 'day'"),
    ]
    if measure is evaluate:
        bad.append(("sold", np.nan, r"'sold' is missing in 1 row, first at {}, row 170: fill"))
    for name, value, words in bad:
        frame = series()
        if value is None:
            frame["day"] = np.arange(N)
        else:
            frame.loc[1170, name] = value
        second = put(frame, tmp_path / "later", 1000, N)
        with pytest.raises(DataError, match=words.format(second)) as refused:
            measure(run, [first, second], *given, client=client)
        assert FOLDER not in str(refused.value)
        assert "_lags" not in str(refused.value)


def test_types_that_differ_are_named_by_the_files_of_the_data(fit: Fit, tmp_path: Path) -> None:
    first = put(series(), tmp_path / "data", 0, 300)
    frame = series()
    frame["day"] = np.arange(N)
    second = put(frame, tmp_path / "data", 300, 600)
    with pytest.raises(SchemaError, match=f"'day' is .* in {first} but int64 in {second}") as found:
        fit("run")
    lagged = tmp_path / "run" / "_lags"
    assert f"mend the data, delete {0:015d}.parquet in {lagged} and all" in str(found.value)


def test_trees_are_added_and_copies_go_on(fit: Fit, plain: Fit, client: Client, tmp_path) -> None:
    put(series(), tmp_path / "data", 0, 900)
    run = fit("run", estimator=small_forest(n_estimators=2)).run_url
    copy = copy_model(run, tmp_path / "copy")
    shutil.rmtree(tmp_path / "data")
    assert grow(run, 3, client=client).summary["rows"] == 900
    put(series(), tmp_path / "data", 900, N)
    put(by_hand(), tmp_path / "made", 0, 900)
    whole = plain(estimator=small_forest(n_estimators=2))
    put(by_hand(), tmp_path / "made", 900, N)
    whole = plain(estimator=small_forest(n_estimators=2))
    scored = score(copy.url, tmp_path / "data", tmp_path / "scored", client=client)
    assert scored["rows"] == 300
    assert digests(fit("copy", estimator=small_forest(n_estimators=2))) == digests(whole)
    names = [name for name in copy.store.list("_lags") if name.count("/") == 1]
    assert len(names) < 900 / FILE_ROWS


def test_an_unfinished_run_is_copied_with_the_rows_it_needs(
    fit: Fit, plain: Fit, tmp_path: Path
) -> None:
    put(series(), tmp_path / "data", 0, N)
    put(by_hand(), tmp_path / "made", 0, N)
    run = fit("run").run_url
    copy_model(f"{run}@600", tmp_path / "copy")
    shutil.rmtree(run)
    assert digests(fit("copy")) == digests(plain())


def test_a_search_adds_lags_once_for_itself_and_its_run(
    fit: Fit, client: Client, tmp_path: Path
) -> None:
    def found(data: str, **options: Any) -> Searched:
        forests = [small_forest(n_estimators=n) for n in (1, 2, 3)]
        place = tmp_path / f"search_of_{data}"
        options = {"folder": place, "rows": 400, "client": client, "target": "sold", **options}
        return search(forests, tmp_path / data, **options)

    put(series(), tmp_path / "data", 0, 600)
    put(by_hand(), tmp_path / "made", 0, 600)
    by_lags = found("data", lags=LAGS, run=tmp_path / "run")
    assert by_lags == found("made")
    assert len({one["loss"] for one in by_lags.candidates}) == 3
    written = {p: p.stat().st_mtime_ns for p in (tmp_path / "run" / "_lags").glob("*.parquet")}
    assert len(written) == 4
    winner = small_forest(n_estimators=1 + by_lags.winner)
    assert fit("run", estimator=winner).summary["rows"] == 600
    assert {path: path.stat().st_mtime_ns for path in written} == written
    assert not (tmp_path / "search_of_data" / "_lags").exists()
    with pytest.raises(CheckpointError, match=r"\[lags\] lags: \[1, 4\] there, \[2\] here"):
        found("data", lags={**LAGS, "lags": 2}, run=tmp_path / "run")
    with pytest.raises(ParameterError, match="run is where rows with lags are written: give lags"):
        found("data", run=tmp_path / "run")
    with pytest.raises(ParameterError, match="and shuffle mixes the rows"):
        found("data", lags=LAGS, shuffle=True)
    late = [small_forest(), small_forest(drift="follow", delay=2, feature_scales=None)]
    place = tmp_path / "late"
    with pytest.raises(ParameterError, match="whose labels come 2 rows together"):
        search(late, tmp_path / "data", target="sold", folder=place, lags=LAGS, client=client)
    assert not place.exists()
    frame = series()
    frame.loc[590, "price"] = np.inf
    bad = put(frame, tmp_path / "wrong", 0, 600)
    with pytest.raises(DataError, match=f"is infinite at {bad}, row 590|first at {bad}, row 590"):
        found("wrong", lags=LAGS)


def test_what_cannot_be_right_with_lags_is_refused(fit: Fit, client, tmp_path: Path) -> None:
    put(series(), tmp_path / "data", 0, 300)
    runs = [fit(name, first_tree=first).run_url for name, first in (("run", 0), ("next", 3))]
    with pytest.raises(ParameterError, match="has lags, and each run writes its rows"):
        merge(runs, tmp_path / "merged")
    (tmp_path / "keys.txt").write_text("3\n")
    with pytest.raises(ParameterError, match="lags of other rows hold values of those"):
        forget(runs[0], tmp_path / "forgot", tmp_path / "keys.txt", "shop", client=client)
    with pytest.raises(CheckpointError, match=r"\[lags\] lags: \[1, 4\] there, \[2\] here"):
        fit("run", lags={**LAGS, "lags": 2})
    with pytest.raises(CheckpointError, match=r'\[lags\] key: "shop" there, nothing here'):
        fit("run", lags=None)
    with pytest.raises(ParameterError, match="validation does not go with lags: which rows"):
        fit("new", validation=tmp_path / "data")
    with pytest.raises(ParameterError, match="labels does not go with lags: rows stand"):
        follow(
            small_forest(), tmp_path / "data", target="sold", run=tmp_path / "new", client=client,
            lags=LAGS, labels={"data": "x", "key": "k", "out": "y"},
        )  # fmt: skip
    batches = [pa.table({"x": [1]})]
    with pytest.raises(ParameterError, match=r"batches does not go with lags: .*LaggedBatches"):
        train(small_forest(), batches, run=tmp_path / "new", client=client, **GIVEN)
    delayed = small_forest(drift="follow", delay=2, feature_scales=None)
    with pytest.raises(ParameterError, match="the target 'sold', whose labels come 2 rows"):
        fit("new", estimator=delayed)
    with pytest.raises(ParameterError, match="the target 'sold', and shuffle mixes the rows"):
        fit("new", shuffle=True)
    with pytest.raises(ParameterError, match="key is the target 'sold': earlier rows of the same"):
        fit("new", lags={"columns": "price", "key": "sold"})
    with pytest.raises(SchemaError, match=r"no column is called 'solt' .*Did you mean 'sold'"):
        fit("new", target="solt")
    assert not list((tmp_path / "new").glob("_lags/*.parquet"))


@pytest.mark.parametrize("bad", [700, 890])
@pytest.mark.thorough(but="700")
def test_rows_that_cannot_be_learned_are_mended_in_the_data(
    fit: Fit, plain: Fit, tmp_path: Path, bad: int
) -> None:
    put(series(), tmp_path / "data", 0, 600)
    fit("run")
    frame = series()
    frame.loc[bad, "sold"] = np.nan
    path = put(frame, tmp_path / "data", 600, 900)
    put(series(), tmp_path / "data", 900, N)
    with pytest.raises(DataError, match=r"the target 'sold' is missing") as refused:
        fit("run")
    assert f"first at {path}, row {bad - 600}: fill them in" in str(refused.value)
    # Not the file with the row alone: all that are made of the same file of the data.
    lagged = tmp_path / "run" / "_lags"
    assert f"mend the data, delete 000000000000600.parquet in {lagged} and" in str(refused.value)
    put(series(), tmp_path / "data", 600, 900)
    for name in (tmp_path / "run" / "_lags").glob("*.parquet"):
        if int(name.stem) >= 600:
            name.unlink()
    put(by_hand(), tmp_path / "made", 0, 600)
    plain()
    put(by_hand(), tmp_path / "made", 600, 900)
    put(by_hand(), tmp_path / "made", 900, N)
    assert digests(fit("run")) == digests(plain())


@pytest.mark.parametrize("bad", [6500, 8500])  # in the file of a checkpoint, and in one behind it
@pytest.mark.thorough(but="6500")
def test_rows_behind_a_checkpoint_of_their_stream_are_not_called_mended(
    fit: Fit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: int
) -> None:
    monkeypatch.setattr(lagged_files, "FILE_ROWS", 2**20)
    good = pd.concat([series()] * 8, ignore_index=True)
    frame = good.copy()
    frame.loc[bad, "sold"] = np.nan
    put(good, tmp_path / "data", 0, 600)
    fit("run")
    for start, stop in ((600, 7200), (7200, len(frame))):
        put(frame, tmp_path / "data", start, stop, 200)
    seldom = {"checkpoint_every": "1500 rows", "window": 1}  # saved before the bad row is read
    for _ in range(2):
        with pytest.raises(DataError, match=r"the target 'sold' is missing") as refused:
            fit("run", **seldom)
        assert 600 < max(Run.open(tmp_path / "run").manifests()) <= bad
        assert "a checkpoint is of a stream that has these rows" in str(refused.value)
        assert "train a new run, in another folder" in str(refused.value)
        assert "delete" not in str(refused.value)
    # What it does not name would be refused, and what it names is another run, of mended data.
    for start, stop in ((600, 7200), (7200, len(frame))):
        put(good, tmp_path / "data", start, stop, 200)
    for name in (tmp_path / "run" / "_lags").glob("*.parquet"):
        if int(name.stem) >= (600 if bad < 7200 else 7200):
            name.unlink()
    with pytest.raises(DataError, match=r"changed.*with lags.*other rows cannot take their place"):
        fit("run")
    assert fit("new", **seldom).summary["rows"] == len(good)


def test_a_job_on_the_cluster_has_lags(fit: Fit, pair: Client, tmp_path: Path) -> None:
    from dmondrian.checkpoint import jobs
    from dmondrian.store import open_store
    from tests.distributed.conftest import wait_until

    put(series(), tmp_path / "data", 0, 900)
    later = put(series(), tmp_path / "later", 900, N)
    url = submit(
        small_forest(), tmp_path / "data", run=tmp_path / "run", client=pair,
        score={"data": str(later), "out": str(tmp_path / "scores")}, **GIVEN,
    )  # fmt: skip
    wait_until(lambda: (tmp_path / "scores" / "_manifest.json").exists(), 3 * PATIENCE)
    assert digests(url) == digests(fit("here"))
    assert not jobs.is_asked_to_stop(open_store(url), "")
