"""One peer, one data set, one process: fits and predicts as often as it is asked to.

Runs under the interpreter of the peer's own environment, so it relies on NumPy and the peer alone,
asks for no more than Python 3.8 (scikit-garden's) and must be started as a file. It first runs once
on a few rows, so that compilation is not timed, and shows it by one line of JSON holding
``warm_seconds``. Then it reads ``go`` lines from standard input; for each it runs on a few rows
again, untimed, as memory that was made ready or another process may have emptied the processor's
caches of its code. Then it fits a fresh model on the training rows, predicts the test rows and
answers one line of JSON with ``fit_seconds``, ``predict_seconds`` and the number of rows used. The
last predictions are saved when the input ends.

A line ``go`` that is followed by JSON, ``{"input": ..., "output": ..., "seed": ...}``, is of other
rows: the model of that seed is fitted to those of the file, without the few rows before it, and the
predictions are saved at once. One process takes many small sets in this way.

With ``--delay`` the training rows are a stream: each is forecast with the labels of the rows that
are at least so many rows before it, one row at a time, and the answer has the processor's seconds
for all, and the memory. With ``--in-blocks`` labels come for so many rows together.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np

# Rows of the untimed first run: enough to reach every compiled path, dmondrian's choices of
# settings after 256 and 512 rows among them. The last one, after 4096, takes more (--warm-rows).
WARM_ROWS = 600
# Parts of the training rows with ``--progressive``: each but the first is predicted, then learned.
PARTS = 20


def onelearn(args, n_classes):
    """Models of onelearn, with its own defaults."""
    from onelearn import AMFClassifier, AMFRegressor

    common = {"n_estimators": args.trees, "random_state": args.seed, "n_jobs": 1, "verbose": False}
    if n_classes:
        return AMFClassifier(n_classes=n_classes, **common)
    return AMFRegressor(**common)


def dmondrian(args, n_classes):
    """Models of this package, with its defaults but for ``--parameters``."""
    from dmondrian import AMFClassifier, AMFRegressor

    make = AMFClassifier if n_classes else AMFRegressor
    return make(
        n_estimators=args.trees,
        random_state=args.seed,
        n_jobs=1,
        **json.loads(args.parameters),
    )


def mondrian_forest(args, n_classes):
    """Mondrian forests of this package as published: without a lifetime, in a hierarchy."""
    from dmondrian import MondrianForestClassifier, MondrianForestRegressor

    make = MondrianForestClassifier if n_classes else MondrianForestRegressor
    published = {"lifetime": None, "aggregation": "hierarchy", **json.loads(args.parameters)}
    return make(n_estimators=args.trees, random_state=args.seed, n_jobs=1, **published)


def online_forest(args, n_classes):
    """Online random forests of this package, with their defaults unless asked otherwise."""
    from dmondrian import OnlineRandomForestClassifier, OnlineRandomForestRegressor

    make = OnlineRandomForestClassifier if n_classes else OnlineRandomForestRegressor
    parameters = json.loads(args.parameters)
    return make(n_estimators=args.trees, random_state=args.seed, n_jobs=1, **parameters)


def random_forest(args, n_classes):
    """scikit-learn's batch forest, with its defaults."""
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

    make = RandomForestClassifier if n_classes else RandomForestRegressor
    return make(n_estimators=args.trees, random_state=args.seed, n_jobs=1)


def extra_trees(args, n_classes):
    """scikit-learn's extremely randomised trees, with their defaults."""
    from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor

    make = ExtraTreesClassifier if n_classes else ExtraTreesRegressor
    return make(n_estimators=args.trees, random_state=args.seed, n_jobs=1)


def lightgbm(args, n_classes):
    """LightGBM with its defaults; a tree is a round of boosting."""
    from lightgbm import LGBMClassifier, LGBMRegressor

    make = LGBMClassifier if n_classes else LGBMRegressor
    return make(n_estimators=args.trees, random_state=args.seed, n_jobs=1, verbose=-1)


def hist_boosting(args, n_classes):
    """scikit-learn's boosting of binned columns, with its defaults; a tree is a round."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    make = HistGradientBoostingClassifier if n_classes else HistGradientBoostingRegressor
    return make(max_iter=args.trees, random_state=args.seed)


def xgboost(args, n_classes):
    """XGBoost with its defaults; a tree is a round of boosting."""
    from xgboost import XGBClassifier, XGBRegressor

    make = XGBClassifier if n_classes else XGBRegressor
    return make(n_estimators=args.trees, random_state=args.seed, n_jobs=1)


def catboost(args, n_classes):
    """CatBoost with its defaults but for the rounds, which choose its learning rate."""
    from catboost import CatBoostClassifier, CatBoostRegressor

    make = CatBoostClassifier if n_classes else CatBoostRegressor
    common = {"random_seed": args.seed, "thread_count": 1, "verbose": False}
    return make(iterations=args.trees, allow_writing_files=False, **common)


def scikit_garden(args, n_classes):
    """Forests of scikit-garden, with their defaults.

    All rows in one call of ``partial_fit``, as for the others, is also what it learns fastest: each
    call checks its rows once more for each tree. The trees are the same: whatever the calls, all
    rows of a tree get the same random numbers.
    """
    from skgarden import MondrianForestClassifier, MondrianForestRegressor

    make = MondrianForestClassifier if n_classes else MondrianForestRegressor
    return make(n_estimators=args.trees, random_state=args.seed, n_jobs=1)


class RowByRow:
    """river's interface, one dict per row, behind fit and predict.

    The dicts are built outside the timed calls (`prepare`): a stream of dicts is what its users
    have.
    """

    def __init__(self, model, n_classes):
        self.model = model
        self.n_classes = n_classes

    @staticmethod
    def prepare(X):
        """Turn rows into dicts."""
        return [dict(enumerate(row)) for row in X.astype(float).tolist()]

    def learn_one(self, row, label):
        """Learn a row."""
        self.model.learn_one(row, label)

    def forecast_one(self, row):
        """Return class probabilities of a row, of any sum; of numbers the mean."""
        if not self.n_classes:
            return [self.model.predict_one(row)]
        found = self.model.predict_proba_one(row)
        return [found.get(k, 0.0) for k in range(self.n_classes)]

    def fit(self, X, y):
        """Learn the rows one by one."""
        for row, target in zip(X, y.tolist(), strict=True):
            self.learn_one(row, target)

    def predict_proba(self, X):
        """Return class probabilities; uniform where the model has none."""
        found = [self.model.predict_proba_one(row) for row in X]
        uniform = 1.0 / self.n_classes
        return np.array(
            [[p.get(k, 0.0) if p else uniform for k in range(self.n_classes)] for p in found]
        )

    def predict(self, X):
        """Return predicted targets."""
        return np.array([self.model.predict_one(row) for row in X])


def river_amf(args, n_classes):
    from river import forest

    make = forest.AMFClassifier if n_classes else forest.AMFRegressor
    return RowByRow(make(n_estimators=args.trees, seed=args.seed), n_classes)


def river_arf(args, n_classes):
    from river import forest

    make = forest.ARFClassifier if n_classes else forest.ARFRegressor
    return RowByRow(make(n_models=args.trees, seed=args.seed), n_classes)


def river_hoeffding(args, n_classes):
    from river import tree

    make = tree.HoeffdingTreeClassifier if n_classes else tree.HoeffdingTreeRegressor
    return RowByRow(make(), n_classes)


def river_hat(args, n_classes):
    from river import tree

    classifier, regressor = (
        tree.HoeffdingAdaptiveTreeClassifier,
        tree.HoeffdingAdaptiveTreeRegressor,
    )
    return RowByRow((classifier if n_classes else regressor)(seed=args.seed), n_classes)


def river_srp(args, n_classes):
    from river import ensemble

    return RowByRow(ensemble.SRPClassifier(n_models=args.trees, seed=args.seed), n_classes)


class MoaRows:
    """CapyMOA's interface, for ``--delay``.

    All columns are numbers, and all classes are declared. Instances are made in the timed calls:
    MOA's own streams make them row by row too.
    """

    def __init__(self, make, args, n_classes):
        self.make, self.args, self.n_classes = make, args, n_classes

    def prepare(self, X):
        """Make the model for these columns; the rows stay arrays."""
        from capymoa.stream import Schema

        names = ["x" + str(j) for j in range(X.shape[1])] + ["label"]
        categories = {"label": [str(k) for k in range(self.n_classes)]}
        self.schema = Schema.from_custom(names, "label", categories, "rows")
        seed, members = self.args.seed + 1, self.args.trees  # CapyMOA's own seed is 1
        self.model = self.make(schema=self.schema, random_seed=seed, ensemble_size=members)
        return list(X.astype(float))

    def learn_one(self, row, label):
        """Learn a row."""
        from capymoa.core import LabeledInstance

        self.model.train(LabeledInstance.from_array(self.schema, row, label))

    def forecast_one(self, row):
        """Return class probabilities of a row; None where the model has none."""
        from capymoa.core import Instance

        return self.model.predict_proba(Instance.from_array(self.schema, row))


def capymoa_arf(args, n_classes):
    from capymoa.classifier import AdaptiveRandomForestClassifier

    return MoaRows(AdaptiveRandomForestClassifier, args, n_classes)


def capymoa_srp(args, n_classes):
    from capymoa.classifier import StreamingRandomPatches

    return MoaRows(StreamingRandomPatches, args, n_classes)


def capymoa_leveraging(args, n_classes):
    from capymoa.classifier import LeveragingBagging

    return MoaRows(LeveragingBagging, args, n_classes)


class SingleRows:
    """scikit-learn's interface, for ``--delay``: arrays of one row."""

    def __init__(self, model, n_classes):
        self.model, self.n_classes = model, n_classes
        self.more = {"classes": np.arange(n_classes)} if n_classes else {}

    @staticmethod
    def prepare(X):
        """Cut the rows apart."""
        return [X[i : i + 1] for i in range(len(X))]

    def learn_one(self, row, label):
        """Learn a row; the classes come with the first."""
        self.model.partial_fit(row, np.array([label]), **self.more)
        self.more = {}

    def forecast_one(self, row):
        """Return class probabilities of a row, or [its mean].

        None where all rows so far wait for their block.
        """
        if getattr(self.model.forest_, "position", None) == 0:
            return None
        if not self.n_classes:
            return self.model.predict(row)
        return self.model.predict_proba(row)[0]


class ClassesOfRows:
    """A batch classifier of the classes that its rows have; the others get probability 0.

    XGBoost refuses class indices with gaps, and all name only the classes that they saw.
    """

    def __init__(self, model, n_classes):
        self.model, self.n_classes = model, n_classes

    def fit(self, X, y):
        """Learn the rows, whose classes are numbered without gaps."""
        self.classes, numbers = np.unique(y, return_inverse=True)
        self.model.fit(X, numbers)

    def predict_proba(self, X):
        """Return probabilities of all classes."""
        found = np.zeros((len(X), self.n_classes))
        found[:, self.classes] = self.model.predict_proba(X)
        return found


BATCH = ("catboost", "extra_trees", "hist_boosting", "lightgbm", "random_forest", "xgboost")
PEERS = {
    "capymoa_arf": capymoa_arf,
    "capymoa_leveraging": capymoa_leveraging,
    "capymoa_srp": capymoa_srp,
    "catboost": catboost,
    "onelearn": onelearn,
    "dmondrian": dmondrian,
    "extra_trees": extra_trees,
    "hist_boosting": hist_boosting,
    "lightgbm": lightgbm,
    "mondrian_forest": mondrian_forest,
    "online_forest": online_forest,
    "random_forest": random_forest,
    "river_amf": river_amf,
    "river_arf": river_arf,
    "river_hat": river_hat,
    "river_hoeffding": river_hoeffding,
    "river_srp": river_srp,
    "scikit_garden": scikit_garden,
    "xgboost": xgboost,
}
# Those whose partial_fit takes the classes, which the first rows may lack.
GIVEN_CLASSES = ("dmondrian", "mondrian_forest", "online_forest", "scikit_garden")


def target_for(peer, y, n_classes):
    """Return the target in the form the peer expects."""
    if peer == "onelearn":
        return y.astype(np.float32)
    return y if n_classes else y.astype(np.float64)


def run(args, X, y, X_test, n_classes):
    """Fit and predict once.

    Returns the predictions of the test rows; with ``--progressive``, those of the training rows
    after the first part, each made before its part was learned, else None; and seconds of wall and
    processor time of each, progressive predictions left out.
    """
    model = PEERS[args.peer](args, n_classes)
    if n_classes and args.peer in BATCH:
        model = ClassesOfRows(model, n_classes)
    learn = model.fit if args.peer in BATCH or isinstance(model, RowByRow) else model.partial_fit
    predict = model.predict_proba if n_classes else model.predict
    more = {"classes": np.arange(n_classes)} if n_classes and args.peer in GIVEN_CLASSES else {}
    if isinstance(model, RowByRow):
        X, X_test = model.prepare(X), model.prepare(X_test)
    parts = PARTS if args.progressive else 1
    before, wall, cpu = [], 0.0, 0.0
    for part in range(parts):
        start, stop = (len(X) * edge // parts for edge in (part, part + 1))
        if start > 0:
            before.append(predict(X[start:stop]))
        clocks = time.perf_counter(), time.process_time()
        learn(X[start:stop], y[start:stop], **more)
        wall += time.perf_counter() - clocks[0]
        cpu += time.process_time() - clocks[1]
    clocks = time.perf_counter(), time.process_time()
    predictions = predict(X_test)
    times = {
        "fit_seconds": wall,
        "predict_seconds": time.perf_counter() - clocks[0],
        "fit_cpu_seconds": cpu,
        "predict_cpu_seconds": time.process_time() - clocks[1],
    }
    return predictions, np.concatenate(before) if before else None, times


def memory(name):
    """Return MiB of this process's memory: VmRSS, or VmHWM, the most since `forget_most`."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) / 1024
    raise LookupError(name)


def forget_most():
    """Let the most memory be that of now."""
    Path("/proc/self/clear_refs").write_text("5")


def prequential(args, X, y, X_test, n_classes):
    """Forecast each row of a stream with the labels that are known by then, once.

    Returns no predictions of test rows; forecasts of all rows, each of sum 1, where classes are
    alike before the first label, and where a model has no forecast (of numbers means, 0 there);
    processor seconds, and the
    most MiB beyond those before. Of this package's forests, at a delay of one row, also the seconds
    in which they do it in calls of many rows.
    """
    forget_most()
    before = memory("VmRSS")
    way = in_calls if args.in_calls else row_by_row
    found, times = way(args, X, y, n_classes)
    times["peak_mib"] = memory("VmHWM") - before
    if args.peer == "dmondrian" and args.delay == 1 and not args.in_calls:
        times.update(in_calls(args, X, y, n_classes)[1])
    return X_test[:0], found, times


def unknown(n, n_classes):
    """Return forecasts of n rows of which nothing is known."""
    return np.full((n, n_classes), 1.0 / n_classes) if n_classes else np.zeros((n, 1))


def row_by_row(args, X, y, n_classes):
    """Return forecasts as `prequential` does, and seconds; rows come one at a time."""
    model = PEERS[args.peer](args, n_classes)
    if not hasattr(model, "forecast_one"):
        model = SingleRows(model, n_classes)
    rows, labels, known = model.prepare(X), y.tolist(), 0
    found = unknown(len(X), n_classes)
    clock = time.process_time()
    for t in range(len(X)):
        until = t // args.delay * args.delay if args.in_blocks else t + 1 - args.delay
        for earlier in range(known, until):
            model.learn_one(rows[earlier], labels[earlier])
        known = max(known, until)
        forecast = model.forecast_one(rows[t]) if known else None
        total = 0.0 if forecast is None else sum(forecast)
        if not n_classes and forecast is not None:
            found[t] = total
        elif total > 0.0:
            found[t] = forecast
            found[t] /= total
    return found, {"cpu_seconds": time.process_time() - clock}


def in_calls(args, X, y, n_classes):
    """Return what forests of this package forecast of all rows in one call, and seconds.

    Forests that follow a stream forecast each row as they would row by row. The others' forecasts
    are those of settings that no first rows have chosen.
    """
    if args.delay > 1:
        return late_in_calls(args, X, y, n_classes)
    from dmondrian.prequential.forecasts import forecast_and_learn_all, mean_over_trees

    model = dmondrian(args, n_classes)
    model.partial_fit(X[:1], y[:1], **({"classes": np.arange(n_classes)} if n_classes else {}))
    forest, rows, labels = model.forest_, X[1:], y[1:].astype(np.float64)
    found = unknown(len(X), n_classes)
    clock = time.process_time()
    if hasattr(forest, "forecast_and_learn"):
        found[1:] = forest.forecast_and_learn(rows, labels)[:, : max(n_classes, 1)]
    else:
        n_trees = args.trees
        sums = forecast_and_learn_all(forest, rows, labels, position=1, n_trees=n_trees).sums
        found[1:] = mean_over_trees(sums, n_trees)
    return found, {"calls_cpu_seconds": time.process_time() - clock}


def late_in_calls(args, X, y, n_classes):
    """Return what a forest that follows a stream forecasts of rows whose labels come late.

    Rows between two of its states are forecast in one call: labels that come in blocks give it one
    at the end of each, those that come one by one at the ends of its own blocks alone.
    """
    model = dmondrian(args, n_classes)
    found, size = unknown(len(X), n_classes), model.delay
    named = {"classes": np.arange(n_classes)} if n_classes else {}
    ask = model.predict_proba if n_classes else model.predict
    clock = time.process_time()
    # How many rows come at once, and how many from the first of these to the next that is asked.
    come, ahead = (args.delay, args.delay) if args.in_blocks else (size, size + args.delay - 1)
    for start in range(0, len(X), come):
        model.partial_fit(X[start : start + come], y[start : start + come], **named)
        asked = slice(start + ahead, start + ahead + come)
        if len(X[asked]):
            found[asked] = ask(X[asked]).reshape(-1, found.shape[1])
    return found, {"calls_cpu_seconds": time.process_time() - clock}


def read(args):
    """Return X, y, X of the test rows and the number of classes, cut to what is asked for."""
    data = np.load(args.input)
    n_classes = int(data["n_classes"])
    X = np.ascontiguousarray(data["X_train"][: args.max_train])
    X_test = np.ascontiguousarray(data["X_test"][: args.max_test])
    return X, target_for(args.peer, data["y_train"][: args.max_train], n_classes), X_test, n_classes


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", choices=sorted(PEERS))
    parser.add_argument("input", type=Path, help="npz with X_train, y_train, X_test, n_classes")
    parser.add_argument("output", type=Path, help="npz for the predictions")
    parser.add_argument("--trees", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--parameters", default="{}", help="JSON, this package's only")
    parser.add_argument("--max-train", type=int, help="first rows to learn from")
    parser.add_argument("--progressive", action="store_true", help="predict before learning, too")
    parser.add_argument("--delay", type=int, help="rows after which the label of a row is known")
    parser.add_argument("--in-blocks", action="store_true", help="labels come --delay at a time")
    parser.add_argument("--in-calls", action="store_true", help="this package's: all in a call")
    parser.add_argument("--max-test", type=int, help="first rows to predict")
    parser.add_argument("--warm-rows", type=int, default=WARM_ROWS)
    parser.add_argument("--at-hand", type=int, default=0, help="MiB of memory made ready for a run")
    args = parser.parse_args()

    X, y, X_test, n_classes = read(args)
    # A peer's own messages must not mix with the answers.
    answers, sys.stdout = sys.stdout, sys.stderr
    start = time.perf_counter()
    warm = slice(0, args.warm_rows)
    way = run if args.delay is None else prequential
    at_once = argparse.Namespace(
        **{**vars(args), "delay": 1, "in_blocks": False, "progressive": False}
    )
    predictions, before, _ = way(at_once, X[warm], y[warm], X_test[warm], n_classes)
    answers.write(json.dumps({"warm_seconds": time.perf_counter() - start}) + "\n")
    answers.flush()
    first = slice(0, min(WARM_ROWS, args.warm_rows))
    for line in sys.stdin:
        other = line[len("go") :].strip()
        if other:
            its = argparse.Namespace(**{**vars(args), **json.loads(other)})
            found, _, times = run(its, *read(its))
            np.savez(its.output, predictions=found)
            answers.write(json.dumps(times) + "\n")
            answers.flush()
            continue
        np.ones(args.at_hand << 17)  # of 8 bytes; and given back to the kernel
        # That emptied the caches, and this brings code back; not that of the search for scales.
        way(at_once, X[first], y[first], X_test[first], n_classes)
        predictions, before, times = way(args, X, y, X_test, n_classes)
        answers.write(json.dumps({**times, "n_train": len(X), "n_test": len(X_test)}) + "\n")
        answers.flush()
    reported = {} if before is None else {"before": before}
    np.savez(args.output, predictions=predictions, **reported)


if __name__ == "__main__":
    main()
