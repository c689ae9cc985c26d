"""`describe` and `report` read no tree: as little memory for a large forest as for a small one."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dmondrian.checkpoint import document
from dmondrian.report.facts import gather
from tests.cli.command import TIMEOUT, call, events

# A process tells its own peak: what it loaded, and how many bytes it took.
PEAK = """
import json, re, sys
from dmondrian.cli import main
code = main(sys.argv[1:])
peak = int(re.search(r"VmHWM:\\s+([0-9]+) kB", open("/proc/self/status").read())[1]) * 1024
heavy = sorted({"numba", "sklearn", "pandas", "dask", "distributed"} & set(sys.modules))
print(json.dumps([code, peak, heavy]), file=sys.stderr)
"""


def without_blobs(url: str, folder: Path) -> Path:
    copy = folder / "run"
    shutil.copytree(url, copy)
    shutil.rmtree(copy / "blobs")
    return copy


def reported(url: object) -> dict[str, Any]:
    (event,) = events(call("describe", url, "--importances", "--json")[0])
    del event["model"], event["size"]["on_disk_bytes"]
    return event


@pytest.mark.parametrize("name", ["classified", "of_numbers", "density", "kernel"])
def test_all_that_is_reported_is_known_without_the_trees(request, name, tmp_path) -> None:
    run = request.getfixturevalue(name)
    copy = without_blobs(run.run_url, tmp_path)
    assert reported(copy) == reported(run.run_url)
    wanted = run.to_local().forest_
    assert reported(copy)["size"]["nodes"] == wanted.n_nodes
    facts, whole = gather(str(copy)), gather(run.run_url)
    assert (facts.importances, facts.growth) == (whole.importances, whole.growth)
    assert facts.growth[-1][1] == wanted.n_nodes


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux tells the peak there")
@pytest.mark.parametrize(
    "words",
    [
        ("describe", "--importances"),
        ("describe", "--follow"),
        ("report", "--partial-dependence", "0"),
        ("compare",),
        ("schema",),
    ],
)
def test_nothing_heavy_is_loaded(classified, words: tuple[str, ...], tmp_path: Path) -> None:
    command, *options = words
    copy = without_blobs(classified.run_url, tmp_path)
    page = str(tmp_path / "page.html")
    out = {"report": ["-o", page], "compare": [classified.run_url, "--html", page]}.get(command, [])
    done = subprocess.run(
        [sys.executable, "-c", PEAK, command, str(copy), *options, *out],
        check=True, capture_output=True, text=True, timeout=TIMEOUT,
    )  # fmt: skip
    code, peak, heavy = json.loads(done.stderr.splitlines()[-1])
    assert (code, heavy) == (0, [])
    assert peak < 150e6  # some 110e6 where nothing of it is loaded, and pyarrow's allocator varies


def test_a_run_that_an_earlier_version_wrote(classified, tmp_path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(classified.run_url, copy)
    for file in (copy / "manifests").iterdir():
        content = document.unseal(file.read_bytes(), "")
        del content["forest"]
        file.write_bytes(document.seal(content))
    was, now = reported(classified.run_url), reported(copy)
    assert now["importances"] == was["importances"]  # found in the trees
    for entry in ("nodes", "trees", "stored_bytes"):
        assert now["size"][entry] == was["size"][entry]
    assert now["size"]["memory_bytes"] > was["size"]["memory_bytes"]
    assert "in memory     at most " in call("describe", copy)[0]
    facts = gather(str(copy))
    assert facts.growth == gather(classified.run_url).growth
    assert not facts.importances
    call("report", copy, "-o", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "an earlier version, which did not record them" in page
    shutil.rmtree(copy / "blobs")
    _, stderr = call("describe", copy, code=4)
    assert "is missing" in stderr
