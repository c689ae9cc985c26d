"""How good are the forests? Held-out metrics over all sets, beside batch and online peers.

dmondrian's AMF with its defaults, which calibrate probabilities and learn feature scales from the
first rows; uncalibrated; and without scales, uncalibrated ("plain") and calibrated; onelearn and,
if asked for, river (online); scikit-learn's random forest, extra trees and histogram boosting,
LightGBM, XGBoost and CatBoost (batch, with their defaults but a hundred rounds). Every model learns
the same training rows once, in the same order, on one thread, with one seed; strings are one-hot
encoded for all. `benchmarks.datasets` has the splits, `benchmarks.quality_small` small cuts.

    python -m benchmarks.quality --data <folder> --peers <cache folder>

A run that was stopped takes up where it stood; ``--fresh`` measures again. Sets of 100,000 rows
come last. Peers whose environment is missing are left out; river, which needs a minute to an hour
per set, runs only when named with ``--models`` and on sets of fewer than 6,000 training rows. The
report ends with what is missing from its tables.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import datasets
from benchmarks.pages import Figure, Number, Page, middle, publish, runs_of, single
from benchmarks.peers.runner import interpreter, save_input, score
from benchmarks.peers.worker import BATCH, PARTS
from benchmarks.records import RESULTS, Records, table

UNCALIBRATED = {"calibrate": False}  # classifiers only: of numbers nothing is calibrated by default
PLAIN = {"feature_scales": None}
CALIBRATED = {"calibrate": True}
FOLLOWING = {"drift": "follow"}
BOOSTED = {**FOLLOWING, "experts": ["mondrian", "boosted"]}
SCALED = {**FOLLOWING, "experts": ["mondrian", "boosted", "scaled"]}
# For rows that are scored later; `benchmarks.drift.later` has other delays.
LATE = {**SCALED, "delay": 64}
# label, peer, trees, dmondrian's parameters
MODELS: tuple[tuple[str, str, int, dict[str, Any]], ...] = (
    ("dmondrian 10", "dmondrian", 10, {}),
    ("dmondrian 100", "dmondrian", 100, {}),
    ("uncalibrated 10", "dmondrian", 10, UNCALIBRATED),
    ("uncalibrated 100", "dmondrian", 100, UNCALIBRATED),
    ("plain 10", "dmondrian", 10, {**PLAIN, **UNCALIBRATED}),
    ("plain 100", "dmondrian", 100, {**PLAIN, **UNCALIBRATED}),
    ("plain, calibrated 10", "dmondrian", 10, {**PLAIN, **CALIBRATED}),
    ("plain, calibrated 100", "dmondrian", 100, {**PLAIN, **CALIBRATED}),
    ("following 10", "dmondrian", 10, FOLLOWING),
    ("following, boosted 10", "dmondrian", 10, BOOSTED),
    ("following, scaled 10", "dmondrian", 10, SCALED),
    ("following, scaled, late 10", "dmondrian", 10, LATE),
    ("onelearn 10", "onelearn", 10, {}),
    ("river AMF 10", "river_amf", 10, {}),
    ("river ARF 10", "river_arf", 10, {}),
    ("random forest 10", "random_forest", 10, {}),
    ("random forest 100", "random_forest", 100, {}),
    ("extra trees 100", "extra_trees", 100, {}),
    ("LightGBM 100", "lightgbm", 100, {}),
    ("hist boosting 100", "hist_boosting", 100, {}),
    ("XGBoost 100", "xgboost", 100, {}),
    ("CatBoost 100", "catboost", 100, {}),
)
LABELS = [label for label, *_ in MODELS]
UNCALIBRATED_LABELS = ("uncalibrated 10", "uncalibrated 100")  # what others are of numbers
# river's forests need a minute to an hour per set: by name only, on sets below this many rows.
DEFAULT = [label for label in LABELS if not label.startswith("river")]
RIVER_ROWS = 6000
# Nothing of theirs is compiled, and boosting of many classes takes long on few rows too.
BATCH_WARM_ROWS = 100
# 70,000 training rows each.
LAST = ("covtype", "synthetic_d20", "friedman1", "ijcnn1")
LATER = "following, scaled, late 10"
OURS = ("dmondrian 100", "following, boosted 10", "following, scaled 10")
# The peers that ours are counted against.
OF_A_HUNDRED = tuple(label for label, peer, trees, _ in MODELS if peer in BATCH and trees == 100)
# Where settings of ours were chosen, on these very rows or on others of the same source.
CHOSEN_ON = {
    "dmondrian 100": tuple(datasets.EARLIER),
    "following, boosted 10": (
        "adult",
        "satimage",
        "california_housing",
        "nyc_green_taxi",
        "friedman1",
    ),
    "following, scaled 10": (
        "adult",
        "satimage",
        "california_housing",
        "nyc_green_taxi",
        "friedman1",
        "bank",
        "covtype",
        "cpu_act",
        "synthetic_d100_k5",
        "synthetic_k26",
    ),
}
SMALLER_IS_BETTER = ("log_loss", "progressive_log_loss", "brier")
BOOSTING = {
    "lightgbm": "LightGBM 100",
    "hist": "hist boosting 100",
    "xgboost": "XGBoost 100",
    "catboost": "CatBoost 100",
}
METRICS = {
    "log_loss": "Log loss (nats)",
    "brier": "Brier score, summed over classes; of two classes half of that",
    "progressive_log_loss": "Progressive log loss: rows in 20 parts, each predicted, then learned",
    "accuracy": "Accuracy",
    "auc": "Area under the ROC curve (two classes)",
    "r2": "R2",
    "progressive_r2": "Progressive R2",
    # Of the wall clock, once: benchmarks.throughput is the measurement of speed.
    "fit_seconds": "Seconds to learn, one thread of a busy machine",
    "predict_seconds": "Seconds to predict the held-out rows, one thread of a busy machine",
}


def report(records: Records, max_rows: int | None) -> str:
    """One Markdown table per metric, sets in rows and models in columns; then what is missing."""
    cells = {(r["set"], r["model"]): r for r in records if r["max_rows"] == max_rows}
    models = [label for label in LABELS if any(model == label for _, model in cells)]
    names = [name for name in datasets.NAMES if any(s == name for s, _ in cells)]
    parts = []
    for metric, title in METRICS.items():
        rows = []
        for name in names:
            own = [cells.get((name, model), {}) for model in models]
            if any(metric in cell for cell in own):
                first = next(cell for cell in own if cell)
                about = [name, first["n_train"], first["n_features"], first["n_classes"] or "-"]
                rows.append([*about, *(cell.get(metric) for cell in own)])
        if rows:
            parts.append(f"## {title}\n\n{table(['set', 'n', 'd', 'K', *models], rows)}")
    return "\n".join([*parts, left_out(set(cells))])


def left_out(measured: set[tuple[str, str]]) -> str:
    """Name the sets that each model was not run on."""
    lines = []
    for label in LABELS:
        names = [name for name in datasets.NAMES if (name, label) not in measured]
        if names:
            lines.append(f"- {label}: {', '.join(names)}")
    return "## Not measured\n\n" + ("\n".join(lines) or "Nothing.") + "\n"


def body(records: Records) -> str:
    """Return on how many sets ours are ahead, and the report of each number of rows."""
    parts = [report(records, n) for n in dict.fromkeys(r["max_rows"] for r in records)]
    return "\n".join([standing(records), *parts])


def standing(records: Records) -> str:
    """Return a table of the sets on which ours are ahead of each peer of a hundred trees."""
    rows = []
    for model in OURS:
        for metric in ("log_loss", "brier", "accuracy", "r2"):
            for sets, without in (("all", ()), ("others", CHOSEN_ON[model])):
                own = values(records, model, metric, without)
                found = [(own, values(records, peer, metric, without)) for peer in OF_A_HUNDRED]
                if any(set(own) & set(its) for _, its in found):
                    counts = [counted(*wins(*pair, metric)) for pair in found]
                    rows.append([model, metric, sets, *counts])
    if not rows:
        return ""
    note = (
        "`others`: without the sets that settings of ours were chosen on, which are, for"
        f" {OURS[0]}, all but {', '.join(datasets.LATER)}; for {OURS[1]},"
        f" {', '.join(CHOSEN_ON[OURS[1]])}, or other rows or targets of these; for {OURS[2]},"
        f" {', '.join(CHOSEN_ON[OURS[2]][5:])} as well, of which cuts were looked at. `late`: with"
        f" `delay={LATE['delay']}`. Strings are one-hot encoded for all."
    )
    head = ["model", "metric", "sets", *OF_A_HUNDRED]
    return f"## Sets on which ours are ahead\n\n{note}\n\n{table(head, rows)}"


def values(
    records: Records, model: str, metric: str, without: Sequence[str] = ()
) -> dict[str, float]:
    """Return a metric of a model by set, of whole sets."""
    return {
        r["set"]: r[metric]
        for r in records
        if r["model"] == model and r["max_rows"] is None and metric in r and r["set"] not in without
    }


def wins(own: Mapping[str, float], its: Mapping[str, float], metric: str) -> tuple[int, int]:
    """Return on how many sets the first is better, and how many both have."""
    both = [name for name in own if name in its]
    sign = 1.0 if metric in SMALLER_IS_BETTER else -1.0
    return sum(sign * own[name] < sign * its[name] for name in both), len(both)


def counted(won: int, both: int) -> str | None:
    """Return it in words."""
    return f"{won} of {both}" if both else None


def loss(name: str, model: str, metric: str = "log_loss") -> Figure:
    """Return what finds a metric of a model on one set."""

    def find(records: Records) -> Number:
        record = records.only(set=name, model=model, max_rows=None)
        return single(record[metric], ".3f", record)

    return find


def ahead(model: str, other: str, metric: str = "log_loss", without: Sequence[str] = ()) -> Figure:
    """Return on how many sets a model is ahead of another."""

    def find(records: Records) -> Number:
        own, its = (values(records, label, metric, without) for label in (model, other))
        found = counted(*wins(own, its, metric))
        if found is None:
            raise LookupError(f"no set with both {model} and {other}")
        both = [
            record
            for label in (model, other)
            for record in records.where(model=label, max_rows=None)
            if record["set"] in own.keys() & its.keys()
        ]
        return Number(found, "", runs_of(both))

    return find


def price(model: str, other: str = "random forest 100") -> Figure:
    """Return how many times as long a model learns as another, by the processor's seconds."""

    def find(records: Records) -> Number:
        own, its = (values(records, label, "fit_cpu_seconds") for label in (model, other))
        labels, both = (model, other), own.keys() & its.keys()
        of = [r for r in records if r["model"] in labels and r["set"] in both]
        return middle((own[name] / its[name] for name in both), ".1f", of)

    return find


PAGE = Page(
    title="Quality",
    question="How good are AMF's forecasts over all sets, beside online and batch peers?",
    identity=("set", "model", "max_rows"),
    body=body,
    numbers={
        "forest": ahead("dmondrian 100", "random forest 100"),
        "onelearn": ahead("dmondrian 10", "onelearn 10"),
        "boosted_forest": ahead("following, boosted 10", "random forest 100"),
        "boosted_forest_r2": ahead("following, boosted 10", "random forest 100", "r2"),
        "boosted_lightgbm_r2": ahead("following, boosted 10", "LightGBM 100", "r2"),
        **{
            f"{ours}{peer}{about}": ahead(model, label, without=without)
            for ours, model in zip(("", "boosted_", "scaled_"), OURS, strict=True)
            for peer, label in BOOSTING.items()
            for about, without in (("", ()), ("_others", CHOSEN_ON[model]))
        },
        "forest_others": ahead(OURS[0], "random forest 100", without=CHOSEN_ON[OURS[0]]),
        "boosted_forest_others": ahead(OURS[1], "random forest 100", without=CHOSEN_ON[OURS[1]]),
        "scaled_forest": ahead(OURS[2], "random forest 100"),
        "scaled_forest_others": ahead(OURS[2], "random forest 100", without=CHOSEN_ON[OURS[2]]),
        "scaled_boosted": ahead(OURS[2], OURS[1]),
        "scaled_boosted_r2": ahead(OURS[2], OURS[1], "r2"),
        "scaled_forest_r2": ahead(OURS[2], "random forest 100", "r2"),
        "scaled_lightgbm_r2": ahead(OURS[2], "LightGBM 100", "r2"),
        "late_forest": ahead(LATER, "random forest 100"),
        **{f"late_{peer}": ahead(LATER, label) for peer, label in BOOSTING.items()},
        "late_forest_r2": ahead(LATER, "random forest 100", "r2"),
        "late_lightgbm_r2": ahead(LATER, "LightGBM 100", "r2"),
        "price": price("dmondrian 100"),
        "late_price": price(LATER),
        "lightgbm_price": price("LightGBM 100"),
        "late_scaled": ahead(LATER, OURS[2]),
        "late_scaled_r2": ahead(LATER, OURS[2], "r2"),
        "late_trump": loss("trump_approval", LATER, "r2"),
        "scaled_trump": loss("trump_approval", OURS[2], "r2"),
        "late_drift": loss("electricity", LATER),
        "scaled_drift": loss("electricity", OURS[2]),
        "boosted_r2": ahead("following, boosted 10", "following 10", "r2"),
        "forest_r2": ahead("dmondrian 100", "random forest 100", "r2"),
        "lightgbm_r2": ahead("dmondrian 100", "LightGBM 100", "r2"),
        "noise_plain": loss("synthetic_d100_k5", "plain 100"),
        "noise": loss("synthetic_d100_k5", "uncalibrated 100"),
        "calibrated": ahead("dmondrian 100", "uncalibrated 100"),
        "calibrated_before": ahead("dmondrian 100", "uncalibrated 100", "progressive_log_loss"),
        "drift": loss("electricity", "dmondrian 100"),
        "drift_uncalibrated": loss("electricity", "uncalibrated 100"),
        "drift_before": loss("electricity", "dmondrian 100", "progressive_log_loss"),
        "drift_uncalibrated_before": loss(
            "electricity", "uncalibrated 100", "progressive_log_loss"
        ),
        "noise_calibrated": loss("synthetic_d100_k5", "dmondrian 100"),
    },
    sentences=(
        "A hundred trees have a lower held-out log loss than a random forest of as many"
        " trees on {forest} sets, than LightGBM with its defaults on {lightgbm}, than"
        " scikit-learn's histogram boosting on {hist}, than XGBoost on {xgboost} and than CatBoost"
        " on {catboost}; on car, churn and `ijcnn1` alone, which came when all of our defaults had"
        " been chosen, on {forest_others}, {lightgbm_others}, {hist_others}, {xgboost_others} and"
        " {catboost_others}. Ten have a"
        " lower one than onelearn on {onelearn}; in regression R2 is above that of random forests"
        " on {forest_r2} sets and of LightGBM on {lightgbm_r2}. Ten members that follow the stream"
        " and mix boosted sets, frozen after one pass, have a lower loss than that random forest on"
        " {boosted_forest} sets, than LightGBM on {boosted_lightgbm}, than histogram boosting on"
        " {boosted_hist}, than XGBoost on {boosted_xgboost} and than CatBoost on"
        " {boosted_catboost}. Their parameters were chosen on adult and satimage, and on sets that"
        " are not here; without these two it is {boosted_forest_others},"
        " {boosted_lightgbm_others}, {boosted_hist_others}, {boosted_xgboost_others} and"
        " {boosted_catboost_others}; but prototypes of them were compared on more sets, car, churn"
        " and `ijcnn1` among them. In regression their R2, frozen, is"
        " above that of the same members without sets on {boosted_r2} sets, of the random forest on"
        " {boosted_forest_r2} and of LightGBM on {boosted_lightgbm_r2}; what they do there was"
        " chosen on the first rows of california_housing and of the streams electricity price, taxi"
        " total and Friedman, abrupt of `benchmarks.drift.numbers`. Where they mix scaled trees as"
        " well, their loss is lower than without on {scaled_boosted}"
        " sets, and lower than that of the random forest on {scaled_forest}, of LightGBM on"
        " {scaled_lightgbm}, of histogram boosting on {scaled_hist}, of XGBoost on {scaled_xgboost}"
        " and of CatBoost on {scaled_catboost}; without the sets that choices were looked at on, it"
        " is {scaled_forest_others}, {scaled_lightgbm_others}, {scaled_hist_others},"
        " {scaled_xgboost_others} and {scaled_catboost_others}. Their R2 is higher than without on"
        " {scaled_boosted_r2} sets, than that of the random forest on {scaled_forest_r2}, of"
        " LightGBM on {scaled_lightgbm_r2}. Where they learn to mix from labels that come late, for"
        " rows that are scored later, the loss of electricity is {late_drift} in place of"
        " {scaled_drift}; it is lower on {late_scaled} sets, and lower than that of the"
        " random forest on {late_forest}, of LightGBM on {late_lightgbm}, of histogram boosting on"
        " {late_hist}, of XGBoost on {late_xgboost} and of CatBoost on {late_catboost}. The R2 of"
        " trump_approval is {late_trump} in place of {scaled_trump}; it is higher on"
        " {late_scaled_r2} sets, than that of the random forest on {late_forest_r2}, of LightGBM"
        " on {late_lightgbm_r2}. By the processor's seconds a hundred trees learn {price} times as"
        " long as that random forest, these ten members {late_price} and LightGBM"
        " {lightgbm_price}.",
        "Learned feature scales matter most where many columns are noise: on synthetic_d100_k5"
        " they take the loss from {noise_plain} to {noise}, and calibration takes it to"
        " {noise_calibrated}.",
        "Calibration lowers the held-out loss of a hundred trees on {calibrated} sets, and that of"
        " parts of the stream, each predicted and then learned, on {calibrated_before}. It is"
        " fitted to rows that come next, and where the stream drifts rows far ahead are less sure:"
        " on electricity it takes the held-out loss from {drift_uncalibrated} to {drift}, and that"
        " of parts from {drift_uncalibrated_before} to {drift_before}. `calibrate=False` leaves it"
        " out. One seed,"
        " so differences of a few thousandths are noise.",
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    datasets.add_arguments(parser, datasets.NAMES)
    parser.add_argument("--peers", help="folder of the peers' environments")
    parser.add_argument("--models", nargs="+", default=DEFAULT, choices=LABELS, metavar="MODEL")
    parser.add_argument("--fresh", action="store_true", help="measure again what is asked for")
    parser.add_argument("--out", type=Path, default=RESULTS / "quality.json")
    args = parser.parse_args()
    chosen = [model for model in MODELS if model[0] in args.models]
    for label, peer, *_ in chosen:
        if interpreter(peer, args.peers) is None:
            print(f"{label}: left out, no environment for it under --peers", file=sys.stderr)
    chosen = [model for model in chosen if interpreter(model[1], args.peers)]
    records = Records(args.out, PAGE.identity)
    with tempfile.TemporaryDirectory() as folder:
        for name in sorted(args.sets, key=LAST.__contains__):
            measure_set(name, chosen, args, records, Path(folder) / "rows.npz")
    publish("quality", records)


def measure_set(
    name: str, models: list, args: argparse.Namespace, records: Records, rows: Path
) -> None:
    """Run the models on one set and add their records."""
    dataset = datasets.load(name, args.data, args.max_rows)
    save_input(dataset, rows)
    for label, peer, trees, parameters in models:
        record = {
            "set": name,
            "model": label,
            "max_rows": args.max_rows,
            "n_features": dataset.X_train.shape[1],
            "n_classes": dataset.n_classes,
            "split": dataset.split,
        }
        if record in records and not args.fresh:
            continue
        if "calibrate" in parameters and not dataset.is_classification:
            if parameters["calibrate"] or label in UNCALIBRATED_LABELS:
                continue
            parameters = {name: parameters[name] for name in parameters if name != "calibrate"}
        if peer.startswith("river") and len(dataset.y_train) >= RIVER_ROWS:
            continue
        options: dict[str, Any] = {"parameters": json.dumps(parameters)} if parameters else {}
        if peer in BATCH:
            options["warm_rows"] = BATCH_WARM_ROWS
        elif len(dataset.y_train) > PARTS * parameters.get("delay", 1):
            options["progressive"] = True  # else no label of the first part is known in time
        found = score(peer, rows, peers=args.peers, trees=trees, **options)
        records.add({**record, **found})
        print(f"{name}, {label}: {json.dumps(found)}", file=sys.stderr)


if __name__ == "__main__":
    main()
