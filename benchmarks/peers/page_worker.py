"""Write the report of a peer on adult, in the peer's own environment; print what it took as JSON.

    python page_worker.py ydf_analyze|ydf_evaluate|evidently <train> <forecast> <out>

``forecast`` are the test rows with the columns `label` and `proba`: 1 where the income is above,
and our forest's probability of it. YDF takes its own models alone, so it fits a forest of its own.
"""

from __future__ import annotations

import json
import sys
import time

import pandas as pd

TREES = 10
ANALYZED = 2_000
"""Rows that YDF analyses: of all it takes minutes."""


def texts(path):
    """Return a table as YDF takes it: a missing text is empty."""
    table = pd.read_parquet(path).drop(columns=["label", "proba"], errors="ignore")
    for name in table:
        if table[name].dtype.kind not in "iuf":
            table[name] = table[name].astype(object).where(table[name].notna(), "")
    return table


def of_ydf(kind, train, forecast, out):
    import ydf

    model = ydf.RandomForestLearner(label="income", num_trees=TREES, random_seed=0).train(
        texts(train), verbose=0
    )
    rows = texts(forecast)
    began = time.process_time()
    if kind == "ydf_analyze":
        page = model.analyze(rows[:ANALYZED]).html()
    else:
        page = model.evaluate(rows)._repr_html_()
    took = time.process_time() - began
    with open(out, "w") as file:
        file.write(page)
    return took


def of_evidently(forecast, out):
    from evidently import BinaryClassification, DataDefinition, Dataset, Report
    from evidently.presets import ClassificationPreset

    rows = pd.read_parquet(forecast)[["label", "proba"]]
    rows["prediction"] = (rows["proba"] > 0.5).astype(int)
    began = time.process_time()
    about = BinaryClassification(
        target="label", prediction_labels="prediction", prediction_probas="proba", pos_label=1
    )
    data = Dataset.from_pandas(rows, data_definition=DataDefinition(classification=[about]))
    Report([ClassificationPreset()]).run(data, None).save_html(out)
    return time.process_time() - began


def main():
    kind, _, forecast, out = sys.argv[1:]
    took = of_evidently(forecast, out) if kind == "evidently" else of_ydf(*sys.argv[1:])
    print(json.dumps(took))


if __name__ == "__main__":
    main()
