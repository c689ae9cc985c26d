"""The files in cluster/: valid by the schemas of those who read them, and consistent."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from dmondrian.cli.app import _parser
from dmondrian.cli.job import build_estimator, read_job
from tests.cli.command import PROJECT
from tests.cluster.crds import schemas

CLUSTER = PROJECT / "cluster"
MANIFESTS = sorted((CLUSTER / "kubernetes").glob("*.yaml"))
SCRIPTS = sorted(CLUSTER.rglob("*.sh"))
COMPOSE = CLUSTER / "compose" / "compose.yaml"


def documents(file: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(file.read_text()))


@pytest.fixture(scope="module")
def crds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    return schemas(tmp_path_factory.mktemp("wheel"))


@pytest.mark.parametrize("file", MANIFESTS, ids=lambda file: file.stem)
def test_manifests_are_what_the_operator_expects(
    file: Path, crds: dict[str, dict[str, Any]]
) -> None:
    ours = [document for document in documents(file) if document["kind"] in crds]
    assert len(ours) == 1
    jsonschema.Draft202012Validator(crds[ours[0]["kind"]]).validate(ours[0])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("replicas: 2", "replicas: four"),
        ("containerPort: 8786", "containerport: 8786"),
        ("secretName: dmondrian-tls", "secret: dmondrian-tls"),
        ("readinessProbe", "readynessProbe"),
        ("  service:", "  services:"),
    ],
)
def test_mistakes_in_a_manifest_are_found(
    old: str, new: str, crds: dict[str, dict[str, Any]]
) -> None:
    text = (CLUSTER / "kubernetes" / "cluster.yaml").read_text()
    assert old in text
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(crds["DaskCluster"]).validate(
            yaml.safe_load(text.replace(old, new))
        )


def cluster_of(document: dict[str, Any]) -> dict[str, Any]:
    spec = document["spec"]
    return spec["cluster"]["spec"] if document["kind"] == "DaskJob" else spec


def dask_resource(file: Path) -> dict[str, Any]:
    return next(document for document in documents(file) if document["kind"].startswith("Dask"))


@pytest.mark.parametrize("file", MANIFESTS, ids=lambda file: file.stem)
def test_workers_find_the_service_that_the_operator_makes(file: Path) -> None:
    document = dask_resource(file)
    name, spec = document["metadata"]["name"], cluster_of(document)
    assert spec["scheduler"]["service"]["selector"]["dask.org/cluster-name"] == name
    address = f"tls://{name}-scheduler:8786"  # the operator calls the service <cluster>-scheduler
    assert address in spec["worker"]["spec"]["containers"][0]["args"]
    if document["kind"] == "DaskJob":
        assert address in file.read_text().split("job:\n")[-1] + file.read_text().split("---")[0]


@pytest.mark.parametrize("file", MANIFESTS, ids=lambda file: file.stem)
def test_no_pod_runs_as_root_or_holds_a_secret(file: Path) -> None:
    document = dask_resource(file)
    spec = cluster_of(document)
    pods = [spec["worker"]["spec"], spec["scheduler"]["spec"]]
    pods += [document["spec"]["job"]["spec"]] if document["kind"] == "DaskJob" else []
    user = re.search(r"useradd --uid (\d+)", (CLUSTER / "Dockerfile").read_text())
    assert user is not None
    for pod in pods:
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] == int(user[1])
    assert "PRIVATE KEY" not in file.read_text()
    assert not re.search(r"SECRET_ACCESS_KEY\W*value", file.read_text())


def test_the_commands_of_jobs_are_commands() -> None:
    for name in ("train", "score"):
        args = dask_resource(CLUSTER / "kubernetes" / f"{name}.yaml")["spec"]["job"]["spec"][
            "containers"
        ][0]["args"]
        assert args[0] == "dmondrian"
        assert _parser().parse_args(args[1:]).command == name


def embedded_jobs() -> dict[str, str]:
    found = {"compose": (CLUSTER / "compose" / "job.toml").read_text()}
    for document in documents(CLUSTER / "kubernetes" / "train.yaml"):
        if document["kind"] == "ConfigMap":
            found["kubernetes"] = document["data"]["job.toml"]
    return found


@pytest.mark.parametrize("name", ["compose", "kubernetes"])
def test_embedded_job_files_are_good(name: str, tmp_path: Path, certificates: Path) -> None:
    text = embedded_jobs()[name]
    assert tomllib.loads(text)["cluster"]["scheduler"].startswith("tls://")
    file = tmp_path / "job.toml"
    file.write_text(text.replace('"/certificates/', f'"{certificates}/'))
    build_estimator(read_job(file))


def compose_schema() -> dict[str, Any]:
    """Return the schema that the package brings along; its code, of a command, is not imported."""
    found = importlib.util.find_spec("check_jsonschema")
    assert found is not None
    assert found.origin is not None
    folder = Path(found.origin).parent / "builtin_schemas" / "vendor"
    return json.loads((folder / "compose-spec.json").read_text())


def test_the_compose_file_is_one() -> None:
    compose = yaml.safe_load(COMPOSE.read_text())
    schema = compose_schema()
    validator = jsonschema.validators.validator_for(schema)(schema)
    validator.validate(compose)
    compose["services"]["worker"]["depend_on"] = {}
    assert list(validator.iter_errors(compose))  # a misspelt key is found


def test_the_compose_file_names_what_there_is() -> None:
    compose = yaml.safe_load(COMPOSE.read_text())
    for service in compose["services"].values():
        assert set(service.get("depends_on", {})) <= set(compose["services"])
        context = (COMPOSE.parent / service["build"]["context"]).resolve()
        assert (context / service["build"]["dockerfile"]).is_file()
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            known = source in compose["volumes"]
            assert known or (COMPOSE.parent / source).exists()


def test_the_image_copies_what_there_is_and_its_context_holds_it() -> None:
    allowed = [
        line[1:]
        for line in (CLUSTER / "Dockerfile.dockerignore").read_text().splitlines()
        if line.startswith("!")
    ]
    for line in re.findall(r"^COPY (.+)$", (CLUSTER / "Dockerfile").read_text(), re.MULTILINE):
        for source in line.split()[:-1]:
            assert (PROJECT / source).exists()
            assert source in allowed


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_scripts_parse_and_have_no_common_mistakes(script: Path) -> None:
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", script], check=True)
    shellcheck = shutil.which("shellcheck") or str(Path(sys.executable).parent / "shellcheck")
    done = subprocess.run([shellcheck, script], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_nothing_names_this_machine() -> None:
    for file in CLUSTER.rglob("*"):
        if file.is_file() and "__pycache__" not in file.parts:
            assert str(PROJECT) not in file.read_text()
