"""All that is written here is plain English of the field: private words are refused."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

import dmondrian

ROOT = Path(dmondrian.__file__).parent
PROJECT = Path(__file__).parents[1]

# Words that once stood for predictions, results, reports, capacity.
WORDS = [
    "told",
    "says",
    "said",
    "hear",
    "hears",
    "heard",
    "speak",
    "speaks",
    "spoke",
    "room",
    "likewise",
]
# Names that were replaced by terms of the field.
TERMS = ["shelf", "relay", "inbox", "fleet", "teller"]
REFUSED = re.compile(rf"\b({'|'.join(WORDS + TERMS)})\b", re.IGNORECASE)

# Parts of lines that may have one, with the reason.
ALLOWED = {
    "core/room.py": "a file of an early commit, whose lines are counted",
    '"told"': "key of the progress in a heartbeat, which earlier versions write and read",
}
PACKAGES = sorted(
    path.stem
    for path in ROOT.iterdir()
    if path.suffix == ".py" or (path.is_dir() and (path / "__init__.py").is_file())
)
# Read beside the package: code by names, comments and texts, all else by lines.
BESIDE = ("benchmarks", "cluster", "jobs", "tests", "README.md", "CONTRIBUTING.md")
READ = {".py", ".md", ".toml", ".yaml"}
UNREAD = {Path(__file__)}  # which names the words


def parts(name: str) -> str:
    """A name as words: `_last_said` and `LastSaid` have the word "said"."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).replace("_", " ")


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of each name, comment and string of a file; each line of one without code."""
    if path.suffix != ".py":
        yield from enumerate(map(parts, path.read_text().splitlines()), 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type == tokenize.NAME:
            yield token.start[0], parts(token.string)
        elif token.type in (tokenize.COMMENT, tokenize.STRING):
            for number, line in enumerate(token.string.splitlines()):
                yield token.start[0] + number, parts(line)


def refused(path: Path) -> list[str]:
    """Lines of a file with a refused word."""
    whole = path.read_text()
    if not REFUSED.search(parts(whole)):
        return []  # most files: not a word anywhere
    lines = whole.splitlines()
    found = {number for number, text in texts(path) if REFUSED.search(text)}
    return [
        f"{path.name}:{number}: {lines[number - 1].strip()}"
        for number in sorted(found)
        if not any(part in lines[number - 1] for part in ALLOWED)
    ]


@pytest.mark.parametrize("package", PACKAGES)
def test_no_private_words(package: str) -> None:
    folder = ROOT / package
    files = sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]
    found = [line for path in files for line in refused(path)]
    assert not found, "say it in plain words of the field:\n" + "\n".join(found)


@pytest.mark.parametrize("name", BESIDE)
def test_no_private_words_beside_the_package(name: str) -> None:
    place = PROJECT / name
    files = sorted(place.rglob("*")) if place.is_dir() else [place]
    files = [path for path in files if path.suffix in READ and path not in UNREAD]
    assert files
    found = [line for path in files for line in refused(path)]
    assert not found, "say it in plain words of the field:\n" + "\n".join(found)


def test_words_are_found_in_names_comments_and_texts(tmp_path: Path) -> None:
    path = tmp_path / "example.py"
    code = ["_last_said = 1", "# heard of it", "print('The trees speak')", "roomy, saying = 1, 2"]
    path.write_text("\n".join(code))
    assert [number for number, text in texts(path) if REFUSED.search(text)] == [1, 2, 3]
    text = tmp_path / "example.md"
    text.write_text("# Pages\n\nIt says\n`_last_said`, a bedroom\n")
    assert [number for number, line in texts(text) if REFUSED.search(line)] == [3, 4]
