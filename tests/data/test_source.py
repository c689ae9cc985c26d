"""Listing: files, folders, globs, lists, links to local files, and Hive folders."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from dmondrian.data import extend_plan, list_source, make_plan, make_scoring_plan
from dmondrian.errors import DataError

from .conftest import Write


@pytest.fixture
def lake(write: Write) -> Path:
    for name in ("b.parquet", "a.parquet", "deep/c.parq", "deep/d.PARQUET"):
        write({"x": [1]}, f"lake/{name}")
    for name in ("_SUCCESS", "_temporary/e.parquet", ".hidden/f.parquet", ".g.parquet"):
        write({"x": [1]}, f"lake/{name}")
    folder = write({"x": [1]}, "lake/b.parquet").parent
    (folder / "README.md").write_text("about the lake")
    return folder


def names(source: object, folder: Path) -> list[str]:
    files, _ = list_source(source)  # type: ignore[arg-type]
    return [os.path.relpath(file.uri, folder) for file in files]


def test_folder_gives_parquet_files_sorted_by_path_without_hidden_ones(lake: Path) -> None:
    expected = ["a.parquet", "b.parquet", "deep/c.parq", "deep/d.PARQUET"]
    assert names(lake, lake) == expected
    assert names(f"{lake}/", lake) == expected
    assert names(f"file://{lake}", lake) == expected


def test_folder_notes_what_is_passed_over(lake: Path) -> None:
    _, notes = list_source(lake)
    assert len(notes) == 1
    assert "README.md" in notes[0]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.parquet", ["a.parquet", "b.parquet"]),
        ("[b-z].parquet", ["b.parquet"]),
        ("?.parquet", ["a.parquet", "b.parquet"]),
        ("**/*.par*", ["a.parquet", "b.parquet", "deep/c.parq"]),
        ("de*", ["deep/c.parq", "deep/d.PARQUET"]),
        ("*/c.parq", ["deep/c.parq"]),
    ],
)
def test_glob(lake: Path, pattern: str, expected: list[str]) -> None:
    assert names(f"{lake}/{pattern}", lake) == expected


def test_list_keeps_its_order_and_reads_a_repeated_file_once(lake: Path) -> None:
    source = [lake / "b.parquet", lake / "*.parquet", lake / "deep"]
    expected = ["b.parquet", "a.parquet", "deep/c.parq", "deep/d.PARQUET"]
    assert names(source, lake) == expected
    assert any("twice" in note for note in list_source(source)[1])


def test_relative_path_and_absolute_path_are_the_same_file(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(lake)
    assert list_source("./deep/../a.parquet")[0] == list_source(lake / "a.parquet")[0]


def test_file_whose_name_looks_like_a_glob_is_taken_as_it_is(write: Write) -> None:
    path = write({"x": [1]}, "lake/part[1]*.parquet")
    assert names(path, path.parent) == [path.name]


def test_files_without_ending_are_read_when_there_are_no_others(write: Write) -> None:
    folder = write({"x": [1]}, "hive/000000_0").parent
    assert names(folder, folder) == ["000000_0"]


def test_hive_folders_become_partition_values(write: Write) -> None:
    write({"x": [1]}, "hive/year=2024/city=New%20York/a.parquet")
    write({"x": [1]}, "hive/year=2025/city=__HIVE_DEFAULT_PARTITION__/a.parquet")
    folder = write({"x": [1]}, "hive/_year=2026/city=x/a.parquet").parents[2]
    files, _ = list_source(folder)
    assert [file.partition for file in files] == [
        (("_year", "2026"), ("city", "x")),
        (("year", "2024"), ("city", "New York")),
        (("year", "2025"), ("city", None)),
    ]


@pytest.mark.parametrize("missing", ["nope.parquet", "nope/*.parquet", "*.csv"])
def test_nothing_there_is_refused_with_the_place(lake: Path, missing: str) -> None:
    with pytest.raises(DataError, match=missing.replace("*", r"\*")):
        list_source(lake / missing)


def test_folder_without_parquet_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing")
    with pytest.raises(DataError, match="holds no Parquet file"):
        list_source(tmp_path)


def test_runs_and_scores_below_a_folder_are_no_rows(write: Write, tmp_path: Path) -> None:
    write({"a": [1]}, "rows/one.parquet")
    for name in ("run", "deep/scores"):
        write({"b": [1]}, f"rows/{name}/plan.parquet")
    (tmp_path / "rows/run/run.json").write_text("{}")
    (tmp_path / "rows/deep/scores/_score.json").write_text("{}")
    files, notes = list_source(tmp_path / "rows")
    assert [Path(file.uri).name for file in files] == ["one.parquet"]
    assert notes == [
        f"passed over in {tmp_path / 'rows'}: deep/scores/, run/ (runs or scores of dmondrian)"
    ]
    assert [Path(file.uri).name for file in list_source(tmp_path / "rows/run")[0]] == [
        "plan.parquet"
    ]


def test_a_file_url_names_all_of_its_path(write: Write, tmp_path: Path) -> None:
    for name in ("d/one.parquet", "d#1/two.parquet", "d #1 ü/three.parquet"):
        write({"a": [1]}, name)
    url = tmp_path.as_uri()
    reported = {"d": "one", "d#1": "two", "d%231": "two", "d%20%231%20%C3%BC": "three"}
    reported |= {"d/on?.parquet": "one", "?#1": "two"}
    for name, file in reported.items():
        found = list_source(f"{url}/{name}")[0]
        assert [Path(one.uri).stem for one in found] == [file], name
    local = url.replace("file://", "file://localhost")
    assert len(list_source(f"{local}/d")[0]) == 1
    with pytest.raises(DataError, match="names the host 'elsewhere'"):
        list_source(url.replace("file://", "file://elsewhere"))
    with pytest.raises(DataError, match="null character"):
        list_source("a\0b")
    with pytest.raises(DataError, match="write %23"):
        list_source("s3://bucket/d#1")


@pytest.fixture
def linked(write: Write, tmp_path: Path) -> Path:
    """A folder whose files are links, as git-annex and DVC leave them, of which some are lost."""
    folder = tmp_path / "linked"
    for name in ("k=1/a.parquet", "k=2/b.parquet"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).symlink_to(write({"x": [1]}, f"store/{name}"))
    return folder


ANNEX = "../.git/annex/objects/Wx/9f/SHA256E-s9--0a.parquet/SHA256E-s9--0a.parquet"


@pytest.mark.parametrize(
    ("link", "target", "sources"),
    [
        ("k=2/c.parquet", ANNEX, ["", "*", "k=2", "*/*.parquet", "**/*.par*", "k=*/c*"]),
        ("k=3", "/archive/k=3", ["", "*", "*/*.parquet", "k=3", "k=3/*.parquet", "k=3/a.parquet"]),
        ("2024.01", "/archive/2024.01", ["", "*", "*/*", "**/*.parquet"]),
        ("part-0", "../.dvc/cache/files/md5/0a/1b", ["", "*", "p*", "part-0"]),
        ("k=1/self", "..", ["", "k=1", "*", "**/*.parquet", "*/*/*.parquet"]),
        ("k=1/self", ".", ["", "k=1", "*", "**/*.parquet"]),
        ("k=1/self", "../k=2", []),
    ],
)
def test_links_that_lead_to_nothing_are_refused_by_name(
    linked: Path, link: str, target: str, sources: list[str]
) -> None:
    (linked / link).symlink_to(target)
    for source in sources:
        for place in (linked / source, [linked / "k=1/a.parquet", linked / source]):
            with pytest.raises(DataError, match=f"{link} is a link to {re.escape(target)}, "):
                list_source(place)
    assert names(linked / "k=2/b*", linked) == ["k=2/b.parquet"]
    if not sources:
        assert names(linked, linked) == ["k=1/a.parquet", "k=1/self/b.parquet", "k=2/b.parquet"]


def test_a_file_that_is_linked_to_beside_is_read_once(write: Write, tmp_path: Path) -> None:
    folder = write({"x": [1]}, "rows/2024/a.parquet").parents[1]
    write({"x": [2]}, "rows/2025/a.parquet")
    (folder / "latest").symlink_to("2025")
    (folder / "last.parquet").symlink_to("2025/a.parquet")
    for source in (folder, folder / "**/*.parquet", folder / "*"):
        assert names(source, folder) == ["2024/a.parquet", "2025/a.parquet"]
        (note,) = list_source(source)[1]
        assert re.search(r"rows/la.*t.* is a link to .*rows/2025/a.parquet, which is read", note)
    assert names(folder / "latest", folder) == ["latest/a.parquet"]
    (tmp_path / "other").symlink_to(folder)
    assert len(list_source(tmp_path / "other")[0]) == 2
    (tmp_path / "links").mkdir()
    for name in ("a.parquet", "b.parquet"):  # as git-annex has files of equal bytes
        (tmp_path / "links" / name).symlink_to(folder / "2024/a.parquet")
    assert names(tmp_path / "links", tmp_path) == ["links/a.parquet", "links/b.parquet"]


def test_circle_of_two_links_is_refused(linked: Path) -> None:
    (linked / "k=1/on").symlink_to("../k=2")
    (linked / "k=2/back").symlink_to("../k=1")
    with pytest.raises(DataError, match="a folder above it"):
        list_source(linked)


@pytest.mark.parametrize(
    ("target", "reported"),
    [(ANNEX, "`git annex get`"), ("../.dvc/cache/0a", "`dvc pull`"), ("/gone", "bring the target")],
)
def test_what_fetches_the_target_is_reported(linked: Path, target: str, reported: str) -> None:
    (linked / "c.parquet").symlink_to(target)
    for source in (linked, linked / "c.parquet"):
        with pytest.raises(DataError, match=reported):
            list_source(source)


def test_links_to_what_is_not_read_may_lead_to_nothing(linked: Path) -> None:
    for name in ("README.md", "k=1/images.tar.gz", ".hidden", "_tmp/c.parquet", ".git/a.parquet"):
        (linked / name).parent.mkdir(exist_ok=True)
        (linked / name).symlink_to("/gone")
    found = ["k=1/a.parquet", "k=2/b.parquet"]
    assert names(linked, linked) == found
    assert names(linked / "*/*.parquet", linked) == found
    assert list_source(linked)[1] == [
        f"passed over in {linked}: README.md, k=1/images.tar.gz (not Parquet)"
    ]


def test_every_way_to_read_data_refuses_a_lost_link(linked: Path) -> None:
    plan = make_plan(linked)
    (linked / "k=2/c.parquet").symlink_to(ANNEX)
    for read in (
        lambda: make_plan(linked),
        lambda: make_scoring_plan(linked, plan.schema),
        lambda: extend_plan(plan, linked),
    ):
        with pytest.raises(DataError, match=r"c\.parquet is a link to"):
            read()


def test_empty_list_is_refused() -> None:
    with pytest.raises(DataError, match="empty list"):
        list_source([])


def test_unknown_kind_of_url_is_refused() -> None:
    with pytest.raises(DataError, match="ftp://host"):
        list_source("ftp://host/a.parquet")


def test_url_with_a_password_is_refused_without_repeating_it() -> None:
    with pytest.raises(DataError, match="environment") as caught:
        list_source("s3://key:hunter2@bucket/a.parquet")
    assert "hunter2" not in str(caught.value)
