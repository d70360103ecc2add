"""Tokens by which a client reads from bookies as a user: short ones, renewed while it is open.

Invariants:
- A token is renewed when it has a fifth of its time left. What fails then is tried again soon, for
  as long as the client is open.
- Who has no token to begin with is told why.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, Protocol

from engine.access.shown import ShownToken
from engine.errors import EngineError
from engine.ports.clock import Clock
from herd.errors import Error

READ_TOKEN_MS: Final = 3_600_000
RENEW_S: Final = READ_TOKEN_MS * 0.8 / 1000
AGAIN_S: Final = 30.0
_logger: Final = logging.getLogger(__name__)


class Signing(Protocol):
    """Tablespaces, as far as they are asked for tokens."""

    async def read_token(self, lifetime_ms: int = 0) -> str:
        """A token for so long; "": nobody signs one."""
        ...


@asynccontextmanager
async def shown_token(
    herd: Signing, clock: Clock, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> AsyncIterator[ShownToken]:
    """What a user shows at bookies, kept new as long as the block lasts.

    Raises what `herd.read_token` raises.
    """
    shown = ShownToken(await herd.read_token(READ_TOKEN_MS), clock=clock)
    renewing = asyncio.create_task(_renew(shown, herd, sleep))
    try:
        yield shown
    finally:
        renewing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await renewing


async def _renew(
    shown: ShownToken, herd: Signing, sleep: Callable[[float], Awaitable[None]]
) -> None:
    # A store without tablespaces signs nothing yet.
    pause_s = RENEW_S if shown.text else AGAIN_S
    while True:
        await sleep(pause_s)
        try:
            shown.renew(await herd.read_token(READ_TOKEN_MS))
            pause_s = RENEW_S if shown.text else AGAIN_S
        except (Error, EngineError) as error:
            _logger.warning("the token for bookies is not renewed: %s", error)
            pause_s = AGAIN_S
