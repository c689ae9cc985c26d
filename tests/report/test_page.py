"""Pages of runs: what they show is what the run has, and a browser shows all of it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import pytest

from dmondrian import AMFClassifier, CheckpointError
from dmondrian.checkpoint import Lease, Run
from dmondrian.distributed.cluster.progress import clock
from dmondrian.report import write_comparison, write_report
from dmondrian.report.charts import Line, bar_chart, line_chart, matrix_chart, shortened
from dmondrian.report.facts import gather
from dmondrian.report.number_format import metric, number, percent, short
from dmondrian.report.sections import work
from tests.cli.command import call, events
from tests.report.browser import NAMES, Page, browser, open_browser
from tests.report.conftest import HOSTILE, page_of

OUTSIDE = """[...document.querySelectorAll("svg")].flatMap(svg => {
  const whole = svg.getBoundingClientRect();
  return [...svg.querySelectorAll("text")].filter(text => {
    const box = text.getBoundingClientRect();
    return box.left < whole.left || box.top < whole.top
      || box.right > whole.right + 1 || box.bottom > whole.bottom + 1;
  }).map(text => text.textContent);
})"""
UNFOLD = "document.querySelectorAll('details').forEach(part => part.open = true)"
UNREADABLE = """[...document.querySelectorAll("svg text")].filter(
  text => text.getBoundingClientRect().height < 8).length"""
# Charts side by side are of one size, those of a last row too.
WIDTHS = """[...new Set([...document.querySelectorAll("figure")].map(
  figure => Math.round(figure.getBoundingClientRect().width)))]"""
# Tables of many columns scroll in a frame of their own; others fit in theirs.
PUSHED_OUT = """[...document.querySelectorAll("table:not(.many)")].filter(table =>
  table.getBoundingClientRect().right > table.parentElement.getBoundingClientRect().right + 1
).length"""


@pytest.fixture(scope="module")
def chromium(tmp_path_factory) -> Iterator[Page]:
    if browser() is None:
        reported = (
            f"NO BROWSER LOOKED AT THE PAGE: install one of {', '.join(NAMES)}, or set CHROMIUM"
        )
        if os.environ.get("CI"):
            pytest.fail(f"{reported}; .ci/run should have")
        pytest.skip(reported)
    with open_browser(tmp_path_factory.mktemp("profile")) as page:
        yield page


WAYS = [
    (name, width, is_dark)
    for name in ("classified", "of_numbers", "density", "kernel")
    for width in (1280, 360)
    for is_dark in (False, True)
]
FEW = {
    ("classified", 1280, False), ("of_numbers", 360, True), ("density", 360, False),
    ("kernel", 1280, True),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "width", "is_dark"),
    [pytest.param(*way, marks=() if way in FEW else pytest.mark.thorough) for way in WAYS],
)
def test_a_browser_shows_all_of_it(request, chromium, tmp_path, name, width, is_dark) -> None:
    run = request.getfixturevalue(name).run_url
    file = write_report(run, tmp_path / "page.html", partial_dependence=9)
    chromium.complaints.clear()
    chromium.requests.clear()
    chromium.open(file, width, is_dark=is_dark)
    assert chromium.evaluate("document.documentElement.scrollWidth") == width
    chromium.evaluate(UNFOLD)
    assert chromium.evaluate("document.documentElement.scrollWidth") == width
    assert chromium.evaluate(OUTSIDE) == []
    assert chromium.evaluate(UNREADABLE) == 0
    assert chromium.evaluate(PUSHED_OUT) == 0
    assert chromium.evaluate("document.querySelectorAll('svg').length") >= 4
    assert len(chromium.evaluate(WIDTHS)) == 1
    shades = chromium.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g)")
    assert (int(shades[0]) < 60) == is_dark
    picture = tmp_path / "page.png"
    chromium.screenshot(picture)
    assert picture.stat().st_size > 20_000
    assert chromium.complaints == []
    assert chromium.requests == [file.resolve().as_uri()]


@pytest.mark.parametrize("width", [1280, 360])
def test_a_browser_shows_all_of_a_comparison(chromium, tmp_path, classified, width) -> None:
    runs = [classified.run_url, f"{classified.run_url}@2000", f"{classified.run_url}@1000"]
    for number_of in (2, 3):
        file, _ = write_comparison(runs[:number_of], tmp_path / "page.html")
        chromium.complaints.clear()
        chromium.requests.clear()
        chromium.open(file, width, is_dark=number_of == 3)
        assert chromium.evaluate("document.documentElement.scrollWidth") == width
        assert chromium.evaluate(OUTSIDE) == []
        assert chromium.evaluate(UNREADABLE) == 0
        assert chromium.evaluate(PUSHED_OUT) == 0
        drawn = "document.querySelectorAll('svg:has(.s1.line)').length"
        assert chromium.evaluate(drawn) == 5
        assert chromium.complaints == []
        assert chromium.requests == [file.resolve().as_uri()]


def test_the_browser_would_complain(chromium, tmp_path) -> None:
    """What the test above looks for is seen when it is there."""
    file = tmp_path / "bad.html"
    file.write_text(
        '<body style="width:2000px"><img src="http://127.0.0.1:9/x.png">'
        '<svg viewBox="0 0 360 10"><text x="350" y="9">cut off</text></svg>'
        '<div style="width:300px"><table style="width:400px"><td>wide</td></table></div>'
        "<script>console.log('hello')</script>"
    )
    chromium.complaints.clear()
    chromium.requests.clear()
    chromium.open(file, 1280)
    assert chromium.evaluate("document.documentElement.scrollWidth") > 1280
    assert chromium.evaluate(OUTSIDE) == ["cut off"]
    assert chromium.evaluate(PUSHED_OUT) == 1
    assert any("hello" in reported for reported in chromium.complaints)
    assert any("x.png" in url for url in chromium.requests)


def test_it_shows_what_the_run_records(classified, tmp_path) -> None:
    page = page_of(classified, tmp_path).read_text()
    run = Run.open(classified.run_url)
    manifest = run.latest()
    assert len(classified.plan.schema.left_out) == 1
    reported = [
        f"{classified.metrics['log_loss']:.4f}",
        f"{classified.metrics['accuracy']:.4f}",
        f"{classified.to_local().forest_.n_nodes:,}",
        f"probabilities to the power {classified.to_local().calibration_exponent_:.3f}",
        str(run.run_json["parameters"]["seed"]),
        str(run.run_json["plan"]),
        *(f">{why}<" for _, why in classified.plan.schema.left_out),
        "ECE",
        *(str(shard["digest"]) for shard in manifest.shards.values()),
    ]
    assert [text for text in reported if text not in page] == []
    rows, nodes, stored = gather(classified.run_url).growth[-1]
    assert (rows, nodes) == (3000, classified.to_local().forest_.n_nodes)
    assert stored == sum(shard["bytes"] for shard in manifest.shards.values())
    assert [point[0] for point in gather(classified.run_url).growth] == [1000, 2000, 3000]


def test_the_page_needs_nothing_else_and_believes_no_name(classified, tmp_path) -> None:
    page = page_of(classified, tmp_path).read_text()
    assert HOSTILE not in page
    assert "&lt;script&gt;" in page
    assert "<script" not in page
    assert re.findall(r'(?:src|href)="(?!data:,)', page) == []
    assert "url(" not in page
    assert "@import" not in page


def test_a_run_in_progress_and_one_that_has_not_begun(classified, tmp_path) -> None:
    about = {**Run.open(classified.run_url).run_json}
    del about["format"], about["created_by"]
    run = Run.create(tmp_path / "run", about, classified.plan.to_parquet())
    file = write_report(run.url, tmp_path / "page.html")
    assert "nobody works on it" in file.read_text()
    with Lease.take(run.store) as lease:
        lease.set_progress(
            {"rows": 1200, "n_rows": 3000}, [[0.0, 0, 1, 0, 0], [2.0, 1200, 2, 1, 0]]
        )
        lease._beat("running")
        page = write_report(run.url, file).read_text()
        assert "in progress: 1,200 of 3,000 rows" in page
        assert "Workers, and shards recovered after a loss" in page
        assert "It will be drawn from the first checkpoint on" in page
        assert "<h2>Importances</h2>" not in page


def test_a_saved_model_and_one_without_metrics(tmp_path) -> None:
    AMFClassifier(n_estimators=1, random_state=0).fit([[0.0], [1.0]], [0, 1]).save(tmp_path / "m")
    page = write_report(tmp_path / "m", tmp_path / "page.html").read_text()
    assert "Fitted on arrays" in page
    assert "Nothing is known of single forecasts" in page


def test_a_checkpoint_alone_is_seen(of_numbers) -> None:
    facts = gather(of_numbers.run_url)
    facts.growth = facts.growth[-1:]
    assert work(facts).count('mark alone"') == 2


def test_a_density_and_a_kernel_say_what_they_have_not(density, kernel, tmp_path) -> None:
    page = page_of(density, tmp_path).read_text()
    assert "A density forecasts no labels" in page
    assert "<h2>Learning curve</h2>" not in page
    assert "<h2>Importances</h2>" not in page
    assert (
        "<td>y</td><td>left out</td><td>0</td><td></td><td></td><td>excluded by the job</td>"
        in page
    )
    page = page_of(kernel, tmp_path).read_text()
    assert "<h2>Learning curve</h2>" in page
    assert "no split has its own worth" in page
    reported, _ = call("describe", kernel.run_url, "--importances")
    assert "importances: none; the cells of a Mondrian kernel are fitted together" in reported
    reported, _ = call("describe", density.run_url, "--importances")
    assert "importances: none; a density has no labels" in reported


def test_numbers_are_as_long_as_they_are_read() -> None:
    assert [metric(v) for v in (0.34179, 123.456, 59317.8, 2.5e12)] == [
        "0.3418", "123.46", "59,318", "2.5e+12"
    ]  # fmt: skip
    assert [number(v) for v in (0.0, 0.05, 12.5, 1234.0, 150_000.0, 1e15)] == [
        "0", "0.05", "12.5", "1.234k", "150k", "1e+15"
    ]  # fmt: skip


def test_no_two_labels_of_a_chart_read_the_same() -> None:
    long = [f"a column with quite a long name, number {j}" for j in range(3)]
    reported = shortened([*long, "short"], 19)
    assert reported == [*(f"a column … number {j}" for j in range(3)), "short"]
    assert shortened(["aaaabbbb", "aaaacbbb", "aaaadbbb"], 3) == ["a…1", "a…2", "a…3"]
    assert shortened(["one", "two", "two"], 5) == ["one", "two", "two"]  # they are the same
    bars = bar_chart([(name, 0.5) for name in long], percent)
    assert len(set(re.findall(r'text-anchor="end">([^<]+)<', bars))) == 3
    names = [f"very long label {j}" for j in range(3)]
    matrix = matrix_chart(names, [[1.0] * 3] * 3)
    assert len(set(re.findall(r'text-anchor="end">([^<]+)<', matrix))) == 3
    columns = re.findall(r'y="26" text-anchor="middle">([^<]+)<', matrix)
    assert len(set(columns)) == 3
    seconds = Line("rows", [(0.0, 1.0), (1.3, 2.0)])
    chart = line_chart([seconds], "time", clock, short)
    times = re.findall(r">(\d:\d\d)</text>", chart)
    assert times == ["0:00", "0:01"]
    million = Line("rows", [(1_000_000.0, 1.0), (1_000_400.0, 2.0)])
    assert re.findall(r">(1M)</text>", line_chart([million], "rows", short, short)) == ["1M"]


def test_bars_of_long_texts_are_short_and_differ() -> None:
    texts = [letter * 100_000 + end for letter in "ab" for end in "12"]
    bars = bar_chart([(text, 0.5) for text in texts], percent)
    assert len(bars) < 10_000
    assert len(set(re.findall(r"<title>([^<]+)<", bars))) == 4


def test_the_command(classified, tmp_path) -> None:
    file = tmp_path / "out.html"
    stdout, _ = call("report", classified.run_url, "-o", file, "--json")
    (reported,) = events(stdout)
    assert reported["bytes"] == file.stat().st_size
    _, stderr = call("report", classified.run_url, "-o", tmp_path / "none" / "x.html", code=2)
    assert "there is no folder" in stderr
    (tmp_path / "folder.html").mkdir()
    _, stderr = call("report", classified.run_url, "-o", tmp_path / "folder.html", code=2)
    assert "cannot be written (Is a directory)" in stderr
    for name, ending in (("report.pdf", "'.pdf'"), ("report", "no ending")):
        _, stderr = call("report", classified.run_url, "-o", tmp_path / name, code=2)
        assert f"expected a file that ends in .html, got {ending}" in stderr
        assert not (tmp_path / name).exists()
    call("report", classified.run_url, "-o", tmp_path / "page.HTM")
    other = tmp_path / "rows.html"
    other.write_text("a,b")
    _, stderr = call("report", classified.run_url, "-o", other, code=2)
    assert "is there and is not a report" in stderr
    call("report", classified.run_url, "-o", file)  # a report may be written again
    with pytest.raises(CheckpointError, match="There is no folder"):
        write_report(tmp_path / "nothing", file)


def test_a_line_without_points_is_left_out_of_a_chart() -> None:
    line = Line("right", [(0.0, 0.0), (1.0, 1.0)])
    alone = line_chart([line], "how sure", percent, percent)
    for empty in (Line("none", []), Line("not finite", [(0.5, float("nan"))])):
        assert line_chart([empty, line], "how sure", percent, percent) == alone
