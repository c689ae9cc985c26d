"""Certificates in job files and options, plaintext schedulers: refused before any work."""

from __future__ import annotations

import datetime
import shutil
import ssl
import stat
import subprocess
import warnings
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from dmondrian.cli import main
from dmondrian.cli.certificates import DAYS, make_certificates
from dmondrian.cli.job import read_job
from dmondrian.cli.output import Output
from dmondrian.cli.tls import Tls
from dmondrian.distributed.cluster import client as cluster
from dmondrian.distributed.cluster.client import encrypted, warn_if_plaintext
from dmondrian.errors import JobError, MissingPackageError

JOB = """\
[data]
path = "rows.parquet"
target = "y"
[forest]
algorithm = "amf-classifier"
[run]
path = "run"
[cluster]
scheduler = "tls://scheduler:8786"
tls_ca = "keys/ca.pem"
tls_cert = "keys/cert.pem"
tls_key = "keys/key.pem"
"""


@pytest.fixture
def job(tmp_path: Path, certificates: Path) -> Path:
    shutil.copytree(certificates, tmp_path / "keys")
    file = tmp_path / "job.toml"
    file.write_text(JOB)
    return file


def refusal(job: Path, *overrides: str) -> str:
    with pytest.raises(JobError) as caught:
        read_job(job, overrides)
    return str(caught.value)


def test_paths_are_relative_to_the_job_file(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reported = read_job(job).cluster
    assert [reported[f"tls_{name}"] for name in ("ca", "cert", "key")] == [
        str(job.parent / "keys" / f"{name}.pem") for name in ("ca", "cert", "key")
    ]
    monkeypatch.chdir(job.parent / "keys")
    assert read_job(job, ["cluster.tls_ca=cert.pem"]).cluster["tls_ca"].endswith("keys/cert.pem")


def test_all_three_or_none(job: Path) -> None:
    job.write_text(JOB.replace('tls_cert = "keys/cert.pem"\n', ""))
    reported = refusal(job)
    assert (
        f"{job}:10: [cluster] tls_ca: given without tls_cert; expected tls_ca, tls_cert" in reported
    )
    job.write_text(JOB.split("tls_ca")[0])
    assert "tls_ca" not in read_job(job).cluster


def test_a_missing_file_is_reported_with_its_line(job: Path) -> None:
    (job.parent / "keys" / "key.pem").unlink()
    reported = refusal(job)
    assert f"{job}:12: [cluster] tls_key: cannot read {job.parent}/keys/key.pem" in reported


def test_files_that_are_no_certificates_are_reported(job: Path) -> None:
    other = job.parent / "keys" / "other.pem"
    other.write_text("no certificate\n")
    assert "tls_ca: expected PEM certificates" in refusal(job, f"cluster.tls_ca={other}")
    assert "tls_cert: expected a PEM certificate" in refusal(job, f"cluster.tls_cert={other}")


def test_a_key_of_another_certificate_is_reported(job: Path, strangers: Tls) -> None:
    reported = refusal(job, f"cluster.tls_key={strangers.key}")
    assert f"tls_key: {strangers.key} is not the key of" in reported


def test_an_encrypted_key_is_reported_and_nobody_is_asked(job: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("needs the command openssl to encrypt a key")
    key = job.parent / "keys" / "key.pem"
    words = ["openssl", "pkey", "-in", key, "-aes128", "-passout", "pass:secret", "-out", "e.pem"]
    subprocess.run(words, cwd=job.parent, check=True, capture_output=True)
    reported = refusal(job, f"cluster.tls_key={job.parent / 'e.pem'}")
    assert "is encrypted; expected a key without a password" in reported


def test_options_are_checked_as_the_keys_are(
    certificates: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["score", "model", "data", "out", "--tls-ca", str(certificates / "ca.pem")]
    assert main(words) == 2
    assert "--tls-ca: given without tls_cert and tls_key" in capsys.readouterr().err


def test_certificates_are_by_their_authority_private_and_short_lived(tmp_path: Path) -> None:
    tls = make_certificates(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["ca.pem", "cert.pem", "key.pem"]
    for file in tmp_path.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    security = encrypted(tls.ca, tls.cert, tls.key)
    assert security.require_encryption
    client, worker = security.get_connection_args("client"), security.get_listen_args("worker")
    for context in (client["ssl_context"], worker["ssl_context"]):  # Python 3.13's default
        context.verify_flags |= ssl.VERIFY_X509_STRICT
    assert handshake(client, worker)
    authority, member = (
        x509.load_pem_x509_certificate(Path(file).read_bytes()) for file in (tls.ca, tls.cert)
    )
    member.verify_directly_issued_by(authority)
    left = member.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    assert datetime.timedelta(days=DAYS - 1) < left <= datetime.timedelta(days=DAYS)
    key = serialization.load_pem_private_key(Path(tls.key).read_bytes(), None)
    assert key.public_key() == member.public_key() != authority.public_key()


def test_a_cluster_without_the_package_names_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=r"--tls-key needs .* trustme.*dmondrian\[tls\]"):
        make_certificates(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_certificates_of_another_authority_do_not_fit(strangers: Tls, certificates: Path) -> None:
    ours = encrypted(*(str(certificates / f"{name}.pem") for name in ("ca", "cert", "key")))
    theirs = encrypted(strangers.ca, strangers.cert, strangers.key)
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
        handshake(theirs.get_connection_args("client"), ours.get_listen_args("scheduler"))


def handshake(client: dict[str, ssl.SSLContext], server: dict[str, ssl.SSLContext]) -> bool:
    """Shake hands in memory, with the contexts that distributed would use."""
    pipes = [ssl.MemoryBIO(), ssl.MemoryBIO()]
    ends = [
        client["ssl_context"].wrap_bio(pipes[0], pipes[1], server_hostname="anywhere"),
        server["ssl_context"].wrap_bio(pipes[1], pipes[0], server_side=True),
    ]
    done = [False, False]
    for turn in range(20):
        try:
            ends[turn % 2].do_handshake()
            done[turn % 2] = True
        except ssl.SSLWantReadError:
            continue
    return all(done)


@pytest.mark.parametrize(
    "address", ["tcp://10.0.0.7:8786", "scheduler.example:8786", "ws://scheduler.example:80"]
)
def test_a_plaintext_scheduler_elsewhere_is_warned_about_once(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    output = Output(as_json=False)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *_, **__: output.remark(str(message))
        warn_if_plaintext(address)  # when connecting, and again for each piece of work
        warn_if_plaintext(address)
    reported = capsys.readouterr().err
    assert reported.count(f"the connection to the scheduler {address} is not encrypted") == 1
    assert "can run any code on the workers" in reported


def test_python_shows_the_warning_once_by_default() -> None:
    vars(cluster).pop("__warningregistry__", None)
    with warnings.catch_warnings(record=True) as reported:
        warnings.simplefilter("default")
        for _ in range(3):
            warn_if_plaintext("tcp://10.0.0.8:8786")
    assert len(reported) == 1


@pytest.mark.parametrize(
    "address",
    [
        "tcp://127.0.0.1:8786",
        "tcp://127.0.1.1:8786",
        "tcp://[::1]:8786",
        "localhost:8786",
        "tls://10.0.0.7:8786",
        "inproc://10.0.0.7/1/2",
    ],
)
def test_encrypted_and_own_schedulers_are_not_warned_about(address: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_plaintext(address)


@pytest.mark.filterwarnings("default:the connection to the scheduler")
def test_the_command_warns_before_it_connects(
    job: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A documentation address (RFC 5737): nobody answers there.
    monkeypatch.setattr("dmondrian.cli.cluster._CONNECT_TIMEOUT", 0.5)
    job.write_text(JOB.split("tls_ca")[0].replace("tls://scheduler", "tcp://192.0.2.1"))
    assert main(["train", str(job)]) == 5
    reported = capsys.readouterr().err
    assert reported.count("is not encrypted") == 1
    assert "no Dask scheduler at 'tcp://192.0.2.1:8786'" in reported


def test_a_missing_scheduler_file_is_reported(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", str(job), "--set", f"cluster.scheduler={job.parent / 'scheduler.json'}"]
    assert main(words) == 2
    assert "scheduler.json does not exist" in capsys.readouterr().err
