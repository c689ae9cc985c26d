"""The command's face: help, exit codes, and what `describe` and `schema` say."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

import numpy as np
import pytest

import dmondrian
from dmondrian import AMFClassifier, AMFRegressor
from dmondrian.cli import main
from dmondrian.cli.output import Output
from tests.cli.command import ADULT, JOB, PROJECT, TIMEOUT, finish

TRAIN_FILE = ADULT / "part-0000-train.parquet"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    X = np.random.default_rng(0).random((300, 3))
    labels = np.where(X[:, 0] > 0.5, "right", "left")
    folder = tmp_path_factory.mktemp("saved") / "model"
    AMFClassifier(n_estimators=3, random_state=0).fit(X, labels).save(folder)
    return folder


def run(capsys, *words):
    """Run a command in this process; returns its exit code, stdout and stderr."""
    code = main([str(word) for word in words])
    return code, *capsys.readouterr()


def edited_job(folder, old, new):
    file = folder / "job.toml"
    text = JOB.read_text().replace('path = "data', f'path = "{JOB.parent}/data')
    assert old in text
    file.write_text(text.replace(old, new))
    return file


def test_help_lists_commands_and_exit_codes():
    stdout, _ = finish("--help")
    for word in ("train", "score", "evaluate", "describe", "schema", "130", "exit codes"):
        assert word in stdout


def test_help_of_train_lists_the_keys_of_a_job_file():
    stdout, _ = finish("train", "--help")
    for word in ("[data]", "max_categories", "[run]", "checkpoint_every", "[cluster]", "--set"):
        assert word in stdout


def test_version():
    assert finish("--version")[0] == f"dmondrian {dmondrian.__version__}\n"


def test_what_the_library_logs_is_shown_while_a_command_runs(capsys):
    logger = logging.getLogger("dmondrian")
    level = logger.level
    with Output(as_json=True).logged():
        logger.info("chosen in %d seconds", 5)
        logger.debug("not shown")
    logger.info("too late")
    assert capsys.readouterr() == ("", "chosen in 5 seconds\n")
    assert logger.level == level


def test_no_command_is_a_usage_error():
    assert "usage: dmondrian" in finish(code=2)[1]


def test_the_package_is_run_as_the_command():
    words = [sys.executable, "-m", "dmondrian", "--version"]
    printed = subprocess.run(words, cwd=PROJECT, check=True, timeout=TIMEOUT, capture_output=True)
    assert printed.stdout.decode().startswith("dmondrian ")


def test_mistakes_in_tables_are_reported_without_loading_a_cluster_or_a_store():
    program = (
        "import sys; from dmondrian.cli import main\n"
        f"code = main(['train', {str(JOB)!r}, '--set', 'dta.path=x'])\n"
        "assert code == 2, code\n"
        "loaded = {'dask', 'distributed', 'obstore', 'pyarrow.parquet'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=PROJECT, check=True, timeout=TIMEOUT)


def test_misspelt_algorithm_is_reported_with_line_and_nearest_name(capsys, tmp_path):
    job = edited_job(tmp_path, "amf-classifier", "amf-clasifier")
    code, stdout, stderr = run(capsys, "train", job)
    line = JOB.read_text().split("\n").index('algorithm = "amf-classifier"') + 1
    assert code == 2
    assert stdout == ""
    assert f"job.toml:{line}: [forest] algorithm" in stderr
    assert "did you mean 'amf-classifier'?" in stderr


def test_misspelt_parameter_is_reported_with_line_and_nearest_name(capsys, tmp_path):
    job = edited_job(tmp_path, "n_estimators", "n_estimatrs")
    code, _, stderr = run(capsys, "train", job)
    assert code == 2
    assert "[forest] has no key 'n_estimatrs'; did you mean 'n_estimators'?" in stderr


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("forest.n_estimators=0", "n_estimators"),
        ("forest.n_estimators=true", "Got the boolean true"),
        ("forest.n_estimators=ten", "n_estimators"),
        ("forest.use_aggregation=1.5", "use_aggregation"),
        ("forest.predict_extension=lef", "predict_extension"),
        ("run.checkpoint_every=often", "100000 rows"),
        ("score.memory_limit=much", "2GiB"),
    ],
)
def test_values_that_cannot_be_are_refused_by_name(capsys, tmp_path, override, complaint):
    run_folder = tmp_path / "run"
    words = ("train", JOB, "--set", f"run.path={run_folder}", "--set", override)
    code, _, stderr = run(capsys, *words)
    assert code == 2
    assert f"--set {override}" in stderr
    assert complaint in stderr
    assert not run_folder.exists()


def test_missing_data_is_a_data_error(capsys, tmp_path):
    words = ["train", JOB, "--set", f"data.path={tmp_path / 'none.parquet'}"]
    code, _, stderr = run(capsys, *words, "--set", f"run.path={tmp_path / 'run'}")
    assert code == 3
    assert "none.parquet" in stderr


def test_a_missing_column_is_a_data_error(capsys, tmp_path):
    words = ["train", JOB, "--set", "data.target=incme", "--set", f"run.path={tmp_path / 'run'}"]
    code, _, stderr = run(capsys, *words)
    assert code == 3
    assert "incme" in stderr


def test_a_folder_without_a_run_is_a_checkpoint_error(capsys, tmp_path):
    code, _, stderr = run(capsys, "describe", tmp_path)
    assert code == 4
    assert "run.json is missing" in stderr


def test_errors_are_events_too(capsys, tmp_path):
    code, stdout, _ = run(capsys, "describe", tmp_path, "--json")
    event = json.loads(stdout)
    assert event["event"] == "error"
    assert event["error"] == "CheckpointError"
    assert event["exit_code"] == code == 4


def test_describe_shows_the_size_of_a_saved_model(capsys, model):
    code, stdout, _ = run(capsys, "describe", model)
    assert code == 0
    for text in ("amf-classifier", "rows learned  300", "2: left, right", "bytes per node"):
        assert text in stdout


def test_describe_as_json_is_one_line(capsys, model):
    _, stdout, _ = run(capsys, "describe", model, "--json")
    reported = json.loads(stdout)
    assert reported["event"] == "model"
    assert reported["rows"] == 300
    assert reported["classes"] == ["left", "right"]
    assert reported["size"]["trees"] == 3
    assert reported["size"]["nodes"] > 3
    assert reported["size"]["memory_bytes"] > 0
    assert reported["size"]["stored_bytes"] > 0
    assert reported["checkpoints"] == [300]


def test_describe_shows_importances_when_asked(capsys, model):
    _, stdout, _ = run(capsys, "describe", model, "--json")
    assert json.loads(stdout)["importances"] is None
    _, stdout, _ = run(capsys, "describe", model, "--json", "--importances")
    reported = json.loads(stdout)["importances"]
    shares = dmondrian.load(model).feature_importances_.tolist()
    assert reported == dict(zip("012", shares, strict=True))
    code, stdout, _ = run(capsys, "describe", model, "--importances")
    assert code == 0
    assert "importances of the columns:" in stdout
    assert f"{max(shares):.4f}" in stdout
    assert "monotonic_cst" not in stdout.partition("importances of")[2]


def test_describe_names_monotone_columns_beside_their_importances(capsys, tmp_path):
    X = np.random.default_rng(0).random((200, 3))
    forest = AMFRegressor(
        2, drift="follow", experts=["mondrian", "boosted"], monotonic_cst=[0, 1, 0], random_state=0
    )
    forest.fit(X, X[:, 1] + X[:, 0]).save(tmp_path / "model")
    _, stdout, _ = run(capsys, "describe", str(tmp_path / "model"), "--importances")
    assert "0 of 1: trees that never forget" in stdout
    _, stdout, _ = run(capsys, "describe", str(tmp_path / "model"), "--json")
    assert json.loads(stdout)["monotone_columns"] == ["1"]


def test_describe_refuses_a_position_that_is_not_there(capsys, model):
    code, _, stderr = run(capsys, "describe", f"{model}@299")
    assert code == 4
    assert "299" in stderr
    assert "300" in stderr


def test_schema_of_data(capsys):
    code, stdout, _ = run(capsys, "schema", TRAIN_FILE, "--target", "income")
    assert code == 0
    for text in ("hours-per-week", "native-country", "116 features", "'income'"):
        assert text in stdout


def test_schema_of_data_as_json(capsys):
    _, stdout, _ = run(capsys, "schema", TRAIN_FILE, "--target", "income", "--json")
    reported = json.loads(stdout)
    assert reported["event"] == "schema"
    assert reported["classes"] == ["<=50K", ">50K"]
    assert [column["name"] for column in reported["columns"]][:2] == ["age", "workclass"]


def test_schema_of_a_model_fitted_on_arrays(capsys, model):
    code, stdout, _ = run(capsys, "schema", model)
    assert code == 0
    assert "3 features, as given to fit" in stdout
