"""How many requests of one row a server answers on one core, and how long each takes.

The same rows are learned by ten AMF trees and by peers: scikit-learn's random forest of as many
trees, and LightGBM of a hundred rounds. The AMF trees are served by `dmondrian serve`, and each
model by a plain FastAPI handler, which is given a list of numbers, on the same uvicorn: one row
in, one number out. Runs trained on adult's Parquet, whose rows are columns by name, are served
beside: of 3 columns and of 14, and of 14 while a newer checkpoint comes twice a second. They are
asked how sure they are too, and each answer of ours is compared with that of its checkpoint.

The server has core 0, the client core 1; a client holds some connections, on each of which it asks
again as soon as it has an answer. Servers take turns, round by round. A run of this script that was
stopped takes up where it stood; ``--fresh`` starts over.

Seconds of the clock say little on a machine that does other work; so processor time of the server
for a request is measured beside them, which bounds the rate of a core.

    python -m benchmarks.serving

Peers whose packages are missing are left out.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from sklearn.datasets import make_friedman1

from benchmarks.pages import Number, Page, publish, single
from benchmarks.records import MACHINE, RESULTS, Records, commit, machine, table
from benchmarks.throughput import spread
from dmondrian import AMFClassifier, AMFRegressor, load

TREES = 10
OWN = "dmondrian serve"
HANDLERS = {  # name of a server: the package that it needs beside FastAPI
    "AMF behind FastAPI": "dmondrian",
    "random forest behind FastAPI": "sklearn",
    "LightGBM behind FastAPI": "lightgbm",
}
PATH = "/predict"
ADULT = Path(__file__).parents[1] / "jobs" / "data" / "adult"
FEW = ["age", "education", "hours-per-week"]
RUNS = {"run of 3 columns": FEW, "run of 14 columns": None}
RELOADED = "run of 14 columns, reloaded"  # at each checkpoint that comes
CHECKPOINTS = "2000 rows"
EVERY = 0.5  # seconds from one to the next
OURS = (OWN, *RUNS, RELOADED)
ROWS_ASKED = 16  # by turns


def fitted(name: str, X: np.ndarray, y: np.ndarray, folder: Path) -> Any:
    """Return a model that has learned the rows."""
    if name == "LightGBM behind FastAPI":
        import lightgbm

        return lightgbm.LGBMRegressor(n_jobs=1, random_state=0, verbose=-1).fit(X, y)
    if name == "random forest behind FastAPI":
        from sklearn.ensemble import RandomForestRegressor

        return RandomForestRegressor(TREES, random_state=0, n_jobs=1).fit(X, y)
    return load(model_of(OWN, folder))


def handler(name: str, rows: int, folder: Path, port: int) -> None:
    """Serve a model by FastAPI, until the process is ended."""
    import uvicorn
    from fastapi import FastAPI
    from pydantic import BaseModel

    class Rows(BaseModel):
        """A request."""

        rows: list[list[float]]

    model = fitted(name, *data(rows), folder)
    model.predict(np.full((1, 10), 0.5))
    app = FastAPI()

    def predict(asked: Rows) -> dict[str, list[dict[str, float]]]:
        found = model.predict(np.array(asked.rows))
        return {"rows": [{"prediction": value} for value in found.tolist()]}

    async def answer(asked: Rows) -> dict[str, list[dict[str, float]]]:
        return predict(asked)

    answer.__annotations__["asked"] = Rows  # annotations are texts here
    app.post(PATH)(answer)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning", access_log=False)


def data(rows: int) -> tuple[np.ndarray, np.ndarray]:
    X, y = make_friedman1(rows, n_features=10, noise=1.0, random_state=0)
    return X.astype(np.float32), y


def train_run(folder: Path, columns: list[str] | None) -> None:
    """Train a run on some columns of adult, or on all."""
    import pyarrow.parquet as pq
    from distributed import Client

    from dmondrian.distributed import train

    path = ADULT / "part-0000-train.parquet"
    names = pq.read_schema(path).names
    others = [name for name in names if columns and name not in [*columns, "income"]]
    with Client(processes=False, n_workers=1, threads_per_worker=1, dashboard_address=None) as one:
        train(
            AMFClassifier(TREES, random_state=0),
            path,
            target="income",
            exclude=others,
            run=folder,
            checkpoint_every=CHECKPOINTS,
            client=one,
            progress=False,
        )


def bodies(name: str) -> list[bytes]:
    """Return requests for a server."""
    if name not in OURS[1:]:
        rows = np.random.default_rng(1).random((ROWS_ASKED, 10)).round(3).tolist()
        # Peers know no details: of ours they are left out too.
        details = {"details": False} if name == OWN else {}
        return [json.dumps({"rows": [row]} | details).encode() for row in rows]
    import pyarrow.parquet as pq

    table = pq.read_table(ADULT / "part-0001-test.parquet").drop_columns(["income"])
    some = table.select(RUNS.get(name) or table.column_names).slice(0, ROWS_ASKED)
    return [json.dumps({"rows": [row]}).encode() for row in some.to_pylist()]


def model_of(name: str, folder: Path) -> Path:
    """Return the folder of what one of our servers serves."""
    return folder / name.replace(" ", "_")


def is_wrong(model: Path, body: bytes, answer: str) -> bool:
    """Whether an answer is not that of the checkpoint that it names."""
    from dmondrian.serving.request_queue import answers
    from dmondrian.serving.request_rows import read_json, request_of_json

    served = checkpoint(f"{model}@{json.loads(answer)['position']}")
    request = request_of_json(read_json(body), served.names, served.n_columns)
    (wanted,) = answers(served, [request], False)
    return isinstance(wanted, Exception) or wanted[0].body != answer.encode()


@functools.cache
def checkpoint(address: str) -> Any:
    from dmondrian.serving.served_model import Address, ServedModel

    return ServedModel(Address.find(address))


class Coming:
    """Checkpoints of a run that come one after the other: all but the first are hidden before."""

    def __init__(self, run: Path) -> None:
        self._to = run / "manifests"
        self._hidden = run.with_name(f"{run.name}_hidden")
        self._hidden.mkdir(exist_ok=True)
        for path in sorted(self._to.glob("*.json"))[1:]:
            path.rename(self._hidden / path.name)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._show)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._show_rest()

    def _show(self) -> None:
        for path in sorted(self._hidden.glob("*.json")):
            if self._ended.wait(EVERY):
                return
            path.rename(self._to / path.name)

    def _show_rest(self) -> None:
        for path in self._hidden.glob("*.json"):
            path.rename(self._to / path.name)


def free_port() -> int:
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def serving(name: str, rows: int, folder: Path) -> Iterator[tuple[int, psutil.Process]]:
    """Yield the port of a server on core 0, and its process."""
    port = free_port()
    own = ["dmondrian.cli", "serve", str(model_of(name, folder)), "--port", str(port),
           "--reload-every", str(EVERY)]  # fmt: skip
    other = ["benchmarks.serving", "--handler", name, "--port", str(port), "--rows", str(rows),
             "--folder", str(folder)]  # fmt: skip
    command = [sys.executable, "-m", *(own if name in OURS else other)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        its = psutil.Process(process.pid)
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(process.pid, {0})
        end = time.monotonic() + 300.0
        while True:
            try:
                urllib.request.urlopen(
                    f"http://127.0.0.1:{port}/openapi.json", timeout=10.0
                ).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > end:
                    raise SystemExit(f"{name} did not start") from None
                time.sleep(0.1)
        yield port, its
    finally:
        process.terminate()
        process.wait(60.0)


async def ask(
    port: int, connections: int, seconds: float, asked: list[bytes]
) -> tuple[list[float], Counter[tuple[int, bytes]]]:
    """Return the seconds that each request took, and the answers to each row."""
    head = f"POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    requests = [f"{head}content-length: {len(one)}\r\n\r\n".encode() + one for one in asked]
    took: list[float] = []
    found: Counter[tuple[int, bytes]] = Counter()
    end = time.perf_counter() + seconds

    async def one(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while (began := time.perf_counter()) < end:
            number = (number + 1) % len(requests)
            writer.write(requests[number])
            reply = (await reader.readuntil(b"\r\n\r\n")).lower()
            assert reply.startswith(b"http/1.1 200"), reply
            length = int(reply.partition(b"content-length: ")[2].partition(b"\r\n")[0])
            answer = await reader.readexactly(length)
            took.append(time.perf_counter() - began)
            found[number, answer] += 1
        writer.close()
        await writer.wait_closed()

    await asyncio.gather(*(one(number) for number in range(connections)))
    return took, found


def load_of(port: int, connections: int, seconds: float, name: str) -> dict[str, Any]:
    """Return the times of a client, a process on core 1, and the answers."""
    command = [sys.executable, "-m", "benchmarks.serving", "--client", str(connections),
               "--port", str(port), "--seconds", str(seconds), "--servers", name]  # fmt: skip
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def client(args: argparse.Namespace) -> None:
    """Ask, and print what was found as JSON."""
    if hasattr(os, "sched_setaffinity") and 1 in os.sched_getaffinity(0):
        os.sched_setaffinity(0, {1})
    asked = bodies(args.servers[0])
    runner: Callable[[Any], Any] = asyncio.run
    if importlib.util.find_spec("uvloop"):
        import uvloop

        runner = uvloop.run
    times, found = runner(ask(args.port, args.client, args.seconds, asked))
    took = sorted(times)
    at = {"p50": took[len(took) // 2], "p99": took[int(0.99 * len(took))]}
    answers = [[number, body.decode(), times] for (number, body), times in found.items()]
    print(json.dumps({"requests": len(took), **at, "answers": answers}))


def measure(args: argparse.Namespace, records: Records) -> None:
    """Ask all servers in turns; add a record for each and each number of connections.

    Rounds that records have, of the same settings, are not measured again.
    """
    has_fastapi = importlib.util.find_spec("fastapi") is not None
    peers = [n for n, package in HANDLERS.items() if has_fastapi and has(package)]
    servers = [name for name in (*OURS, *peers) if not args.servers or name in args.servers]
    settings = {"trees": TREES, "seconds": args.seconds}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for number in range(args.repeats):
            for name in servers:
                about = {"server": name, **settings, "rows": args.rows}
                if name in OURS[1:]:
                    about["rows"] = "adult"
                asked = [
                    (connections, record)
                    for connections in args.connections
                    for record in [rounds(records, {**about, "connections": connections})]
                    if len(record["rates"]) <= number
                ]
                if not asked:
                    continue
                make(OWN if name in HANDLERS else name, args.rows, folder)
                for connections, record in asked:
                    records.add(one_round(name, connections, record, args, folder))


def rounds(records: Records, about: dict[str, Any]) -> dict[str, Any]:
    """Return the record of a server's rounds so far, of this machine and commit."""
    empty: dict[str, Any] = {**about, "rates": [], "p50": [], "p99": [], "busy": []}
    for one in records:
        run = records.runs[one["run"]]
        is_same = all(one.get(key) == value for key, value in about.items())
        if is_same and run["cpu"] == machine()["cpu"] and run["commit"] == commit():
            return one
    return empty


def make(name: str, rows: int, folder: Path) -> None:
    """Make what a server of ours serves, once."""
    path = model_of(name, folder)
    if path.exists():
        return
    if name == OWN:
        AMFRegressor(TREES, random_state=0, feature_scales=None).fit(*data(rows)).save(path)
    else:
        train_run(path, RUNS.get(name))


def one_round(
    name: str, connections: int, record: dict[str, Any], args: argparse.Namespace, folder: Path
) -> dict[str, Any]:
    """Return a record with one round more."""
    model = model_of(name, folder)
    coming = Coming(model) if name == RELOADED else nullcontext()
    with serving(name, args.rows, folder) as (port, process):
        load_of(port, 4, 0.5, name)  # all is loaded
        with coming:
            before = process.cpu_times()
            one = load_of(port, connections, args.seconds, name)
            after = process.cpu_times()
    busy = after.user + after.system - before.user - before.system
    new = {
        "rates": one["requests"] / args.seconds,
        "p50": one["p50"],
        "p99": one["p99"],
        "busy": busy / one["requests"],
    }
    found = {**record, **{key: [*record[key], value] for key, value in new.items()}}
    if name in OURS:
        asked = bodies(name)
        wrong = [n for i, answer, n in one["answers"] if is_wrong(model, asked[i], answer)]
        found["wrong"] = record.get("wrong", 0) + sum(wrong)
        found["checkpoints"] = len(
            {json.loads(answer)["position"] for _, answer, _ in one["answers"]}
        )
    return found


def has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def middle(values: list[float], scale: float, form: str) -> str:
    """Write the median, least and greatest."""
    return spread([of(values) * scale for of in (min, statistics.median, max)], form)


def report(records: Records) -> str:
    """Markdown: rates and times of each server."""
    lines = [
        [r["server"], r["connections"], middle(r["rates"], 1.0, ".0f"),
         middle(r["p50"], 1e3, ".2f"), middle(r["p99"], 1e3, ".2f"), middle(r["busy"], 1e6, ".0f"),
         r.get("checkpoints", ""), r.get("wrong", "")]
        for r in records
    ]  # fmt: skip
    head = ["server", "connections", "requests a second", "p50, ms", "p99, ms", "processor, us",
            "checkpoints", "wrong answers"]  # fmt: skip
    return (
        "One row a request: median (least to greatest) of the rounds; the processor is "
        "the server's, for a request. Of our servers: from how many checkpoints answers came, and "
        "how many answers were not those of the checkpoint that they name.\n\n" + table(head, lines)
    )


def figure(server: str, key: str, scale: float, form: str) -> Callable[[Records], Number]:
    """Return what finds a number of the most connections of a server."""

    def find(records: Records) -> Number:
        own = [r for r in records if r["server"] == server]
        if not own:
            raise LookupError(server)
        record = max(own, key=lambda r: r["connections"])
        values = record[key]
        given = [of(values) * scale for of in (min, statistics.median, max)]
        return single(given, form, record)

    return find


def of_reloaded(key: str) -> Callable[[Records], Number]:
    """Return what finds a number of the most connections of the reloaded run."""

    def find(records: Records) -> Number:
        own = [r for r in records if r["server"] == RELOADED]
        if not own:
            raise LookupError(RELOADED)
        record = max(own, key=lambda r: r["connections"])
        return single(float(record[key]), ".0f", record)

    return find


PAGE = Page(
    title="Serving",
    question="How many requests of one row does a server answer on one core, and how long does"
    " each take, beside a plain handler?",
    identity=("server", "connections", "rows", MACHINE),
    body=report,
    numbers={
        "rate": figure(OWN, "rates", 1.0, ".0f"),
        "p99": figure(OWN, "p99", 1e3, ".2f"),
        "busy": figure(OWN, "busy", 1e6, ".0f"),
        "amf": figure("AMF behind FastAPI", "busy", 1e6, ".0f"),
        "forest": figure("random forest behind FastAPI", "busy", 1e6, ".0f"),
        "few": figure("run of 3 columns", "busy", 1e6, ".0f"),
        "many": figure("run of 14 columns", "busy", 1e6, ".0f"),
        "many_rate": figure("run of 14 columns", "rates", 1.0, ".0f"),
        "many_p99": figure("run of 14 columns", "p99", 1e3, ".2f"),
        "reloaded": figure(RELOADED, "p99", 1e3, ".2f"),
        "wrong": of_reloaded("wrong"),
        "taken": of_reloaded("checkpoints"),
        "seconds": of_reloaded("seconds"),
    },
    sentences=(
        "`dmondrian serve` takes {busy} us of a core for a request of one row where many come at"
        " once, as it forecasts those that wait in one call; a plain FastAPI handler takes {amf} us"
        " with the same trees, and {forest} us with a random forest of as many.",
        "In these rounds it answered {rate} requests a second, all but one in a hundred"
        " within {p99} ms.",
        "A run's request, with columns by name and how sure the forest is, takes {few} us of a core"
        " with few columns and {many} us with all of adult: {many_rate} requests a second, all but"
        " one in a hundred within {many_p99} ms; within {reloaded} ms while newer checkpoints come"
        " twice a second, with {wrong} wrong answers. Loading has a lower priority than answers: in"
        " {seconds} seconds of a core that is always busy, answers came from {taken} checkpoints.",
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=20_000, help="that are learned")
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--servers", nargs="+", choices=[*OURS, *HANDLERS], help="default: all")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    parser.add_argument("--out", type=Path, default=RESULTS / "serving.json")
    parser.add_argument("--handler", help=argparse.SUPPRESS)
    parser.add_argument("--client", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.handler:
        handler(args.handler, args.rows, args.folder, args.port)
    elif args.client:
        client(args)
    else:
        records = Records(args.out, PAGE.identity, args.fresh)
        measure(args, records)
        publish("serving", records)


if __name__ == "__main__":
    main()
