"""Listing of a source: a file, folder, glob, list or URL as an ordered list of files.

Relies on `pyarrow.fs` for local and remote file systems (credentials come from the environment),
on `web` for links, and on `listing` for folders and globs.
Promises: the same source gives the same order everywhere (folders and globs are sorted by path, a
list keeps its own order); ``key=value`` folders are returned as partition values; a file is
identified by its uri, size and stamp (see `version`), by which changes during a run are found.

A local file's uri is its absolute path; every other uri keeps its scheme and query.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

import pyarrow as pa
from pyarrow import fs

from dmondrian.data.links import Link, link_on_the_way
from dmondrian.data.listing import (
    GLOB,
    IsEmptied,
    NoFilesError,
    files_below,
    files_matching,
    never,
)
from dmondrian.data.proxy import proxy_for
from dmondrian.data.version import Version, version_of
from dmondrian.data.web import is_web, open_web, stat_web
from dmondrian.errors import DataError
from dmondrian.store.failures import advice_on_answer, kind_of, no_bucket

Source: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

SAFE = "/=:,+@"  # not quoted in the path of a URL
HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
# Names of query entries whose values are credentials, unlike options such as region=.
_SECRET = re.compile(r"sig|token|credential|key|secret|password", re.IGNORECASE)
_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://")


@dataclass(frozen=True)
class SourceFile:
    """One file of a source."""

    uri: str  # absolute path of a local file, otherwise a URL
    size: int  # bytes
    stamp: str  # ETag, or the time of the last change in nanoseconds since 1970
    partition: tuple[tuple[str, str | None], ...]  # (key, value) of each key=value folder above it
    changed: str = ""  # modification time, if the stamp is an ETag
    fingerprint: str = ""  # see `dmondrian.data.fingerprint`: recognises copies of the file
    # (key, Arrow type) of partition values, of a table
    types: tuple[tuple[str, str], ...] = ()
    # (name, field id) of the columns of its table: null where the file lacks one; no ids in Delta
    columns: tuple[tuple[str, int | None], ...] = ()
    # the same of columns that have a value where the file lacks them: of a partition, or a default
    elsewhere: tuple[tuple[str, int], ...] = ()

    @property
    def version(self) -> Version:
        """Version of the file: its size, stamp and time of change."""
        return Version(self.size, self.stamp, self.changed)

    def opened(self, file: pa.NativeFile, fingerprint: str) -> SourceFile:
        """Return this file with its fingerprint, and its ETag, which listings lack."""
        version = None if is_web(self.uri) or is_local(self.uri) else version_of(file)
        if version is None:
            return replace(self, fingerprint=fingerprint)
        size, stamp = version.size, version.stamp
        return replace(self, size=size, stamp=stamp, changed=self.stamp, fingerprint=fingerprint)


def list_files(
    source: Source, known: Collection[str] = (), lost: list[Link] | None = None
) -> tuple[list[SourceFile], list[str]]:
    """List the Parquet files of a source in reading order.

    Parameters
    ----------
    source : str, path or sequence of them
        Files, folders (searched recursively; runs and scores below them are skipped), globs
        (``*``, ``?``, ``[...]``, ``**``) and URLs. Files of a table format (Delta, Iceberg, ...)
        are read only if each is named individually.
    known : collection of str
        Uris of files that were there once: they may be gone, and folders and globs that held one
        may hold none.
    lost : list of Link or None
        Links in folders whose targets are missing are added; None if they are errors.

    Returns
    -------
    files : list of SourceFile
    notes : list of str
        Skipped files, with the reason.

    Raises
    ------
    DataError
        There are no files, a folder has no Parquet file or belongs to a table format, or a link is
        broken.
    """
    items = [source] if isinstance(source, (str, os.PathLike)) else list(source)
    if not items:
        raise DataError("expected a file, folder, glob or URL to read, got an empty list")
    files: dict[str, SourceFile] = {}
    notes: list[str] = []

    def is_emptied(location: str) -> bool:
        start = GLOB.split(location, maxsplit=1)[0] if GLOB.search(location) else f"{location}/"
        return location in known or any(uri.startswith(start) for uri in known)

    for item in items:
        location = normalise(item)
        try:
            if is_web(location):
                files[location] = _web_file(location)
                continue
            location, infos = _expand(location, notes, is_emptied, lost)
        except NoFilesError:
            if is_emptied(location.rstrip("/")):
                continue
            raise
        for info in infos:
            uri = child_uri(location, info.path)
            if uri in files:
                notes.append(f"{uri} is named twice in the source and is read once")
                continue
            files[uri] = SourceFile(uri, info.size, stamp_of(info), _partition(info.path))
    return list(files.values()), notes


def from_anywhere(data: Any) -> Any:
    """Return a path or URL, or a list of them, such that a process in another folder finds them."""
    if data is None:
        return None
    if not isinstance(data, (str, os.PathLike)):
        return [from_anywhere(item) for item in data]
    text = os.fspath(data)
    return text if _SCHEME.match(text) else normalise(text)


def normalise(item: str | os.PathLike[str]) -> str:
    """Return the canonical form of a path or URL: absolute path, or URL with a known scheme."""
    text = os.fspath(item)
    if not isinstance(text, str) or not text:
        raise DataError(f"expected a path or URL as text, got {text!r}")
    if "\0" in text:
        raise DataError(f"the path {text!r} contains a null character: give a plain path")
    if text.startswith("file:/") and not text.startswith("file://"):  # as Hadoop writes it
        text = "file://" + text.removeprefix("file:")
    if any("\ud800" <= character <= "\udfff" for character in text):
        # Python keeps bytes that are no UTF-8 as such characters; PyArrow and plans hold none.
        raise DataError(f"the path {text!r} has bytes that are no UTF-8: rename the file or folder")
    if not _SCHEME.match(text):
        return Path(os.path.abspath(os.path.expanduser(text))).as_posix()
    split = urlsplit(text)
    if split.password is not None:
        raise DataError(
            f"the URL for {split.hostname} carries a password: credentials come from the "
            "environment, take them out of the URL"
        )
    is_secret = any(_SECRET.search(name) for name, _ in parse_qsl(split.query, True))
    if is_secret or (is_web(text) and (split.query or split.username is not None)):
        # The query is not repeated, nor planned with: a signed link is a credential.
        raise DataError(
            f"the URL {split.scheme}://{split.hostname}{split.path} carries a user, a signature or "
            "a query: links with a query (?...) cannot be read; download the file first, or give "
            "a plain URL and put credentials into the environment"
        )
    if split.scheme == "file":
        return _path_of(split, text)
    if split.fragment and not is_web(text):
        raise DataError(
            f"{text} has a '#', behind which a URL ends: write %23 where it is part of a name"
        )
    if split.query and "=" not in split.query:  # no option of a file system, but a glob
        text = text.replace("?", "%3F")
    if split.scheme in ("s3a", "s3n"):
        return "s3" + text[len(split.scheme) :]
    return text


def _path_of(split: SplitResult, text: str) -> str:
    """Return the path that a ``file://`` URL names: neither '?' nor '#' ends it."""
    if split.netloc not in ("", "localhost"):
        raise DataError(
            f"{text} names the host {split.netloc!r}: expected file:///absolute/path of this one"
        )
    return unquote(text.partition("://")[2][len(split.netloc) :])


def open_uri(uri: str) -> pa.NativeFile:
    """Open a file for random reading.

    Raises
    ------
    OSError
        Of the file system; callers add what they were doing.
    """
    if is_web(uri):
        return open_web(uri)
    filesystem, path = locate(uri)
    return filesystem.open_input_file(path)


def stat_uri(uri: str) -> Version | None:
    """Return the state of a file as it is now, or None when it is not there.

    Raises
    ------
    OSError
        Of the file system.
    """
    if is_web(uri):
        size_and_stamp = stat_web(uri)
        return None if size_and_stamp is None else Version(*size_and_stamp)
    filesystem, path = locate(uri)
    if not is_local(uri):
        try:
            with filesystem.open_input_file(path) as file:
                version = version_of(file)
        except FileNotFoundError:
            return None
        if version is not None:
            return version
    info = filesystem.get_file_info(path)
    return Version(info.size, stamp_of(info)) if info.type == fs.FileType.File else None


def is_local(uri: str) -> bool:
    """Whether a uri is a path of this machine."""
    return _SCHEME.match(uri) is None


def _web_file(location: str) -> SourceFile:
    try:
        found = stat_web(location)
    except OSError as error:
        raise kind_of(error, location)(f"cannot read {location}: {error}") from error
    if found is None:
        raise NoFilesError(f"expected a Parquet file at {location}, but nothing is there")
    return SourceFile(location, found[0], found[1], _partition(urlsplit(location).path))


def _expand(
    location: str,
    notes: list[str],
    is_emptied: IsEmptied = never,
    lost: list[Link] | None = None,
) -> tuple[str, list[fs.FileInfo]]:
    """Return the files that an item of a source names, and the item as it was found."""
    filesystem, path = locate(location)
    uri_of = partial(child_uri, location)
    try:
        info = filesystem.get_file_info(path)
        if info.type == fs.FileType.File:
            return location, [info]
        if info.type == fs.FileType.Directory:
            return location, files_below(filesystem, path, uri_of, notes, lost)
        if GLOB.search(path):
            if found := files_matching(filesystem, path, uri_of, notes, is_emptied):
                return location, found
            raise NoFilesError(f"no file matches {location}: expected at least one Parquet file")
    except OSError as error:
        advice = advice_on_answer(str(error), location)
        raise kind_of(error, location)(
            f"cannot list {location}: {error} {advice}".rstrip()
        ) from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"a name in {location} has bytes that are no UTF-8 ({error.object!r}): rename it"
        ) from error
    if not is_local(location):
        if "%" in location and "%25" not in location:
            # Other programs list the keys of objects as they are, not as parts of a URL.
            with suppress(DataError):
                return _expand(location.replace("%", "%25"), notes, is_emptied, lost)
        if filesystem.type_name == "s3" and _is_missing(filesystem, path.partition("/")[0]):
            raise NoFilesError(no_bucket(location))
    elif link := link_on_the_way(path):
        raise link.error()
    raise NoFilesError(
        f"expected a Parquet file, a folder or a glob, but {location} does not exist"
    )


def _is_missing(filesystem: fs.FileSystem, bucket: str) -> bool:
    """Whether a bucket is not there; one that may not be looked at may be."""
    try:
        return bool(filesystem.get_file_info(bucket).type == fs.FileType.NotFound)
    except OSError:
        return False


def _partition(path: str) -> tuple[tuple[str, str | None], ...]:
    pairs: dict[str, str | None] = {}
    for part in path.split("/")[:-1]:
        key, equals, value = part.partition("=")
        if equals and key:
            pairs[unquote(key)] = None if value == HIVE_NULL else unquote(value)
    return tuple(pairs.items())


def stamp_of(info: fs.FileInfo) -> str:
    """Return the time of a file's last change; "" if its store has none."""
    return "" if info.mtime_ns is None else str(info.mtime_ns)


def locate(uri: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a uri, and its path there."""
    if is_local(uri):
        return _local(), uri
    filesystem, root = _file_system(uri)
    split = urlsplit(uri)
    return filesystem, f"{root.rstrip('/')}/{unquote(split.path).lstrip('/')}".rstrip("/")


def child_uri(location: str, path: str) -> str:
    """Return the uri of a path in the file system of a location."""
    if is_local(location):
        return path
    split = urlsplit(location)
    _, root = _file_system(location)
    below = quote(path[len(root.rstrip("/")) :].lstrip("/"), safe=SAFE)
    query = f"?{split.query}" if split.query else ""
    return f"{split.scheme}://{split.netloc}/{below}{query}"


def _endpoint() -> str:
    """Return the S3 endpoint of the environment, which is part of a client's identity."""
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")


def _file_system(uri: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a URL and the path of its bucket or root in it."""
    split = urlsplit(uri)
    proxy = _s3_proxy(split.query) if split.scheme == "s3" else None
    return _remote(split.scheme, split.netloc, split.query, _endpoint(), proxy)


def _s3_proxy(query: str) -> str | None:
    """Return the proxy before the S3 server of a URL."""
    options = dict(parse_qsl(query))
    endpoint = options.get("endpoint_override") or _endpoint() or "s3.amazonaws.com"
    split = urlsplit(endpoint if "://" in endpoint else f"//{endpoint}")
    return proxy_for(split.scheme or options.get("scheme", "https"), split.hostname or "")


@lru_cache(maxsize=1)
def _local() -> fs.FileSystem:
    return fs.LocalFileSystem()


@lru_cache(maxsize=64)  # an S3 client looks up its bucket's region when made: keep it
def _remote(
    scheme: str, netloc: str, query: str, endpoint: str, proxy: str | None
) -> tuple[fs.FileSystem, str]:
    url = f"{scheme}://{netloc}/" + (f"?{query}" if query else "")
    try:
        if proxy is not None:
            return _through(proxy, query, endpoint), netloc
        filesystem, root = fs.FileSystem.from_uri(url)
    # Arrow raises "not implemented" for schemes that this build does not support.
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        raise kind_of(error, url)(
            f"cannot open {scheme}://{netloc}: {error}. Expected a local path or a URL of a file "
            "system that pyarrow knows (s3, gs, abfs, hdfs, file) or a web link"
        ) from error
    return filesystem, root


def _through(proxy: str, query: str, endpoint: str) -> fs.FileSystem:
    """Return an S3 client that uses a proxy.

    The region of a bucket is not looked up, as pyarrow would bypass the proxy for it.
    """
    options = dict(parse_qsl(query))
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    return fs.S3FileSystem(
        region=options.get("region", region),
        scheme=options.get("scheme"),
        endpoint_override=options.get("endpoint_override") or endpoint or None,
        proxy_options=proxy,
    )


def partition_keys(files: Iterable[SourceFile]) -> list[str]:
    """Return the keys that every file's path has, in the order of the first path."""
    listed = [dict(file.partition) for file in files]
    if not listed:
        return []
    return [key for key in listed[0] if all(key in pairs for pairs in listed)]
