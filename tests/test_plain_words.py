"""The package is written in plain English of the field: private words are refused."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

import dmondrian

ROOT = Path(dmondrian.__file__).parent

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
    '"told"': "key of the progress in a heartbeat, which earlier versions write and read",
}
PACKAGES = sorted(
    path.stem
    for path in ROOT.iterdir()
    if path.suffix == ".py" or (path.is_dir() and (path / "__init__.py").is_file())
)


def parts(name: str) -> str:
    """A name as words: `_last_said` and `LastSaid` have the word "said"."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).replace("_", " ")


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of each name, comment and string of a file."""
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type == tokenize.NAME:
            yield token.start[0], parts(token.string)
        elif token.type in (tokenize.COMMENT, tokenize.STRING):
            for number, line in enumerate(token.string.splitlines()):
                yield token.start[0] + number, parts(line)


def refused(path: Path) -> list[str]:
    """Lines of a file with a refused word."""
    lines = path.read_text().splitlines()
    found = {number for number, text in texts(path) if REFUSED.search(text)}
    return [
        f"{path.relative_to(ROOT.parent)}:{number}: {lines[number - 1].strip()}"
        for number in sorted(found)
        if not any(part in lines[number - 1] for part in ALLOWED)
    ]


@pytest.mark.parametrize("package", PACKAGES)
def test_no_private_words(package: str) -> None:
    folder = ROOT / package
    files = sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]
    found = [line for path in files for line in refused(path)]
    assert not found, "say it in plain words of the field:\n" + "\n".join(found)


def test_words_are_found_in_names_comments_and_texts(tmp_path: Path) -> None:
    path = tmp_path / "example.py"
    code = ["_last_said = 1", "# heard of it", "print('The trees speak')", "roomy, saying = 1, 2"]
    path.write_text("\n".join(code))
    assert [number for number, text in texts(path) if REFUSED.search(text)] == [1, 2, 3]
