"""Who may speak on the gRPC wire: certificates, and the shared secret as metadata of each call.

gRPC does its own TLS and has no room for challenges, so the secret itself is sent, and therefore
only to those who cannot be anybody else: over TLS, or within the machine.

Invariants:
- A secret never leaves the machine in the clear, and no server asks for one there.
- A call without the right secret is refused before anything of it but its headers is read; only a
  health check is answered, and such checks are few at once and end soon, whatever their callers do.
- Secrets are compared in constant time.
"""

import asyncio
import hmac
import ssl
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from engine.errors import InvalidRequest
from engine.transport.address import is_loopback, parse_host_port
from engine.transport.grpc_settings import GrpcSettings
from engine.transport.security import Security

if TYPE_CHECKING:
    import grpc

SECRET_METADATA: Final = "herdbook-secret-bin"
_OPEN_METHOD: Final = "/grpc.health.v1.Health/Check"
_OPEN_CALL_S: Final = 5.0


def server_credentials(security: Security, listen: str) -> "grpc.ServerCredentials | None":
    """TLS for a listener at `host:port`, None without a certificate.

    Raises `InvalidRequest` for files that cannot be used, and for a secret that would have to
    cross a network in the clear.
    """
    import grpc

    if security.server_context() is None:
        _check_clear(security, listen)
        return None
    assert security.certificate is not None
    key = (security.private_key or security.certificate).read_bytes()
    authorities = security.authorities
    return grpc.ssl_server_credentials(
        [(key, security.certificate.read_bytes())],
        root_certificates=None if authorities is None else authorities.read_bytes(),
        require_client_auth=authorities is not None,
    )


def channel_credentials(security: Security, address: str) -> "grpc.ChannelCredentials | None":
    """TLS for a channel to `host:port`, None where there is to be none.

    Raises `InvalidRequest` as `server_credentials`, and for `verify=False`, which gRPC has not.
    """
    import grpc

    context = security.client_context()
    if context is None:
        _check_clear(security, address)
        return None
    if not security.verify:
        raise InvalidRequest("gRPC always verifies certificates: name the authorities")
    key, certificate = None, None
    if security.certificate is not None:
        certificate = security.certificate.read_bytes()
        key = (security.private_key or security.certificate).read_bytes()
    if security.authorities is not None:
        roots: bytes | None = security.authorities.read_bytes()
    else:
        known = context.get_ca_certs(binary_form=True)
        roots = "".join(map(ssl.DER_cert_to_PEM_cert, known)).encode() or None
    return grpc.ssl_channel_credentials(roots, key, certificate)


def call_metadata(security: Security) -> list[tuple[str, bytes]]:
    """What each call of a client carries."""
    return [(SECRET_METADATA, security.secret)] if security.secret else []


def secret_gate(secret: bytes, settings: GrpcSettings) -> Any:
    """A server's interceptor that refuses calls without the secret."""
    import grpc
    from grpc import aio

    async def refuse(_requests: Any, context: Any) -> None:
        await context.abort(
            grpc.StatusCode.UNAUTHENTICATED,
            f"the shared secret is missing or wrong: send it as metadata {SECRET_METADATA}",
        )

    class SecretGate(aio.ServerInterceptor):  # type: ignore[misc, type-arg, unused-ignore]
        """Refuses with a handler that reads nothing."""

        def __init__(self) -> None:
            self._refusal = grpc.stream_stream_rpc_method_handler(refuse)
            self._open = OpenCalls(settings.open_calls_max)

        async def intercept_service(
            self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
        ) -> Any:
            """gRPC's: the handler of a call whose headers have come."""
            for name, value in handler_call_details.invocation_metadata or ():
                if name == SECRET_METADATA and isinstance(value, bytes):
                    if hmac.compare_digest(value, secret):
                        return await continuation(handler_call_details)
            if handler_call_details.method == _OPEN_METHOD:
                return self._open.handler(await continuation(handler_call_details))
            return self._refusal

    return SecretGate()


class OpenCalls:
    """Calls of strangers: at most `calls_max` run at once, and none for long."""

    def __init__(self, calls_max: int) -> None:
        self._calls_max = calls_max
        self._running = 0

    def handler(self, asked: Any) -> Any:
        """The handler of a call with one request and one answer, behind the bounds."""
        import grpc
        from grpc import aio

        async def answer(_requests: Any, context: Any) -> None:
            if self._running >= self._calls_max:
                text = "too many calls without the shared secret run at once"
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
            self._running += 1
            try:
                # Who sends headers only would otherwise hold a call for ever.
                async with asyncio.timeout(_OPEN_CALL_S):
                    request = await context.read()
                    if request is not aio.EOF:  # type: ignore[attr-defined, unused-ignore]
                        await context.write(await asked.unary_unary(request, context))
            except TimeoutError:
                text = "the request did not come in time"
                await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, text)
            finally:
                self._running -= 1

        return grpc.stream_stream_rpc_method_handler(
            answer, asked.request_deserializer, asked.response_serializer
        )


def _check_clear(security: Security, address: str) -> None:
    host, _port = parse_host_port(address)
    if security.secret and not is_loopback(host):
        raise InvalidRequest(
            f"{address}: gRPC sends the shared secret only over TLS or within the machine; "
            "give certificates"
        )
