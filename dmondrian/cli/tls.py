"""The certificates of an encrypted cluster, as a job file or the command line names them.

All three files or none, and checked before any work: that they can be read, that they are PEM, and
that the key is that of the certificate. Relies on the standard library only, so that a mistake is
reported without loading a cluster. Promises never to print the content of a key.
"""

from __future__ import annotations

import argparse
import os
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dmondrian.errors import JobError

KEYS = ("tls_ca", "tls_cert", "tls_key")


@dataclass(frozen=True)
class Tls:
    """PEM files: the authority, and the certificate and key of this process."""

    ca: str
    cert: str
    key: str


def tls_of(keys: Mapping[str, Any]) -> Tls | None:
    """Return the files of a checked ``[cluster]`` table, or None where it names none."""
    return Tls(*(keys[name] for name in KEYS)) if KEYS[0] in keys else None


def tls_of_arguments(arguments: argparse.Namespace) -> Tls | None:
    """Return the files that ``--tls-ca``, ``--tls-cert`` and ``--tls-key`` name, checked.

    Raises
    ------
    JobError
        As of :func:`tls_mistakes`.
    """
    paths = {name: getattr(arguments, name) for name in KEYS if getattr(arguments, name)}
    paths = {name: os.path.abspath(os.path.expanduser(path)) for name, path in paths.items()}
    mistakes = list(tls_mistakes(paths, _option))
    if mistakes:
        raise JobError("\n".join(mistakes))
    return tls_of(paths)


def add_tls_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options that :func:`tls_of_arguments` reads."""
    meanings = ("authority that the cluster trusts", "certificate to show", "its private key")
    for name, meaning in zip(KEYS, meanings, strict=True):
        command.add_argument(
            _option(name), metavar="FILE", help=f"PEM file: {meaning}; all three or none"
        )


def tls_mistakes(keys: Mapping[str, Any], named: Callable[[str], str]) -> Iterator[str]:
    """Yield what is wrong with the certificates.

    Parameters
    ----------
    keys : mapping
        May hold `KEYS`: resolved paths.
    named : callable
        From a key to how a message names it, with the place where it was written.
    """
    present = [name for name in KEYS if name in keys]
    lacking = [name for name in KEYS if name not in keys]
    if not present:
        return
    if lacking:
        yield (
            f"{named(present[0])}: given without {' and '.join(lacking)}; expected {KEYS[0]}, "
            f"{KEYS[1]} and {KEYS[2]}, or none of them"
        )
        return
    unreadable = {name: _unreadable(keys[name]) for name in KEYS}
    if any(unreadable.values()):
        yield from (f"{named(name)}: {why}" for name, why in unreadable.items() if why)
        return
    try:
        ssl.create_default_context(cafile=keys["tls_ca"])
    except ssl.SSLError:
        yield f"{named('tls_ca')}: expected PEM certificates, {keys['tls_ca']} has none"
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # An encrypted key would ask at the terminal, in every worker.
        context.load_cert_chain(keys["tls_cert"], keys["tls_key"], password=_no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            yield f"{named('tls_key')}: {keys['tls_key']} is not the key of {keys['tls_cert']}"
        else:
            yield (
                f"{named('tls_cert')}: expected a PEM certificate and its key, got something else "
                f"in {keys['tls_cert']} or {keys['tls_key']} ({error.reason or 'no PEM'})"
            )
    except _EncryptedKeyError:
        yield (
            f"{named('tls_key')}: {keys['tls_key']} is encrypted; expected a key without a "
            "password, in a file that only you can read"
        )


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _unreadable(path: str) -> str:
    try:
        with open(path, "rb") as file:
            file.read(1)
    except OSError as error:
        return f"cannot read {path} ({error.strerror}); give the path of a PEM file"
    return ""


class _EncryptedKeyError(Exception):
    """Raised where OpenSSL would ask for a password."""


def _no_password() -> str:
    raise _EncryptedKeyError
