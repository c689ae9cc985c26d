"""MLflow: logging of runs, while they are trained and afterwards, and models that predict frames.

Relies on the package mlflow (the extra `mlflow`, which is mlflow-skinny) and on a run folder.
Promises a model without pickle: MLflow stores a copy of the newest checkpoint, and reads it with
:class:`dmondrian.frames.FrameModel`.
"""

from __future__ import annotations

import logging
import queue
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from types import TracebackType
from typing import Any

from dmondrian._optional import require
from dmondrian.checkpoint import Run, look_at_model
from dmondrian.checkpoint.copying import copy_model
from dmondrian.data import Schema
from dmondrian.distributed.cluster.events import Event
from dmondrian.distributed.metrics.curve import NAMES
from dmondrian.distributed.metrics.progressive import Progressive
from dmondrian.errors import DataError, ParameterError
from dmondrian.frames import FrameModel, answer_names

_log = logging.getLogger("dmondrian")

_MOST_WAITING = 10_000  # events that are not logged yet
_LAST_SECONDS = 30.0  # that the end waits for them
_LONGEST = 500  # most characters of a parameter; stores have different limits
_AT_ONCE = 900  # most metrics in a call


def log_run(
    run: str | PathLike[str], *, name: str = "model", registered_model_name: str | None = None
) -> Any:
    """Log a run's parameters, metrics and model to the active MLflow run, or to a new one.

    Parameters
    ----------
    run : str or path
        Run folder or URL; ``@position`` picks a checkpoint.
    name : str, default="model"
        Name of the model in MLflow.
    registered_model_name : str, optional
        Also register the model under this name.

    Returns
    -------
    mlflow.models.model.ModelInfo
        Its ``model_uri`` loads with ``mlflow.pyfunc.load_model``. The model takes the frames that
        :class:`~dmondrian.frames.FrameModel` takes, and texts for times, which JSON lacks; it
        returns a frame: "prediction", and "proba_<class>" for classifiers.

    Notes
    -----
    The signature names the columns and leaves their types open: MLflow would refuse whole numbers
    of 64 bits for ones of 32 or for fractions, and missing numbers, which is what JSON and CSV
    bring. The types of the training data are in the model's metadata, under "columns". MLflow's
    server reads CSV only where a signature has types: post JSON to it.

    Raises
    ------
    ParameterError
        The run was not trained from Parquet.
    CheckpointError
        There is no model.
    MissingPackageError
        The package mlflow is not installed.
    """
    require("mlflow", "mlflow", "logging to MLflow")
    import mlflow
    from mlflow.entities import Metric, Param, RunTag

    url = fspath(run)
    _, about, manifest = look_at_model(url)
    if about.get("schema") is None:
        raise ParameterError(
            f"{url} was fitted on arrays and holds no schema; expected a run trained from Parquet"
        )
    if about["algorithm"] == "mondrian-density":
        raise ParameterError("a density predicts nothing, as a pyfunc must")
    schema = Schema.from_json(about["schema"])
    active = mlflow.active_run()
    mlflow_run = mlflow.start_run() if active is None else active
    try:
        client, run_id = mlflow.MlflowClient(), mlflow_run.info.run_id
        values = {**about["estimator"], "algorithm": about["algorithm"], "target": about["target"],
                "seed": about["parameters"].get("seed"), "rows": manifest.position}  # fmt: skip
        params = [Param(key, str(value)[:_LONGEST]) for key, value in values.items()]
        tags = {"dmondrian.run": Run.open(url).url, "dmondrian.plan": str(about.get("plan"))}
        client.log_batch(run_id, params=params, tags=[RunTag(k, v) for k, v in tags.items()])
        metrics = _metrics(manifest.metrics, Metric)
        for start in range(0, len(metrics), _AT_ONCE):
            client.log_batch(run_id, metrics=metrics[start : start + _AT_ONCE])
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "checkpoint"
            copy_model(url, folder)
            return mlflow.pyfunc.log_model(
                name=name,
                loader_module="dmondrian.mlflow",
                data_path=str(folder),
                signature=_signature(schema, _answers(FrameModel(folder))),
                metadata={"columns": {column.name: column.type for column in schema.columns}},
                registered_model_name=registered_model_name,
                pip_requirements=["dmondrian", "pandas"],
            )
    finally:
        if active is None:
            mlflow.end_run()


class LiveLog:
    """A listener that logs a run to MLflow while it is trained.

    ``with LiveLog() as log: train(..., on_event=log)``. Windows of rows are logged as
    ``window_<metric>`` at the row that they end at, as `log_run` names them; held-out metrics as
    ``held_out_<metric>`` and ``durable_rows`` at checkpoints; the newest of all other events, such
    as alerts and losses of workers, is a tag.

    Parameters
    ----------
    run_id : str, optional
        MLflow's run, such as that of a training that is resumed; by default the active one, or a
        new one. It ends with this, unless it is the active one.

    Attributes
    ----------
    run_id : str
    lost : int
        Events that were not logged, for MLflow's store failed or too many waited.

    Notes
    -----
    Events are sent by a thread of their own, so that a slow store delays no training, and one that
    fails ends none: it is a warning, once until an event is logged again. The end waits for those
    that are not sent, up to half a minute. Rows that are learned again after a loss are logged
    again, at the same steps with the same values.

    Raises
    ------
    MissingPackageError
        The package mlflow is not installed.
    """

    def __init__(self, run_id: str | None = None) -> None:
        require("mlflow", "mlflow", "logging to MLflow")
        import mlflow

        self._client = mlflow.MlflowClient()
        active = mlflow.active_run()
        active_id = None if active is None else active.info.run_id
        if run_id is not None:
            self.run_id = run_id
        elif active_id is not None:
            self.run_id = active_id
        else:
            with mlflow.start_run() as begun:  # with the tags that MLflow gives its runs
                self.run_id = begun.info.run_id
        self._is_own = self.run_id != active_id
        if self._is_own:  # one that is resumed has ended before
            self._client.update_run(self.run_id, "RUNNING")
        self.lost = 0
        self._waiting: queue.Queue[Event | str] = queue.Queue(_MOST_WAITING)
        self._is_failing = False
        self._thread = threading.Thread(target=self._send_all, name="mlflow", daemon=True)
        self._thread.start()

    def __call__(self, event: Event) -> None:
        """Take an event, at once."""
        try:
            self._waiting.put_nowait(event)
        except queue.Full:
            self.lost += 1

    def __enter__(self) -> LiveLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, where: TracebackType | None
    ) -> None:
        """Send what waits; a run that was not the active one ends as this did."""
        is_stopped = kind is not None and issubclass(kind, KeyboardInterrupt)
        status = "FINISHED" if kind is None else "KILLED" if is_stopped else "FAILED"
        until = time.monotonic() + _LAST_SECONDS
        with suppress(queue.Full):
            self._waiting.put(status, timeout=_LAST_SECONDS)
        self._thread.join(max(0.0, until - time.monotonic()))
        if self._thread.is_alive():
            self.lost += self._waiting.qsize()
            _log.warning("MLflow did not take the last events of its run %s in time", self.run_id)

    def _send_all(self) -> None:
        """Send events until the status at the end; runs in a thread of its own."""
        while not isinstance(event := self._waiting.get(), str):
            if not self._try(event.text, partial(self._send, event)):
                self.lost += 1
        if self._is_own:
            end = partial(self._client.set_terminated, self.run_id, event)
            self._is_failing = False  # a wrong status is worth a warning of its own
            self._try(f"that the run is {event}", end)

    def _try(self, text: str, send: Callable[[], Any]) -> bool:
        """Return whether something could be logged; warn the first time that it could not."""
        try:
            send()
        except Exception as error:  # noqa: BLE001 - stores raise what they like, and end no training
            if not self._is_failing:
                _log.warning("MLflow did not log %s: %s", text, str(error)[:_LONGEST])
            self._is_failing = True
            return False
        self._is_failing = False
        return True

    def _send(self, event: Event) -> None:
        from mlflow.entities import Metric, RunTag

        at, values = int(1000 * event.at), event.values
        if event.kind == "checkpoint":
            points, step = {"durable_rows": values["position"]}, values["position"]
        elif event.kind in ("window", "held_out"):
            step = values["row" if event.kind == "window" else "position"]
            points = {
                f"{event.kind}_{name}": value
                for name, value in values["metrics"].items()
                if isinstance(value, (int, float)) and name != "rows"
            }
        else:
            tags = [RunTag("dmondrian.event", event.text[:_LONGEST])]
            self._client.log_batch(self.run_id, tags=tags)
            return
        metrics = [Metric(name, float(value), at, int(step)) for name, value in points.items()]
        self._client.log_batch(self.run_id, metrics=metrics)


def _metrics(stored: dict[str, Any], make: Any) -> list[Any]:
    """Return the metrics of the learning curve, by rows, and the totals at its end."""
    if not stored.get("progressive"):
        return []
    report = Progressive.from_json(stored["progressive"]).report()
    totals = {key: report[key] for key in ("rows", *NAMES, "r2") if key in report}
    for span in ("window", "faded"):
        known = {key: value for key, value in report.get(span, {}).items() if key in totals}
        totals |= {f"{span}_{key}": value for key, value in known.items() if key != "rows"}
    for baseline, baseline_metrics in report.get("baselines", {}).items():
        totals |= {f"{baseline}_{key}": value for key, value in baseline_metrics.items()}
    points = [*report["curve"], totals]
    return [
        make(key, float(point[key]), 0, int(point["rows"]))
        for point in points
        for key in point
        if key != "rows"
    ]


def _signature(schema: Schema, answers: list[str]) -> Any:
    """Return the signature: names of input columns, names and types of outputs."""
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, TensorSpec
    from mlflow.types import Schema as Columns
    from mlflow.types.schema import AnyType

    inputs: list[ColSpec | TensorSpec] = [
        ColSpec(AnyType(), column.name) for column in schema.columns
    ]
    label = "double"
    if schema.classes is not None:
        label = {bool: "boolean", int: "long", str: "string"}[type(schema.classes[0])]
    outputs: list[ColSpec | TensorSpec] = [
        ColSpec(label if name == "prediction" else "double", name) for name in answers
    ]
    return ModelSignature(Columns(inputs), Columns(outputs))


def _answers(model: FrameModel) -> list[str]:
    """Return the names of the columns that a model predicts."""
    estimator = model.estimator
    names = answer_names(estimator.get_params(deep=False), None)
    if hasattr(estimator, "predict_proba"):
        names += answer_names({}, estimator.classes_)
    return names


class _PyfuncModel:
    """Model with the interface of MLflow: predicts a frame from a frame."""

    def __init__(self, model: FrameModel) -> None:
        self.model = model

    def predict(self, frame: Any, params: Any = None) -> Any:
        """Return predictions, and probabilities of classifiers."""
        import pandas as pd

        frame = self._with_times(frame)
        predictions = pd.DataFrame(self.model.predict(frame))
        if hasattr(self.model.estimator, "predict_proba"):
            predictions = pd.concat([predictions, self.model.predict_proba(frame)], axis=1)
        return predictions

    def _with_times(self, frame: Any) -> Any:
        """Return a pandas frame with texts in time columns parsed as times."""
        import pandas as pd

        schema = self.model.schema
        times = [] if schema is None else [c.name for c in schema.columns if c.kind == "time"]
        read = {}
        for name in set(times).intersection(frame.columns):
            if pd.api.types.is_string_dtype(frame[name]):  # not of dates, which are objects too
                try:
                    read[name] = pd.to_datetime(frame[name], format="ISO8601", utc=True)
                except ValueError as error:
                    raise DataError(f"the column {name!r} should have times: {error}") from error
        return frame.assign(**read)


def _load_pyfunc(path: str) -> _PyfuncModel:
    """Return the model of a folder; MLflow calls it by this name."""
    return _PyfuncModel(FrameModel(path))
