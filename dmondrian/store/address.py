"""Addresses of stores: paths and URLs as users write them, parsed.

A plain path or file:// names a local folder, s3:// (also gs://, az://, abfs://) a prefix in a
bucket, memory:// a store inside this process, for tests. An address never carries a secret: one
with a user, a password or a query is refused, because addresses are printed and sent around.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from dmondrian._atomic_write import NO_HOME
from dmondrian.errors import StoreError

CLOUD_SCHEMES = ("s3", "s3a", "gs", "az", "adl", "abfs", "abfss")
SCHEMES = ("file", "memory", *CLOUD_SCHEMES)


@dataclass(frozen=True)
class Address:
    """A parsed address; `url` is its canonical form, which opens the same folder."""

    scheme: str  # "file", "memory" or one of CLOUD_SCHEMES
    bucket: str  # bucket, container or name of a memory store; "" for a local folder
    path: str  # absolute local path, or the prefix inside the bucket without outer slashes

    @property
    def url(self) -> str:
        """The address as text: an absolute path for a local folder, else scheme://bucket/path."""
        if self.scheme == "file":
            return self.path
        return f"{self.scheme}://{self.bucket}" + (f"/{self.path}" if self.path else "")


def parse_address(text: str | os.PathLike[str]) -> Address:
    """Parse a path or URL.

    Parameters
    ----------
    text : str or path-like
        A local path (``~`` is the home folder), ``file://``, ``s3://bucket/prefix``, ...

    Returns
    -------
    Address

    Raises
    ------
    StoreError
        The scheme is unknown, the bucket is missing, or the URL carries a user, a password, a
        query or a fragment.
    """
    text = os.fspath(text)
    if not text:
        raise StoreError("An empty address was given: expected a folder or a URL.")
    if "\0" in text:
        raise StoreError(f"The address {text!r} contains a null character: give a plain path.")
    match = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", text)
    if match is None:
        try:
            return Address("file", "", os.path.abspath(Path(text).expanduser()))
        except RuntimeError as error:
            raise StoreError(NO_HOME.format(text)) from error
    scheme = match[1].lower()
    if scheme not in SCHEMES:
        raise StoreError(
            f"The scheme {scheme!r} is not known: expected a local folder or one of "
            + ", ".join(f"{name}://" for name in SCHEMES)
            + "."
        )
    return _parse_url(text, scheme)


def _parse_url(text: str, scheme: str) -> Address:
    try:
        parts = urlsplit(text)
    except ValueError:
        # The text is not repeated: it may contain a key.
        raise StoreError(
            f"A {scheme}:// address that is no URL was given: expected {scheme}://bucket/prefix."
        ) from None
    # adl/abfs spell container@account; there the user part is a name and not a secret.
    is_container = scheme in ("adl", "abfs", "abfss") and parts.password is None
    has_user = "@" in parts.netloc and not is_container
    if has_user or parts.query or (parts.fragment and scheme != "file"):
        raise StoreError(
            f"A {scheme}:// address with a user, a password, a '?' or a '#' was given: expected "
            f"{scheme}://bucket/prefix only. Put credentials and options into the environment "
            "(for S3: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL)."
        )
    if scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise StoreError(
                f"file://{parts.netloc}/... names another host: expected file:///absolute/path."
            )
        fragment = f"#{parts.fragment}" if parts.fragment else ""
        return Address("file", "", os.path.abspath(unquote(parts.path + fragment)))
    if not parts.netloc:
        raise StoreError(f"{text!r} names no bucket: expected {scheme}://bucket/prefix.")
    segments = [part for part in parts.path.split("/") if part]
    if any(part in (".", "..") for part in segments):
        raise StoreError(f"{text!r} contains '.' or '..': write the prefix out in full.")
    return Address(scheme, parts.netloc, "/".join(segments))
