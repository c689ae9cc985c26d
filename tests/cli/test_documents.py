"""Documents say what is true: job files and command lines in them are parsed, links have a form.

External links are not opened: tests use no network.
"""

from __future__ import annotations

import os
import re
import shlex
import textwrap
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import tomli_w

from dmondrian.cli.app import _parser
from dmondrian.cli.certificates import make_certificates
from dmondrian.cli.job import Job, build_estimator, check_lags, read_job
from tests.cli.command import PROJECT

PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "benchmarks/README.md",
    "cluster/README.md",
    "jobs/README.md",
    *sorted(str(page.relative_to(PROJECT)) for page in (PROJECT / "jobs/manual").glob("*.md")),
)
# What a fragment is merged into: the tables that every job has.
WHOLE = {
    "data": {"path": "rows.parquet", "target": "y"},
    "forest": {"algorithm": "amf-classifier"},
    "run": {"path": "run"},
}
ENDS = {"|", "||", "&&", ";", "&", ">", ">>", "2>", "<", ")", "}"}  # of a command's words


def blocks(language: str, page: str) -> list[str]:
    """Return the blocks of code of a language, also those in lists."""
    text = (PROJECT / page).read_text()
    found = re.findall(rf"^( *)```{language}\n(.*?)^\1```", text, re.DOTALL | re.MULTILINE)
    return [textwrap.dedent(block) for _, block in found]


def cases(language: str) -> list[tuple[str, str]]:
    return [(page, block) for page in PAGES for block in blocks(language, page)]


def parsed(text: str, folder: Path) -> Job:
    """Return the job of a file, or of a part of one in a job."""
    file = folder / "job.toml"
    tables = tomllib.loads(text)
    file.write_text(text if WHOLE.keys() <= tables.keys() else tomli_w.dumps(WHOLE | tables))
    job = read_job(file)
    check_lags(job, build_estimator(job))
    return job


def commands(script: str) -> list[list[str]]:
    """Return the words behind each `dmondrian` of a script of the shell."""
    lexer = shlex.shlex(script.replace("\\\n", " ").replace("\n", " ; "), posix=True,
                        punctuation_chars=True)  # fmt: skip
    lexer.whitespace_split, lexer.commenters = True, ""
    words, found, own, is_begun = [*lexer, ";"], [], None, True
    for word in words:
        if own is not None and (word in ENDS or set(word) <= set(";&|<>()")):
            found.append(own)
            own = None
        elif own is not None:
            own.append(word)
        elif word == "dmondrian" and is_begun:
            own = []
        is_begun = word in ENDS or set(word) <= set(";&|<>()") or "=" in word
    return found


def without_comments(script: str) -> str:
    return re.sub(r"(^|\s)#.*$", r"\1", script, flags=re.MULTILINE)


@pytest.mark.parametrize(("page", "text"), cases("toml"))
def test_job_files_are_good(
    page: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What they name has to be there: a program, and files of keys.
    (tmp_path / "notify").write_text("#!/bin/sh\n")
    (tmp_path / "notify").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    if "tls_ca" in text:
        (tmp_path / "keys").mkdir()
        make_certificates(tmp_path / "keys")
    parsed(text, tmp_path)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks("bash", page)])
def test_command_lines_are_good(page: str) -> None:
    for script in blocks("bash", page):
        for words in commands(without_comments(script)):
            try:
                _parser().parse_args(words)
            except SystemExit as error:
                assert not error.code, f"{page}: dmondrian {shlex.join(words)}"  # noqa: PT017  # --help ends so


@pytest.mark.parametrize("page", PAGES)
def test_commands_within_sentences_exist(page: str) -> None:
    (choices,) = (action.choices for action in _parser()._actions if action.choices)
    for text in re.findall(r"`dmondrian ([^`]+)`", (PROJECT / page).read_text()):
        name, *words = shlex.split(text)
        if name == "--help":
            continue
        assert name in choices, f"{page}: dmondrian {text}"
        options = choices[name]._option_string_actions
        lost = [word for word in words if word.startswith("-") and word not in options]
        assert lost == [], f"{page}: dmondrian {text}"


def test_what_is_wrong_is_seen(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="colums"):
        parsed('[lags]\ncolums = ["x"]', tmp_path)
    script = (
        "dmondrian train a.toml && dmondrian score m d o \\\n --workers 2 # more\nx | dmondrian"
    )
    found = commands(without_comments(script))
    assert found == [["train", "a.toml"], ["score", "m", "d", "o", "--workers", "2"], []]
    with pytest.raises(SystemExit):
        _parser().parse_args(["train", "job.toml", "--nonesuch"])
    assert sum(len(commands(without_comments(text))) for _, text in cases("bash")) > 25


def test_external_links_have_the_form_of_one() -> None:
    found = {
        (page, target)
        for page in PAGES
        for target in re.findall(r"\]\((\w+://[^)]+)\)|<(https?://[^>\s]+)>",
                                 (PROJECT / page).read_text())
        for target in target
        if target
    }  # fmt: skip
    assert found
    for page, target in sorted(found):
        parts = urlsplit(target)
        is_good = parts.scheme == "https" and re.fullmatch(r"[\w-]+(\.[\w-]+)+", parts.netloc)
        assert is_good, f"{page}: {target}"
        assert not re.search(r"\s", target), f"{page}: {target}"
