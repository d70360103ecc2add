"""Who guesses at passwords over frames and over gRPC waits, and users with tokens do not."""

from pathlib import Path

import pytest
from grpc import aio

from engine.ports.clock import SystemClock
from engine.transport.grpc_login import Credentials
from engine.transport.security import Security
from herd.errors import OperationalError
from tests.herd.wire.test_access import House, logged_in, opened


async def refusal_by_frames(house: House, security: Security) -> str:
    """What a login over frames is told."""
    with pytest.raises(OperationalError) as refusal:
        await house.channel(security)
    return refusal.value.message


async def refusal_by_grpc(house: House, security: Security) -> str:
    """What a login over gRPC is told."""
    assert house.grpc is not None
    async with aio.insecure_channel(f"127.0.0.1:{house.grpc.port}") as channel:
        with pytest.raises(aio.AioRpcError) as refusal:
            await Credentials(security, SystemClock()).metadata(channel)
        return str(refusal.value.details())


async def test_guesses_over_frames_and_over_grpc_are_counted_together(tmp_path: Path) -> None:
    async with opened(tmp_path) as house:
        wrong = Security(user="ann", password="wrong")
        for _ in range(3):
            assert "is wrong" in await refusal_by_frames(house, wrong)
        for _ in range(2):
            assert "is wrong" in await refusal_by_grpc(house, wrong)
        for security in (wrong, logged_in("ann")):
            assert "too many wrong logins" in await refusal_by_frames(house, security)
            assert "too many wrong logins" in await refusal_by_grpc(house, security)
        for other in (logged_in("ben"), Security(token="token-ann")):
            channel = await house.channel(other)
            channel.close()
