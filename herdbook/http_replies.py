"""Replies that clients are slow to take.

Invariants:
- A long reply leaves in pieces, each when the client has taken those before it. What waits is
  bounded for all together and for one user; where there is no room the client is told so instead.
- Who takes a reply by the drop loses the connection.
"""

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from broker.http.front import told_error, user_of
from engine import limits
from engine.access.shares import PARTS, Shares

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

PIECE_BYTES: Final = 64 * limits.KIB
_WAITING_BYTES_MAX: Final = 128 * limits.MIB
_GRACE_S: Final = 30.0
_BYTES_A_SECOND: Final = 64 * limits.KIB
_logger: Final = logging.getLogger(__name__)


class SlowReplies:
    """An application whose replies may be taken slowly, but not too slowly."""

    def __init__(
        self, app: "ASGIApp", waiting_bytes_max: int = _WAITING_BYTES_MAX, grace_s: float = _GRACE_S
    ) -> None:
        self._app = app
        self._waiting = Shares(waiting_bytes_max, waiting_bytes_max // PARTS)
        self._grace_s = grace_s

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """See ASGI."""
        await self._app(scope, receive, _Reply(self, scope, receive, send).send)

    async def hand_over(self, user: str, body: bytes, message: "Message", send: "Send") -> bool:
        """Send a long body in pieces; False, and nothing sent, where there is no room for it."""
        if not self._waiting.take(user, len(body)):
            return False
        try:
            async with asyncio.timeout(self._grace_s + len(body) / _BYTES_A_SECOND):
                for place in range(0, len(body), PIECE_BYTES):
                    more = place + PIECE_BYTES < len(body)
                    piece = body[place : place + PIECE_BYTES]
                    await send({**message, "body": piece, "more_body": more})
        except TimeoutError:
            # What was begun is not ended: the server hangs up.
            _logger.warning("a reply of %s bytes was taken too slowly", f"{len(body):,}")
        finally:
            self._waiting.give_back(user, len(body))
        return True


class _Reply:
    """One reply: its head waits until there is room for its body."""

    def __init__(self, all_: SlowReplies, scope: "Scope", receive: "Receive", send: "Send") -> None:
        self._all = all_
        self._scope = scope
        self._receive = receive
        self._send = send
        self._head: Message | None = None

    async def send(self, message: "Message") -> None:
        """See ASGI."""
        if message["type"] == "http.response.start":
            self._head = message
            return
        head, self._head = self._head, None
        body = message.get("body", b"")
        if head is None or len(body) <= PIECE_BYTES or message.get("more_body", False):
            # What comes in many messages waits for its client between them.
            if head is not None:
                await self._send(head)
            await self._send(message)
            return

        async def send(piece: "Message") -> None:
            nonlocal head
            if head is not None:
                await self._send(head)
                head = None
            await self._send(piece)

        if not await self._all.hand_over(user_of(self._scope), body, message, send):
            changes = self._scope["method"] not in ("GET", "HEAD")
            remedy = "take replies sooner, or ask for less at a time"
            refused = told_error(
                503,
                "overloaded",
                "too many bytes of replies wait to be taken",
                retryable=not changes,
                remedy=f"look what came of it, {remedy}" if changes else remedy,
            )
            await refused(self._scope, self._receive, self._send)
