"""The codec: what goes in comes out, equal states give equal bytes, nothing odd is let in."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dmondrian.checkpoint import decode_forest, encode_forest
from dmondrian.checkpoint.codec import METADATA_KEY, peek_forest
from dmondrian.errors import CorruptError, ParameterError
from tests.checkpoint.conftest import make_tree

Trees = list[dict[str, np.ndarray[Any, Any]]]


def same(a: Trees, b: Trees) -> bool:
    def is_same(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> bool:
        return x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()

    return len(a) == len(b) and all(
        s.keys() == t.keys() and all(is_same(s[name], t[name]) for name in s)
        for s, t in zip(a, b, strict=True)
    )


def test_round_trip(trees: Trees) -> None:
    header = {"parameters": {"alpha": 0.1, "max_nodes": None}, "seed": 2**64 - 1, "list": [1, 2.5]}
    read, back = decode_forest(encode_forest(header, trees))
    assert read == header
    assert same(trees, back)


def test_trees_one_by_one_in_the_same_memory(trees: Trees) -> None:
    used: Trees = [{}]

    def each() -> Iterator[dict[str, np.ndarray[Any, Any]]]:
        for tree in trees:
            for array in used[0].values():
                array.view(np.uint8)[:] = 255
            used[0] = {name: array.copy() for name, array in tree.items()}
            yield used[0]

    sizes = [len(next(iter(tree.values()))) for tree in trees]
    assert len(trees) > 1
    assert encode_forest({}, each(), sizes) == encode_forest({}, trees)
    with pytest.raises(
        ParameterError, match=f"{sizes[1] + 1} nodes and has {sizes[1]}: it learned"
    ):
        encode_forest({}, iter(trees), [sizes[0], sizes[1] + 1, *sizes[2:]])


def test_no_trees() -> None:
    assert encode_forest({"a": 1}, iter([]), []) == encode_forest({"a": 1}, [])
    assert decode_forest(encode_forest({"a": 1}, [])) == ({"a": 1}, [])


@settings(max_examples=60)
@given(st.data())
def test_round_trip_of_any_arrays(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.text(max_size=5), min_size=1, max_size=4, unique=True))
    kinds = [
        (data.draw(st.sampled_from(["<i4", "<f4", "<f8"])), data.draw(st.integers(0, 3)))
        for _ in names
    ]
    trees: Trees = []
    for _ in range(data.draw(st.integers(1, 3))):
        m = data.draw(st.integers(0, 9))
        trees.append(
            {
                name: data.draw(hnp.arrays(kind, (m, width) if width else (m,)))
                for name, (kind, width) in zip(names, kinds, strict=True)
            }
        )
    assert same(trees, decode_forest(encode_forest({}, trees))[1])


@given(st.floats(allow_nan=False))
def test_header_floats_are_exact(value: float) -> None:
    back = decode_forest(encode_forest({"x": value, "y": np.float64(value)}, []))[0]
    assert (back["x"], back["y"]) == (value, value)
    assert math.copysign(1, back["x"]) == math.copysign(1, value)


def test_equal_states_give_equal_bytes(trees: Trees) -> None:
    first = encode_forest({"a": 1, "b": {"c": 2, "d": 3}}, trees)
    turned = [dict(reversed(tree.items())) for tree in trees]
    strided = [{k: np.repeat(v, 2, axis=0)[::2] for k, v in tree.items()} for tree in turned]
    swapped = [{k: v.astype(v.dtype.newbyteorder(">")) for k, v in tree.items()} for tree in trees]
    for other in (turned, strided, swapped):
        assert encode_forest({"b": {"d": np.int64(3), "c": 2}, "a": 1}, other) == first
    assert encode_forest(*decode_forest(first)) == first


def test_one_changed_bit_of_the_state_changes_the_bytes(trees: Trees) -> None:
    first = encode_forest({}, trees)
    trees[3]["time"][5] = np.nextafter(trees[3]["time"][5], 9)
    assert encode_forest({}, trees) != first


def test_bytes_do_not_depend_on_threads_or_process(trees: Trees) -> None:
    trees = [make_tree(1, 20_000), *trees]
    before, found = pa.cpu_count(), set()
    try:
        for n_threads in (1, 2, 5):
            pa.set_cpu_count(n_threads)
            found.add(encode_forest({}, trees))
    finally:
        pa.set_cpu_count(before)
    assert len(found) == 1
    code = (
        "import hashlib; from dmondrian.checkpoint import encode_forest;"
        "from tests.checkpoint.conftest import make_tree;"
        "print(hashlib.sha256(encode_forest({}, [make_tree(0, 300)])).hexdigest())"
    )
    outs = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
        ).stdout
        for _ in range(2)
    }
    assert len(outs) == 1


def test_any_arrow_reader_opens_it(trees: Trees) -> None:
    table = pa.ipc.open_file(pa.BufferReader(encode_forest({}, trees))).read_all()
    assert table.num_rows == 378
    assert table.column_names == sorted(trees[0])


@pytest.mark.parametrize(
    ("tree", "says"),
    [
        ({"a": np.zeros(2, np.int64)}, "int64"),
        ({"a": [1, 2]}, "list"),
        ({"a": np.zeros((2, 2, 2), np.float32)}, r"shape \(2, 2, 2\)"),
        ({"a": np.zeros((2, 0), np.float32)}, r"shape \(2, 0\)"),
        ({"a": np.zeros(2, np.int32), "b": np.zeros(3, np.int32)}, "'a': 2, 'b': 3"),
    ],
)
def test_states_that_the_format_does_not_know(tree: dict[str, Any], says: str) -> None:
    with pytest.raises(ParameterError, match=says):
        encode_forest({}, [tree])


def test_trees_with_other_fields() -> None:
    with pytest.raises(ParameterError, match="Tree 1"):
        encode_forest({}, [{"a": np.zeros(2, np.int32)}, {"a": np.zeros(2, np.float32)}])


def test_every_truncation_is_found(trees: Trees) -> None:
    data = encode_forest({}, trees)
    for n in [*range(0, 400, 7), *range(400, len(data), 97), *range(len(data) - 30, len(data))]:
        with pytest.raises(CorruptError, match="the blob of shard 3"):
            decode_forest(data[:n], name="the blob of shard 3")


@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4))
def test_altered_bytes_are_refused_or_harmless(changes: list[tuple[int, int]]) -> None:
    data = bytearray(SMALL)
    for at, value in changes:
        data[at % len(data)] = value
    try:
        _, back = decode_forest(bytes(data), max_bytes=10**6)
    except CorruptError:
        return
    # Only values may differ: what was allocated is what the header declares.
    assert sum(v.nbytes for tree in back for v in tree.values()) <= 10**6


SMALL = encode_forest({"seed": 1}, [make_tree(0, 20), make_tree(1, 5)])


@given(st.binary(max_size=300))
def test_noise_is_refused(noise: bytes) -> None:
    for data in (noise, b"ARROW1\0\0" + noise + b"\1\0\0\0ARROW1"):
        with pytest.raises(CorruptError):
            decode_forest(data)


def forged(
    arrays: list[pa.Array], names: list[str], document: str | None, compression: str | None = "zstd"
) -> bytes:
    """A well-formed Arrow file that encode_forest would not write."""
    metadata = None if document is None else {METADATA_KEY: document}
    fields = [pa.field(n, a.type) for n, a in zip(names, arrays, strict=True)]
    schema = pa.schema(fields, metadata=metadata)
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(sink, schema, options=options) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return bytes(sink.getvalue())


GOOD = '{"format":1,"header":{},"rows":[3]}'
INTS = pa.array([1, 2, 3], pa.int32())


@pytest.mark.parametrize("compression", ["zstd", "lz4", None])
def test_a_file_of_another_writer_with_the_same_meaning(compression: str | None) -> None:
    _, trees = decode_forest(forged([INTS], ["a"], GOOD, compression))
    assert trees[0]["a"].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("arrays", "document", "says"),
    [
        ([pa.array([1, 2, 3], pa.int64())], GOOD, "int64"),
        ([pa.array(["a", "b", "c"])], GOOD, "string"),
        ([pa.array(["a", "b", "a"]).dictionary_encode()], GOOD, "dictionary"),
        ([pa.array([[1], [2], [3]], pa.list_(pa.int32()))], GOOD, "list"),
        ([pa.array([[], [], []], pa.list_(pa.int32(), 0))], GOOD, "fixed_size_list"),
        ([pa.array([[[1]], [[2]], [[3]]], pa.list_(pa.list_(pa.int32(), 1), 1))], GOOD, "fixed"),
        ([pa.array([1, None, 3], pa.int32())], GOOD, "null"),
        ([pa.array([[1], None, [3]], pa.list_(pa.int32(), 1))], GOOD, "null"),
        ([pa.array([[1], [None], [3]], pa.list_(pa.int32(), 1))], GOOD, "null"),
        ([INTS], None, "no dmondrian header"),
        ([INTS], "[]", "no dmondrian header"),
        ([INTS], "{", "JSON"),
        ([INTS], "[" * 100_000, "Error"),
        ([INTS], '{"format":2,"header":{},"rows":[3]}', "upgrade"),
        ([INTS], '{"format":1,"header":[],"rows":[3]}', "header"),
        ([INTS], '{"format":1,"header":{},"rows":[-3]}', "per tree"),
        ([INTS], '{"format":1,"header":{},"rows":[3.0]}', "per tree"),
        ([INTS], '{"format":1,"header":{},"rows":[true]}', "per tree"),
        ([INTS], '{"format":1,"header":{},"rows":3}', "per tree"),
        ([INTS], '{"format":1,"header":{},"rows":[2]}', "3 nodes, its header declares 2"),
        ([INTS], '{"format":1,"header":{},"rows":[3,3]}', "ends where"),
        ([INTS], '{"format":1,"header":{},"rows":[]}', "after the last"),
        ([INTS, INTS], GOOD, "name order"),
    ],
)
def test_well_formed_files_that_are_not_ours(
    arrays: list[pa.Array], document: str | None, says: str
) -> None:
    names = ["a", "a"][: len(arrays)]
    with pytest.raises(CorruptError, match=says):
        decode_forest(forged(arrays, names, document))


def test_a_state_larger_than_the_bound_is_not_allocated() -> None:
    bomb = encode_forest({}, [{"a": np.zeros(5_000_000)}])
    assert len(bomb) < 100_000
    before = pa.default_memory_pool().max_memory()
    with pytest.raises(CorruptError, match=r"5000000 nodes in 1 trees, 40000000 bytes.*39999999"):
        decode_forest(bomb, max_bytes=39_999_999)
    assert pa.default_memory_pool().max_memory() - before < 1_000_000
    assert len(decode_forest(bomb, max_bytes=40_000_000)[1][0]["a"]) == 5_000_000


@pytest.mark.parametrize("lie", [1, 7_999, 8_001, 2**40, 2**62, -2, -(2**63)])
def test_a_buffer_that_lies_about_its_size_is_not_allocated(lie: int) -> None:
    data = bytearray(encode_forest({}, [{"a": np.zeros(1000)}]))
    prefix = (8000).to_bytes(8, "little")
    # The size before compression stands in front of zstd's magic number.
    at = bytes(data).index(prefix + b"\x28\xb5\x2f\xfd")
    data[at : at + 8] = lie.to_bytes(8, "little", signed=True)
    with pytest.raises(CorruptError, match=f"declares {lie} bytes, expected 8000"):
        decode_forest(bytes(data))


def test_a_length_of_the_batch_that_lies_is_found() -> None:
    data = bytearray(encode_forest({}, [{"a": np.zeros(1000)}]))
    batch = bytes(data).index(b"ARROW1") + 8
    found = 0
    while (batch := bytes(data).find((1000).to_bytes(8, "little"), batch + 1)) > 0:
        changed = bytearray(data)
        changed[batch : batch + 8] = (2**40).to_bytes(8, "little")
        with pytest.raises(CorruptError):
            decode_forest(bytes(changed))
        found += 1
    assert found >= 2  # the batch's length and the column's


def ragged(seed: int, m: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 4, m).astype(np.int32)
    items = rng.normal(size=int(sizes.sum()))
    return {"left": np.arange(m, dtype=np.int32), "told": items, "told_size": sizes}


def test_lists_of_any_length_come_back() -> None:
    trees = [ragged(0, 30), ragged(1, 0), ragged(2, 1)]
    data = encode_forest({"a": 1}, trees)
    assert same(trees, decode_forest(data)[1])
    table = pa.ipc.open_file(pa.BufferReader(data)).read_all()
    assert pa.types.is_list(table.schema.field("told").type)
    assert [len(row) for row in table.column("told").to_pylist()[:30]] == trees[0][
        "told_size"
    ].tolist()
    header, rows, sizes = peek_forest(lambda start, stop: data[start:stop], len(data))
    assert header == {"a": 1}
    assert rows == [30, 0, 1]
    assert sizes == [sum(array.nbytes for array in tree.values()) for tree in trees]


def test_lists_that_do_not_add_up_are_refused() -> None:
    tree = ragged(0, 30)
    with pytest.raises(ParameterError, match="as many as 'told_size' has"):
        encode_forest({}, [{**tree, "told": tree["told"][1:]}])
    data = encode_forest({}, [tree])
    with pytest.raises(CorruptError, match="more than the 100 bytes"):
        decode_forest(data, max_bytes=100)
    swapped = tree["told_size"].copy()
    swapped[[int(swapped.argmax()), int(swapped.argmin())]] = swapped.min(), swapped.max()
    batch = pa.ipc.open_file(pa.BufferReader(data))
    columns = batch.get_batch(0).columns
    columns[batch.schema.get_field_index("told_size")] = pa.array(swapped)
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(sink, batch.schema, options=options) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=batch.schema))
    with pytest.raises(CorruptError, match="cut into other lists"):
        decode_forest(bytes(sink.getvalue()))
