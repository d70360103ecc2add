"""Logging in over gRPC, both sides: SCRAM in one short stream, a token for each call after it.

Invariants:
- Who logs in is a stranger: few do at once, fewer from one address, none for long, and nothing
  large is read.
- An unknown user and a wrong password are refused in the same step, with the same words.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

from engine.access.door import Door, new_nonce
from engine.access.scram import ScramClient, ScramServer
from engine.access.tokens import SESSION_MS
from engine.errors import AccessRefused, EngineError, FrameInvalid
from engine.ports.clock import Clock
from engine.transport.grpc_security import Strangers, call_metadata
from engine.transport.grpc_settings import GrpcSettings
from engine.transport.security import Security

SERVICE: Final = "herdbook.access.v1.Access"
_LOGIN: Final = f"/{SERVICE}/Login"
_LOGIN_S: Final = 5.0


def login_handlers(door: Door, settings: GrpcSettings) -> Any:
    """The service, as gRPC wants it."""
    import grpc

    login = grpc.stream_stream_rpc_method_handler(_Logins(door, settings.open_calls_max).login)
    return grpc.method_handlers_generic_handler(SERVICE, {"Login": login})


class _Logins:
    """The logins of one server."""

    def __init__(self, door: Door, calls_max: int) -> None:
        from engine.transport.grpc_generated import access_pb2

        self._wire: Any = access_pb2
        self._door = door
        self._strangers = Strangers(calls_max)

    async def login(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        """One login, if not too many log in already."""
        from grpc import StatusCode

        with self._strangers.running(context.peer()) as room:
            if not room:
                await context.abort(StatusCode.RESOURCE_EXHAUSTED, "too many log in at once")
            async for reply in self._judged(requests, context):
                yield reply

    async def _judged(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        from grpc import StatusCode

        scram, user, peer = ScramServer(new_nonce()), "", context.peer()
        try:
            async with asyncio.timeout(_LOGIN_S):
                user = scram.begin(await self._next(requests))
                verifier = await self._door.verifier(user, peer)
                yield self._reply(scram.challenge(verifier))
                proof = await self._next(requests)
                with self._door.judging(user, peer):
                    said = scram.finish(proof)
                token = await self._door.session(user, peer, verifier)
                yield self._reply(said, token=token, lifetime_ms=SESSION_MS)
                return
        except TimeoutError:
            code, text = StatusCode.DEADLINE_EXCEEDED, "the login did not come in time"
        except (AccessRefused, FrameInvalid) as error:
            self._door.refused(user, peer, error)
            wrong = isinstance(error, FrameInvalid)
            code = StatusCode.INVALID_ARGUMENT if wrong else StatusCode.UNAUTHENTICATED
            text = str(error)
        except EngineError as error:
            code, text = StatusCode.UNAVAILABLE, str(error)
        await context.abort(code, text)

    async def _next(self, requests: AsyncIterator[bytes]) -> bytes:
        from google.protobuf.message import DecodeError

        try:
            message: bytes = self._wire.LoginRequest.FromString(await anext(requests)).message
        except (StopAsyncIteration, DecodeError) as error:
            raise FrameInvalid("a login has two messages") from error
        return message

    def _reply(self, message: bytes, **more: Any) -> bytes:
        packed: bytes = self._wire.LoginReply(message=message, **more).SerializeToString()
        return packed


class Credentials:
    """What the calls of one client carry: made once, or by logging in again and again."""

    def __init__(self, security: Security, clock: Clock) -> None:
        self._security = security
        self._clock = clock
        self._token = ""
        self._until_s = 0.0
        self._turn = asyncio.Lock()

    async def metadata(self, channel: Any) -> list[tuple[str, str | bytes]]:
        """The metadata of a call over a channel.

        Raises what gRPC raises, and `AccessRefused` for a server that does not know the user.
        """
        if not self._security.user:
            return call_metadata(self._security)
        async with self._turn:
            now_s = self._clock.monotonic()
            if now_s >= self._until_s:
                self._token, lifetime_ms = await self._log_in(channel)
                # Clocks differ, and a call takes a while to arrive.
                self._until_s = now_s + lifetime_ms * 0.8 / 1000
        return call_metadata(self._security, self._token)

    async def _log_in(self, channel: Any) -> tuple[str, int]:
        from engine.transport.grpc_generated import access_pb2

        known = self._security.now
        scram = ScramClient(known.user, known.password, new_nonce())
        wire: Any = access_pb2
        call = channel.stream_stream(_LOGIN, None, None)(timeout=_LOGIN_S)

        async def ask(message: bytes) -> Any:
            await call.write(wire.LoginRequest(message=message).SerializeToString())
            data = await call.read()
            if not isinstance(data, bytes):
                raise AccessRefused("the server ended the login")
            return wire.LoginReply.FromString(data)

        try:
            first = await ask(scram.first)
            last = await ask(scram.prove(first.message))
            scram.check(last.message)
        finally:
            call.cancel()
        return last.token, last.lifetime_ms
