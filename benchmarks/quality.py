"""How good are the forests? Held-out metrics over all sets, beside batch and online peers.

dmondrian's AMF with its defaults and, for comparison, with the row that opens a leaf charged for;
scikit-learn's random forest (batch); onelearn and, if asked for, river (online). Every model learns
the training rows once, in the same order, on one thread. See `benchmarks.datasets` for the splits.

    python -m benchmarks.quality --data <folder> --peers <cache folder>

A run that was stopped takes up where it stood; ``--fresh`` starts over. Peers whose environment is
missing are left out and named.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import datasets
from benchmarks.peers.runner import interpreter, save_input, score
from benchmarks.records import RESULTS, Records, table

# label, peer, trees, dmondrian's parameters
MODELS: tuple[tuple[str, str, int, dict[str, Any]], ...] = (
    ("dmondrian 10", "dmondrian", 10, {}),
    ("dmondrian 100", "dmondrian", 100, {}),
    ("dmondrian 10, opening charged", "dmondrian", 10, {"charge_opening": True}),
    ("dmondrian 10, opening free", "dmondrian", 10, {"charge_opening": False}),
    ("onelearn 10", "onelearn", 10, {}),
    ("river AMF 10", "river_amf", 10, {}),
    ("river ARF 10", "river_arf", 10, {}),
    ("random forest 10", "random_forest", 10, {}),
    ("random forest 100", "random_forest", 100, {}),
)
LABELS = [label for label, *_ in MODELS]
# river's forests need a minute to an hour per set: by name only.
DEFAULT = [label for label in LABELS if not label.startswith("river")]
METRICS = {
    "log_loss": "Log loss (nats)",
    "accuracy": "Accuracy",
    "auc": "Area under the ROC curve (two classes)",
    "r2": "R2",
    "fit_seconds": "Seconds to learn, one thread",
    "predict_seconds": "Seconds to predict the held-out rows, one thread",
}


def report(records: Records) -> str:
    """One Markdown table per metric, sets in rows and models in columns."""
    cells = {(r["set"], r["model"]): r for r in records}
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
            parts.append(f"### {title}\n\n{table(['set', 'n', 'd', 'K', *models], rows)}")
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    datasets.add_arguments(parser)
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
    records = Records(args.out, ("set", "model", "max_rows"))
    with tempfile.TemporaryDirectory() as folder:
        for name in args.sets:
            measure_set(name, chosen, args, records, Path(folder) / "rows.npz")
    text = report(records)
    args.out.with_suffix(".md").write_text(text)
    print(text)


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
        options = {"parameters": json.dumps(parameters)} if parameters else {}
        found = score(peer, rows, peers=args.peers, trees=trees, **options)
        records.add({**record, **found})
        print(f"{name}, {label}: {json.dumps(found)}", file=sys.stderr)


if __name__ == "__main__":
    main()
