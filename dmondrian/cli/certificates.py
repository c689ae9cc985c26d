"""A temporary certificate authority, and one certificate by it for all roles of a cluster.

Relies on the package trustme. Promises that the files are readable by their owner alone, and that
the authority's key is not kept: nobody can add a certificate later. Whoever holds the key of the
certificate is a member of the cluster; host names are not checked, because Dask's addresses come
and go.
"""

from __future__ import annotations

import datetime
import os
from pathlib import Path

from dmondrian._optional import require
from dmondrian.cli.tls import Tls

DAYS = 30
"""How long the certificate is valid: enough to try a cluster out, too short to rely on."""


def tls_in(folder: Path) -> Tls:
    """Return the files of a folder of certificates."""
    return Tls(*(str(folder / f"{name}.pem") for name in ("ca", "cert", "key")))


def make_certificates(folder: Path) -> Tls:
    """Write ``ca.pem``, ``cert.pem`` and ``key.pem`` into a folder.

    Parameters
    ----------
    folder : Path
        Exists; files of these names are replaced.

    Raises
    ------
    MissingPackageError
        trustme is not installed.
    """
    require("trustme", "tls", "a cluster without --tls-ca, --tls-cert and --tls-key")
    import trustme

    authority = trustme.CA(organization_name="dmondrian", organization_unit_name="authority")
    ends = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=DAYS)
    member = authority.issue_cert("cluster", organization_name="dmondrian", not_after=ends)
    tls = tls_in(folder)
    pem = authority.cert_pem, member.cert_chain_pems[0], member.private_key_pem
    for file, content in zip((tls.ca, tls.cert, tls.key), pem, strict=True):
        Path(file).unlink(missing_ok=True)
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as stream:
            stream.write(content.bytes())
    return tls
