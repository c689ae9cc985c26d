"""A server as a process: reloads under load, hostile requests, the loop of labels, kills."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pyarrow as pa
import pytest
from openapi_spec_validator import validate

from dmondrian import AMFClassifier, AMFRegressor, load
from dmondrian.checkpoint.copying import copy_model
from dmondrian.checkpoint.migrating import migrate
from dmondrian.errors import CorruptError, DataError, FencedError, OutageError
from dmondrian.serving import asgi
from dmondrian.serving import server as server_module
from dmondrian.serving.learner import Learner, learn_request_of
from dmondrian.serving.request_queue import SLICE, BusyError, RequestQueue
from dmondrian.serving.served_model import Address, ServedModel
from dmondrian.serving.serving_metrics import ServingMetrics
from dmondrian.serving.waiting_keys import WaitingKeys
from tests.cli.command import call

from .client import Server, serving

ARROW = "application/vnd.apache.arrow.stream"


def stream(seed: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(seed).random((n, 3), dtype=np.float32)
    return X, np.where(X[:, 0] > X[:, 1], "yes", "no")


def fitted(n: int = 300) -> AMFClassifier:
    X, y = stream(0, n)
    return AMFClassifier(n_estimators=3, random_state=0).fit(X, y)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "model"
    fitted().save(folder)
    return folder


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[Server]:
    with serving(model, "--reload-every", "0.05", "--max-body", "200000") as server:
        yield server
        assert server.stop() == 0


def test_each_answer_comes_from_one_state_while_newer_ones_come(
    server: Server, model: Path
) -> None:
    forest, (X, y) = load(model), stream(1, 400)
    asked = X[:5]
    # What each state answers, by its position; the last rows are learned after the start.
    states = {300: forest.predict_proba(asked).tolist()}
    found: list[tuple[int, list[list[float]]]] = []
    errors: list[BaseException] = []
    is_over = threading.Event()

    def go() -> None:
        connection = server.connect()
        try:
            while not is_over.is_set():
                reply = server.ask("/predict", asked.tolist(), connection=connection)
                assert reply.status == 200
                rows = [[row["proba_no"], row["proba_yes"]] for row in reply.json["rows"]]
                assert reply.headers["dmondrian-position"] == str(reply.json["position"])
                found.append((reply.json["position"], rows))
                if reply.json["position"] == 700:
                    break
        except BaseException as error:  # noqa: BLE001  # raised below
            errors.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=go, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for start in range(0, 400, 100):
        forest.partial_fit(X[start : start + 100], y[start : start + 100])
        forest.save(model)
        states[300 + start + 100] = forest.predict_proba(asked).tolist()
    for thread in threads:
        thread.join(120)
    is_over.set()
    assert not errors
    assert not any(thread.is_alive() for thread in threads)
    assert {position for position, _ in found} <= set(states)
    assert all(rows == states[position] for position, rows in found)
    assert found[-1][0] == 700


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own")
def test_the_thread_that_reloads_lets_those_that_answer_go_first(server: Server) -> None:
    answering = os.getpriority(os.PRIO_PROCESS, server.process.pid)
    if answering + 15 > 19:
        pytest.skip(f"begun at priority {answering}, of which there are too few below")
    end, found = time.monotonic() + 60.0, {answering}
    while len(found) == 1 and time.monotonic() < end:  # the thread begins at the first look
        threads = [int(one.name) for one in Path(f"/proc/{server.process.pid}/task").iterdir()]
        found = {os.getpriority(os.PRIO_PROCESS, thread) for thread in threads}
    assert found == {answering, answering + 15}


def test_what_is_served_matches_its_openapi_document(server: Server) -> None:
    document = server.ask("/openapi.json").json
    validate(document)
    schemas = document["components"]["schemas"]

    def check(value: Any, name: str) -> None:
        jsonschema.validate(value, {"$ref": f"#/components/schemas/{name}", **document})

    row = [0.25, 0.5, 0.75]
    for body in ({"rows": [row]}, [row, row], {"rows": [row], "details": False}):
        check(body, "Rows")
        check(server.ask("/predict", body).json, "Forecasts")
    refused = server.ask("/predict", {"rows": [[1]]})
    assert refused.status == 422
    check(refused.json, "Error")
    check(server.ask("/health").json, "Health")
    assert schemas["Forecast"]["properties"]["prediction"] == {"enum": ["no", "yes"]}
    assert "/learn" not in document["paths"]
    for refused_row in ([1], [0.25, 0.5, None]):
        with pytest.raises(jsonschema.ValidationError):
            check([refused_row], "Rows")
    for path, methods in document["paths"].items():
        assert server.ask(path, method="DELETE").status == 405
        if "get" in methods:
            assert server.ask(path).status == 200


BAD_JSON = {
    "no JSON": (b"{", 400, "no JSON"),
    "no UTF-8": (b'{"rows": ["\xff"]}', 400, "no JSON"),
    "deep": (b"[" * 100_000, 400, "nested"),
    "long number": (b'{"rows": [[1, 2, ' + b"9" * 5000 + b"]]}", 400, "no JSON"),
    "NaN": (b'{"rows": [[1, 2, NaN]]}', 400, "NaN is no JSON"),
    "name twice": (b'{"rows": [], "rows": []}', 400, "more than once"),
    "number": (b"3", 400, "expected an object"),
    "both": (b'{"rows": [], "columns": {}}', 400, "either rows or columns"),
    "more": (b'{"rows": [[1, 2, 3]], "sql": "x"}', 400, "keys where the server learns"),
    "no rows": (b'{"rows": []}', 422, "no rows"),
    "short row": (b'{"rows": [[1, 2, 3], [1, 2]]}', 422, "row 1 is a list of 2"),
    "object": (b'{"rows": [{"a": 1}]}', 422, "knows no names"),
    "text": (b'{"rows": [[1, 2, "x"]]}', 422, "something else in 'x2'"),
    "mixed": (b'{"rows": [[1, 2, 3], [1, 2, "x"]]}', 422, "'x2' has values"),
    "nested": (b'{"rows": [[1, 2, [3]]]}', 422, "'x2'"),
    "null": (b'{"rows": [[1, 2, null]]}', 422, "NaN"),
    "infinite": (b'{"rows": [[1, 2, 1e999]]}', 422, "infinity"),
    "beyond float32": (b'{"rows": [[1, 2, 1e39]]}', 422, "infinity"),
    "huge integer": (b'{"rows": [[1, 2, ' + b"9" * 400 + b"]]}", 422, "'x2' has values"),
    "keys": (b'{"rows": [[1, 2, 3]], "keys": ["a"]}', 422, "does not learn"),
    "details": (b'{"rows": [[1, 2, 3]], "details": 1}', 400, "true or false"),
}


@pytest.mark.parametrize("name", BAD_JSON)
def test_hostile_json_is_refused(server: Server, name: str) -> None:
    body, status, words = BAD_JSON[name]
    reply = server.ask("/predict", body)
    assert reply.status == status, reply.body
    assert words in reply.error
    assert server.ask("/predict", [[0.1, 0.2, 0.3]]).status == 200


def arrow(table: pa.Table, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def test_hostile_arrow_is_refused(server: Server) -> None:
    good = pa.table({name: np.linspace(0.0, 1.0, 50) for name in "abc"})
    data = arrow(good)
    assert server.ask("/predict", data, kind=ARROW).status == 200
    long = pa.table({name: pa.nulls(10**9) for name in "abc"})  # takes no bytes
    twice = pa.Table.from_arrays(good.columns, ["a", "b", "b"])
    texts = good.set_column(0, "a", pa.array(["x"] * 50))
    for body, status, words in (
        (arrow(long), 400, "at most 100,000"),
        (arrow(good, compression="zstd"), 400, "compressed"),
        (b"", 400, "Arrow"),
        (arrow(texts), 422, "something else in 'a'"),
        (arrow(good.drop_columns(["a"])), 422, "expected the 3"),
        (arrow(twice), 422, "several columns"),
    ):
        reply = server.ask("/predict", body, kind=ARROW)
        assert (reply.status, words in reply.error) == (status, True), reply.body
    rng = np.random.default_rng(zlib.crc32(b"arrow"))
    for _ in range(60):  # damaged bytes: refused, or values that are others
        place, value = int(rng.integers(len(data))), int(rng.integers(256))
        damaged = data[:place] + bytes([value]) + data[place + 1 :]
        for body in (damaged, data[:place]):
            assert server.ask("/predict", body, kind=ARROW).status in (200, 400, 422)
    assert server.process.poll() is None


def test_other_requests_are_refused(server: Server) -> None:
    assert server.ask("/nothing").status == 404
    assert server.ask("/predict").status == 405
    assert server.ask("/predict", b"1", kind="text/plain").status == 415
    learn = server.ask("/learn", {"keys": ["a"], "labels": ["yes"]})
    assert (learn.status, "--learn" in learn.error) == (403, True)
    for n_bytes in (300_000, 6_000_000):  # whoever looks for the answer behind the body finds it
        assert server.ask("/predict", b" " * n_bytes).status == 413
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as raw:
        head = b"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        raw.sendall(head + b"transfer-encoding: chunked\r\n\r\n" + b"10000\r\n")
        for _ in range(4):
            raw.sendall(b" " * 0x10000 + b"\r\n10000\r\n")
        assert b"413" in raw.recv(1000)
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as raw:
        raw.sendall(head + b"content-length: 100\r\n\r\n[")  # and hangs up
    assert server.ask("/health").json["status"] == "ok"


@pytest.mark.skipif(sys.platform == "win32", reason="it has no such limit")
def test_many_connections_that_stay_silent_are_no_limit(model: Path) -> None:
    import resource

    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, before[1]))
    try:
        with serving(model) as server:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
            with ExitStack() as stack:
                for _ in range(100):
                    raw = socket.create_connection(("127.0.0.1", server.port), timeout=60)
                    stack.enter_context(raw).sendall(b"POST /predict HTTP/1.1\r\nhost: x\r\n")
                assert server.ask("/predict", [[0.1, 0.2, 0.3]]).status == 200
            assert server.stop() == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_connections_ask_for_life_and_bodies_have_to_come(monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as stack:
        listening = stack.enter_context(server_module._listen("127.0.0.1", 0))
        stack.enter_context(socket.create_connection(listening.getsockname(), timeout=60))
        accepted = stack.enter_context(listening.accept()[0])
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        if sys.platform == "linux":
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60
    monkeypatch.setattr(asgi, "_SILENT_SECONDS", 0.01)
    app = asgi.Application(None, ServingMetrics(), 100, dict)  # type: ignore[arg-type]  # not asked
    sent: list[Any] = []

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "path": "/predict", "method": "POST", "headers": headers}
    asyncio.run(app(scope, receive, send))
    assert sent[0]["status"] == 408


def test_whatever_a_look_for_a_newer_checkpoint_raises_the_server_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    errors = [MemoryError(), OutageError("no answer in 1 s"), OutageError("no answer in 2 s")]
    reloading = server_module.Reloading("model", None, ServingMetrics())  # type: ignore[arg-type]  # not asked

    def fail() -> None:
        if errors:
            raise errors.pop(0)

    monkeypatch.setattr(reloading, "_newer", fail)

    async def look() -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                await reloading.look(0.01)

    asyncio.run(look())
    assert not errors
    assert caplog.text.count("was not taken") == 2
    assert reloading.about() == {}


def test_no_flipped_bit_changes_a_row_that_waits(tmp_path: Path) -> None:
    path, (X, _) = tmp_path / "model", stream(3, 4)
    fitted().save(path)
    served = ServedModel(Address.find(str(path)))
    learner = Learner(served, 10, 100, 100.0)
    keys = WaitingKeys(3, 10)
    keys.add(["a", "b", "c", "d"], X)
    learner.save(keys)
    learner.close()
    (file,) = (path / "serving").iterdir()
    whole = file.read_bytes()

    def rows_of(data: bytes) -> dict[str, bytes]:
        return dict(WaitingKeys.from_arrow(data, 3, 10)._waiting)

    expected = rows_of(whole)
    assert list(expected) == ["a", "b", "c", "d"]
    assert rows_of(whole[:-48]) == expected  # as earlier versions wrote it
    refused = 0
    for place in range(len(whole)):
        flipped = whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :]
        try:
            assert rows_of(flipped) == expected
        except CorruptError:
            refused += 1
    assert refused >= len(whole) - 16  # all but those of the mark before the digest
    file.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    with pytest.raises(CorruptError, match=r"serving/.* is damaged .* restore it"):
        Learner(ServedModel(Address.find(str(path))), 10, 100, 100.0)


def test_metrics_are_scraped(server: Server) -> None:
    server.ask("/predict", [[0.1, 0.2, 0.3]])
    text = server.ask("/metrics").body.decode()
    for line in ('dmondrian_requests_total{path="/predict",status="200"}', "dmondrian_position"):
        assert line in text


def test_a_port_that_is_taken_is_an_error(server: Server, model: Path) -> None:
    _, stderr = call("serve", model, "--port", server.port, code=2)
    assert "choose another --port" in stderr


@pytest.mark.slow
def test_labels_are_learned_once_in_their_order_whatever_ends_the_process(tmp_path: Path) -> None:
    path, (X, y) = tmp_path / "model", stream(2, 60)
    forest = fitted()
    forest.save(path)

    def rows(of: range) -> list[list[float]]:
        return X[of.start : of.stop : of.step].tolist()

    def keys(of: range) -> list[str]:
        return [f"row {i}" for i in of]

    def labels(of: range) -> list[str]:
        return [str(y[i]) for i in of]

    with serving(path, "--learn", "--save-rows", "20", "--save-every", "1000") as server:
        asked = server.ask("/predict", {"rows": rows(range(40)), "keys": keys(range(40))})
        assert asked.json["keys"] == keys(range(40))
        late = range(29, 9, -1)  # labels come in another order than rows
        learned = server.ask("/learn", {"keys": keys(late), "labels": labels(late)})
        assert learned.json | {"saved": 0} == {
            "learned": 20, "passed": 0, "position": 320, "saved": 0
        }  # fmt: skip
        forest.partial_fit(X[late], y[late])
        now = server.ask("/predict", X[:5].tolist()).json
        assert now["position"] == 320
        assert [one["proba_yes"] for one in now["rows"]] == forest.predict_proba(X[:5])[
            :, 1
        ].tolist()
        again = server.ask("/learn", {"keys": keys(range(9, 12)), "labels": labels(range(9, 12))})
        assert (again.json["learned"], again.json["passed"]) == (1, 2)
        forest.partial_fit(X[9:10], y[9:10])
        for body, status, words in (
            ({"keys": ["row 1", "nobody"], "labels": ["yes", "yes"]}, 409, "nothing was learned"),
            ({"keys": ["row 1"], "labels": ["maybe"]}, 422, "not among the 2 classes"),
            ({"keys": ["row 1"], "labels": [True]}, 422, "not among the 2 classes"),
            ({"keys": ["row 1"], "labels": []}, 422, "labels"),
            ({"keys": ["row 1", "row 1"], "labels": ["yes"] * 2}, 400, "twice"),
            ({"keys": [1], "labels": ["yes"]}, 400, "texts"),
            ({"labels": ["yes"]}, 422, "came alone"),
            ({"rows": rows(range(2)), "labels": ["yes"]}, 422, "1 labels came for 2 rows"),
            ({"rows": [[1, 2, None]], "labels": ["yes"]}, 422, "NaN"),
        ):
            reply = server.ask("/learn", body)
            assert (reply.status, words in reply.error) == (status, True), reply.body
        taken = server.ask("/predict", {"rows": rows(range(2)), "keys": ["row 0", "row 30"]})
        assert (taken.status, "row 30" in taken.error) == (409, True)
        assert server.ask("/learn", {"rows": [], "labels": []}).error.endswith("at least one")
        document = server.ask("/openapi.json").json
        validate(document)
        assert "/learn" in document["paths"]
        assert "503" in document["paths"]["/health"]["get"]["responses"]
        with pytest.raises(FencedError, match="is being worked on"):  # the server holds the folder
            forest.save(path)
        # The save that was due is done when the next labels have been learned.
        saved = server.ask("/learn", {"keys": keys(range(1)), "labels": labels(range(1))}).json
        assert (saved["position"], saved["saved"]) == (322, 320)
        assert server.stop(signal.SIGKILL) == -signal.SIGKILL
    with serving(path, "--learn", "--save-rows", "20", "--save-every", "1000") as server:
        # What came after the save is as if it had not come; what was saved goes on.
        about = server.ask("/health").json
        assert (about["position"], about["saved"], about["waiting"]) == (320, 320, 20)
        everything = range(40)
        done = server.ask(
            "/learn",
            {"rows": rows(everything), "keys": keys(everything), "labels": labels(everything)},
        ).json
        assert (done["learned"], done["passed"], done["position"]) == (20, 20, 340)
        server.ask("/predict", {"rows": rows(range(40, 50)), "keys": keys(range(40, 50))})
        plain = server.ask("/learn", {"rows": rows(range(50, 60)), "labels": labels(range(50, 60))})
        assert plain.json["learned"] == 10
        assert server.stop() == 0
    assert set(os.listdir(path / "serving")) == {f"{350:018d}.arrow"}
    reference = fitted()
    order = [*late, *range(10), *range(30, 40), *range(50, 60)]
    reference.partial_fit(X[order], y[order])
    stored = load(path)
    assert stored.predict_proba(X).tolist() == reference.predict_proba(X).tolist()
    assert [tree.tolist() for tree in _states(stored)] == [t.tolist() for t in _states(reference)]


def _states(forest: AMFClassifier) -> list[np.ndarray]:
    return [values for tree in forest.forest_.state()[1] for values in tree.values()]


def test_weighted_rows_and_wrong_options_are_refused(tmp_path: Path) -> None:
    X, y = stream(0, 300)
    AMFClassifier(n_estimators=1, random_state=0, class_weight={"yes": 2.0, "no": 1.0}).fit(
        X, y
    ).save(tmp_path / "weighted")
    _, stderr = call("serve", tmp_path / "weighted", "--port", 0, "--learn", code=2)
    assert "class_weight" in stderr
    _, stderr = call("serve", tmp_path / "absent", "--port", 0, code=4)
    assert "There is no folder" in stderr
    assert json.loads(call("serve", "x", "--save-rows", 0, "--json", code=2)[0])["exit_code"] == 2
    _, stderr = call("serve", tmp_path / "weighted", "--waiting", -1, code=2)
    assert "--waiting -1: expected at least 1" in stderr


def test_a_learn_request_that_has_begun_is_learned_whole_at_the_end(tmp_path: Path) -> None:
    fitted().save(tmp_path / "model")
    X, y = stream(3, 2 * SLICE)
    body = (X.tolist(), y.tolist())

    async def go() -> tuple[list[Any], int]:
        model = ServedModel(Address.find(str(tmp_path / "model")))
        learner = Learner(model, 2000, 10**6, 1000.0)
        requests = RequestQueue(model, learner, ServingMetrics())
        keys = [[f"{name} {i}" for i in range(len(y))] for name in "ab"]
        asked = [learn_request_of(list(body[1]), own, X) for own in keys]
        waiting = [asyncio.create_task(requests.learn(one)) for one in asked]
        await asyncio.sleep(0)
        requests._learn_some()  # half of the first
        work = asyncio.create_task(requests.work())
        await asyncio.wait_for(requests.finish_learn_requests(), 300)
        work.cancel()
        found = await asyncio.gather(*waiting, return_exceptions=True)
        await requests.close()
        return found, learner.saved

    (first, second), saved = asyncio.run(go())
    assert (first["learned"], saved) == (len(y), 300 + len(y))
    assert isinstance(second, BusyError)
    again = Learner(ServedModel(Address.find(str(tmp_path / "model"))), 3, 1, 1.0)
    again.close()
    assert again.keys.is_learned(f"a {len(y) - 1}")
    assert not again.keys.is_learned("a 0")  # 3 are remembered
    with pytest.raises(DataError, match="at most 3 wait"):
        again.wait_for_labels(list("abcd"), X[:4])


@pytest.mark.parametrize("write", [copy_model, migrate])
def test_a_copy_knows_the_rows_that_wait_and_were_learned(
    tmp_path: Path, write: Callable[[Path, Path], Any]
) -> None:
    fitted().save(tmp_path / "model")
    X, y = stream(3, 2)
    learner = Learner(ServedModel(Address.find(str(tmp_path / "model"))), 9, 1, 1.0)
    learner.wait_for_labels(["waits", "learned"], X)
    rows, labels, _ = learner.begin(learn_request_of(y[1:].tolist(), ["learned"], None))
    learner.learn(rows, labels)
    learner.save(learner.freeze_keys())
    learner.close()
    write(tmp_path / "model", tmp_path / "copy")
    copy = Learner(ServedModel(Address.find(str(tmp_path / "copy"))), 9, 1, 1.0)
    copy.close()
    assert copy.saved == 301
    assert copy.keys.is_learned("learned")
    np.testing.assert_array_equal(copy.keys.rows_of(["waits"]), X[:1])


def test_a_learn_request_that_the_end_of_a_server_cut_is_learned_whole(tmp_path: Path) -> None:
    """`close` alone, as after a second signal."""
    fitted().save(tmp_path / "model")
    X, y = stream(3, SLICE + 5)

    async def go() -> Learner:
        model = ServedModel(Address.find(str(tmp_path / "model")))
        learner = Learner(model, 2000, 10**6, 1000.0)
        requests = RequestQueue(model, learner, ServingMetrics())
        task = asyncio.create_task(requests.learn(learn_request_of(y.tolist(), None, X)))
        await asyncio.sleep(0)
        requests._learn_some()
        task.cancel()
        await requests.close()
        return learner

    assert asyncio.run(go()).saved == 300 + len(y)


def test_a_label_beyond_all_floats_is_refused(tmp_path: Path) -> None:
    X, _ = stream(0, 30)
    AMFRegressor(n_estimators=1, random_state=0).fit(X, X[:, 0]).save(tmp_path / "model")
    learner = Learner(ServedModel(Address.find(str(tmp_path / "model"))), 3, 1, 1.0)
    try:
        with pytest.raises(DataError, match="too large"):
            learner.begin(learn_request_of([10**400], None, X[:1]))
    finally:
        learner.close()
