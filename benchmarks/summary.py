"""The summary: one row for each claim that the README may cite, from the stored results.

    python -m benchmarks.summary

Writes `SUMMARY.md`: claim, number, interval, script, commit, machine. A row names the script and
the number of its page (``PAGE.numbers``) and nothing else, so that no number is written by hand.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

from benchmarks.pages import Number, newest, page_of, stem, stored
from benchmarks.records import table

SUMMARY = Path(__file__).with_name("SUMMARY.md")
MOST = 30  # rows


class Claim(NamedTuple):
    """A row: the anchor that links name, what is claimed, and where its number is."""

    anchor: str
    claim: str
    script: str
    number: str


CLAIMS = (
    Claim(
        "quality-forest",
        "sets on which a hundred AMF trees have a lower held-out log"
        " loss than a random forest of as many trees",
        "quality",
        "forest",
    ),
    Claim(
        "quality-lightgbm",
        "sets on which they have a lower one than LightGBM with its defaults",
        "quality",
        "lightgbm",
    ),
    Claim(
        "quality-catboost",
        "sets on which they have a lower one than CatBoost with a hundred rounds",
        "quality",
        "catboost",
    ),
    Claim(
        "quality-price",
        "times the processor's seconds of that random forest that they learn",
        "quality",
        "price",
    ),
    Claim(
        "late-forest",
        "sets on which ten AMF members that follow the stream with a delay of its labels and mix"
        " boosted sets and scaled trees, frozen after one pass, have a lower held-out log loss than"
        " a random forest of a hundred trees",
        "quality",
        "late_forest",
    ),
    Claim(
        "late-lightgbm",
        "sets on which they have a lower one than LightGBM with its defaults",
        "quality",
        "late_lightgbm",
    ),
    Claim(
        "late-catboost",
        "sets on which they have a lower one than CatBoost with a hundred rounds",
        "quality",
        "late_catboost",
    ),
    Claim(
        "late-price",
        "times the processor's seconds of that random forest that they learn",
        "quality",
        "late_price",
    ),
    Claim(
        "quality-onelearn",
        "sets on which ten AMF trees have a lower one than onelearn with as many",
        "quality",
        "onelearn",
    ),
    Claim(
        "auto",
        "progressive loss of settings chosen from the stream, over the best setting of each set",
        "ablation",
        "auto",
    ),
    Claim(
        "scales-seconds",
        "seconds of one core until feature scales are chosen",
        "scales_tried",
        "seconds",
    ),
    Claim(
        "learn-onelearn",
        "times as fast as onelearn to learn, with its settings",
        "throughput",
        "learn_onelearn",
    ),
    Claim("learn-garden", "times as fast as scikit-garden to learn", "throughput", "learn_garden"),
    Claim(
        "predict-onelearn", "times as fast as onelearn to predict", "throughput", "predict_onelearn"
    ),
    Claim(
        "predict-forest",
        "times as fast as a random forest to predict batches, one thread",
        "answering",
        "one_thread",
    ),
    Claim("predict-row", "us to predict one row with ten trees", "answering", "ask_one"),
    Claim("learn-row", "us to learn one row with ten trees", "answering", "learn_one"),
    Claim(
        "node-bytes", "bytes of a node in memory, twenty numeric columns", "answering", "bytes_d20"
    ),
    Claim(
        "growth",
        "times the cost of a row after three million rows, over that after ten thousand",
        "growth",
        "classes",
    ),
    Claim(
        "forecasts",
        "times as long to learn with a forecast of each row as alone",
        "forecasts",
        "over_learning",
    ),
    Claim(
        "start-warm",
        "seconds from import to the first prediction beyond NumPy and scikit-learn",
        "startup",
        "warm",
    ),
    Claim("start-cold", "the same where no kernel is compiled yet", "startup", "cold"),
    Claim(
        "first-screen",
        "seconds for the README's first commands in a fresh clone",
        "first_screen",
        "all",
    ),
    Claim(
        "scoring",
        "rate of `dmondrian score --no-details` from Parquet to Parquet, over that in memory",
        "scoring",
        "plain",
    ),
    Claim(
        "chaos",
        "schedules of faults that end with the bytes of a run without faults",
        "chaos",
        "equal",
    ),
    Claim(
        "recovery",
        "seconds from the kill of a worker until the stream goes on",
        "recovery",
        "passed",
    ),
    Claim(
        "workers",
        "times as fast as one worker: two workers, a hundred trees, on two cores",
        "recovery",
        "workers",
    ),
    Claim(
        "intervals",
        "share of held-out labels within calibrated prediction intervals of nine tenths",
        "intervals",
        "calibrated",
    ),
    Claim(
        "drift-streams",
        "drifting streams on which ten AMF members that follow the stream have the lowest log loss"
        " of all others that were tried, labels known at once",
        "drift",
        "won",
    ),
    Claim(
        "drift-boosted",
        "the same of ten members that mix boosted sets beside",
        "drift",
        "won_boosted",
    ),
)


def numbers() -> dict[str, Number]:
    """Return the number of each claim, by its anchor.

    Raises
    ------
    LookupError
        If the stored results lack the records of a number.
    """
    found = {}
    for claim in CLAIMS:
        page = page_of(claim.script)
        found[claim.anchor] = page.numbers[claim.number](newest(page, stored(claim.script)))
    return found


def show() -> str:
    """Return the summary as Markdown."""
    rows = []
    for claim, number in zip(CLAIMS, numbers().values(), strict=True):
        runs = stored(claim.script).runs
        own = [runs[run] for run in sorted(number.runs, reverse=True)]
        commits, machines = (
            ", ".join(dict.fromkeys(run[key] for run in own)) for key in ("commit", "cpu")
        )
        rows.append(
            [
                f'<a id="{claim.anchor}"></a>{claim.claim}',
                *(number.value, number.interval or "-"),
                f"[{claim.script}](reports/{stem(claim.script)}.md)",
                *(commits, machines),
            ]
        )
    head = ["claim", "number", "interval", "script", "commit", "machine"]
    return (
        "# Summary of the benchmarks\n\nGenerated by `python -m benchmarks.summary` from"
        " `results/`. An interval is the least and the greatest of the rounds or of the sets,"
        " whichever the page of the script names, or one"
        " standard deviation to both sides.\n\n" + table(head, rows)
    )


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    SUMMARY.write_text(show())


if __name__ == "__main__":
    main()
