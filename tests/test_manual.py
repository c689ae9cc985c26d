"""The manual builds without a warning, its links lead somewhere, and its examples run."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path
from urllib.request import Request, urlopen

import numpy as np
import onnxruntime
import pyarrow.parquet as pq
import pytest

from dmondrian.cli import main
from tests.serving.client import serving
from tests.store.servers import moto_server
from tests.test_documented import public

PROJECT = Path(__file__).parents[1]
MANUAL = PROJECT / "jobs/manual"
PAGES = sorted(MANUAL.glob("*.md"))
FOLDERS = ("*.md", "jobs/*.md", "jobs/manual/*.md", "cluster/*.md", "benchmarks/**/*.md")
DOCUMENTS = sorted(page for folder in FOLDERS for page in PROJECT.glob(folder))


def anchors(text: str) -> set[str]:
    """Return where links into a page may lead: its headings as GitHub names them, and names."""
    headings = re.findall(r"^#+ (.*)$", without_code(text), re.MULTILINE)
    shown = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    slugs = {re.sub(r"[^\w\- ]", "", each).strip().lower().replace(" ", "-") for each in shown}
    return slugs | set(re.findall(r'<a id="([\w-]+)"', text))


def without_code(text: str) -> str:
    """Return a page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def blocks(language: str, text: str) -> list[str]:
    """Return the blocks of code in a page that are of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("builder", ["dummy", "html"])
def test_it_builds_without_a_warning(builder: str, tmp_path: Path) -> None:
    """Whether all is read and all links lead somewhere does not depend on what is written."""
    pytest.importorskip("sphinx")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", str(MANUAL)]
    done = subprocess.run(
        [
            *(*command, "-b", builder, "-d", str(tmp_path / "doctrees")),
            *(str(PROJECT), str(tmp_path / "site")),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    expected = {"partition.svg", "depth.svg", "ages.svg", "certainty.svg"}
    assert expected <= {file.name for file in (tmp_path / "plot_directive").rglob("*.svg")}
    if builder == "dummy":
        return
    pages = {page.relative_to(tmp_path / "site").as_posix() for page in tmp_path.rglob("*.html")}
    assert {"README.html", "cluster/README.html", "jobs/manual/index.html"} <= pages
    pictures = {file.name for file in (tmp_path / "site/_images").glob("*.svg")}
    assert expected <= pictures
    # A row of the summary is where the README's links to it lead.
    assert 'id="first-screen"' in (tmp_path / "site/benchmarks/SUMMARY.html").read_text()


def test_links_lead_to_files_and_headings() -> None:
    lost, n_links = [], 0
    for page in DOCUMENTS:
        for link in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text())):
            name, _, place = link.partition("#")
            if re.match(r"\w+:", link):
                continue  # elsewhere
            n_links += 1
            file = page.parent / name if name else page
            if not file.exists():
                lost.append(f"{page.relative_to(PROJECT)}: {link}")
            elif place and file.suffix == ".md" and place not in anchors(file.read_text()):
                lost.append(f"{page.relative_to(PROJECT)}: no heading for {link}")
    assert not lost
    assert n_links > 100


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = "".join(blocks("python", page.read_text()))
    monkeypatch.chdir(tmp_path)
    exec(compile(program, page.name, "exec"), {"__name__": "__main__"})


def test_the_answer_that_is_shown_is_the_server_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (MANUAL / "serving.md").read_text()
    monkeypatch.chdir(tmp_path)
    (program, *_), (shown,) = blocks("python", page), blocks("json", page)
    exec(compile(program, "serving.md", "exec"), {"__name__": "__main__"})
    (asked, *_) = re.findall(r"curl --json '(.*)' localhost:8000/predict", page)
    with serving(tmp_path / "model") as server:
        answer = server.ask("/predict", json.loads(asked)).json
    expected = json.loads(shown)
    assert answer["position"] == expected["position"]
    (row,), (found,) = expected["rows"], answer["rows"]
    # numbers are shown with four digits behind the point
    assert {k: round(v, 4) if isinstance(v, float) else v for k, v in found.items()} == row


# The command of the page. What keeps running, and what has workers that need the environment of the
# shell, is a process of its own, or all of them are; for others the process of the tests is asked,
# which has everything loaded.
COMMAND = """#!/bin/bash
case "$ALL_APART$*" in
  1* | 0cluster* | 0serve* | 0train*s3:*) exec {python} -m dmondrian.cli "$@" ;;
esac
{{ env -0 && printf '\\0' && printf '%s\\0' "$@"; }} >'{folder}/asked'
read -r code <'{folder}/answered' && exit "$code"
"""


def answer_commands(folder: Path, environ: pytest.MonkeyPatch) -> None:
    """Do what a script asks for, until it has ended."""
    while asked := (folder / "asked").read_text():
        variables, _, words = asked.partition("\0\0")
        for each in variables.split("\0"):
            name, _, value = each.partition("=")
            if name.startswith("AWS_"):
                environ.setenv(name, value)
        try:
            code = main(words.split("\0")[:-1])
        except SystemExit as refused:  # words that are none of the command's
            code = 2 if refused.code else 0
        (folder / "answered").write_text(f"{code}\n")


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("all_apart", [False, True])
def test_the_ten_tasks_run_as_they_stand(
    all_apart: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (MANUAL / "tasks.md").read_text()
    for file in blocks("toml", page):
        (tmp_path / file.splitlines()[0].removeprefix("# ")).write_text(file)
    (made,) = blocks("python", page)
    monkeypatch.chdir(tmp_path)
    exec(compile(made, "tasks.md", "exec"), {"__name__": "__main__"})
    command = tmp_path / "bin/dmondrian"
    command.parent.mkdir()
    command.write_text(COMMAND.format(python=sys.executable, folder=command.parent))
    command.chmod(0o755)
    for name in ("asked", "answered"):
        os.mkfifo(command.parent / name)
    for name in [*os.environ]:
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("ALL_APART", str(int(all_apart)))
    monkeypatch.setenv("PATH", f"{command.parent}{os.pathsep}{os.environ['PATH']}")
    paths = [str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    done: list[subprocess.CompletedProcess[str]] = []
    with socket.socket() as free, moto_server() as endpoint:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
        free.close()
        urlopen(Request(f"{endpoint}/forests", method="PUT")).close()  # the bucket
        script = "\n".join(
            ["trap 'kill $(jobs -p) 2>/dev/null || true' EXIT", *blocks("bash", page)]
        )
        script = script.replace("https://store.example", endpoint).replace("8000", port)

        def run() -> None:
            words = ["bash", "-e", "-c", script]
            try:
                done.append(subprocess.run(words, capture_output=True, text=True, timeout=500))
            finally:
                (command.parent / "asked").write_text("")

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        with monkeypatch.context() as environ:
            answer_commands(command.parent, environ)
        thread.join()
    assert done[0].returncode == 0, done[0].stdout + done[0].stderr
    assert len(re.findall(r"^\*\*\d+\. ", page, re.MULTILINE)) == 10
    scores = pq.read_table("scores")["prediction"].to_numpy()
    truth = pq.read_table("later.parquet")["sold"].to_numpy()
    assert np.sqrt(((scores - truth) ** 2).mean()) < 0.5 * truth.std()
    assert {"q_0.05", "q_0.5", "q_0.95"} <= set(pq.read_table("quantiles").column_names)
    (answer,) = json.loads((tmp_path / "answer.json").read_text())["rows"]
    assert 10.0 < answer["prediction"] < 20.0
    assert pq.read_table("lag_scores").num_rows == len(truth)
    columns = ("day", "shop", "price")
    session = onnxruntime.InferenceSession("sales.onnx")
    assert {value.name for value in session.get_inputs()} == set(columns)


def test_each_page_is_in_the_index() -> None:
    index = (MANUAL / "index.md").read_text()
    for page in PAGES:
        assert page.stem == "index" or re.search(rf"^{page.stem}$", index, re.MULTILINE)


def test_the_reference_has_all_that_is_public() -> None:
    reference = "".join(page.read_text() for page in MANUAL.glob("reference_*.md"))
    for name, thing in public():
        if "." in name or (isinstance(thing, type) and issubclass(thing, Exception)):
            continue  # methods and errors come with their class and module
        assert re.search(rf":: dmondrian\.(\w+\.)*{name}$", reference, re.MULTILINE), name
    assert ":: dmondrian.errors" in reference
