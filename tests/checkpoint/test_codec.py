"""The codec: what goes in comes out, equal states give equal bytes, nothing odd is let in."""

from __future__ import annotations

import json
import math
import os
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

from dmondrian.checkpoint import codec, decode_forest, encode_forest
from dmondrian.checkpoint.codec import METADATA_KEY, decode_blob, peek_forest
from dmondrian.errors import CorruptError, ParameterError
from dmondrian.tree.sparse_rows import sparse_rows
from tests.checkpoint.conftest import make_tree
from tests.cli.command import TIMEOUT

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


@settings(max_examples=30)
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
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            timeout=TIMEOUT,
        ).stdout
        for _ in range(2)
    }
    assert len(outs) == 1


def test_any_arrow_reader_opens_it(trees: Trees) -> None:
    rows = [len(next(iter(tree.values()))) for tree in trees]
    table = pa.ipc.open_file(pa.BufferReader(encode_forest({}, trees))).read_all()
    assert table.num_rows == 378
    assert table.column_names == sorted(trees[0])
    table = pa.ipc.open_file(
        pa.BufferReader(encode_forest({}, map(sparse, trees), rows))
    ).read_all()
    wide = [name for name, array in trees[0].items() if array.ndim == 2]
    beside = [f"{name}{end}" for name in wide for end in ("_marks", "_size")]
    assert len(wide) > 1
    assert table.column_names == sorted([*trees[0], *beside])


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"a": np.zeros(2, np.int64)}, "int64"),
        ({"a": [1, 2]}, "list"),
        ({"a": np.zeros((2, 2, 2), np.float32)}, r"shape \(2, 2, 2\)"),
        ({"a": np.zeros((2, 0), np.float32)}, r"shape \(2, 0\)"),
        ({"a": np.zeros(2, np.int32), "b": np.zeros(3, np.int32)}, "'a': 2, 'b': 3"),
    ],
)
def test_states_that_the_format_does_not_know(tree: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
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
    ("arrays", "document", "message"),
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
        ([INTS], '{"format":4,"header":{},"rows":[3]}', "upgrade"),
        ([INTS], '{"format":3,"header":{},"rows":[3]}', "since when"),
        ([INTS], '{"format":1.0,"header":{},"rows":[3]}', "upgrade"),
        ([INTS], '{"format":"2","header":{},"rows":[3]}', "upgrade"),
        ([INTS], '{"format":2,"header":{},"rows":[3]}', "Sparse column"),
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
    arrays: list[pa.Array], document: str | None, message: str
) -> None:
    names = ["a", "a"][: len(arrays)]
    with pytest.raises(CorruptError, match=message):
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
    return {"left": np.arange(m, dtype=np.int32), "kept": items, "kept_size": sizes}


def test_lists_of_any_length_come_back() -> None:
    trees = [ragged(0, 30), ragged(1, 0), ragged(2, 1)]
    data = encode_forest({"a": 1}, trees)
    assert same(trees, decode_forest(data)[1])
    table = pa.ipc.open_file(pa.BufferReader(data)).read_all()
    assert pa.types.is_list(table.schema.field("kept").type)
    assert [len(row) for row in table.column("kept").to_pylist()[:30]] == trees[0][
        "kept_size"
    ].tolist()
    header, rows, sizes = peek_forest(lambda start, stop: data[start:stop], len(data))
    assert header == {"a": 1}
    assert rows == [30, 0, 1]
    assert sizes == [{name: array.nbytes for name, array in tree.items()} for tree in trees]


def test_lists_that_do_not_add_up_are_refused() -> None:
    tree = ragged(0, 30)
    with pytest.raises(ParameterError, match="as many as 'kept_size' has"):
        encode_forest({}, [{**tree, "kept": tree["kept"][1:]}])
    data = encode_forest({}, [tree])
    with pytest.raises(CorruptError, match="more than the 100 bytes"):
        decode_forest(data, max_bytes=100)
    swapped = tree["kept_size"].copy()
    swapped[[int(swapped.argmax()), int(swapped.argmin())]] = swapped.min(), swapped.max()
    batch = pa.ipc.open_file(pa.BufferReader(data))
    columns = batch.get_batch(0).columns
    columns[batch.schema.get_field_index("kept_size")] = pa.array(swapped)
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(sink, batch.schema, options=options) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=batch.schema))
    with pytest.raises(CorruptError, match="cut into other lists"):
        decode_forest(bytes(sink.getvalue()))


def wide(m: int, seed: int = 0) -> dict[str, np.ndarray]:
    """A tree with 2-D fields that are mostly zero, of each dtype."""
    rng = np.random.default_rng(seed)
    shapes = {"box": (np.float32, 40), "stat": (np.float64, 3), "whole": (np.int32, 65)}
    made: dict[str, np.ndarray] = {"left": np.arange(m, dtype=np.int32)}
    for name, (dtype, width) in shapes.items():
        made[name] = rng.integers(-9, 9, (m, width)).astype(dtype)
        made[name][rng.random((m, width)) < 0.7] = 0
    return made


def sparse(tree: dict[str, np.ndarray]) -> dict[str, Any]:
    """The tree, its 2-D fields without their zeros."""
    return {name: sparse_rows(a) if a.ndim == 2 else a for name, a in tree.items()}


def batch_of(data: bytes) -> tuple[pa.Schema, dict[str, pa.Array]]:
    file = pa.ipc.open_file(pa.BufferReader(data))
    return file.schema, dict(zip(file.schema.names, file.get_batch(0).columns, strict=True))


def rewritten(
    data: bytes, columns: dict[str, pa.Array], document: Any = None, compression: str = "zstd"
) -> bytes:
    """The first tree of a file with some other columns, or another document."""
    schema, own = batch_of(data)
    if document is not None:
        schema = schema.with_metadata({METADATA_KEY: json.dumps(document)})
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(sink, schema, options=options) as writer:
        arrays = list((own | columns).values())
        writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return bytes(sink.getvalue())


def document_of(data: bytes) -> dict[str, Any]:
    return json.loads(batch_of(data)[0].metadata[METADATA_KEY])


def lists(cuts: list[int], values: np.ndarray) -> pa.Array:
    """Lists of whole numbers, of none that is missing."""
    field = pa.field("item", pa.int32(), nullable=False)
    return pa.ListArray.from_arrays(
        pa.array(cuts, pa.int32()), pa.array(values, pa.int32()), type=pa.list_(field)
    )


def test_wide_fields_are_stored_without_their_zeros() -> None:
    trees = [wide(50), wide(0), wide(1, 1), wide(2100, 2)]
    data = encode_forest({"a": 1}, map(sparse, trees))
    assert same(trees, decode_forest(data)[1])
    document = document_of(data)
    assert document["format"] == 2
    assert document["sparse"] == {
        "box": ["float32", 40], "stat": ["float64", 3], "whole": ["int32", 65],
    }  # fmt: skip
    _, columns = batch_of(data)
    for name in document["sparse"]:
        kept, marks = columns[name], columns[name + "_marks"].flatten().to_numpy()
        n = np.count_nonzero(trees[0][name])
        assert len(kept.values) * 4 == n * trees[0][name].itemsize
        assert sum(int(word).bit_count() for word in marks.view(np.uint32)) == n
        assert columns[name + "_size"].to_pylist() == [len(kept.values)] + [0] * 49
    assert encode_forest({"a": 1}, [sparse(trees[0]), *trees[1:]]) == data
    assert same(trees, decode_forest(encode_forest({}, [trees[0], *map(sparse, trees[1:])]))[1])
    header, rows, sizes = peek_forest(lambda start, stop: data[start:stop], len(data))
    assert (header, rows) == ({"a": 1}, [50, 0, 1, 2100])
    assert sizes == [{name: array.nbytes for name, array in tree.items()} for tree in trees]
    left_out = decode_blob(data, name="it", without=["stat", "left"]).trees
    fewer = [{k: v for k, v in tree.items() if k not in ("stat", "left")} for tree in trees]
    assert same(fewer, list(left_out))


def test_a_state_without_sparse_fields_is_one_of_the_first_format() -> None:
    data = encode_forest({}, [{"a": np.zeros((3, 40))}])
    assert document_of(data) == {"format": 1, "header": {}, "rows": [3]}


def test_wide_fields_that_no_list_could_hold_are_stored_with_their_zeros(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trees: Any = [wide(20), wide(31, 1)]
    given = [sparse(tree) for tree in trees]
    monkeypatch.setattr(codec, "MOST_ITEMS", 31 * 65 - 1)
    data = encode_forest({}, given)
    assert document_of(data)["format"] == 1
    assert same(trees, decode_forest(data)[1])
    monkeypatch.setattr(codec, "MOST_ITEMS", 31 * 65)
    assert document_of(encode_forest({}, given))["format"] == 2


def test_the_first_format_is_read() -> None:
    """As codecs before this one wrote it: lists of a fixed size."""
    tree = wide(30)
    fields = []
    for name in sorted(tree):
        flat = pa.array(tree[name].reshape(-1))
        kind = pa.list_(pa.field("item", flat.type, nullable=False), tree[name].size // 30)
        is_wide = tree[name].ndim == 2
        fields.append(pa.FixedSizeListArray.from_arrays(flat, type=kind) if is_wide else flat)
    document = json.dumps({"format": 1, "header": {"a": 1}, "rows": [30]})
    assert same([tree], decode_forest(forged(fields, sorted(tree), document))[1])


def test_columns_of_sparse_fields_are_of_types_that_the_first_codec_knew() -> None:
    """Else it would end with its first check, of types, and not by advising to upgrade."""
    schema, _ = batch_of(encode_forest({}, [sparse(wide(5))]))
    for field in schema:
        is_list = pa.types.is_list(field.type) or pa.types.is_fixed_size_list(field.type)
        item = field.type.value_type if is_list else field.type
        assert item in (pa.int32(), pa.float32(), pa.float64())
        if pa.types.is_list(field.type):
            assert schema.field(field.name + "_size").type == pa.int32()


def test_a_field_that_has_a_stored_columns_name_is_refused() -> None:
    for name in ("box_size", "box_marks"):
        with pytest.raises(ParameterError, match="beside a 2-D field"):
            encode_forest({}, [{**sparse(wide(3)), name: np.zeros(3, np.int32)}])


@pytest.mark.parametrize("name", ["box", "stat", "whole"])
def test_marks_that_promise_other_numbers_are_refused(name: str) -> None:
    data = encode_forest({}, [sparse(wide(50))])
    _, columns = batch_of(data)
    marks = columns[name + "_marks"]
    words = marks.flatten().to_numpy().copy()
    for at, mask in ((0, 1), (len(words) - 1, 2), (len(words) // 2, 4), (1, -1)):
        changed = words.copy()
        changed[at] ^= mask
        other = pa.FixedSizeListArray.from_arrays(pa.array(changed, pa.int32()), type=marks.type)
        with pytest.raises(CorruptError, match=f"Column '{name}': .*(are marked|beyond its)"):
            decode_forest(rewritten(data, {name + "_marks": other}))
    kept = columns[name].values.to_numpy()
    for fewer in (kept[:0], kept[:-2], kept[2:]):
        cuts = {name: lists([0] + [len(fewer)] * 50, fewer)}
        cuts[name + "_size"] = pa.array([len(fewer)] + [0] * 49, pa.int32())
        with pytest.raises(CorruptError, match=f"Column '{name}': .* are marked"):
            decode_forest(rewritten(data, cuts))


def test_words_may_be_cut_into_any_lists() -> None:
    """Lists of nodes mean nothing, but are those that the sizes have."""
    data = encode_forest({}, [sparse(wide(50))])
    kept = batch_of(data)[1]["box"].values.to_numpy()
    cuts = [0, *range(49), len(kept)]
    other = lists(cuts, kept)
    sizes = pa.array(np.diff(cuts), pa.int32())
    found = decode_forest(rewritten(data, {"box": other, "box_size": sizes}))[1]
    assert same([wide(50)], found)
    with pytest.raises(CorruptError, match="cut into other lists"):
        decode_forest(rewritten(data, {"box": other}))


def test_more_words_than_a_field_may_have_are_refused_before_they_are_read() -> None:
    data = encode_forest({}, [sparse(wide(50))])
    many = np.zeros(50 * 40 + 1, np.int32)
    bomb = rewritten(data, {"box": lists([0] + [len(many)] * 50, many)})
    with pytest.raises(CorruptError, match="up to 2000 items"):
        decode_forest(bomb)


def test_what_sparse_fields_take_beside_the_dense_ones_is_bounded() -> None:
    tree = {"a": np.ones((1000, 33))}
    data = encode_forest({}, [sparse(tree)])
    beside = 2 * tree["a"].nbytes + 1000 * (2 * 4 + 4 + 4) + 64 * 8
    with pytest.raises(CorruptError, match=f"{tree['a'].nbytes + beside} bytes, more than"):
        decode_forest(data, max_bytes=tree["a"].nbytes + beside - 1)
    assert same([tree], decode_forest(data, max_bytes=tree["a"].nbytes + beside)[1])
    with pytest.raises(CorruptError, match=f"{tree['a'].nbytes} bytes, more than"):
        decode_forest(data, max_bytes=tree["a"].nbytes - 1)


@pytest.mark.parametrize(
    "declared",
    [
        None, [], {}, {"box": None}, {"box": ["float32"]}, {"box": ["float16", 40]},
        {"box": [None, 40]}, {"box": [["float32"], 40]}, {"box": ["float32", 0]},
        {"box": ["float32", -40]}, {"box": ["float32", 40.0]}, {"box": ["float32", True]},
        {"box": ["float32", 2**70]}, {"box": ["float32", 65]}, {"left": ["int32", 1]},
        {"nothing": ["int32", 1]}, {"box_marks": ["int32", 2]},
    ],
    ids=str,
)  # fmt: skip
def test_declarations_of_sparse_fields_that_fit_no_columns_are_refused(declared: Any) -> None:
    data = encode_forest({}, [sparse({"box": wide(30)["box"], "left": wide(30)["left"]})])
    with pytest.raises(CorruptError):
        decode_forest(rewritten(data, {}, {**document_of(data), "sparse": declared}))


@pytest.mark.parametrize("compression", ["zstd", "lz4", None])
def test_sparse_fields_of_another_writer(compression: Any) -> None:
    data = encode_forest({}, [sparse(wide(30))])
    assert same([wide(30)], decode_forest(rewritten(data, {}, None, compression))[1])


SPARSE = encode_forest({"seed": 1}, [sparse(wide(9)), sparse(wide(3, 1))])


def test_a_flipped_bit_of_each_byte_is_refused_or_harmless() -> None:
    """No flip ends otherwise than with an array of the declared shape, or the error."""
    refused, each = 0, 1 if os.environ.get("DMONDRIAN_THOROUGH") == "1" else 3
    for at in range(0, len(SPARSE), each):
        data = bytearray(SPARSE)
        data[at] ^= 1 << (at * 5 % 8)
        try:
            _, back = decode_forest(bytes(data), max_bytes=10**6)
        except CorruptError:
            refused += 1
            continue
        assert sum(v.nbytes for tree in back for v in tree.values()) <= 10**6
    assert refused > len(SPARSE) // (2 * each)


def test_each_truncation_of_sparse_fields_is_found() -> None:
    for n in range(0, len(SPARSE), 5):
        with pytest.raises(CorruptError):
            decode_forest(SPARSE[:n])


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_altered_columns_of_sparse_fields_are_refused_or_harmless(data: st.DataObject) -> None:
    """Right sizes and digests, and any marks, words and sizes."""
    _, columns = batch_of(SPARSE)
    name = data.draw(st.sampled_from(["box", "stat", "whole"]))
    marks = columns[name + "_marks"]
    words = marks.flatten().to_numpy().copy()
    for _ in range(data.draw(st.integers(0, 3))):
        words[data.draw(st.integers(0, len(words) - 1))] = data.draw(
            st.sampled_from([0, -1, 1, 2, 255, -(2**31), 2**31 - 1])
        )
    kept = columns[name].values.to_numpy()
    kept = np.resize(kept, max(0, len(kept) + data.draw(st.integers(-3, 3))))
    other = {
        name: lists([0] + [len(kept)] * 9, kept),
        name + "_size": pa.array([len(kept)] + [0] * 8, pa.int32()),
        name + "_marks": pa.FixedSizeListArray.from_arrays(pa.array(words), type=marks.type),
    }
    document = {**document_of(SPARSE), "rows": [9]}
    try:
        _, back = decode_forest(rewritten(SPARSE, other, document))
    except CorruptError:
        return
    assert back[0][name].shape == wide(9)[name].shape
    assert back[0][name].view(np.int32).any() == bool(kept.any())
