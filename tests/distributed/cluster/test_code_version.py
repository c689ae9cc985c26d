"""Which differences between two installations count as other code."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import dmondrian
from dmondrian.distributed.cluster import code_version


@pytest.mark.parametrize(
    ("file", "counts"),
    [
        ("forest/forest.py", True),
        ("mlflow.py", True),
        ("tree/loops.py", True),
        ("cli/app.py", False),
    ],
)
def test_a_changed_source_is_other_code(
    file: str, counts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(Path(dmondrian.__file__).parent, tmp_path / "dmondrian")
    monkeypatch.setattr(code_version, "_PACKAGE", tmp_path / "dmondrian")
    digest = code_version.code_digest.__wrapped__
    assert digest() == code_version.code_digest()
    with (tmp_path / "dmondrian" / file).open("a") as source:
        source.write("# another line\n")
    assert (digest() != code_version.code_digest()) is counts
