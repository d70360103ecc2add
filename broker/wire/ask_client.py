"""Questions to one broker over one stream; see `Asks` in `proto/broker.proto`.

Invariants:
- Every question is answered, or raises: `BrokerUnavailable` if nobody has looked at it, so that it
  may be asked elsewhere, `OutcomeUnknown` if somebody may have.
- Whoever gives up waiting disturbs nobody: the stream goes on.
- What waits to be sent is bounded in bytes; beyond that those who ask wait.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from broker.errors import BrokerError, BrokerUnavailable, OutcomeUnknown
from broker.wire.asking import ASKS_MAX, READS
from broker.wire.channels import error_of_call

_QUEUED_BYTES_MAX: Final = 8 * 1024 * 1024
_MESSAGE_BYTES: Final = 1024 * 1024
"""Questions of about so many bytes leave in one message."""


class AskStream:
    """One stream of questions. `over` is called when it has ended, for whatever reason."""

    def __init__(self, address: str, stream: Any, over: "Callable[[AskStream], None]") -> None:
        from broker.wire.grpc_generated import broker_pb2

        self.address = address
        self._wire: Any = broker_pb2
        self._stream = stream
        self._over = over
        self._loop = asyncio.get_running_loop()
        self._number = 0
        self._sent = 0
        self._taken: int | None = None
        self._queue: deque[Any] = deque()
        self._queued_bytes = 0
        self._asked: dict[int, tuple[str, asyncio.Future[Any]]] = {}
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._ended: BrokerError | None = None
        self._life = self._loop.create_task(self._live())

    async def ask(self, name: str, arguments: bytes, timeout_s: float) -> Any:
        """The `AskReply` to a question. Raises `BrokerUnavailable` and `OutcomeUnknown`."""
        while self._queued_bytes > _QUEUED_BYTES_MAX and self._ended is None:
            self._room.clear()
            await self._room.wait()
        if self._ended is not None:
            raise BrokerUnavailable(self._ended.message)
        self._number += 1
        number = self._number
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._asked[number] = name, answer
        self._queue.append(self._wire.AskRequest(name=name, arguments=arguments, number=number))
        self._queued_bytes += len(arguments)
        self._news.set()
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError as error:
            heard = number <= self._sent
            kind = OutcomeUnknown if heard and name not in READS else BrokerUnavailable
            raise kind(f"{self.address} did not answer in {timeout_s:g} s") from error
        finally:
            self._asked.pop(number, None)

    async def close(self) -> None:
        """End it; what is under way has an unknown outcome."""
        self._life.cancel()
        await asyncio.gather(self._life, return_exceptions=True)

    async def _live(self) -> None:
        from grpc import aio

        why: BrokerError = BrokerUnavailable(f"{self.address}: the connection was closed")
        writing: asyncio.Task[None] | None = None
        try:
            # Before the other side has taken the stream nothing is sent: so it was never heard.
            await self._stream.initial_metadata()
            if not self._stream.done():
                writing = self._loop.create_task(self._write())
            await self._read()
            code = await self._stream.code()
            details = await self._stream.details()
            why = BrokerUnavailable(f"{self.address}: {details or code.name}")
        except aio.AioRpcError as error:
            why = error_of_call(self.address, error, reads=True)
        finally:
            self._stream.cancel()
            self._end(why)
            if writing is not None:
                writing.cancel()
                await asyncio.gather(writing, return_exceptions=True)

    async def _read(self) -> None:
        while isinstance(data := await self._stream.read(), bytes):
            said = self._wire.AskReplies.FromString(data)
            for reply in said.replies:
                asked = self._asked.get(reply.number)
                if asked is not None and not asked[1].done():
                    asked[1].set_result(reply)
            if said.taken:
                self._taken = said.taken

    async def _write(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            while self._queue:
                message = self._wire.AskRequests()
                size_bytes = 0
                while self._queue and size_bytes < _MESSAGE_BYTES and len(message.asks) < ASKS_MAX:
                    asked = self._queue.popleft()
                    size_bytes += len(asked.arguments)
                    if asked.number in self._asked:
                        message.asks.append(asked)
                self._queued_bytes -= size_bytes
                self._room.set()
                if message.asks:
                    self._sent = message.asks[-1].number
                    await self._stream.write(message.SerializeToString())

    def _end(self, why: BrokerError) -> None:
        self._ended = why
        self._room.set()
        asked, self._asked = self._asked, {}
        heard = self._sent if self._taken is None else self._taken
        for number, (name, answer) in asked.items():
            if answer.done():
                continue
            if not self._sent and not isinstance(why, BrokerUnavailable):
                answer.set_exception(type(why)(why.message))
            elif number > heard or name in READS:
                answer.set_exception(BrokerUnavailable(why.message))
            else:
                answer.set_exception(OutcomeUnknown(why.message))
        self._over(self)
