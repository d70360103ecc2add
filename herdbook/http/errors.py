"""Errors of all layers as replies: one status and one form for each.

Invariants:
- "Not there" and "cannot be read" are different statuses: 404 and 503.
- What was not meant is 500 and one sentence; no reply shows where in the program it happened.
"""

import re
from typing import Final

from starlette.responses import Response

from blobit import errors as blob
from broker.errors import BrokerError
from broker.http.front import refused, told_error
from engine import errors as engine
from herd import errors as herd

_BASIC: Final = 'Basic realm="herdbook", charset="UTF-8"'
_BEARER: Final = 'Bearer realm="herdbook"'
_Statuses = tuple[tuple[type[Exception], int], ...]


class HttpError(Exception):
    """What HTTP itself refuses. `retry_s`: when another try makes sense."""

    def __init__(
        self, status: int, code: str, message: str, *, remedy: str = "", retry_s: int = 0
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.remedy = remedy
        self.retry_s = retry_s
        self.by_browser = False
        """Whether one of our pages asked, which asks its user itself to log in."""

    @property
    def reply(self) -> Response:
        """What the client gets."""
        retryable = bool(self.retry_s) or self.status in (408, 429, 503)
        told = told_error(
            self.status, self.code, self.message, retryable=retryable, remedy=self.remedy
        )
        if self.retry_s:
            told.headers["Retry-After"] = str(self.retry_s)
        if self.status == 401:
            told.headers["WWW-Authenticate"] = _BEARER if self.by_browser else _BASIC
        return told


# The first that fits counts: kinds come before what they are kinds of.
_STATUSES: Final[_Statuses] = (
    (blob.BlobNotFound, 404),
    (blob.BucketExists, 409),
    (blob.BucketNotEmpty, 409),
    (blob.ConditionFailed, 412),
    (blob.ObjectChanged, 409),
    (blob.QuotaExceeded, 507),
    (blob.CommitOutcomeUnknown, 504),
    (blob.BlobCorrupt, 500),
    (blob.MetadataUnavailable, 503),
    (blob.BlobUnreadable, 503),
    (blob.DiskFull, 507),
    (blob.BlobNotStored, 503),
    (blob.BlobsClosed, 503),
    (blob.AccessDenied, 403),
    (blob.BlobError, 400),
    (herd.CommitUnknown, 504),
    (herd.AccessDenied, 403),
    (herd.TooLarge, 413),
    (herd.LockTimeout, 409),
    (herd.Deadlock, 409),
    (herd.SerializationFailure, 409),
    (herd.TransactionEnded, 409),
    (herd.DiskFull, 507),
    (herd.OperationalError, 503),
    (herd.IntegrityError, 409),
    (herd.InternalError, 500),
    (herd.Error, 400),
    (engine.AccessRefused, 403),
    (engine.InvalidRequest, 400),
    (engine.NotFound, 404),
    (engine.MetadataConflict, 409),
    (engine.OutcomeUnknown, 504),
    (engine.DiskFull, 507),
    (engine.Unavailable, 503),
    (engine.CannotRead, 503),
    (engine.EngineError, 500),
)
KINDS: Final[tuple[type[Exception], ...]] = (
    BrokerError,
    HttpError,
    *dict.fromkeys(kind for kind, _ in _STATUSES),
)


def reply_of(error: Exception) -> Response:
    """What a client gets for an error of one of `KINDS`."""
    if isinstance(error, HttpError):
        return error.reply
    if isinstance(error, BrokerError):
        return refused(error)
    status = next(status for kind, status in _STATUSES if isinstance(error, kind))
    message, remedy = str(error), ""
    if isinstance(error, herd.Error):
        message, remedy = error.message, error.hint
        if error.place is not None:
            message += f" (at character {error.place + 1})"
    retryable = status == 503 or bool(getattr(error, "retryable", False))
    return told_error(status, code_of(error), message, retryable=retryable, remedy=remedy)


def code_of(error: Exception) -> str:
    """The word for an error's kind that programs look at.

    >>> code_of(blob.NoSuchBucket("gone"))
    'no_such_bucket'
    """
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(error).__name__).lower()
