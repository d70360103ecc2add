"""Who may speak on the gRPC wire: certificates, and the shared secret as metadata of each call.

gRPC does its own TLS and has no room for challenges, so the secret itself is sent, and therefore
only to those who cannot be anybody else: over TLS, or within the machine. So are users' tokens. A
server with a door for users asks nobody for a certificate: there the secret makes a node.

Invariants:
- A secret never leaves the machine in the clear, and no server asks for one there.
- A call without the right secret is refused before anything of it but its headers is read; only a
  health check is answered, and such checks are few at once and end soon, whatever their callers do.
- One address has a quarter of the calls of strangers: it keeps no other one from logging in.
- One user has a share of the calls that may be made at once, from the headers of a call on, of the
  room for replies that wait to be taken, and of the room for requests, from before gRPC takes the
  first byte of a message: a message that lacks its last byte is in memory, too.
- Secrets are compared in constant time.
- Before a call is answered it is known who makes it (`CALLER`). Nobody is, whom no gate has seen.
"""

import asyncio
import hmac
import inspect
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Any, Final

from engine.access.audit import host_of
from engine.access.door import BY_ANYBODY, BY_SECRET, CALLER, Caller, Door
from engine.access.principal import Principal
from engine.access.shares import Shares
from engine.errors import AccessRefused, EngineError, InvalidRequest
from engine.limits import MIB
from engine.transport.address import is_loopback, network_of, parse_host_port
from engine.transport.grpc_settings import GrpcSettings
from engine.transport.listening import share_of
from engine.transport.security import Pem, Security

if TYPE_CHECKING:
    import grpc

SECRET_METADATA: Final = "herdbook-secret-bin"
AUTHORIZATION: Final = "authorization"
_BEARER: Final = "Bearer "
_LOGIN_METHOD: Final = "/herdbook.access.v1.Access/Login"
_OPEN_METHOD: Final = "/grpc.health.v1.Health/Check"
_OPEN: Final = frozenset({_LOGIN_METHOD, _OPEN_METHOD})
"""Methods that need no credentials."""
_OPEN_CALL_S: Final = 5.0
_REQUEST_S: Final = 30.0
"""So long each message of a user's request may take to come."""
_REPLIES_BYTES_MAX: Final = 256 * MIB
"""What replies to calls with one reply may hold until they are taken."""


_REQUESTS_BYTES_MAX: Final = 256 * MIB
"""What the requests of calls that are not answered may hold."""
_SMALL_BYTES: Final = 1_024
"""Requests up to this size are always taken, because commits and closes are small."""
_ARRIVING_MAX: Final = 32
"""So many messages of requests may be on their way at once, of up to 8 MiB each."""
_STREAMS_MAX: Final = 256
"""So many streams may be open whose next message may always come."""
Trusted = Mapping[str, Callable[[Principal], bool]]
"""By method, who may have as many streams of it as calls."""
_NONE: Final[Trusted] = {}


def server_credentials(
    security: Security, listen: str, strangers: bool = False
) -> "grpc.ServerCredentials | None":
    """TLS for a listener at `host:port`, None without a certificate.

    `strangers` come without a certificate of their own. Raises `InvalidRequest` for files that
    cannot be used, and for a secret that would have to cross a network in the clear.
    """
    import grpc

    if security.server_context() is None:
        _check_clear(security, listen)
        return None
    shown = _pem_of(security)

    def fetch() -> "grpc.ServerCertificateConfiguration | None":
        """Called by gRPC before each handshake, in its own thread; None: nothing has changed."""
        nonlocal shown
        now = _pem_of(security.now)
        if now is shown:
            return None
        shown = now
        return _server_configuration(now)

    require = security.authorities is not None and not strangers
    # gRPC's types do not allow None, which means that nothing has changed.
    fetcher: Any = fetch
    return grpc.dynamic_ssl_server_credentials(_server_configuration(shown), fetcher, require)


def _server_configuration(pem: Pem) -> "grpc.ServerCertificateConfiguration":
    import grpc

    pairs = [(pem.private_key, pem.certificate)]
    return grpc.ssl_server_certificate_configuration(pairs, pem.authorities)


def _pem_of(security: Security) -> Pem:
    assert security.tls is not None
    return security.tls.pem


def channel_credentials(security: Security, address: str) -> "grpc.ChannelCredentials | None":
    """TLS for a channel to `host:port`, None where there is to be none.

    Raises `InvalidRequest` as `server_credentials`, and for `verify=False`, which gRPC has not.
    """
    import grpc

    security = security.now
    context = security.client_context()
    if context is None:
        _check_clear(security, address)
        return None
    if not security.verify:
        raise InvalidRequest("gRPC always verifies certificates: name the authorities")
    pem = _pem_of(security)
    roots = pem.authorities
    if roots is None:
        known = context.get_ca_certs(binary_form=True)
        roots = "".join(map(ssl.DER_cert_to_PEM_cert, known)).encode() or None
    return grpc.ssl_channel_credentials(roots, pem.private_key or None, pem.certificate or None)


def call_metadata(security: Security, token: str = "") -> list[tuple[str, str | bytes]]:
    """What each call of a client carries; `token` is what a login gave."""
    security = security.now
    if token or security.token:
        return bearer(token or security.token)
    return [(SECRET_METADATA, security.secret)] if security.secret else []


def bearer(token: str) -> list[tuple[str, str | bytes]]:
    """A token as metadata."""
    return [(AUTHORIZATION, f"{_BEARER}{token}")]


def gate(
    security: Security,
    settings: GrpcSettings,
    door: Door | None = None,
    trusted: Trusted = _NONE,
) -> Any:
    """A server's interceptor that lets in callers that know the secret, or that the door knows.

    Without a secret, the door decides about callers without credentials; without a door as well,
    everybody is let in. `trusted` says whose streams of a method count as calls alone.
    """
    import grpc
    from grpc import aio

    class Gate(aio.ServerInterceptor):  # type: ignore[misc, type-arg, unused-ignore]
        """Refuses with a handler that reads nothing."""

        def __init__(self) -> None:
            self._open = OpenCalls(settings.open_calls_max)
            self._users = UserCalls(settings.calls_max)

        async def intercept_service(
            self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
        ) -> Any:
            """gRPC's: the handler of a call whose headers have come."""
            try:
                secrets = security.now.secrets
                caller = await _caller(handler_call_details, secrets, door)
                if caller is None and not secrets and handler_call_details.method not in _OPEN:
                    caller = BY_ANYBODY if door is None else await door.without_credentials()
            except AccessRefused as error:
                return _refusal(grpc.StatusCode.UNAUTHENTICATED, str(error))
            except EngineError as error:
                return _refusal(grpc.StatusCode.UNAVAILABLE, str(error))
            if caller is not None:
                CALLER.set(caller)
                handler = await continuation(handler_call_details)
                if handler is None or caller.principal.admin:
                    return handler
                may_last = trusted.get(handler_call_details.method)
                lasting = may_last is None or not may_last(caller.principal)
                return self._users.handler(handler, caller.principal.name, lasting=lasting)
            if handler_call_details.method == _OPEN_METHOD:
                return self._open.handler(await continuation(handler_call_details))
            if handler_call_details.method == _LOGIN_METHOD and door is not None:
                return await continuation(handler_call_details)
            return _refusal(grpc.StatusCode.UNAUTHENTICATED, _NOT_KNOWN)

    return Gate()


async def _caller(details: Any, secrets: tuple[bytes, ...], door: Door | None) -> Caller | None:
    """Who makes a call, None for who shows nothing. Raises as `Door.by_call`."""
    for name, value in details.invocation_metadata or ():
        if name == SECRET_METADATA and isinstance(value, bytes) and secrets:
            if any(hmac.compare_digest(value, secret) for secret in secrets):
                return BY_SECRET
        elif name == AUTHORIZATION and door is not None:
            token = str(value)
            if not token.startswith(_BEARER):
                raise AccessRefused("send a bearer token")
            try:
                return await door.by_call(token.removeprefix(_BEARER))
            except AccessRefused as error:
                door.refused("", "", error)
                raise
    return None


def _refusal(code: "grpc.StatusCode", text: str) -> Any:
    import grpc

    async def refuse(_requests: Any, context: Any) -> None:
        await context.abort(code, text)

    return grpc.stream_stream_rpc_method_handler(refuse)


_NOT_KNOWN: Final = (
    f"the shared secret is missing or wrong: send it as metadata {SECRET_METADATA}, or a user's "
    f"token as metadata {AUTHORIZATION}"
)


class Strangers:
    """How many calls of strangers run: at most `calls_max`, of one address its share of them."""

    def __init__(self, calls_max: int) -> None:
        self._calls_max = calls_max
        self._of_address_max = share_of(calls_max)
        self._running: Counter[str] = Counter()

    @contextmanager
    def running(self, peer: str) -> Iterator[bool]:
        """A block in which one more runs; False: there is no room for it, and it does not count."""
        address = network_of(host_of(peer))
        room = self._running.total() < self._calls_max
        if not room or self._running[address] >= self._of_address_max:
            yield False
            return
        self._running[address] += 1
        try:
            yield True
        finally:
            self._running[address] -= 1
            if not self._running[address]:
                del self._running[address]


class OpenCalls:
    """Calls of strangers: few run at once, and none for long."""

    def __init__(self, calls_max: int) -> None:
        self._strangers = Strangers(calls_max)

    def handler(self, asked: Any) -> Any:
        """The handler of a call with one request and one answer, behind the bounds."""
        import grpc
        from grpc import aio

        async def answer(_requests: Any, context: Any) -> None:
            with self._strangers.running(context.peer()) as room:
                if not room:
                    text = "too many calls without the shared secret run at once"
                    await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
                try:
                    # Who sends headers only would otherwise hold a call for ever.
                    async with asyncio.timeout(_OPEN_CALL_S):
                        request = await context.read()
                        if request is not aio.EOF:  # type: ignore[attr-defined, unused-ignore]
                            await context.write(await asked.unary_unary(request, context))
                except TimeoutError:
                    text = "the request did not come in time"
                    await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, text)

        return grpc.stream_stream_rpc_method_handler(
            answer, asked.request_deserializer, asked.response_serializer
        )


class UserCalls:
    """Calls of users, each counted from its headers on, whether its request comes or not."""

    def __init__(self, calls_max: int) -> None:
        self._shares = Shares(calls_max)
        self._replies = Shares(_REPLIES_BYTES_MAX)
        # The largest request has more than a quarter.
        self.requests = Shares(_REQUESTS_BYTES_MAX, _REQUESTS_BYTES_MAX // 3)
        self.arriving = Shares(_ARRIVING_MAX)
        self._streams = Shares(_STREAMS_MAX)

    def handler(self, asked: Any, user: str, *, lasting: bool = True) -> Any:
        """The handler of one call of a user's, behind the bounds.

        A stream in both directions counts as one that lasts unless `lasting` is false.
        """
        import grpc

        async def answer(requests: Any, context: Any) -> None:
            if not self._shares.take(user):
                text = f"too many calls of {user} run at once"
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
            try:
                if asked.request_streaming and asked.response_streaming:
                    await self._both_ways(user, asked, requests, context, lasting)
                else:
                    await self._one_way(user, asked, context)
            finally:
                self._shares.give_back(user)

        # A handler with one request would be called, and counted, only when that has come.
        return grpc.stream_stream_rpc_method_handler(
            answer, asked.request_deserializer, asked.response_serializer
        )

    async def _both_ways(
        self, user: str, asked: Any, requests: Any, context: Any, lasting: bool
    ) -> None:
        import grpc

        if lasting and not self._streams.take(user):
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED, f"too many streams of {user} are open at once"
            )
        try:
            await _stream(asked.stream_stream, requests, context)
        finally:
            if lasting:
                self._streams.give_back(user)

    async def _one_way(self, user: str, asked: Any, context: Any) -> None:
        request = _Request(self, user, context)
        try:
            said = request.messages() if asked.request_streaming else await request.only()
            if asked.response_streaming:
                await _stream(asked.unary_stream, said, context)
            else:
                act = asked.stream_unary or asked.unary_unary
                await self._reply(user, context, await act(said, context))
        finally:
            request.over()

    async def _reply(self, user: str, context: Any, reply: Any) -> None:
        """Send the one reply of a call, which is held until the other side takes it."""
        import grpc

        size_bytes = len(reply) if isinstance(reply, bytes) else 0
        if not self._replies.take(user, size_bytes):
            text = f"{user} does not take the replies that are there"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        try:
            await context.write(reply)
        finally:
            self._replies.give_back(user, size_bytes)


class _Request:
    """What a user's call asks: one message, or several; it counts until the call is over."""

    def __init__(self, calls: UserCalls, user: str, context: Any) -> None:
        self._calls = calls
        self._user = user
        self._context = context
        self._size_bytes = 0

    async def only(self) -> Any:
        """The one message of a call."""
        import grpc

        message = await self._next()
        if message is None:
            text = "the call has no request"
            await self._context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
        return message

    async def messages(self) -> AsyncIterator[Any]:
        """All messages of a call, as they come."""
        while (message := await self._next()) is not None:
            yield message

    def over(self) -> None:
        """The call is answered."""
        self._calls.requests.give_back(self._user, self._size_bytes)
        self._size_bytes = 0

    async def _next(self) -> Any:
        """The next message, None at the end."""
        import grpc
        from grpc import aio

        try:
            async with asyncio.timeout(_REQUEST_S):
                # gRPC takes a message in as soon as it is asked for.
                await self._calls.arriving.acquire(self._user)
                try:
                    message = await self._context.read()
                finally:
                    self._calls.arriving.give_back(self._user)
        except TimeoutError:
            text = "the request did not come in time"
            await self._context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, text)
        if message is aio.EOF:  # type: ignore[attr-defined, unused-ignore]
            return None
        size_bytes = len(message) if isinstance(message, bytes) else 0
        if size_bytes > _SMALL_BYTES:
            if not self._calls.requests.take(self._user, size_bytes):
                # Who handles the refusal keeps this frame for a while.
                message = None
                text = f"too many bytes of requests of {self._user} wait to be answered"
                await self._context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
            self._size_bytes += size_bytes
        return message


async def _stream(behaviour: Any, said: Any, context: Any) -> None:
    """Answer by what yields its replies, or writes them itself."""
    if not inspect.isasyncgenfunction(behaviour):
        await behaviour(said, context)
        return
    async with aclosing(behaviour(said, context)) as replies:
        async for reply in replies:
            await context.write(reply)


def _check_clear(security: Security, address: str) -> None:
    host, _port = parse_host_port(address)
    if (security.secret or security.logs_in) and not is_loopback(host):
        raise InvalidRequest(
            f"{address}: gRPC sends the shared secret and tokens only over TLS or within the "
            "machine; give certificates"
        )
