"""A throw-away certificate authority, and one certificate by it for all roles of a cluster.

Uses the package `cryptography` where it is installed, else the command `openssl`. Promises that the
files are readable by their owner alone, and that the authority's key is forgotten: nobody can add a
certificate later. Whoever holds the key of the certificate is one of the cluster; host names are
not checked, because Dask's are addresses that come and go.
"""

from __future__ import annotations

import datetime
import importlib.util
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from dmondrian.cli.tls import Tls
from dmondrian.errors import JobError

DAYS = 30
"""How long the certificates hold: enough for a try-out, too short to be relied on."""

_AUTHORITY, _MEMBER = "dmondrian throw-away authority", "dmondrian cluster"


def tls_in(folder: Path) -> Tls:
    """Name the files of a folder of certificates."""
    return Tls(*(str(folder / f"{name}.pem") for name in ("ca", "cert", "key")))


def make_certificates(folder: Path, *, with_openssl: bool | None = None) -> Tls:
    """Write ``ca.pem``, ``cert.pem`` and ``key.pem`` into a folder.

    Parameters
    ----------
    folder : Path
        Exists; files of these names are replaced.
    with_openssl : bool or None
        Use the command or the package; by default the package where it is installed.

    Raises
    ------
    JobError
        There is neither `cryptography` nor `openssl`, or `openssl` fails.
    """
    if with_openssl is None:
        with_openssl = importlib.util.find_spec("cryptography") is None
    pem = _by_openssl() if with_openssl else _by_cryptography()
    tls = tls_in(folder)
    for file, text in zip((tls.ca, tls.cert, tls.key), pem, strict=True):
        Path(file).unlink(missing_ok=True)
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as stream:
            stream.write(text)
    return tls


def _by_cryptography() -> tuple[bytes, bytes, bytes]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    def sign(name: str, is_authority: bool) -> x509.Certificate:
        key = authority_key if is_authority else member_key
        names = [
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])
            for common in (name, _AUTHORITY)
        ]
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
        return (
            x509.CertificateBuilder()
            .subject_name(names[0])
            .issuer_name(names[1])
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))  # clocks differ
            .not_valid_after(now + datetime.timedelta(days=DAYS))
            .add_extension(x509.BasicConstraints(is_authority, None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
            .add_extension(issuer, critical=False)
            .sign(authority_key, hashes.SHA256())
        )

    now = datetime.datetime.now(datetime.UTC)
    authority_key, member_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    pem = serialization.Encoding.PEM
    private = member_key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    authority, member = sign(_AUTHORITY, True), sign(_MEMBER, False)
    return authority.public_bytes(pem), member.public_bytes(pem), private


def _by_openssl() -> tuple[bytes, bytes, bytes]:
    if shutil.which("openssl") is None:
        raise JobError(
            "certificates are made by the Python package cryptography or the command openssl, and "
            "neither is here; `pip install cryptography`, or give --tls-ca, --tls-cert, --tls-key"
        )
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-sha256")
    with tempfile.TemporaryDirectory(prefix="dmondrian-authority-") as place:  # for its owner alone
        request = ("req", *curve, "-keyout", "key.pem", "-out", "request.pem")
        authority = ("req", "-x509", *curve, "-keyout", "ca-key.pem", "-out", "ca.pem")
        signing = ("x509", "-req", "-in", "request.pem", "-CA", "ca.pem", "-CAkey", "ca-key.pem")
        days = ("-days", str(DAYS))
        _openssl(place, *authority, "-subj", f"/CN={_AUTHORITY}", *days)
        _openssl(place, *request, "-subj", f"/CN={_MEMBER}")
        _openssl(place, *signing, "-CAcreateserial", "-out", "cert.pem", *days)
        ca, cert, key = (Path(place, f"{name}.pem").read_bytes() for name in ("ca", "cert", "key"))
        return ca, cert, key


def _openssl(place: str, *words: str) -> None:
    done = subprocess.run(["openssl", *words], cwd=place, capture_output=True, text=True)
    if done.returncode:
        raise JobError(f"openssl {words[0]} failed: {done.stderr.strip().splitlines()[-1:]}")
