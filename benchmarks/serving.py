"""How many requests of one row a server answers on one core, and how long each takes.

The same rows are learned by ten AMF trees and by peers: scikit-learn's random forest of as many
trees, and LightGBM of a hundred rounds. The AMF trees are served by `dmondrian serve`, and each
model by a plain FastAPI handler, which is given a list of numbers, on the same uvicorn: one row
in, one number out. The server has core 0, the client core 1; a client holds some connections, on
each of which it asks again as soon as it has an answer. Servers take turns, round by round.

Seconds of the clock say little on a machine that does other work; so processor time of the server
for a request is measured beside them, which bounds the rate of a core.

    python -m benchmarks.serving

Peers whose packages are missing are left out.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from sklearn.datasets import make_friedman1

from benchmarks.pages import Number, Page, publish, single
from benchmarks.records import MACHINE, RESULTS, Records, table
from benchmarks.throughput import spread
from dmondrian import AMFRegressor, load

TREES = 10
OWN = "dmondrian serve"
HANDLERS = {  # name of a server: the package that it needs beside FastAPI
    "AMF behind FastAPI": "dmondrian",
    "random forest behind FastAPI": "sklearn",
    "LightGBM behind FastAPI": "lightgbm",
}
PATH = "/predict"


def fitted(name: str, X: np.ndarray, y: np.ndarray, folder: Path) -> Any:
    """Return a model that has learned the rows."""
    if name == "LightGBM behind FastAPI":
        import lightgbm

        return lightgbm.LGBMRegressor(n_jobs=1, random_state=0, verbose=-1).fit(X, y)
    if name == "random forest behind FastAPI":
        from sklearn.ensemble import RandomForestRegressor

        return RandomForestRegressor(TREES, random_state=0, n_jobs=1).fit(X, y)
    return load(folder / "model")


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


def free_port() -> int:
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def serving(name: str, rows: int, folder: Path) -> Iterator[tuple[int, psutil.Process]]:
    """Yield the port of a server on core 0, and its process."""
    port = free_port()
    own = ["dmondrian.cli", "serve", str(folder / "model"), "--port", str(port)]
    other = ["benchmarks.serving", "--handler", name, "--port", str(port), "--rows", str(rows),
             "--folder", str(folder)]  # fmt: skip
    command = [sys.executable, "-m", *(own if name == OWN else other)]
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


async def ask(port: int, connections: int, seconds: float, body: bytes) -> list[float]:
    """Return the seconds that each request took."""
    head = f"POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    request = f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
    took: list[float] = []
    end = time.perf_counter() + seconds

    async def one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while (began := time.perf_counter()) < end:
            writer.write(request)
            reply = (await reader.readuntil(b"\r\n\r\n")).lower()
            assert reply.startswith(b"http/1.1 200"), reply
            length = int(reply.partition(b"content-length: ")[2].partition(b"\r\n")[0])
            await reader.readexactly(length)
            took.append(time.perf_counter() - began)
        writer.close()
        await writer.wait_closed()

    await asyncio.gather(*(one() for _ in range(connections)))
    return took


def load_of(port: int, connections: int, seconds: float, details: bool) -> dict[str, Any]:
    """Return the times of a client, a process on core 1."""
    command = [sys.executable, "-m", "benchmarks.serving", "--client", str(connections),
               "--port", str(port), "--seconds", str(seconds)]  # fmt: skip
    done = subprocess.run(
        [*command, *([] if details else ["--plain"])], stdout=subprocess.PIPE, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def client(args: argparse.Namespace) -> None:
    """Ask, and print what was found as JSON."""
    if hasattr(os, "sched_setaffinity") and 1 in os.sched_getaffinity(0):
        os.sched_setaffinity(0, {1})
    row = {"rows": [np.random.default_rng(1).random(10).round(3).tolist()]}
    asked = row | ({"details": False} if args.plain else {})
    body = json.dumps(asked).encode()
    runner: Callable[[Any], Any] = asyncio.run
    if importlib.util.find_spec("uvloop"):
        import uvloop

        runner = uvloop.run
    took = sorted(runner(ask(args.port, args.client, args.seconds, body)))
    at = {"p50": took[len(took) // 2], "p99": took[int(0.99 * len(took))]}
    print(json.dumps({"requests": len(took), **at}))


def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Ask all servers in turns; return a record for each and each number of connections."""
    has_fastapi = importlib.util.find_spec("fastapi") is not None
    peers = [n for n, package in HANDLERS.items() if has_fastapi and has(package)]
    servers = [name for name in (OWN, *peers) if not args.servers or name in args.servers]
    found: dict[tuple[str, int], list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        X, y = data(args.rows)
        AMFRegressor(TREES, random_state=0, feature_scales=None).fit(X, y).save(folder / "model")
        for _ in range(args.repeats):
            for name in servers:
                with serving(name, args.rows, folder) as (port, process):
                    load_of(port, 4, 0.5, details=name != OWN)  # all is loaded
                    for connections in args.connections:
                        before = process.cpu_times()
                        # Peers know no details: of ours they are left out too.
                        one = load_of(port, connections, args.seconds, details=name != OWN)
                        after = process.cpu_times()
                        busy = after.user + after.system - before.user - before.system
                        one |= {"busy": busy / one["requests"]}
                        found.setdefault((name, connections), []).append(one)
    about = {"rows": args.rows, "trees": TREES, "seconds": args.seconds}
    return [
        {
            "server": name,
            "connections": connections,
            **about,
            "rates": [one["requests"] / args.seconds for one in times],
            "p50": [one["p50"] for one in times],
            "p99": [one["p99"] for one in times],
            "busy": [one["busy"] for one in times],
        }
        for (name, connections), times in found.items()
    ]


def has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def middle(values: list[float], scale: float, form: str) -> str:
    """Write the median, least and greatest."""
    return spread([of(values) * scale for of in (min, statistics.median, max)], form)


def report(records: Records) -> str:
    """Markdown: rates and times of each server."""
    lines = [
        [r["server"], r["connections"], middle(r["rates"], 1.0, ".0f"),
         middle(r["p50"], 1e3, ".2f"), middle(r["p99"], 1e3, ".2f"), middle(r["busy"], 1e6, ".0f")]
        for r in records
    ]  # fmt: skip
    head = ["server", "connections", "requests a second", "p50, ms", "p99, ms", "processor, us"]
    return (
        "One row a request: median (least to greatest) of the rounds; the last column is the "
        "server's processor time for a request.\n\n" + table(head, lines)
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
    },
    sentences=(
        "`dmondrian serve` takes {busy} us of a core for a request of one row where many come at"
        " once, as it forecasts those that wait in one call; a plain FastAPI handler takes {amf} us"
        " with the same trees, and {forest} us with a random forest of as many.",
        "In these rounds it answered {rate} requests a second, all but one in a hundred"
        " within {p99} ms.",
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
    parser.add_argument("--servers", nargs="+", choices=[OWN, *HANDLERS], help="default: all")
    parser.add_argument("--out", type=Path, default=RESULTS / "serving.json")
    parser.add_argument("--handler", help=argparse.SUPPRESS)
    parser.add_argument("--client", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--plain", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.handler:
        handler(args.handler, args.rows, args.folder, args.port)
    elif args.client:
        client(args)
    else:
        records = Records(args.out, PAGE.identity)
        for record in measure(args):
            records.add(record)
        publish("serving", records)


if __name__ == "__main__":
    main()
