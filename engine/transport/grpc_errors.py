"""From the status of a failed gRPC call to the engine's errors."""

from typing import TYPE_CHECKING

from engine.errors import (
    AccessRefused,
    BookieUnavailable,
    EngineError,
    FormatTooNew,
    InvalidRequest,
    Overloaded,
)

if TYPE_CHECKING:
    import grpc

_TLS_WORDS = ("handshake", "certificate", "verification", "ssl", "tls")


def error_of(address: str, code: "grpc.StatusCode", details: str | None) -> EngineError:
    """What a call to `address` that ended with this status means to its caller."""
    from grpc import StatusCode

    text = f"{address}: {details or code.name}"
    if code is StatusCode.UNAUTHENTICATED:
        return AccessRefused(text)
    if code is StatusCode.FAILED_PRECONDITION:
        return FormatTooNew(text)
    if code is StatusCode.INVALID_ARGUMENT:
        return InvalidRequest(text)
    if code is StatusCode.RESOURCE_EXHAUSTED:
        return Overloaded(text)
    if code is StatusCode.UNIMPLEMENTED:
        return BookieUnavailable(f"{address} serves no bookies in format 1 of the gRPC wire")
    if code is StatusCode.UNAVAILABLE and any(word in text.lower() for word in _TLS_WORDS):
        return AccessRefused(text)
    return BookieUnavailable(text)
