"""Connection of a command to a cluster: a local one, or one that runs already.

Relies on `dmondrian.distributed`, which starts a local cluster of worker processes when it is given
no client. Promises to close the connection it opened, never a cluster it did not start, and to use
certificates wherever they were given.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from typing import Any

from dmondrian.cli.tls import Tls
from dmondrian.errors import ClusterError, JobError

LOCAL = "local"
# Seconds to wait for a scheduler before an error is raised.
_CONNECT_TIMEOUT = 30
# What distributed raises where one end encrypts and the other does not, beside OSError.
_TLS_ERRORS = (TypeError, ValueError, RuntimeError, AssertionError)


@contextlib.contextmanager
def connected(
    scheduler: str,
    workers: int | None,
    threads: int | None,
    tls: Tls | None = None,
    memory_limit: int | None = None,
) -> Iterator[dict[str, Any]]:
    """Connect to the cluster; yield the keyword arguments for `dmondrian.distributed`.

    Parameters
    ----------
    scheduler : str
        ``"local"``, an address such as ``tls://host:8786``, or the path of a scheduler file.
    workers, threads : int or None
        Worker processes and threads per process of a local cluster.
    tls : Tls or None
        Certificates, checked before.
    memory_limit : int or None
        Bytes of a worker; those of a cluster that runs already are only planned with.

    Raises
    ------
    JobError
        For `workers` or `threads` with a cluster that is not local, or certificates with a
        scheduler that does not encrypt.
    ClusterError
        When the scheduler does not answer, or refuses.
    """
    limit: dict[str, Any] = {} if memory_limit is None else {"memory_limit": memory_limit}
    if scheduler == LOCAL and tls is None:
        yield {"client": None, "n_workers": workers, "threads": threads, **limit}
        return
    from dmondrian.distributed.cluster import client as cluster

    security = None if tls is None else cluster.encrypted(tls.ca, tls.cert, tls.key)
    if scheduler == LOCAL:
        with cluster.connected(None, workers, threads, security=security, **limit) as client:
            yield {"client": client, **limit}
        return
    if workers is not None or threads is not None:
        raise JobError(
            f"workers and threads are for a local cluster; the scheduler {scheduler!r} already has "
            "its workers: leave them out"
        )
    address = _address(scheduler, tls)
    cluster.warn_if_plaintext(address)
    try:
        client = cluster.OwnClient(address, timeout=_CONNECT_TIMEOUT, security=security)
    except (OSError, *_TLS_ERRORS) as error:
        raise ClusterError(
            f"no Dask scheduler at {scheduler!r} ({_reason(error, tls)}); give a running "
            f"scheduler's address, its scheduler file, or {LOCAL!r}"
        ) from error
    with client:
        yield {"client": client, **limit}


def _address(scheduler: str, tls: Tls | None) -> str:
    """Return the address that was given or that a scheduler file holds."""
    address = scheduler
    if "://" not in scheduler and os.path.exists(scheduler):
        try:
            with open(scheduler, "rb") as file:
                address = json.load(file)["address"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise JobError(
                f"{scheduler}: expected a scheduler file as `dask scheduler --scheduler-file` "
                f"writes it, got another ({error!r})"
            ) from error
    elif "://" not in scheduler and os.path.dirname(scheduler):
        raise JobError(
            f"the scheduler file {scheduler} does not exist; expected the file that a running "
            f"scheduler wrote, an address such as tls://host:8786, or {LOCAL!r}"
        )
    if tls is None:
        return address
    if "://" not in address:
        return f"tls://{address}"
    if address.startswith(("tls://", "wss://")):
        return address
    raise JobError(
        f"tls_ca, tls_cert and tls_key are given, but the scheduler {address} does not encrypt; "
        "start it with `dask scheduler --protocol tls` and its certificates, or leave them out"
    )


def _reason(error: Exception, tls: Tls | None) -> str:
    """Return what went wrong, also where distributed's message is about its internals."""
    if "certificate" in str(error):
        return f"{error}; its certificates are not by the authority in tls_ca"
    if not isinstance(error, _TLS_ERRORS):
        return str(error)
    if tls is None:
        return "it asks for certificates: give tls_ca, tls_cert and tls_key"
    return "it does not use TLS"
