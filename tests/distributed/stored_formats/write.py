"""A run, a saved model and a pickle, as the version of dmondrian that is imported writes them.

``python write.py FOLDER``, and again with ``others`` behind it for models of other algorithms, in
an environment in which that version is installed; it needs nothing that came later than the first
of them. With ``followed`` behind it: a run that is followed, with late labels, held-out rows and
alerts, of versions from 1.0.0 on. `test_stored_formats.py` has how each folder was made.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROWS = 60  # of a file
BOOSTED = ("mondrian", "boosted")
BOOSTED_ROWS = 160
SETTLED: dict[str, Any] = {"alpha": 0.25, "charge_opening": True, "feature_scales": None}
FOLLOWING = {
    **SETTLED,
    "n_estimators": 2,
    "random_state": 7,
    "charge_opening": False,
    "drift": "follow",
    "delay": 32,
}


def frame(number: int) -> pa.Table:
    """Rows of a file, by its number."""
    random = np.random.default_rng(number)
    x, k = random.random(ROWS).round(3), random.integers(0, 4, ROWS)
    y = np.where(x + 0.1 * k > 0.6, "yes", "no")
    columns = {"x": x, "kind": pa.array([*"abcd"]).take(pa.array(k)).dictionary_encode(), "y": y}
    return pa.table({"z": random.integers(0, 99, ROWS), **columns})


def write_data(folder: Path, numbers: range) -> None:
    folder.mkdir(exist_ok=True)
    for number in numbers:
        pq.write_table(frame(number), folder / f"{number}.parquet", row_group_size=30)


def arrays() -> tuple[Any, Any]:
    """Rows of a saved model."""
    random = np.random.default_rng(9)
    X = random.random((ROWS, 3)).astype(np.float32)
    return X, X[:, 0] + X[:, 1].round()


def main(folder: Path) -> None:
    from dask.distributed import Client, LocalCluster

    import dmondrian
    from dmondrian.distributed import train

    folder.mkdir(parents=True)
    write_data(folder / "data", range(2))
    classifier = dmondrian.AMFClassifier(n_estimators=2, random_state=7, **SETTLED)
    options: dict[str, Any] = {"target": "y", "n_shards": 2, "checkpoint_every": "90 rows"}
    threads = {"n_workers": 1, "threads_per_worker": 1, "processes": False}
    with LocalCluster(**threads, dashboard_address=None) as cluster, Client(cluster) as client:
        train(classifier, str(folder / "data"), run=folder / "run", client=client, **options)
        if "drift" in classifier.get_params():  # of versions that can follow a stream
            follower = dmondrian.AMFClassifier(**FOLLOWING)
            train(
                follower,
                str(folder / "data"),
                run=folder / "drift",
                shuffle=True,
                client=client,
                **options,
            )
    X, y = arrays()
    regressor = dmondrian.AMFRegressor(n_estimators=2, random_state=7).fit(X, y)
    regressor.save(folder / "model")
    np.save(folder / "predicted.npy", regressor.predict(X))
    classes = y > 1.0
    (folder / "classifier.pickle").write_bytes(pickle.dumps(classifier.fit(X, classes), protocol=4))
    np.save(folder / "probabilities.npy", classifier.predict_proba(X))


OTHERS: dict[str, tuple[str, dict[str, Any]]] = {  # models by name: the estimator, its settings
    "MondrianForestClassifier": ("MondrianForestClassifier", {"aggregation": "hierarchy"}),
    "MondrianForestRegressor": ("MondrianForestRegressor", {"aggregation": "mean"}),
    "GeneralizedMondrianForestClassifier": ("GeneralizedMondrianForestClassifier", {}),
    "GeneralizedMondrianForestRegressor": (
        "GeneralizedMondrianForestRegressor",
        {"loss": "huber"},
    ),
    "OnlineRandomForestClassifier": ("OnlineRandomForestClassifier", {}),
    "OnlineRandomForestRegressor": ("OnlineRandomForestRegressor", {}),
    "MondrianKernelClassifier": ("MondrianKernelClassifier", {}),
    "MondrianKernelRegressor": ("MondrianKernelRegressor", {}),
    "MondrianDensity": ("MondrianDensity", {}),
    "MondrianFeatures": ("MondrianFeatures", {"n_components": 8}),
    "follow-classifier": ("AMFClassifier", {"drift": "follow", "delay": 8}),
    "follow-regressor": ("AMFRegressor", {"drift": "follow", "delay": 8}),
    "boosted-classifier": ("AMFClassifier", {"drift": "follow", "experts": BOOSTED}),
    "boosted-regressor": ("AMFRegressor", {"drift": "follow", "experts": BOOSTED}),
}


def rows_for(name: str) -> tuple[Any, Any]:
    """Return the rows that a model is fitted to: of boosted ones, as many as fit a set of trees."""
    if not name.startswith("boosted"):
        X, y = arrays()
        return X[:24], y[:24]
    random = np.random.default_rng(10)
    X = random.random((BOOSTED_ROWS, 3)).astype(np.float32)
    return X, X[:, 0] + X[:, 1].round()


def labels_for(name: str, y: Any) -> tuple[Any, ...]:
    """Return what an estimator is fitted to, besides rows."""
    if name in ("MondrianDensity", "MondrianFeatures"):
        return ()
    return (y > 1.0,) if name.lower().endswith("classifier") else (y,)


def answers(estimator: Any, X: Any) -> Any:
    """Return what an estimator forecasts of rows, or makes of them."""
    for method in ("score_samples", "predict_proba", "predict", "transform"):
        if hasattr(estimator, method):
            found = getattr(estimator, method)(X)
            return np.ascontiguousarray(found.toarray() if hasattr(found, "toarray") else found)
    raise AssertionError(f"{estimator!r} forecasts nothing")


def write_others(folder: Path) -> None:
    """Save models of other algorithms, as far as a version has them and they are not there."""
    import dmondrian

    (folder / "others").mkdir(parents=True, exist_ok=True)
    for name, (kind, settings) in OTHERS.items():
        there = folder / "others" / name
        known = getattr(dmondrian, kind, None)
        if known is None or there.exists() or not settings.keys() <= known().get_params().keys():
            continue
        X, y = rows_for(name)
        few = {} if kind == "MondrianFeatures" else {"n_estimators": 2}
        estimator = known(random_state=7, **few, **settings)
        estimator.fit(X, *labels_for(name, y)).save(there)
        np.save(there.with_suffix(".npy"), answers(estimator, X[:24]))


def put_rows(folder: Path, number: int) -> None:
    """Bring rows without labels, and labels in another order, by a key."""
    keyed = frame(number).append_column("id", pa.array(range(ROWS * number, ROWS * (number + 1))))
    order = pa.array(np.random.default_rng(number).permutation(ROWS))
    for name, part in (
        ("rows", keyed.drop(["y"])),
        ("labels", keyed.select(["id", "y"]).take(order)),
    ):
        (folder / name).mkdir(exist_ok=True)
        pq.write_table(part, folder / name / f"{number}.parquet")


def look(folder: Path, client: Any) -> Any:
    """Follow what is there, once."""
    import dmondrian
    from dmondrian.distributed import follow

    return follow(
        dmondrian.AMFClassifier(n_estimators=2, random_state=7, calibrate=False, **SETTLED),
        folder / "rows",
        target="y",
        run=folder / "run",
        labels={"data": folder / "labels", "key": "id", "out": folder / "joined"},
        validation=folder / "held.parquet",
        alerts={"when": ["accuracy > 0", "log_loss > 9"]},
        once=True,
        n_shards=2,
        client=client,
    )


def write_followed(folder: Path) -> None:
    """Write a run that looked twice."""
    from dask.distributed import Client, LocalCluster

    folder.mkdir(parents=True)
    pq.write_table(frame(9), folder / "held.parquet")
    threads = {"n_workers": 1, "threads_per_worker": 1, "processes": False}
    with LocalCluster(**threads, dashboard_address=None) as cluster, Client(cluster) as client:
        for number in range(2):
            put_rows(folder, number)
            look(folder, client)


WAYS = {"others": write_others, "followed": write_followed}

if __name__ == "__main__":
    (WAYS[sys.argv[2]] if sys.argv[2:] else main)(Path(sys.argv[1]).resolve())
