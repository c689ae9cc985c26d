"""Codec: the state of a forest (a header and one bundle of arrays per tree) as Arrow IPC bytes.

An Arrow IPC file with one record batch per tree, a row per node and a column per field; a field of
another length, with a field ``..._size`` of how many of its items are each node's, is a list.
Columns are in name order and hold no nulls; buffers are compressed with zstd. The schema's metadata
has one entry, ``dmondrian``: a JSON object with the format version, the rows of every batch, the
items of its lists and the caller's header. Any Arrow reader can open it.

A 2-D field is a fixed-size list, or in format 2, where it came so, a sparse field of three columns
(:mod:`dmondrian.tree.sparse_rows`): a list of the bytes of its numbers that are not zero, all in
the first row; ``..._size``; and ``..._marks``, a fixed-size list of the bits that say which these
numbers are. ``sparse`` in the JSON has its dtype and width. Where such a field is too large for a
list, and where there is none, format 1 is written.

Format 3 is a difference (:mod:`dmondrian.checkpoint.deltas`): its trees have the nodes alone that
have changed since the state of another blob, and a column more, ``node``, with their numbers.
``since`` in the JSON names that blob.

Relies on pyarrow. Promises: equal states give equal bytes, for any number of threads (zstd
compresses each buffer by itself; another zstd release may pack the same state into other bytes);
`decode_forest` allocates nothing that was not declared, checked and bounded first. Whether the
numbers make a forest is for `Forest.from_state` to check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from dmondrian._memory_limit import usable_bytes
from dmondrian.checkpoint.document import dump_json, parse_json
from dmondrian.checkpoint.framing import ANY, OFFSET_BYTES, read_batch_frame, values_of
from dmondrian.checkpoint.manifest import is_digest
from dmondrian.errors import CorruptError, ParameterError

if TYPE_CHECKING:
    from dmondrian.tree.sparse_rows import SparseRows

DENSE, FORMAT, DIFFERENCE = 1, 2, 3
NODE = "node"  # int32, increasing, of a difference: which nodes its rows are
METADATA_KEY = b"dmondrian"
DTYPES = {"int32": pa.int32(), "float32": pa.float32(), "float64": pa.float64()}
NUMPY_DTYPES = {arrow: np.dtype(name) for name, arrow in DTYPES.items()}
MAGIC = b"ARROW1"
# Magic padded to 8 bytes in front; footer length (4 bytes) and magic behind.
HEAD_BYTES, TAIL_BYTES = 8, 10
PEEK_BYTES = 65_536  # the header of a few hundred trees
MAX_FIELDS = 256  # columns; a tree has a dozen or two
# What Arrow, and types that other libraries register with it, raise of bytes that are not theirs.
UNREADABLE = (OSError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError,
              MemoryError, RecursionError, NotImplementedError)  # fmt: skip

LIST = -1  # the field of the same name and SIZES has the items of a list's row
SIZES = "_size"
MARKS = "_marks"  # of a sparse field, beside SIZES
MARK_BITS, WORD = 32, np.dtype(np.int32)
MOST_ITEMS = 2**31 - 1  # of all lists of a column

Array = np.ndarray[Any, Any]
Fields = Mapping[str, "Array | SparseRows"]


class Column(NamedTuple):
    """A field, or one of the columns that store it."""

    name: str
    dtype: np.dtype[Any]
    width: int  # 0 for a 1-D field, or LIST

    def bytes_of(self, n_nodes: int) -> int:
        """Return the bytes of a field that is no list."""
        return self.dtype.itemsize * n_nodes * max(self.width, 1)

    def n_words(self, n_nodes: int) -> int:
        """Return how many items the list of a sparse field has at most."""
        return self.bytes_of(n_nodes) // WORD.itemsize


Columns = list[Column]


class Since(NamedTuple):
    """The state that a difference is the difference from, and the nodes of the state itself."""

    digest: str  # of the blob of a whole state
    n_bytes: int  # of that blob
    n_earlier: int  # differences from it
    n_written: int  # bytes of these
    nodes: list[int]  # nodes of each tree of the state

    def to_json(self) -> dict[str, Any]:
        """Return the entry of a blob's header, as JSON values."""
        return self._asdict()


class StoredTrees:
    """Trees of a blob, each decoded as an iteration comes to it; there is one iteration.

    So no more of them have to be in memory than are used at once, and their memory is used again.
    """

    def __init__(self, decode: Iterator[dict[str, Array]], n: int) -> None:
        self._decode, self._n = decode, n

    def __len__(self) -> int:
        return self._n

    def __iter__(self) -> Iterator[dict[str, Array]]:
        return self._decode


class Decoded(NamedTuple):
    """The content of a blob: header and trees."""

    header: dict[str, Any]
    trees: StoredTrees  # of a difference only nodes that have changed
    since: Since | None  # of a difference


def encode_forest(
    header: Mapping[str, Any],
    trees: Iterable[Fields],
    rows: Sequence[int] | None = None,
    since: Since | None = None,
) -> bytes:
    """Write a forest's state as bytes.

    Parameters
    ----------
    header : mapping
        JSON-able; numbers of NumPy are written as Python's.
    trees : iterable of mappings, one per tree
        Field name to array of int32, float32 or float64, shape [m] or [m, width] with m nodes; or
        [n], where the field of the same name and ``_size``, int32 [m], has the sum n. One of shape
        [m, width] may be given as :class:`~dmondrian.tree.sparse_rows.SparseRows`, and is read back
        as an array.
        All fields of a tree have the same m, all trees the same fields, dtypes and widths.
        Views of a tree that is in use will do: no more than one tree is copied at a time.
    rows : sequence of int, optional
        The nodes of each tree. Then trees are taken one by one, and none is looked at again once
        the next one was taken; they have no lists.
    since : Since, optional
        The trees have only nodes that have changed since; they have no lists.

    Returns
    -------
    bytes
        The same for the same state.

    Raises
    ------
    ParameterError
        An array has another dtype or shape than the format knows.
    """
    all_trees = list(trees) if rows is None else []
    remaining = iter(all_trees or trees)
    first = list(islice(remaining, 1))
    columns = _columns_of(first[0]) if first else []
    if rows is None:
        rows = [_check_tree(tree, columns, number) for number, tree in enumerate(all_trees)]
    sparse = [column for column in columns if not isinstance(first[0][column.name], np.ndarray)]
    if any(column.n_words(m) > MOST_ITEMS for column in sparse for m in rows):
        sparse = []
    stored = _stored_of(columns, sparse)
    content: dict[str, Any] = {"format": FORMAT if sparse else DENSE, "header": header}
    content["rows"] = rows
    if since is not None:
        content |= {"format": DIFFERENCE, "since": since.to_json()}
    if lists := [name for name, _, width in columns if width == LIST]:
        content["items"] = {name: [len(tree[name]) for tree in all_trees] for name in lists}
    if sparse:
        content["sparse"] = {name: [dtype.name, width] for name, dtype, width in sparse}
    document = dump_json(content)
    schema = pa.schema(
        [
            pa.field(name, _arrow_type(dtype, width), nullable=False)
            for name, dtype, width in stored
        ],
        metadata={METADATA_KEY: document},
    )
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=True)
    with pa.ipc.new_file(sink, schema, options=options) as writer:
        for number, (tree, n_nodes) in enumerate(zip(chain(first, remaining), rows, strict=True)):
            if (came := _check_tree(tree, columns, number)) != n_nodes:
                here = f"Tree {number} was to have {n_nodes} nodes and has {came}"
                raise ParameterError(f"{here}: it learned meanwhile. Save again when it rests.")
            arrays = _arrays_of(_columns_to_store(tree, sparse), stored)
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return bytes(sink.getvalue())


def decode_forest(
    data: bytes, *, name: str = "the forest's bytes", max_bytes: int | None = None
) -> tuple[dict[str, Any], list[dict[str, np.ndarray[Any, Any]]]]:
    """Return header and trees of a blob that `encode_forest` wrote.

    Parameters
    ----------
    data : bytes
    name : str
        What the bytes are called in error messages.
    max_bytes : int or None
        Largest size of all arrays together, in bytes; by default half of the memory that this
        process may use, for a forest is built beside them.

    Returns
    -------
    header : dict
    trees : list of dict of ndarray
        C-contiguous views of the decoded buffers, read-only where these are in `data`.

    Raises
    ------
    CorruptError
        The bytes are truncated, altered, not ours, or would need more than `max_bytes`; or they
        are a difference, see :func:`dmondrian.checkpoint.deltas.read_state`.
    """
    decoded = decode_blob(data, name=name, max_bytes=max_bytes)
    if decoded.since is not None:
        raise CorruptError(
            f"{name} have only what changed since the state blobs/{decoded.since.digest}: read "
            "both from their run."
        )
    return decoded.header, list(decoded.trees)


def decode_blob(
    data: bytes, *, name: str, max_bytes: int | None = None, without: Sequence[str] = ()
) -> Decoded:
    """Read what `encode_forest` wrote, whether it is a whole state or a difference.

    Parameters
    ----------
    data, name, max_bytes
        As of `decode_forest`.
    without : sequence of str
        Fields of trees that are not decoded.

    Raises
    ------
    CorruptError
        As of `decode_forest`; what is wrong with a tree's numbers when it is decoded.
    """
    limit = usable_bytes() // 2 if max_bytes is None else max_bytes
    with _naming(name):
        return _decode(data, limit, name, without)


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Raise what bytes that are no forest make Arrow raise, and this module, as one error."""
    try:
        yield
        return
    except CorruptError as error:
        reason = str(error)
    except (pa.ArrowException, *UNREADABLE) as error:
        reason = f"Arrow could not read it ({type(error).__name__}: {str(error)[:200]})."
    raise CorruptError(
        f"{name} cannot be used as a forest: {reason} It is damaged or was not written by "
        "dmondrian: restore it from a copy, or use an earlier checkpoint."
    )


def peek_forest(
    read: Callable[[int, int], bytes], n_bytes: int, *, name: str = "the forest's bytes"
) -> tuple[dict[str, Any], list[int], list[dict[str, int]]]:
    """Read the header of what `encode_forest` wrote, and the sizes of its trees, from its start.

    Nothing but the first message is looked at, so other bytes may be damaged all the same.

    Parameters
    ----------
    read : callable
        `read(start, stop)` returns these bytes.
    n_bytes : int
        Size of the whole.
    name : str
        What the bytes are called in error messages.

    Returns
    -------
    header : dict
    rows : list of int
        Nodes of each tree.
    sizes : list of dict of str to int
        Bytes of each tree's arrays once decoded, by field.

    Raises
    ------
    CorruptError
        The beginning is not that of a forest.
    """
    try:
        head = read(0, min(n_bytes, PEEK_BYTES))
        size = int.from_bytes(head[HEAD_BYTES + 4 : HEAD_BYTES + 8], "little")
        stop = HEAD_BYTES + 8 + size  # behind a mark and the length of the first message
        if head[:6] != MAGIC or stop > n_bytes:
            raise CorruptError("It does not begin as an Arrow IPC file.")
        if stop > len(head):
            head += read(len(head), stop)
        schema = pa.ipc.read_schema(pa.BufferReader(head[HEAD_BYTES:stop]))
        columns, _, header, rows, items, since = _read_document(schema, _columns_in(schema))
        if since is not None:
            rows, columns = since.nodes, [column for column in columns if column.name != NODE]
        names = [column.name for column in columns]
        sizes = [
            dict(zip(names, _sizes(columns, m, some), strict=True))
            for m, some in zip(rows, items, strict=True)
        ]
    except (CorruptError, pa.ArrowException, OSError, ValueError, TypeError) as error:
        raise CorruptError(
            f"{name} cannot be used as a forest: {str(error)[:200]} It is damaged or was not "
            "written by dmondrian: restore it from a copy, or use an earlier checkpoint."
        ) from error
    return header, rows, sizes


def _columns_of(tree: Fields) -> Columns:
    from dmondrian.tree.sparse_rows import SparseRows

    columns: Columns = []
    for name in sorted(tree):
        array = tree[name]
        if isinstance(array, SparseRows):
            columns.append(Column(name, array.dtype, array.width))
            continue
        if not isinstance(array, np.ndarray) or array.dtype.name not in DTYPES:
            raise ParameterError(
                f"Field {name!r} is {getattr(array, 'dtype', type(array).__name__)}: expected a "
                f"NumPy array of {', '.join(DTYPES)}. Convert it before encoding."
            )
        if array.ndim not in (1, 2) or (array.ndim == 2 and array.shape[1] == 0):
            raise ParameterError(
                f"Field {name!r} has shape {array.shape}: expected [nodes] or [nodes, width >= 1]."
            )
        has_sizes = getattr(tree.get(name + SIZES), "ndim", 0) == 1
        width = array.shape[1] if array.ndim == 2 else LIST if has_sizes else 0
        columns.append(Column(name, array.dtype.newbyteorder("="), width))
    names = [name for name, _, _ in _stored_of(columns, [c for c in columns if c.width > 0])]
    if len(names) > MAX_FIELDS or len(set(names)) < len(names):
        raise ParameterError(
            f"A tree has {len(tree)} fields: expected at most {MAX_FIELDS} columns, and none "
            f"beside a 2-D field of its name and {SIZES!r} or {MARKS!r}."
        )
    return columns


def _stored_of(columns: Columns, sparse: Columns) -> Columns:
    """Return the columns that store fields, some of them as sparse ones, in name order."""
    stored = [column for column in columns if column not in sparse]
    for name, _, width in sparse:
        n_words = -(-width // MARK_BITS)
        stored += [Column(name, WORD, LIST), Column(name + SIZES, WORD, 0)]
        stored.append(Column(name + MARKS, WORD, n_words))
    return sorted(stored, key=lambda column: column.name)


def _columns_to_store(tree: Fields, sparse: Columns) -> Mapping[str, Array]:
    """Return the arrays of the columns that store a tree."""
    from dmondrian.tree.sparse_rows import SparseRows, dense_rows, sparse_rows

    names = {name for name, _, _ in sparse}
    stored: dict[str, Array] = {}
    for name, array in tree.items():
        if name not in names:
            stored[name] = dense_rows(array) if isinstance(array, SparseRows) else array
            continue
        if not isinstance(array, SparseRows):
            array = sparse_rows(np.asarray(array, array.dtype.newbyteorder("=")))
        sizes = np.zeros(len(array.marks), WORD)
        sizes[:1] = len(array.words)
        stored |= {name: array.words, name + SIZES: sizes, name + MARKS: array.marks}
    return stored


def _length(array: Array | SparseRows) -> int:
    return len(array) if isinstance(array, np.ndarray) else len(array.marks)


def _check_tree(tree: Fields, columns: Columns, number: int) -> int:
    """Return the nodes of a tree that has these columns."""
    if _columns_of(tree) != columns:
        raise ParameterError(
            f"Tree {number} has fields {_columns_of(tree)}, the first tree {columns}: expected "
            "the same names, dtypes and widths in all trees."
        )
    lengths = {name: _length(tree[name]) for name, _, width in columns if width != LIST}
    for name in (name for name, _, width in columns if width == LIST):
        items, total = len(tree[name]), sum(map(int, tree[name + SIZES]))
        if items != total:
            raise ParameterError(
                f"Field {name!r} of tree {number} has {items} items: expected as many as "
                f"{name + SIZES!r} has, {total}."
            )
    if len(set(lengths.values())) > 1:
        raise ParameterError(
            f"The fields of tree {number} have {lengths} rows: expected one row per node in each."
        )
    return next(iter(lengths.values()), 0)


def _arrays_of(tree: Mapping[str, Array], columns: Columns) -> list[pa.Array]:
    arrays = []
    for name, dtype, width in columns:
        values = np.ascontiguousarray(tree[name], dtype=dtype).reshape(-1)
        kind = DTYPES[dtype.name]
        flat = pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])
        full = _arrow_type(dtype, width)
        if width == LIST:
            offsets = _offsets(tree[name + SIZES])
            # Given as they are, pyarrow would import pandas where it is installed.
            buffers = [None, pa.py_buffer(offsets)]
            starts = pa.Array.from_buffers(pa.int32(), len(offsets), buffers)
            arrays.append(pa.ListArray.from_arrays(starts, flat, type=full))
        else:
            arrays.append(pa.FixedSizeListArray.from_arrays(flat, type=full) if width else flat)
    return arrays


def _offsets(sizes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).astype(np.int32)


def _sizes(columns: Columns, n_nodes: int, items: Mapping[str, int]) -> list[int]:
    """Return the bytes of each field of a tree."""
    return [
        column.dtype.itemsize * items[column.name]
        if column.width == LIST
        else column.bytes_of(n_nodes)
        for column in columns
    ]


def _arrow_type(dtype: np.dtype[Any], width: int) -> pa.DataType:
    item = DTYPES[dtype.name]
    if width == 0:
        return item
    field = pa.field("item", item, nullable=False)
    return pa.list_(field) if width == LIST else pa.list_(field, width)


def _decode(data: bytes, limit: int, name: str, without: Sequence[str]) -> Decoded:
    messages = pa.ipc.MessageReader.open_stream(pa.BufferReader(_stream_part(data)))
    schema = pa.ipc.read_schema(_next_message(messages, "schema"))
    stored = _columns_in(schema)
    columns, sparse, header, rows, items, since = _read_document(schema, stored)
    wanted = [column for column in columns if column.name not in without]
    # A tree without nodes takes as much as one with a node: its width is declared all the same.
    declared = (_sizes(wanted, max(m, 1), some) for m, some in zip(rows, items, strict=True))
    if (n_bytes := sum(map(sum, declared))) > limit:
        raise _too_large(rows, n_bytes, limit)
    batches = []
    for n_nodes, some in zip(rows, items, strict=True):
        message = _next_message(messages, "record batch")
        # Sizes are compared with the declaration before Arrow may allocate for them.
        buffers = [_buffer_of(column, sparse, n_nodes, some) for column in stored]
        words = read_batch_frame(message.metadata, message.body, n_nodes, buffers)
        beside = _bytes_to_make_dense(sparse, n_nodes, words)
        if n_bytes + beside > limit:
            raise _too_large(rows, n_bytes + beside, limit)
        batches.append((message, n_nodes))
    _expect_end(messages)

    def decode() -> Iterator[dict[str, Array]]:
        for message, n_nodes in batches:
            with _naming(name):
                batch = pa.ipc.read_record_batch(message, schema)
                tree = _with_dense(_tree_of(batch, stored, n_nodes), sparse, without)
            yield tree

    return Decoded(header, StoredTrees(decode(), len(batches)), since)


def _too_large(rows: list[int], n_bytes: int, limit: int) -> CorruptError:
    return CorruptError(
        f"It declares {sum(rows)} nodes in {len(rows)} trees, {n_bytes} bytes, more than the "
        f"{limit} bytes that may be used."
    )


def _buffer_of(
    column: Column, sparse: Columns, n_nodes: int, items: Mapping[str, int]
) -> tuple[int, int | None, int]:
    """Return what a column that is stored may take, as :func:`read_batch_frame` expects it."""
    for field in sparse:
        if field.name == column.name:
            return WORD.itemsize * min(field.n_words(n_nodes), MOST_ITEMS), None, ANY
    if column.width == LIST:
        return column.dtype.itemsize * items[column.name], None, items[column.name]
    return column.bytes_of(n_nodes), column.width, 0


def _bytes_to_make_dense(sparse: Columns, n_nodes: int, words: list[int]) -> int:
    """Return the bytes that the sparse fields of a tree take beside the arrays made of them."""
    marks = [column.width for column in _stored_of([], sparse) if column.width > 0]
    of_node = WORD.itemsize * sum(marks) + (WORD.itemsize + OFFSET_BYTES) * len(sparse)
    # One field after the other has its numbers joined, and a place in them for each mark.
    joined = WORD.itemsize * max(words, default=0) + 8 * MARK_BITS * max(marks, default=0)
    return WORD.itemsize * sum(words) + n_nodes * of_node + joined


def _with_dense(
    tree: dict[str, Array], sparse: Columns, without: Sequence[str]
) -> dict[str, Array]:
    """Return the fields of a tree, sparse ones made dense, ``without`` some."""
    if sparse:
        from dmondrian.tree.sparse_rows import SparseRows, dense_rows
    for name, dtype, width in sparse:
        del tree[name + SIZES]  # how words are cut into lists means nothing
        rows = SparseRows(tree.pop(name + MARKS), tree[name], dtype, width)
        if name in without:
            continue
        try:
            tree[name] = dense_rows(rows)
        except CorruptError as error:
            raise CorruptError(f"Column {name!r}: {error}") from error
    return {name: field for name, field in tree.items() if name not in without}


def _next_message(messages: pa.ipc.MessageReader, kind: str) -> pa.ipc.Message:
    try:
        message = messages.read_next_message()
    except StopIteration:
        raise CorruptError(f"It ends where a {kind} was expected.") from None
    if message.type != kind:
        raise CorruptError(f"A message is a {message.type}, expected a {kind}.")
    return message


def _stream_part(data: bytes) -> memoryview:
    """Cut out the messages between magic and footer; the footer itself is not used."""
    view = memoryview(data)
    n = len(view)
    if n < HEAD_BYTES + TAIL_BYTES or bytes(view[:6]) != MAGIC or bytes(view[-6:]) != MAGIC:
        raise CorruptError(
            f"{n} bytes came that do not begin and end as an Arrow IPC file: the end or the "
            "beginning is missing."
        )
    footer = int.from_bytes(view[n - TAIL_BYTES : n - 6], "little", signed=True)
    if not 0 < footer <= n - HEAD_BYTES - TAIL_BYTES:
        raise CorruptError(f"The footer's length {footer} does not fit into {n} bytes.")
    return view[HEAD_BYTES : n - TAIL_BYTES - footer]


def _columns_in(schema: pa.Schema) -> Columns:
    names = schema.names
    if len(names) > MAX_FIELDS or names != sorted(set(names)):
        raise CorruptError(
            f"{len(names)} columns came: expected up to {MAX_FIELDS}, in name order."
        )
    columns: Columns = []
    for field in schema:
        is_list, is_free = pa.types.is_fixed_size_list(field.type), pa.types.is_list(field.type)
        item = field.type.value_type if is_list or is_free else field.type
        width = LIST if is_free else field.type.list_size if is_list else 0
        unsized = is_free and (
            field.name + SIZES not in names or schema.field(field.name + SIZES).type != pa.int32()
        )
        if item not in NUMPY_DTYPES or (is_list and width < 1) or unsized:
            raise CorruptError(
                f"Column {field.name!r} is {field.type}: expected {', '.join(DTYPES)}, a "
                "fixed-size list of these, or a list with a column of sizes."
            )
        columns.append(Column(field.name, NUMPY_DTYPES[item], width))
    return columns


class _Content(NamedTuple):
    columns: Columns  # the fields
    sparse: Columns  # those that are stored as sparse ones
    header: dict[str, Any]
    rows: list[int]  # nodes of each tree
    items: list[dict[str, int]]  # of each tree, items of its lists by name
    since: Since | None  # of a difference


def _read_document(schema: pa.Schema, stored: Columns) -> _Content:
    """Return what the metadata declares of the trees that these columns store."""
    text = (schema.metadata or {}).get(METADATA_KEY)
    document = parse_json(text) if text is not None else None
    if not isinstance(document, dict):
        raise CorruptError("The schema carries no dmondrian header.")
    form = document.get("format")
    if type(form) is not int or form not in (DENSE, FORMAT, DIFFERENCE):
        raise CorruptError(
            f"The format is {str(form)[:80]!r}, this version reads {DENSE} to "
            f"{DIFFERENCE}: if a newer dmondrian wrote it, upgrade."
        )
    has_sparse = document["format"] == FORMAT or "sparse" in document
    sparse = _sparse_in(document, stored) if has_sparse else []
    among = [column for column in stored if column not in _stored_of([], sparse)]
    columns = sorted([*among, *sparse], key=lambda column: column.name)
    header, rows = document.get("header"), document.get("rows")
    lists = [name for name, _, width in columns if width == LIST]
    items: Any = document.get("items") if lists else {}
    whole = [rows, *(items.get(name) for name in lists)] if isinstance(items, dict) else [None]
    are_counts = all(
        isinstance(ns, list)
        and isinstance(rows, list)
        and all(type(n) is int and 0 <= n < 2**31 for n in ns)
        and len(ns) == len(rows)
        for ns in whole
    )
    if not isinstance(header, dict) or not isinstance(rows, list) or not are_counts:
        raise CorruptError("The header or the nodes per tree are missing or not of their type.")
    if rows and not schema.names:
        raise CorruptError(f"{len(rows)} trees are declared without any column.")
    each = [{name: items[name][t] for name in lists} for t in range(len(rows))]
    since = None
    if document["format"] == DIFFERENCE:
        since = _since_in(document, columns, rows)
    return _Content(columns, sparse, header, rows, each, since)


def _since_in(document: dict[str, Any], columns: Columns, rows: list[int]) -> Since:
    """Return what a difference declares of the state that it is the difference from."""
    stored = document.get("since")
    if not isinstance(stored, dict) or set(stored) != set(Since._fields):
        raise CorruptError(f"It does not say since when nodes have changed: {str(stored)[:80]}.")
    since = Since(**stored)
    counts = [since.n_bytes, since.n_earlier, since.n_written]
    if not is_digest(since.digest) or not all(type(n) is int and 0 <= n < 2**62 for n in counts):
        raise CorruptError(f"It declares an impossible state before it: {str(stored)[:200]}.")
    nodes = since.nodes
    if not (
        isinstance(nodes, list)
        and len(nodes) == len(rows)
        and all(type(n) is int and c <= n < 2**31 for n, c in zip(nodes, rows, strict=True))
    ):
        raise CorruptError("Its trees have fewer nodes than have changed, or no number of them.")
    if Column(NODE, WORD, 0) not in columns or any(width == LIST for _, _, width in columns):
        raise CorruptError("It does not say which nodes have changed, or has lists of them.")
    return since


def _sparse_in(document: dict[str, Any], stored: Columns) -> Columns:
    """Return the sparse fields that are declared; their columns are there."""
    declared = document.get("sparse")
    sparse: Columns = []
    for name, kind in declared.items() if isinstance(declared, dict) else [("", None)]:
        dtype, width = kind if isinstance(kind, list) and len(kind) == 2 else (None, 0)
        if not isinstance(dtype, str) or dtype not in DTYPES or type(width) is not int or width < 1:
            raise CorruptError(f"Sparse column {name[:80]!r} is declared as {str(kind)[:80]}.")
        sparse.append(Column(name, np.dtype(dtype), width))
    missing = [column.name for column in _stored_of([], sparse) if column not in stored]
    if missing:
        raise CorruptError(f"Columns of sparse fields are missing or of another type: {missing}.")
    return sparse


def _tree_of(
    batch: pa.RecordBatch, columns: Columns, n_nodes: int
) -> dict[str, np.ndarray[Any, Any]]:
    batch.validate(full=True)
    tree = {}
    for (name, dtype, width), array in zip(columns, batch.columns, strict=True):
        flat = array.values if width == LIST else array.flatten() if width else array
        if width == LIST:
            sizes = np.from_dlpack(batch.column(name + SIZES))
            offsets = np.from_dlpack(array.offsets)
            if (sizes < 0).any() or not np.array_equal(offsets, _offsets(sizes)):
                raise CorruptError(
                    f"Column {name!r} is cut into other lists than {name + SIZES!r} has."
                )
        if len(array) != n_nodes or array.null_count or flat.null_count:
            raise CorruptError(f"Column {name!r} has nulls or another length than {n_nodes}.")
        # Kernels take no others: a buffer that is not compressed may begin at any byte.
        values = np.require(values_of(flat, dtype), dtype, ["C", "A"])
        tree[name] = values.reshape(n_nodes, width) if width > 0 else values
    return tree


def _expect_end(messages: pa.ipc.MessageReader) -> None:
    try:
        extra = messages.read_next_message()
    except StopIteration:
        return
    raise CorruptError(f"A {extra.type} follows after the last declared tree.")
