"""Reports of others of a model of adult, beside `dmondrian report`: what they show and take.

Ten AMF trees learn adult's training rows as a run, whose report is written; the test rows are
forecast, and Evidently's classification report and scikit-learn's displays are made of these
forecasts. YDF takes its own models alone: `analyze` and `evaluate` are of a random forest of as
many trees that it fits to the same rows, of which it analyses the first two thousand test rows.

What a page shows is looked for in its file, by a text that stands there alone with it. Seconds are
those of the processor, without what fits the model; ours are of the whole command.

    python -m benchmarks.report_pages --data <folder> [--peers <folder>] [--pages <folder>]

Peers whose environments are missing (:mod:`benchmarks.peers.build`) are left out.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.pages import Page, publish
from benchmarks.records import RESULTS, Records, table

WORKER = Path(__file__).parent / "peers" / "page_worker.py"
OURS, DISPLAYS = "dmondrian report", "scikit-learn's displays"
PEERS = {  # name of a report: the environment, and what the worker calls it
    "YDF analyze": ("ydf", "ydf_analyze"),
    "YDF evaluate": ("ydf", "ydf_evaluate"),
    "Evidently": ("evidently", "evidently"),
}
TREES = 10
# What a page may show: by report the text that stands in its file then.
SHOWN: dict[str, dict[str, str]] = {
    "accuracy, log loss": {
        OURS: r"accuracy of the rows so far", "YDF evaluate": r"(?i)accuracy",
        "Evidently": r"Accuracy",
    },
    "the metrics of a baseline beside": {OURS: r"class frequencies", "Evidently": r"Dummy"},
    "metrics as rows came, by window": {OURS: r"by window of the stream"},
    "precision, recall, F1 of classes": {OURS: r"<th[^>]*>F1", "Evidently": r"F1"},
    "confusion": {
        OURS: r"Labels \(rows\) and predictions", "YDF evaluate": r"Confusion Matrix",
        "Evidently": r"Confusion Matrix", DISPLAYS: "ConfusionMatrixDisplay",
    },
    "ROC": {
        OURS: r"ROC curve of", "YDF evaluate": r"ROC", "Evidently": r"ROC Curve",
        DISPLAYS: "RocCurveDisplay",
    },
    "precision against recall": {
        OURS: r"Precision against recall", "YDF evaluate": r"PR[- ]AUC|Precision-Recall",
        "Evidently": r"Precision-Recall Curve", DISPLAYS: "PrecisionRecallDisplay",
    },
    "calibration": {OURS: r"How often right, by how sure", DISPLAYS: "CalibrationDisplay"},
    "importances": {
        OURS: r"Shares of the columns", "YDF analyze": r"Variable Importances",
    },
    "importances by permuted columns": {"YDF analyze": r"MEAN_DECREASE_IN_ACCURACY"},
    "partial dependence": {
        OURS: r"<h2>Partial dependence</h2>", "YDF analyze": r"Partial Dependence Plot",
        DISPLAYS: "PartialDependenceDisplay",
    },
    "conditional expectation": {"YDF analyze": r"Conditional Expectation Plot"},
    "where rows lie on a column": {
        OURS: r"shares of rows<", "YDF analyze": r"(?i)density|histogram",
    },
    "columns that act together": {OURS: r"Columns that act together"},
    "missing values, encoding of columns": {OURS: r"<h2>Columns</h2>"},
    "data, versions, how to train again": {OURS: r"<h2>Train it again</h2>"},
}  # fmt: skip
CHOICES = """\
What is the same: curves, confusion and areas are of forecasts, whoever draws them. What they have
and we have not, and why:

- **Importances by permuted columns and by SHAP, conditional expectations** (YDF): they need rows
  of the data, which a run does not keep; `sklearn.inspection.permutation_importance` takes an
  estimator, `shap` a forest. Conditional expectations mix what a column does with what comes
  along with it.
- **Quality tables by threshold, and two sets of rows beside each other** (Evidently): a threshold
  is for who knows the costs of errors, and the curves of precision and recall show all of them;
  two runs are compared by `dmondrian compare`, and drift is looked for in the loss of rows as
  they come.
- **Charts that answer to the pointer** (YDF, Evidently): they need scripts, YDF's also a network.
  Our page has none, so that it may be mailed and printed.

What we chose otherwise: forecasts are of each row before it was learned, so no rows are held out,
and the curve over the stream comes first, beside what labels alone would do.
"""


def processor_seconds() -> float:
    """Return the seconds of the processor that ended processes of this one took."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def train_run(data: Path, folder: Path, max_rows: int) -> tuple[Path, Path]:
    """Train a run, and forecast the test rows; return the run, and these rows with forecasts."""
    from distributed import Client

    from dmondrian import AMFClassifier
    from dmondrian.distributed import train
    from dmondrian.frames import FrameModel

    rows = pq.read_table(data / "adult" / "part-0000-train.parquet").slice(0, max_rows)
    pq.write_table(rows, folder / "train.parquet")
    with Client(processes=False, n_workers=1, threads_per_worker=1, dashboard_address=None) as one:
        run = train(
            AMFClassifier(TREES, random_state=0), folder / "train.parquet", target="income",
            run=folder / "run", client=one, progress=False,
        )  # fmt: skip
    rows = pq.read_table(data / "adult" / "part-0001-test.parquet").slice(0, max_rows)
    above = (run.plan.schema.classes or [])[1]
    label = np.asarray(rows["income"].to_pylist()) == above
    proba = FrameModel(run.run_url).predict_proba(rows)[f"proba_{above}"]
    rows = rows.append_column("label", pa.array(label.astype(np.int64)))
    pq.write_table(rows.append_column("proba", proba), folder / "forecast.parquet")
    return Path(run.run_url), folder / "forecast.parquet"


def our_report(run: Path, out: Path) -> float:
    """Write our report; return the seconds of the processor."""
    before = processor_seconds()
    words = [sys.executable, "-m", "dmondrian.cli", "report", str(run), "-o", str(out)]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    return processor_seconds() - before


def displays(run: Path, forecast: Path, out: Path) -> float:
    """Draw scikit-learn's displays of the forecasts; return the seconds of the processor."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot
    from sklearn import inspection, metrics
    from sklearn.calibration import CalibrationDisplay

    from dmondrian import load
    from dmondrian.frames import FrameModel

    rows = pq.read_table(forecast)
    label, proba = rows["label"].to_numpy(), rows["proba"].to_numpy()
    X = FrameModel(str(run)).features(rows)[:500]
    began, parts = time.process_time(), []
    drawn = {
        "RocCurveDisplay": lambda: metrics.RocCurveDisplay.from_predictions(label, proba),
        "PrecisionRecallDisplay": lambda: metrics.PrecisionRecallDisplay.from_predictions(
            label, proba
        ),
        "ConfusionMatrixDisplay": lambda: metrics.ConfusionMatrixDisplay.from_predictions(
            label, proba > 0.5
        ),
        "CalibrationDisplay": lambda: CalibrationDisplay.from_predictions(label, proba),
        "PartialDependenceDisplay": lambda: inspection.PartialDependenceDisplay.from_estimator(
            load(str(run)), X, [0, 1]
        ),
    }
    for name, draw in drawn.items():
        draw()
        picture = out.with_suffix(".part")
        pyplot.savefig(picture, format="svg")
        pyplot.close("all")
        parts.append(f"<h2>{name}</h2>{picture.read_text()}")
        picture.unlink()
    out.write_text("<!doctype html>" + "".join(parts))
    return time.process_time() - began


def seen(name: str, page: str) -> list[str]:
    """Return what a page shows, of what it may."""
    return [what for what, texts in SHOWN.items() if name in texts and re.search(texts[name], page)]


def record(name: str, page: Path, seconds: float) -> dict[str, Any]:
    """Return what is stored of a report."""
    text = page.read_text()
    fetched = r'<script[^>]+src="?https?:|https?:[^"\s]+plotly\.min'
    return {
        "report": name,
        "seconds": seconds,
        "kB": page.stat().st_size / 1e3,
        "network": re.search(fetched, text) is not None,
        "shown": seen(name, text),
    }  # fmt: skip


def body(records: Records) -> str:
    """Return the tables: what each takes, and what each shows."""
    own: Mapping[str, Any] = {one["report"]: one for one in records}
    sizes = [
        (name, one["seconds"], one["kB"], "yes" if one["network"] else "no")
        for name, one in own.items()
    ]
    rows = [
        [what, *("yes" if what in one["shown"] else "" for one in own.values())] for what in SHOWN
    ]
    head = ["report", "seconds of the processor", "kB", "needs a network"]
    return f"{table(head, sizes)}\n\n{table(['shown', *own], rows)}\n\n{CHOICES}"


PAGE = Page(
    title="Reports beside others",
    question="What do reports of others show of a model, how long do they take, and what did we"
    " choose otherwise?",
    identity=("report",),
    body=body,
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--peers", type=Path, help="folder of their environments")
    parser.add_argument("--pages", type=Path, help="folder to keep the pages in")
    parser.add_argument("--max-rows", type=int, default=100_000)
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    parser.add_argument("--out", type=Path, default=RESULTS / "report_pages.json")
    args = parser.parse_args()
    records = Records(args.out, PAGE.identity, args.fresh)
    with tempfile.TemporaryDirectory() as scratch:
        pages = args.pages or Path(scratch)
        pages.mkdir(parents=True, exist_ok=True)
        run, forecast = train_run(args.data, Path(scratch), args.max_rows)
        page = pages / "dmondrian.html"
        records.add(record(OURS, page, our_report(run, page)))
        for name, (environment, kind) in PEERS.items():
            python = Path(args.peers or "", environment, "bin", "python")
            if args.peers is None or not python.exists():
                print(f"{name}: left out, as it has no environment")
                continue
            page = pages / f"{kind}.html"
            done = subprocess.run(
                [python, WORKER, kind, run.parent / "train.parquet", forecast, page],
                stdout=subprocess.PIPE, text=True, check=True,
            )  # fmt: skip
            records.add(record(name, page, json.loads(done.stdout.splitlines()[-1])))
        page = pages / "displays.html"
        records.add(record(DISPLAYS, page, displays(run, forecast, page)))
    publish("report_pages", records)


if __name__ == "__main__":
    main()
