"""Files for those who release and compare: valid, and what they name is there."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

import dmondrian

PROJECT = Path(__file__).parents[1]
WORKFLOWS = PROJECT / ".github/workflows"
WORKFLOW = WORKFLOWS / "release.yml"


def test_workflows_are_some() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema"]
    files = sorted(map(str, WORKFLOWS.glob("*.yml")))
    assert len(files) == 2
    done = subprocess.run(
        [*command, "vendor.github-workflows", *files],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_release_may_do_no_more_than_it_has_to() -> None:
    workflow = yaml.safe_load(WORKFLOW.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    jobs = workflow["jobs"]
    assert [name for name, job in jobs.items() if "permissions" in job] == ["publish"]
    assert jobs["publish"]["needs"] == "try"
    assert jobs["try"]["needs"] == "build"
    assert all("timeout-minutes" in job for job in jobs.values())
    assert "refs/tags/" in jobs["publish"]["if"]
    (line,) = [step["run"] for step in jobs["build"]["steps"] if "sed" in step.get("run", "")]
    pattern = re.search(r"s/\^(.*?)\\\(", line)
    assert pattern is not None
    assert re.search(f"^{pattern[1]}", (PROJECT / "dmondrian/__init__.py").read_text(), re.M)


def test_pythons_that_are_tried_are_those_that_the_package_names() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    classes = (re.search(r":: (3\.\d+)$", text) for text in project["classifiers"])
    named = [found[1] for found in classes if found]
    allowed = SpecifierSet(project["requires-python"])
    assert next(minor for minor in range(30) if f"3.{minor}" in allowed) == int(named[0][2:])
    assert named == [f"3.{int(named[0][2:]) + i}" for i in range(len(named))]  # none is left out
    systems = ["ubuntu-latest", "ubuntu-24.04-arm", "macos-latest", "windows-latest"]
    for file, job in (("release.yml", "try"), ("tests.yml", "tests")):
        workflow = yaml.safe_load((WORKFLOWS / file).read_text())
        assert workflow["permissions"] == {"contents": "read"}
        matrix = workflow["jobs"][job]["strategy"]["matrix"]
        assert matrix == {"os": systems, "python-version": named}
    numba = next(one for one in map(Requirement, project["dependencies"]) if one.name == "numba")
    (bound,) = (one.version for one in numba.specifier if one.operator == "<")
    page = (PROJECT / "jobs/manual/upgrading.md").read_text()
    assert f"Python {named[1]} to {named[-1]}, the newest for which Numba below {bound}" in page


def test_sdist_and_wheel_have_what_they_should(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")  # `.ci/footprint` also installs the wheel, from an index
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(tmp_path)]
    done = subprocess.run(
        command, cwd=PROJECT, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    name = f"dmondrian-{dmondrian.__version__}"
    wheel = {file.filename for file in zipfile.ZipFile(*tmp_path.glob("*.whl")).infolist()}
    packed = {file for file in wheel if not file.startswith(f"{name}.dist-info/")}
    files = (PROJECT / "dmondrian").rglob("*")
    there = {file.relative_to(PROJECT).as_posix() for file in files if file.is_file()}
    assert packed == {file for file in there if "__pycache__" not in file}
    with tarfile.open(*tmp_path.glob("*.tar.gz")) as sdist:
        inside = {file.removeprefix(f"{name}/") for file in sdist.getnames()}
    tops = {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", ".ci/run"}
    assert packed | tops | {"tests/conftest.py", "jobs/manual/index.md"} <= inside


def test_the_citation_is_of_the_last_release_and_its_licence() -> None:
    about = yaml.safe_load((PROJECT / ".github/CITATION.cff").read_text())
    assert about["cff-version"] == "1.2.0"
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    assert about["license"] == project["license"]
    changes = (PROJECT / "CHANGELOG.md").read_text()
    released = re.findall(r"^## \[(.+)\] - (.+)$", changes, re.MULTILINE)
    assert (about["version"], about["date-released"]) == released[0]
    is_changed = changes.split("## [Unreleased]")[1].split("## [")[0].strip() != ""
    now = Version(dmondrian.__version__)
    assert (now.is_devrelease, now > Version(released[0][0])) == (is_changed, is_changed)
    for each in (about, *about["references"]):
        assert {"type", "title", "authors"} <= set(each)


def rows() -> list[list[str]]:
    page = (PROJECT / "jobs/manual/features.md").read_text()
    lines = [line for line in page.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_each_feature_names_a_test_that_is_there() -> None:
    head, _, *features = rows()
    assert head == [
        "feature", "here", "XGBoost", "LightGBM", "scikit-learn", "river", "YDF", "test"
    ]  # fmt: skip
    page = (PROJECT / "jobs/manual/features.md").read_text()
    listed = re.findall(r"^(\d+)\. `(tests/[\w/]+\.py)::(\w+)`$", page, re.MULTILINE)
    for row in features:
        assert len(row) == len(head), row
        assert (row[-1] == "-") == row[1].startswith("no"), row
    shown = [row[-1] for row in features if row[-1] != "-"]
    assert shown == [number for number, *_ in listed] == [str(1 + i) for i in range(len(listed))]
    for _, file, test in listed:
        tree = ast.parse((PROJECT / file).read_text())
        assert test in {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}, test


def test_the_conda_recipe_is_the_package() -> None:
    recipe = yaml.safe_load((PROJECT / ".ci/conda/recipe.yaml").read_text())
    about = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    project, requirements = about["project"], recipe["requirements"]
    assert recipe["package"]["name"] == project["name"]
    assert recipe["context"]["version"] == dmondrian.__version__
    conda = {"dask": "dask-core"}  # which is without what conda adds to it
    wanted = [Requirement(text) for text in project["dependencies"]]
    found = [Requirement(text) for text in requirements["run"]]
    assert {(one.name, one.specifier) for one in found} == {
        ("python", SpecifierSet(project["requires-python"])),
        *((conda.get(one.name, one.name), one.specifier) for one in wanted),
    }
    assert set(about["build-system"]["requires"]) <= {
        text.replace(" ", "") for text in requirements["host"]
    }
    (name, function), *more = project["scripts"].items()
    assert (recipe["build"]["python"]["entry_points"], more) == ([f"{name} = {function}"], [])
    assert recipe["about"]["summary"] == project["description"]
    assert recipe["about"]["license"] == project["license"]
