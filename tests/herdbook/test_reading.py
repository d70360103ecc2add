"""Tokens for bookies: short, and renewed as long as a client is open."""

import asyncio

from engine.access.tokens import READ, Claims, sign, verify
from engine.errors import AccessRefused
from herdbook.reading import AGAIN_S, READ_TOKEN_MS, RENEW_S, shown_token
from tests.engine.access.known_users import KEY


class Hours:
    """A clock that goes on by who sleeps, and tablespaces that sign by it unless they are away."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.away = 0
        self.slept: list[float] = []
        self.asleep = asyncio.Event()
        self._wake = asyncio.Event()

    def monotonic(self) -> float:
        """See `Clock`."""
        return self.now_s

    def wall_ms(self) -> int:
        """See `Clock`."""
        return int(self.now_s * 1000)

    async def read_token(self, lifetime_ms: int = 0) -> str:
        """See `RemoteHerd`."""
        if self.away:
            self.away -= 1
            raise AccessRefused("not now")
        return sign(Claims(READ, "ann", self.wall_ms() + lifetime_ms, ()), KEY)

    async def sleep(self, seconds: float) -> None:
        """Sleep until the test says so."""
        self.slept.append(seconds)
        self.asleep.set()
        await self._wake.wait()
        self._wake.clear()
        self.now_s += seconds

    async def pass_by(self) -> None:
        """Let who sleeps wake up, do something and sleep again."""
        await self.asleep.wait()
        self.asleep.clear()
        self._wake.set()
        await self.asleep.wait()


async def test_a_clients_token_is_short_and_another_one_before_it_ends() -> None:
    hours = Hours()
    async with shown_token(hours, hours, hours.sleep) as shown:
        first = shown.text
        assert (
            verify(first, (KEY,), READ, hours.wall_ms()).expires_ms - hours.wall_ms() == 3_600_000
        )
        for _ in range(24):
            before, ends_ms = shown.text, hours.wall_ms() + READ_TOKEN_MS
            await hours.pass_by()
            assert shown.text != before and hours.wall_ms() < ends_ms
            verify(shown.text, (KEY,), READ, hours.wall_ms())
        assert set(hours.slept) == {RENEW_S}


async def test_a_token_that_cannot_be_renewed_at_the_moment_is_asked_for_again() -> None:
    hours = Hours()
    async with shown_token(hours, hours, hours.sleep) as shown:
        hours.away = 3
        for _ in range(4):
            await hours.pass_by()
        assert hours.slept == [RENEW_S, AGAIN_S, AGAIN_S, AGAIN_S, RENEW_S]
        verify(shown.text, (KEY,), READ, hours.wall_ms())
