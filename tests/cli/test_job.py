"""Job files: every mistake is named with its line and the nearest valid name, before any work."""

from __future__ import annotations

import codecs
import json
import os
import re
import textwrap
from pathlib import Path

import pytest

from dmondrian.cli import other_names
from dmondrian.cli.certificates import make_certificates
from dmondrian.cli.cluster import _address
from dmondrian.cli.job import build_estimator, check_amounts, read_job
from dmondrian.cli.job_keys import TABLES
from dmondrian.cli.tls import tls_mistakes
from dmondrian.data.text_words import LONGEST_RUN, MOST_FEATURES
from dmondrian.errors import JobError
from dmondrian.estimators import ALGORITHMS
from dmondrian.estimators.stream_following import EXPERTS
from tests.cli.command import PROJECT, call

GOOD = """\
# a comment line

[data]
path = "rows.parquet"
target = "y"

[forest]
algorithm = "amf-classifier"

[run]
path = "../run"
"""


def write(folder: Path, text: str) -> Path:
    file = folder / "job.toml"
    file.write_text(textwrap.dedent(text))
    return file


def refusal(folder: Path, text: str, *overrides: str) -> str:
    with pytest.raises(JobError) as caught:
        read_job(write(folder, text), overrides)
    return str(caught.value)


def test_good_file_is_read_with_paths_relative_to_its_folder(tmp_path):
    job = read_job(write(tmp_path, GOOD))
    assert job.data == {"path": str(tmp_path / "rows.parquet"), "target": "y"}
    assert job.run == {"path": os.path.normpath(tmp_path / "../run")}
    assert job.forest == {"algorithm": "amf-classifier"}
    assert job.cluster == {}
    assert job.score is None


def test_paths_in_overrides_are_relative_to_the_current_folder(tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    job = read_job(write(tmp_path, GOOD), ["data.path=other.parquet"])
    assert job.data["path"] == str(elsewhere / "other.parquet")
    assert job.run["path"] == os.path.normpath(tmp_path / "../run")


@pytest.mark.parametrize("url", ["s3://bucket/rows", "https://host/rows.parquet"])
def test_urls_and_absolute_paths_stay_as_they_are(tmp_path, url):
    job = read_job(write(tmp_path, GOOD), [f"data.path={url}", "run.path=/absolute/run"])
    assert job.data["path"] == url
    assert job.run["path"] == "/absolute/run"


def test_relative_data_are_below_a_root_of_the_job(tmp_path):
    job = write(tmp_path, GOOD.replace("[data]", '[data]\nroot = "lake"'))
    assert read_job(job).data["path"] == str(tmp_path / "lake/rows.parquet")
    assert "root" not in read_job(job).data
    moved = read_job(job, [f"data.root={tmp_path}/moved", 'data.path=["a", "/b", "s3://c/d"]'])
    assert moved.data["path"] == [f"{tmp_path}/moved/a", "/b", "s3://c/d"]
    assert read_job(job, ["data.root=s3://c/d"]).data["path"] == "s3://c/d/rows.parquet"
    assert "leads out of the root" in refusal(
        tmp_path, GOOD, "data.root=s3://c", "data.path=../../x"
    )


def test_a_root_is_beside_a_job_file_that_is_named_from_another_folder(tmp_path, monkeypatch):
    (tmp_path / "jobs").mkdir()
    write(tmp_path / "jobs", GOOD.replace("[data]", '[data]\nroot = "lake"'))
    monkeypatch.chdir(tmp_path)
    data = read_job("jobs/job.toml").data
    assert data["path"] == str(tmp_path / "jobs/lake/rows.parquet")


def test_a_list_of_paths_is_resolved_one_by_one(tmp_path):
    text = GOOD.replace('"rows.parquet"', '["a.parquet", "s3://b/c"]')
    assert read_job(write(tmp_path, text)).data["path"] == [str(tmp_path / "a.parquet"), "s3://b/c"]


@pytest.mark.parametrize(
    ("override", "table", "key", "value"),
    [
        ("data.target=income", "data", "target", "income"),
        ('data.target="in come"', "data", "target", "in come"),
        ("data.shuffle=true", "data", "shuffle", True),
        ("data.exclude=['a', 'b']", "data", "exclude", ["a", "b"]),
        ("forest.n_estimators=20", "forest", "n_estimators", 20),
        ("forest.alpha = 0.5", "forest", "alpha", 0.5),
        ("run.checkpoint_every=5 min", "run", "checkpoint_every", "5 min"),
        ("cluster.workers=2", "cluster", "workers", 2),
        ("cluster.scheduler=tcp://10.0.0.1:8786", "cluster", "scheduler", "tcp://10.0.0.1:8786"),
    ],
)
def test_override_values_are_toml_and_bare_words_are_strings(tmp_path, override, table, key, value):
    assert getattr(read_job(write(tmp_path, GOOD), [override]), table)[key] == value


def test_the_last_override_wins(tmp_path):
    job = read_job(write(tmp_path, GOOD), ["cluster.workers=1", "cluster.workers=2"])
    assert job.cluster == {"workers": 2}


def test_misspelt_key_is_reported_with_line_and_nearest_name(tmp_path):
    message = refusal(tmp_path, GOOD.replace("target", "tarjet"))
    assert (
        f"{tmp_path / 'job.toml'}:5: [data] has no key 'tarjet'; did you mean 'target'?" in message
    )


def test_misspelt_table_is_reported_with_line_and_nearest_name(tmp_path):
    message = refusal(tmp_path, GOOD + "[clutser]\nworkers = 2\n")
    assert "job.toml:12: no such table [clutser]; did you mean 'cluster'?" in message


def test_wrong_type_is_reported_with_line(tmp_path):
    message = refusal(tmp_path, GOOD.replace('target = "y"', "target = 3"))
    assert "job.toml:5: [data] target: expected a string, got the integer 3" in message


def test_rows_are_given_as_text(tmp_path):
    message = refusal(tmp_path, GOOD, "run.checkpoint_every=100")
    assert message.endswith('expected a string, got the integer 100; write "100 rows"')


def test_a_key_that_is_like_no_other_is_not_guessed(tmp_path):
    with pytest.raises(JobError, match="no key 'max_iter' \\(keys: "):  # which max_nodes is not
        build_estimator(read_job(write(tmp_path, GOOD), ["forest.max_iter=3"]))


def test_number_for_boolean_and_boolean_for_number_are_refused(tmp_path):
    message = refusal(tmp_path, GOOD, "data.shuffle=1", "cluster.workers=true")
    assert "--set data.shuffle=1: [data] shuffle: expected true or false" in message
    assert "--set cluster.workers=true: [cluster] workers: expected an integer" in message


def test_all_mistakes_are_reported_at_once(tmp_path):
    text = GOOD.replace("target", "tarjet").replace('"../run"', "7")
    message = refusal(tmp_path, text)
    assert "'tarjet'" in message
    assert "[data] target is missing" in message
    assert "job.toml:11: [run] path: expected a string, got the integer 7" in message


def test_a_density_has_no_target(tmp_path):
    text = GOOD.replace('target = "y"\n', "")
    assert "[data] target is missing" in refusal(tmp_path, text)
    file = tmp_path / "density.toml"
    head = text.partition("algorithm")[0]
    file.write_text(f'{head}algorithm = "mondrian-density"\n[run]\npath = "../run"\n')
    job = read_job(file)
    assert "target" not in job.data
    assert type(build_estimator(job)).__name__ == "MondrianDensity"


@pytest.mark.parametrize("file", sorted((PROJECT / "jobs").glob("*.toml")), ids=lambda f: f.stem)
def test_ready_jobs_are_sound(file):
    job = read_job(file)
    build_estimator(job)
    check_amounts(job)
    assert Path(job.data["path"]).exists()


def test_lines_are_right_after_values_over_several_lines(tmp_path):
    text = GOOD.replace(
        'target = "y"', 'target = """\nsharget = 1\n"""\nexclude = [\n "a",\n]\nsede = 1'
    )
    assert "job.toml:11: [data] has no key 'sede'; did you mean 'seed'?" in refusal(tmp_path, text)


def test_a_value_over_several_lines_is_reported_by_its_first(tmp_path):
    text = GOOD.replace('target = "y"', 'target = "y"\nexclude = [\n "a",\n 1\n]')
    assert "job.toml:6: [data] exclude: expected a list of strings" in refusal(tmp_path, text)


def test_lines_are_right_for_dotted_keys_and_windows_line_ends(tmp_path):
    file = tmp_path / "job.toml"
    file.write_bytes((GOOD + "[cluster]\n").replace("\n", "\r\n").encode() + b"wrokers = 1\r\n")
    with pytest.raises(JobError, match=r"job.toml:13: .*'wrokers'; did you mean 'workers'"):
        read_job(file)


def test_missing_tables_are_named(tmp_path):
    message = refusal(tmp_path, "")
    for table in ("data", "forest", "run"):
        assert f"the table [{table}] is missing" in message


def test_a_missing_algorithm_is_reported(tmp_path):
    text = GOOD.replace("algorithm", "# algorithm")
    assert "job.toml:7: [forest] algorithm is missing" in refusal(tmp_path, text)


def test_a_table_that_is_a_value_is_refused(tmp_path):
    text = "data = 3\n" + GOOD.replace("[data]\n", "[cluster]\n").replace("target", "workers")
    message = refusal(tmp_path, text, "data.path=x")
    assert "job.toml:1: data: expected a table [data], got the integer 3" in message


def test_key_outside_of_tables_is_refused(tmp_path):
    assert "job.toml:1: no such table [seed]" in refusal(tmp_path, "seed = 1\n" + GOOD)


def test_invalid_toml_is_reported_with_line(tmp_path):
    printed = refusal(tmp_path, GOOD.replace('"y"', "y"))
    assert "at line 5, column" in printed
    assert "null" not in printed
    assert '"none", in quotes' in refusal(tmp_path, GOOD.replace('"y"', "null"))


def test_bytes_that_are_no_text_are_refused(tmp_path):
    file = tmp_path / "job.toml"
    file.write_bytes(b"PAR1\xff\xfe")
    with pytest.raises(JobError, match="expected UTF-8 text"):
        read_job(file)


def test_a_byte_order_mark_is_no_part_of_the_job(tmp_path):
    file = tmp_path / "job.toml"
    file.write_bytes(GOOD.replace("\n", "\r\n").encode("utf-8-sig"))
    assert read_job(file).data["target"] == "y"
    file.write_bytes(GOOD.replace("target", "taget").encode("utf-8-sig"))
    with pytest.raises(JobError, match=r"job\.toml:5: \[data\] has no key 'taget'"):
        read_job(file)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_another_encoding_is_named(tmp_path, encoding):
    file = tmp_path / "job.toml"
    file.write_bytes(("\ufeff" + GOOD).encode(encoding))
    with pytest.raises(JobError, match="got UTF-16 text; save it as UTF-8"):
        read_job(file)


def test_a_scheduler_file_is_beside_a_job_file_that_is_named_from_another_folder(
    tmp_path, monkeypatch
):
    (tmp_path / "jobs").mkdir()
    text = f'{GOOD}[cluster]\nscheduler = "keys/scheduler.json"\n'
    job = write(tmp_path / "jobs", text)
    monkeypatch.chdir(tmp_path)
    assert read_job(job).cluster["scheduler"] == "keys/scheduler.json"
    (tmp_path / "jobs/keys").mkdir()
    (tmp_path / "jobs/keys/scheduler.json").write_text("{}")
    assert read_job(job).cluster["scheduler"] == str(tmp_path / "jobs/keys/scheduler.json")
    (tmp_path / "jobs/local").touch()
    (tmp_path / "local").touch()
    for address in ("local", "host:8786", "tls://host:8786", f"tls://{'h' * 300}:8786"):
        assert read_job(job, [f"cluster.scheduler={address}"]).cluster["scheduler"] == address


def test_other_files_of_a_job_may_begin_with_a_byte_order_mark(tmp_path):
    """A scheduler file and certificates: their readers know the mark."""
    file = tmp_path / "scheduler.json"
    file.write_text('{"address": "tls://127.0.0.1:1"}', encoding="utf-8-sig")
    assert _address(str(file), None) == "tls://127.0.0.1:1"
    make_certificates(tmp_path)
    keys = {}
    for name in ("ca", "cert", "key"):
        pem = tmp_path / f"{name}.pem"
        pem.write_bytes(codecs.BOM_UTF8 + pem.read_bytes())
        keys[f"tls_{name}"] = str(pem)
    assert list(tls_mistakes(keys, str)) == []


@pytest.mark.parametrize(
    ("table", "name", "meant"),
    [
        ("forest", "n_trees", "n_estimators"),
        ("forest", "num_trees", "n_estimators"),
        ("forest", "seed", "random_state"),
        ("forest", "max_depth", "max_nodes"),
        ("data", "label", "target"),
        ("data", "random_state", "seed"),
        ("run", "output_dir", "path"),
        ("cluster", "n_workers", "workers"),
        ("score", "output", "out"),
    ],
)
def test_names_of_other_libraries_are_known(tmp_path, table, name, meant):
    with pytest.raises(JobError, match=f"no key '{name}'; did you mean '{meant}'"):
        build_estimator(read_job(write(tmp_path, GOOD), [f"score.path={tmp_path}", "score.out=x",
                                                         f"{table}.{name}=3"]))  # fmt: skip


def test_every_name_of_other_libraries_means_a_key_and_is_none():
    for table, names in other_names.KEYS.items():
        valid = set(TABLES.get(table, {}))
        if table == "forest":
            valid = {name for kind in ALGORITHMS.values() for name in kind().get_params()}
            valid.add("algorithm")
        others = [name for some in names.values() for name in some]
        assert set(names) <= valid
        assert not set(others) & valid
        assert len(set(others)) == len(others)
    assert set(other_names.ALGORITHMS) <= set(ALGORITHMS)


@pytest.mark.parametrize("table", ["data", "forest"])
def test_a_task_follows_from_the_algorithm(tmp_path, table):
    with pytest.raises(JobError, match="has no key 'task'; the algorithm decides it"):
        build_estimator(read_job(write(tmp_path, GOOD), [f'{table}.task="classification"']))


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("AMFClassifier", "amf-classifier"),
        ("OnlineRandomForestRegressor", "online-forest-regressor"),
        ("amf", "amf-classifier"),
        ("amf_regressor", "amf-regressor"),
        ("regression", "amf-regressor"),
        ("amf-clasifier", "amf-classifier"),
    ],
)
def test_names_of_algorithms_are_suggested(tmp_path, name, meant):
    with pytest.raises(JobError, match=f"got '{name}'; did you mean '{meant}'"):
        build_estimator(read_job(write(tmp_path, GOOD), [f"forest.algorithm={name}"]))


def test_a_missing_job_file_names_the_nearest(tmp_path):
    write(tmp_path, GOOD)
    with pytest.raises(JobError, match=r"cannot read the job file.*did you mean .*job\.toml"):
        read_job(tmp_path / "jbo.toml")


@pytest.mark.parametrize(
    ("given", "lacking"),
    [("score", "scores"), ("scores", "score"), ("keep", "score"), ("details", "score")],
)
def test_keys_of_following_that_need_others(tmp_path, given, lacking):
    values = {"score": '"in"', "scores": '"out"', "keep": '["row"]', "details": "false"}
    text = f"{GOOD}\n[follow]\n{given} = {values[given]}\n"
    line = text.split("\n").index(f"{given} = {values[given]}") + 1
    found = refusal(tmp_path, text)
    assert f"job.toml:{line}: [follow] {given}: given without {lacking}; add it" in found


def test_paths_of_following_are_those_of_the_job_file(tmp_path):
    keys = 'score = ["in", "s3://bucket/in"]\nscores = "out"\nexport = ["m.onnx"]'
    job = read_job(write(tmp_path, f"{GOOD}\n[follow]\n{keys}\n"))
    assert job.follow == {
        "score": [str(tmp_path / "in"), "s3://bucket/in"],
        "scores": str(tmp_path / "out"),
        "export": [str(tmp_path / "m.onnx")],
    }


def test_the_path_of_held_out_data_is_that_of_the_job_file(tmp_path):
    assert read_job(write(tmp_path, GOOD)).validation is None
    job = read_job(write(tmp_path, f'{GOOD}\n[validation]\npath = "later.parquet"\n'))
    assert job.validation == str(tmp_path / "later.parquet")
    assert "[validation] path is missing" in refusal(tmp_path, f"{GOOD}\n[validation]\n")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ('when = "log_los > 1"', "[alerts] when: 'log_los > 1' is about 'log_los'"),
        ('when = ["accuracy < 1", "rmse < 1"]', "[alerts] when: 'rmse < 1' is about 'rmse'"),
        ('when = "accuracy"', "[alerts] when: 'accuracy' is no condition"),
        ('when = "accuracy_held_out < 1"', "add [validation] path"),
        ('command = ["x"]', "[alerts] expects when or events, and has neither"),
        ('events = "checkpoint"', "[alerts] events: events are sent nowhere: expected a command"),
        ('events = "worker_los"', "did you mean 'worker_lost'?"),
        ('events = ["checkpoint", "window"]', "[alerts] events: events has 'window', with which"),
        ('when = "lag > 1"\ncommand = "notify"', "[alerts] command: expected a list of strings"),
        ('when = "lag > 1"\ncommand = [""]', "[alerts] command: command is ['']"),
        ('when = "lag > 1"\ncommand = ["./no.sh"]', "[alerts] command: there is no program"),
        ('when = "lag > 1"\nurl = "host/path"', "[alerts] url: url is no address of the web"),
        ('when = "lag > 1"\ntimeout = 0', "[alerts] timeout: expected at least 1"),
    ],
)
def test_mistakes_in_alerts_are_found_when_the_job_is_read(tmp_path, keys, message):
    assert message in refusal(tmp_path, f"{GOOD}\n[alerts]\n{keys}\n")


def test_alerts_are_those_of_the_job_file(tmp_path):
    assert read_job(write(tmp_path, GOOD)).alerts is None
    job = read_job(write(tmp_path, f'{GOOD}\n[alerts]\nwhen = "accuracy_window < 0.5"\n'))
    assert job.alerts == {"when": "accuracy_window < 0.5"}


@pytest.mark.parametrize(
    ("uri", "resolved"),
    [
        ("mlruns", "{}/mlruns"),
        ("sqlite:///../mlflow.db", "sqlite:///{}/mlflow.db"),
        *((uri, uri) for uri in ("/mlruns", "sqlite:////mlflow.db", "http://here:5000")),
        *((uri, uri) for uri in ("databricks", "databricks://me", "file:/mlruns", "sqlite:///:memory:")),
    ],
)  # fmt: skip
def test_the_tracking_of_mlflow_is_beside_the_job_file(tmp_path, monkeypatch, uri, resolved):
    file = write(tmp_path, f'{GOOD}[mlflow]\nuri = "{uri}"\n')
    beside = tmp_path.parent if ".." in uri else tmp_path
    monkeypatch.chdir(tmp_path.parent)  # a job that is named by a relative path
    job = read_job(f"{tmp_path.name}/{file.name}")
    assert job.mlflow == {"uri": resolved.format(beside)}


def test_keys_of_text_need_text_and_have_bounds(tmp_path):
    message = refusal(tmp_path, GOOD, "data.text_words=2")
    assert "[data] text_words: given without text; add it" in message
    given = ['data.text=["note"]', f"data.text_features={MOST_FEATURES}"]
    assert read_job(write(tmp_path, GOOD), [*given, f"data.text_words={LONGEST_RUN}"])
    for name, most in (("text_features", MOST_FEATURES), ("text_words", LONGEST_RUN)):
        message = refusal(tmp_path, GOOD, given[0], f"data.{name}={most + 1}")
        assert f"[data] {name}: expected at most {most:,}, got {most + 1:,}" in message


@pytest.mark.parametrize("override", ["workers=2", "cluster.workers", "=2", ".a=1", "cluster.=1"])
def test_overrides_of_another_form_are_refused(tmp_path, override):
    assert "expected table.key=value" in refusal(tmp_path, GOOD, override)


def test_an_override_with_an_unknown_table_names_itself(tmp_path):
    message = refusal(tmp_path, GOOD, "forrest.alpha=1")
    assert "--set forrest.alpha=1: no such table [forrest]; did you mean 'forest'?" in message


def test_zero_workers_are_refused(tmp_path):
    message = refusal(tmp_path, GOOD, "cluster.workers=0")
    assert "[cluster] workers: expected at least 1, got 0" in message


@pytest.mark.parametrize(("key", "name"), [("workers", "n_workers"), ("threads", "threads")])
def test_no_machine_has_so_many_processes(tmp_path, key, name):
    job = read_job(write(tmp_path, f"{GOOD}[cluster]\n{key} = {10**20}\n"))
    words = rf"job.toml:13: \[cluster\] {name} is {10**20}; expected an integer from 1 to 1,024, as"
    with pytest.raises(JobError, match=words):
        check_amounts(job)


@pytest.mark.parametrize(
    ("override", "name", "value"),
    [
        ("charge_opening=true", "charge_opening", True),
        ("charge_opening=false", "charge_opening", False),
        ("charge_opening=auto", "charge_opening", "auto"),
        ("alpha=0.3", "alpha", 0.3),
        ("alpha=auto", "alpha", "auto"),
        ("learning_rate=0.5", "learning_rate", 0.5),
        ("use_aggregation=false", "use_aggregation", False),
        ("split_pure=true", "split_pure", True),
        ("predict_extension=expected", "predict_extension", "expected"),
        ("max_nodes=100", "max_nodes", 100),
        ("feature_scales=learned", "feature_scales", "learned"),
        ("feature_scales=[1, 0.5]", "feature_scales", [1, 0.5]),
        ("feature_scales=none", "feature_scales", None),
        ("max_nodes=none", "max_nodes", None),
        ("warmup_rows=1000", "warmup_rows", 1000),
        ("calibrate=true", "calibrate", True),
        ("n_jobs=2", "n_jobs", 2),
        ("drift=follow", "drift", "follow"),
        ("drift=none", "drift", None),
    ],
)
def test_every_parameter_of_the_estimator_can_be_set(tmp_path, override, name, value):
    job = read_job(write(tmp_path, GOOD), [f"forest.{override}"])
    assert build_estimator(job).get_params()[name] == value


def test_a_delay_is_of_a_forest_that_follows_the_stream(tmp_path):
    job = read_job(write(tmp_path, GOOD), ["forest.drift=follow", "forest.delay=64"])
    assert build_estimator(job).delay == 64
    for given in (EXPERTS[:2], EXPERTS):
        both = ["forest.drift=follow", f"forest.experts={json.dumps(given)}"]
        assert tuple(build_estimator(read_job(write(tmp_path, GOOD), both)).experts) == given
    for overrides, message in (
        (["forest.delay=64"], r"--set forest.delay=64: \[forest\] delay = 64 goes with"),
        (["forest.drift=follow", "forest.calibrate=true"], r"forest.calibrate=true: .*go with"),
        (["forest.drift=follow", "forest.delay=0"], r"--set forest.delay=0: \[forest\] delay"),
        (
            ["forest.drift=follow", 'forest.experts=["boosted"]'],
            r'\[forest\] experts = \["boosted"\] are not experts.* expected \["mondrian"\], \["mon',
        ),
        (["forest.drift=adwin"], r"--set forest.drift=adwin: \[forest\] drift"),
    ):
        with pytest.raises(JobError, match=message):
            build_estimator(read_job(write(tmp_path, GOOD), overrides))


def test_weights_of_classes_are_a_table_of_numbers(tmp_path):
    job = read_job(write(tmp_path, GOOD), ["forest.class_weight={yes = 5, no = 1}"])
    assert build_estimator(job).class_weight == {"yes": 5, "no": 1}
    none = read_job(write(tmp_path, GOOD), ["forest.class_weight=none"])
    assert build_estimator(none).class_weight is None
    for override, message in (
        (
            "class_weight=balanced",
            r"=balanced: \[forest\] class_weight .*a run numbers",
        ),
        ("class_weight={yes = -5}", r"class_weight={yes = -5}: \[forest\] class_weight.*finite"),
        ("class_weight=[1, 5]", r"class_weight=.*: \[forest\] class_weight: .*must be"),
        ("class_weights={yes = 5}", "did you mean 'class_weight'"),
    ):
        with pytest.raises(JobError, match=message):
            build_estimator(read_job(write(tmp_path, GOOD), [f"forest.{override}"]))


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("charge_opening=1", "must be true or false or a str among"),
        ("alpha=true", "must be a float .* Got the boolean true"),
        ("max_nodes=true", "must be an int .* Got the boolean true"),
        ("monotonic_cst=true", 'must be a list, a table or "none". Got the boolean true'),
        ("random_state=false", "must be an int .* Got the boolean false"),
        ("alpha=none", "must be a float"),
    ],
)
def test_a_boolean_is_no_number_and_a_number_no_boolean(tmp_path, override, words):
    job = read_job(write(tmp_path, GOOD), [f"forest.{override}"])
    with pytest.raises(JobError, match=f"--set forest.{override}: .*{words}"):
        build_estimator(job)


def test_generalised_forests_are_described_by_their_loss(tmp_path):
    overrides = [
        "forest.algorithm=generalized-mondrian-forest-regressor",
        "forest.loss=quantile",
        "forest.quantile=[0.05, 0.5]",
        "forest.lifetime=prequential",
        "forest.max_lifetime=50.0",
        "forest.max_rows_per_leaf=32",
        "forest.penalty=none",
    ]
    found = build_estimator(read_job(write(tmp_path, GOOD), overrides)).get_params()
    assert (found["loss"], found["quantile"]) == ("quantile", [0.05, 0.5])
    assert (found["lifetime"], found["max_lifetime"]) == ("prequential", 50.0)
    assert (found["max_rows_per_leaf"], found["penalty"]) == (32, None)
    with pytest.raises(JobError, match=r"--set forest\.loss"):
        build_estimator(read_job(write(tmp_path, GOOD), [*overrides, "forest.loss=cubic"]))


def test_a_home_that_is_not_there_is_reported_with_its_line(tmp_path):
    reported = refusal(tmp_path, GOOD.replace("../run", "~nouser/run"))
    assert "[run] path: ~nouser/run: the home folder" in reported
    assert "write the path out in full" in reported
    reported = refusal(tmp_path, GOOD, "data.path=~nouser/rows")
    assert "--set data.path=~nouser/rows: [data] path: ~nouser/rows: the home folder" in reported


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("describe", "~nouser/run"), 4),
        (("describe", "~nouser/run@12"), 4),
        (("cancel", "~nouser/run"), 4),
        (("schema", "~nouser/rows.parquet"), 3),
        (("cluster", "--folder", "~nouser/x", "--certificates-only"), 2),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_a_home_that_is_not_there_is_reported_by_commands(words, code):
    _, stderr = call(*words, code=code)
    assert "~nouser/" in stderr
    assert "unexpected" not in stderr


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["forest.delay=9"], '[forest] delay = 9 goes with drift = "follow" alone'),
        (["forest.drift=other"], "or \"none\". Got 'other'"),
        (
            ["forest.drift=follow", "forest.calibrate=true"],
            'calibrate = true does not go with drift = "follow"',
        ),
        (
            ["forest.drift=follow", "forest.use_aggregation=false"],
            "trees mix over their prunings; expected true",
        ),
    ],
)
def test_estimators_name_values_as_a_job_file_writes_them(tmp_path, overrides, words):
    with pytest.raises(JobError) as refused:
        build_estimator(read_job(write(tmp_path, GOOD), overrides))
    assert words in str(refused.value)
    assert not re.search(r"\b(None|True|False)\b", str(refused.value))
