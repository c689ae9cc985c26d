"""Store: named objects below one address, written atomically.

Relies on obstore. Its LocalStore writes to ``name#1`` and then hard-links (create) or renames
(overwrite), so a killed process leaves at most a ``name#1``, which no listing shows. It does not
flush, so this module does: after a put returns, the object survives a power cut.
It repeats requests that failed for a while, with jittered waits (see `RETRY`), for at most a
minute. Tested against a local folder, memory and an S3 server; gs:// and az:// addresses are opened
with what the environment configures, and only their failure without credentials is tested.
Promises: `put_new` succeeds for one writer per name on every store that `probe` accepts.
"""

from __future__ import annotations

import errno
import os
import random
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore, MemoryStore, S3Store, from_url

from dmondrian._atomic_write import broken_link
from dmondrian._memory_limit import usable_bytes
from dmondrian.errors import CorruptError, FencedError, NotFoundError, StoreError
from dmondrian.store.address import Address, parse_address
from dmondrian.store.failures import translate

T = TypeVar("T")

# Objects above this many bytes go up in parts (obstore's own chunk is 5 MiB); a part upload
# cannot be conditional, so only content-addressed objects may be that large.
MULTIPART_BYTES = 16 * 2**20
# Names in one request to delete: S3's own limit.
DELETE_BATCH = 1000
# Waits in seconds before an unclear conditional put is looked at again; jitter is added.
UNCLEAR_WAITS = (0.2, 1.0, 3.0)
# obstore asks again after 5xx answers (SlowDown too) and lost connections, and after a timeout
# where the request changes nothing. Each wait is drawn between the first and twice the one before:
# from its own 0.1 s on, six retries could be over in 0.6 s; these eight take 2.4 s or more.
RETRY: dict[str, Any] = {
    "max_retries": 8,
    "retry_timeout": timedelta(seconds=60),
    "backoff": {"init_backoff": timedelta(seconds=0.3), "max_backoff": timedelta(seconds=15)},
}
# One request may take this long (obstore's own default); a part of a large object is 5 MiB.
ANSWER_SECONDS = 30
PROBE = "_probe-"
"""What names of objects that `Store.probe` writes begin with; readers of Parquet skip these."""

LOOPBACK = ("localhost", "127.0.0.1", "::1")

_memory_stores: dict[str, MemoryStore] = {}


def open_store(url: str | os.PathLike[str] | Store, *, create: bool = True) -> Store:
    """Open the folder of objects at a path or URL.

    Parameters
    ----------
    url : str, path-like or Store
        See `parse_address`. A Store is returned as it is.
    create : bool
        Create a local folder that is missing.

    Returns
    -------
    Store

    Raises
    ------
    StoreError
        The address is wrong, or the local folder cannot be created.
    NotFoundError
        The local folder is missing and `create` is false.
    """
    return url if isinstance(url, Store) else Store(parse_address(url), create=create)


class Store:
    """Objects below one address. Made by `open_store`; pickles as its address.

    Attributes
    ----------
    url : str
        The address in canonical form; opens the same store in any process.
    is_local : bool
        Objects are files below a local folder.
    """

    def __init__(self, address: Address, *, create: bool = True) -> None:
        self.address = address
        self.url = address.url
        self.is_local = address.scheme == "file"
        self._backend = self._call("opening", "the folder", lambda: _backend(address, create))

    def __repr__(self) -> str:
        return f"Store({self.url!r})"

    def __reduce__(self) -> tuple[Callable[[str], Store], tuple[str]]:
        return open_store, (self.url,)

    def get(self, name: str, limit: int | None = None) -> bytes:
        """Read one object.

        Parameters
        ----------
        name : str
            Name below the address, parts separated by ``/``.
        limit : int or None
            Largest size in bytes that is read into memory; never more than all of it.

        Raises
        ------
        NotFoundError
            No object of that name.
        CorruptError
            The object is larger than `limit`.
        StoreError
            The store refused or failed.
        """

        def read() -> bytes | int:
            result = obstore.get(self._backend, name)
            size = int(result.meta["size"])
            return size if size > most else bytes(result.bytes())

        most = usable_bytes() if limit is None else min(limit, usable_bytes())

        data = self._call("reading", name, read)
        if isinstance(data, int):
            raise CorruptError(
                f"{name} in {self.url} has {data} bytes, at most {most} were expected: it is "
                "not what was written. Restore it from a copy or use an earlier checkpoint."
            )
        return data

    def get_range(self, name: str, start: int, stop: int) -> bytes:
        """Read the bytes of an object from `start` up to `stop`, which it must have.

        Raises
        ------
        NotFoundError
            No object of that name.
        StoreError
            The store refused or failed, or the object ends before.
        """

        def read() -> bytes:
            return bytes(obstore.get_range(self._backend, name, start=start, end=stop))

        return self._call("reading", name, read)

    def size(self, name: str) -> int | None:
        """Return the size of an object in bytes, None if there is none."""
        try:
            head = self._call("looking for", name, lambda: obstore.head(self._backend, name))
        except NotFoundError:
            return None
        return int(head["size"])

    def exists(self, name: str) -> bool:
        """Return whether there is an object of that name."""
        return self.size(name) is not None

    def list(self, prefix: str = "") -> list[str]:
        """Return the names of all objects below a folder of the store, sorted."""
        return list(self.sizes(prefix))

    def sizes(self, prefix: str = "") -> dict[str, int]:
        """Return the sizes in bytes of all objects below a folder, by sorted name."""

        def listed() -> dict[str, int]:
            pages = obstore.list(self._backend, prefix=prefix or None)
            sizes = ((str(entry["path"]), int(entry["size"])) for page in pages for entry in page)
            return dict(sorted(sizes))

        return self._call("listing", prefix or "objects", listed)

    def tags(self, prefix: str = "") -> dict[str, str]:
        """Return what changes with the bytes of each object below a folder, by sorted name.

        "" for an object of which the store does not say.
        """

        def listed() -> dict[str, str]:
            pages = obstore.list(self._backend, prefix=prefix or None)
            tags = (
                (str(entry["path"]), str(entry.get("e_tag") or ""))
                for page in pages
                for entry in page
            )
            return dict(sorted(tags))

        return self._call("listing", prefix or "objects", listed)

    def names(self) -> tuple[str, ...]:
        """Return the names of what is in the store and not below a folder of it, sorted.

        Those of folders end with "/".
        """

        def found() -> tuple[str, ...]:
            there = obstore.list_with_delimiter(self._backend)
            folders = (f"{name}/" for name in there["common_prefixes"])
            files = (str(entry["path"]) for entry in there["objects"])
            return tuple(sorted([*folders, *files]))

        return self._call("listing", "objects", found)

    def put(self, name: str, data: bytes) -> None:
        """Write an object, replacing one of that name atomically."""
        self._put(name, data, "overwrite")

    def put_new(self, name: str, data: bytes) -> None:
        """Write an object that must not exist yet (``If-None-Match: *``).

        Raises
        ------
        ExistsError
            There is an object of that name; it was not touched.
        StoreError
            The store refused or failed; whether the object was written is not known.
        """
        self._put(name, data, "create")

    def put_same(self, name: str, data: bytes) -> bool:
        """Write an object once, whoever writes it: the commit.

        "Exists" and unclear answers are settled by reading the object back, because a retried
        request may meet its own first attempt, and servers spell a refusal in many ways.

        Returns
        -------
        bool
            True when this call wrote it, False when the same bytes were there.

        Raises
        ------
        FencedError
            The object exists with other bytes.
        StoreError
            The store failed and the object is not there.
        """
        for wait in (*UNCLEAR_WAITS, None):
            try:
                self.put_new(name, data)
                return True
            except StoreError as error:
                failure = error
            try:
                return self._is_same(name, data)
            except NotFoundError:
                # Not there after all: the put failed for good or is still on its way.
                if wait is None or self.is_local:
                    break
            time.sleep(wait * random.uniform(0.5, 1.5))
        raise failure

    def delete(self, names: str | Iterable[str]) -> None:
        """Remove objects, many in one request where the store can; a missing one is no error.

        Parameters
        ----------
        names : str or iterable of str
            Names below the address. All are looked at before the first is removed.

        Raises
        ------
        StoreError
            A name leads out of the store (nothing was removed then), or the store failed (some
            may be removed; the same call again removes the rest).
        """
        listed = [names] if isinstance(names, str) else list(names)
        for name in listed:
            self._check_inside(name)
        for start in range(0, len(listed), DELETE_BATCH):
            batch = listed[start : start + DELETE_BATCH]
            try:
                self._delete(batch)
            except NotFoundError:
                # Some stores report what is missing, and may not have come to the rest.
                for name in batch:
                    with suppress(NotFoundError):
                        self._delete([name])

    def delete_empty_folders(self, prefix: str) -> None:
        """Remove a folder of a local store, and those below it, as far as they are empty.

        Other stores have no folders, and nothing is done.
        """
        self._check_inside(f"{prefix}/any")
        if self.is_local:
            for folder, _, _ in os.walk(Path(self.address.path) / prefix, topdown=False):
                with suppress(OSError):  # it has something, or somebody else removed it
                    os.rmdir(folder)

    def probe(self) -> None:
        """Find out whether this store can be written and keeps the promise of `put_new`.

        Raises
        ------
        StoreError
            The store cannot be written or read, or it lets a second `put_new` replace the first
            one's object.
        """
        name = f"{PROBE}{uuid.uuid4().hex}"
        self.put_same(name, b"first")  # its retried request may meet its own first attempt
        try:
            self.put_new(name, b"second")
            is_refused = False
        except StoreError:
            # Any refusal will do as long as the first bytes are still there.
            is_refused = True
        kept = self.get(name)
        self.delete(name)
        if not is_refused or kept != b"first":
            raise StoreError(
                f"The store {self.url} ignores the condition 'only if absent' (If-None-Match: *): "
                "two writers could overwrite each other's checkpoints unnoticed. Use a store "
                "that supports conditional puts, or a local folder."
            )

    def _delete(self, batch: Sequence[str]) -> None:
        shown = batch[0] if len(batch) == 1 else f"{batch[0]} and {len(batch) - 1} more"
        self._call("deleting", shown, lambda: obstore.delete(self._backend, batch))

    def _check_inside(self, name: str) -> None:
        """Refuse a name that is, or by a link becomes, one outside of the store."""
        is_inside = all(part not in ("", ".", "..") for part in name.split("/"))
        if is_inside and self.is_local:
            root = Path(self.address.path).resolve()
            is_inside = (root / name).parent.resolve().is_relative_to(root)
        if not is_inside:
            raise StoreError(
                f"{name!r} is no name of an object below {self.url}: expected parts separated by "
                "'/', without '.' or '..', and no link to another folder. Nothing was deleted."
            )

    def _is_same(self, name: str, data: bytes) -> bool:
        there = self.get(name)
        if there != data:
            raise FencedError(
                f"{name} in {self.url} exists with other bytes ({len(there)}, own {len(data)}): "
                "another writer uses this folder. Stop that one, or choose another folder."
            )
        return False

    def _put(self, name: str, data: bytes, mode: Any) -> None:
        is_large = len(data) > MULTIPART_BYTES and mode == "overwrite" and not self.is_local

        def write() -> None:
            obstore.put(self._backend, name, data, mode=mode, use_multipart=is_large)
            if self.is_local:
                _flush(Path(self.address.path), name)

        self._call("writing", name, write)

    def _call(self, doing: str, name: str, action: Callable[[], T]) -> T:
        try:
            return action()
        # obstore raises "not implemented" for a store that lacks an operation.
        except (BaseError, OSError, ValueError, NotImplementedError) as error:
            failure = translate(error, doing, name, self.url)
        # Raised outside the handler: a chained original could show what was scrubbed.
        raise failure


def _backend(address: Address, create: bool) -> Any:
    if address.scheme == "file":
        folder = Path(address.path)
        if folder.exists() and not folder.is_dir():
            raise NotADirectoryError(f"{address.path} is a file, not a directory")
        if not create and not folder.is_dir():
            raise FileNotFoundError(address.path)
        if lost := broken_link(folder):
            raise OSError(f"{lost[0]} is a link to {lost[1]}, which is not there")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except FileNotFoundError as error:
            # Pseudo file systems say so of a folder that they will not create.
            raise PermissionError(f"{address.path} cannot be created") from error
        return LocalStore(folder)
    if address.scheme == "memory":
        return _memory_stores.setdefault(address.url, MemoryStore())
    if address.scheme in ("s3", "s3a"):
        return S3Store(
            address.bucket,
            prefix=address.path or None,
            retry_config=RETRY,  # type: ignore[arg-type]  # a TypedDict to obstore
            client_options=_s3_client_options(),  # type: ignore[arg-type]
        )
    return from_url(address.url, retry_config=RETRY)  # type: ignore[call-overload]


def _s3_client_options() -> dict[str, Any] | None:
    """Allow plain http only to this machine, unless AWS_ALLOW_HTTP is set.

    None elsewhere: options that are given here hide those of the environment (of proxies and
    certificates, say). An answer may take as long as here by obstore's own default.
    """
    if not s3_is_on_this_machine():
        return None
    return {"allow_http": True, "timeout": timedelta(seconds=ANSWER_SECONDS)}


def s3_is_on_this_machine() -> bool:
    """Return whether plain http to S3 is allowed without AWS_ALLOW_HTTP, which is not set."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")
    parts = urlsplit(endpoint)
    is_loopback = parts.scheme == "http" and parts.hostname in LOOPBACK
    return is_loopback and "AWS_ALLOW_HTTP" not in os.environ


def _flush(root: Path, name: str) -> None:
    """Force a new file and the folders that name it to the disk."""
    path = root / name
    _fsync(path)
    for folder in path.parents:
        _fsync(folder)
        if folder == root:
            break


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        # Some network file systems cannot flush a folder; what they wrote stands anyway.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP) or not path.is_dir():
            raise
    finally:
        os.close(handle)
