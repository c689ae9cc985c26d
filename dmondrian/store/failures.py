"""Translation of the exceptions of storage backends into those of this package.

Relies on obstore's exception classes, and on what its texts and PyArrow's have in common. Promises
that no message holds a credential of the environment, that every message names the operation, the
object and a next step, and that a failure which waiting may mend is an `OutageError`.
"""

from __future__ import annotations

import os
import re
from urllib.parse import urlsplit

from obstore.exceptions import AlreadyExistsError, PreconditionError, UnauthenticatedError

from dmondrian.errors import DataError, NotFoundError, OutageError, StoreError

# Variables whose values must not be printed; names as in obstore's and the vendors' manuals.
SECRET_NAME = re.compile(r"(KEY|SECRET|TOKEN|PASSWORD|CREDENTIAL|SIGNATURE|SAS)", re.IGNORECASE)
SECRET_OWNER = re.compile(r"^(AWS|AZURE|GOOGLE|GCP|GCS|S3|STORAGE|MINIO)_", re.IGNORECASE)
SIGNED = re.compile(
    r"((?:X-Amz-[A-Za-z-]*(?:Signature|Credential|Token)|Signature|sig|AWSAccessKeyId)"
    r"(?:=|>|\": ?\"))[^&\s<\"]+",
    re.IGNORECASE,
)
# What obstore and PyArrow write of no answer, and of one that a store gives while it cannot serve.
_PASSING = re.compile(
    r"(?:status code:|HTTP status) (?:408|429|50[0234])\b|curlCode|error sending request|timed out"
    r"|AWS Error (?:NETWORK_CONNECTION|SLOW_DOWN|INTERNAL_FAILURE|SERVICE_UNAVAILABLE"
    r"|THROTTLING|REQUEST_TIMEOUT)|connection (?:reset|refused|closed|error)"
    r"|error decoding response body",
    re.IGNORECASE,
)
# A server's error page can be long; the first lines are enough.
MESSAGE_LENGTH = 500


class ExistsError(StoreError):
    """An object of that name exists already."""


def translate(error: BaseException, doing: str, name: str, url: str) -> StoreError:
    """Return the StoreError (or ExistsError, NotFoundError) for a backend's exception.

    Parameters
    ----------
    error : BaseException
        Raised by obstore or the operating system.
    doing : str
        The operation, for the message: "writing", "reading", ...
    name : str
        Object name inside the store.
    url : str
        Address of the store.
    """
    if isinstance(error, AlreadyExistsError | PreconditionError):
        return ExistsError(f"{name} exists already in {url}.")
    if isinstance(error, FileNotFoundError):
        if code_of(str(error)) in _NO_BUCKET:
            return StoreError(no_bucket(url))
        if doing == "writing" and "://" in url:
            return StoreError(
                f"writing to {url} failed: the server answers that there is no such place (404). "
                "Check that the bucket is there, and that the endpoint (for S3: AWS_ENDPOINT_URL) "
                "is an object store's."
            )
        return NotFoundError(f"There is no object {name} in {url}.")
    if "is a file, not a directory" in str(error):  # of `_backend`
        return StoreError(
            f"{url} is a file, where a folder is needed: name that of a run or saved model, or "
            "choose another folder for a new one. (A pickle is read by Python's pickle; an "
            "estimator's `save` makes a folder that this package reads.)"
        )
    if code_of(str(error)) in _NO_BUCKET:
        return StoreError(no_bucket(url))
    reason = scrub(_first_lines(str(error)))
    kind = OutageError if "://" in url and may_pass(error) else StoreError
    return kind(f"{doing} {name} in {url} failed: {reason} {_advice(error, reason, url)}")


def may_pass(error: BaseException) -> bool:
    """Return whether a failed request to a remote store is one that waiting may mend.

    A store that forbids something, or has no such bucket, goes on to do so. The one rule for
    training, scoring and following.

    Parameters
    ----------
    error : BaseException
        Of obstore or PyArrow.
    """
    return _PASSING.search(str(error)) is not None


def kind_of(error: BaseException, url: str) -> type[DataError] | type[OutageError]:
    """Return the type of the error for data that cannot be read, of which PyArrow gave `error`."""
    return OutageError if "://" in url and may_pass(error) else DataError


_NO_BUCKET = ("nosuchbucket", "containernotfound")
_EXPIRED = ("expiredtoken", "expiredtokenexception", "requestexpired", "tokenrefreshrequired")
_WRONG_KEYS = (
    "invalidaccesskeyid",
    "signaturedoesnotmatch",
    "invalidtoken",
    "authenticationfailed",
)
_OTHER_REGION = (
    "permanentredirect",
    "authorizationheadermalformed",
    "illegallocationconstraintexception",
)


def code_of(text: str) -> str:
    """Return the code of an error that an object store answered with, in lower case; "" if none."""
    match = re.search(r"<Code>(\w+)</Code>", text)
    return "" if match is None else match[1].lower()


def no_bucket(url: str) -> str:
    """Return that there is no bucket of an address, and what to do."""
    return (
        f"There is no bucket {urlsplit(url).netloc} ({url}): create it, or correct its name, the "
        "endpoint (for S3: AWS_ENDPOINT_URL) or the credentials, if it is another account's."
    )


def advice_on_answer(text: str, url: str) -> str:
    """Return what to do about an answer of an object store; "" where the text does not say.

    Parameters
    ----------
    text : str
        Of the exception of obstore or PyArrow.
    url : str
        Of an object, or of the folder of it.
    """
    low, code, bucket = text.lower(), code_of(text), urlsplit(url).netloc
    if code in _EXPIRED:
        return "The credentials have expired: renew them in the environment, then run again."
    if code in _WRONG_KEYS:
        return (
            "The store does not know these credentials: check those of the environment (for S3: "
            "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN), and the endpoint."
        )
    if code == "requesttimetooskewed":
        return "This machine's clock is wrong: set it, then run again."
    if code in _OTHER_REGION or "configured region" in low:
        named = re.search(r"<Region>([\w-]+)</Region>|located in '([\w-]+)'", text)
        region = "" if named is None else f" ({named[1] or named[2]})"
        return f"The bucket {bucket} is in another region{region}: set AWS_REGION to that one."
    if code == "accessdenied" or "access_denied" in low:
        return (
            f"Check the credentials in the environment: they have to allow to list, read, write "
            f"and delete objects of the bucket {bucket}; to read is enough for data."
        )
    if code == "methodnotallowed" or "http status 405" in low:
        return "Check the endpoint (for S3: AWS_ENDPOINT_URL): what answers is no object store."
    if "http status 400" in low:  # to HEAD, whose answer has no body that would say why
        return "Check that the credentials have not expired, and the region (AWS_REGION)."
    return ""


def scrub(text: str) -> str:
    """Replace the credentials of the environment and of signed URLs by ``***``."""
    for variable, value in os.environ.items():
        # Shorter values are flags, or would replace ordinary words.
        is_secret = SECRET_OWNER.match(variable) and SECRET_NAME.search(variable)
        if is_secret and len(value) >= 6:
            text = text.replace(value, "***")
    return SIGNED.sub(r"\1***", text)


def _first_lines(text: str) -> str:
    text = text.split("\n\nDebug source:")[0].strip()
    text = re.sub(r"\s+", " ", text)
    if len(text) > MESSAGE_LENGTH:
        text = text[:MESSAGE_LENGTH] + "..."
    return text if text.endswith(".") else text + "."


def _advice(error: BaseException, reason: str, url: str) -> str:
    low = reason.lower()
    if "no space left" in low or "quota" in low:
        return "The disk is full: free some space or choose another folder, then run again."
    if "file too large" in low:
        return "The system limits the size of files: raise the limit or choose another folder."
    if "read-only file system" in low:
        return "The file system is read-only: choose a folder that can be written."
    if isinstance(error, PermissionError) or "permission denied" in low:
        return "Choose a folder that this user may read and write, or change its permissions."
    if "is a link to" in low:
        return "Bring its target back, or choose another folder."
    if "not a directory" in low or "is a directory" in low:
        return "A file stands where a folder is needed, or the reverse: choose another folder."
    if "://" in url and (advice := advice_on_answer(str(error), url)):
        return advice
    is_refused = re.search(r"\b403\b", low) is not None  # no port 40371
    if isinstance(error, UnauthenticatedError) or is_refused or "credential" in low:
        return "Check the credentials in the environment and what they may do on this bucket."
    if "builder error" in low and "http://" in low:
        return "For a plain http endpoint set AWS_ALLOW_HTTP=true."
    if "://" in url:
        return "Check the endpoint, the bucket and the network, then run again."
    return "Check the folder, then run again."
