"""Bookies of the same process: a connection is the bookie itself."""

from typing import cast

import pytest

from engine.errors import BookieUnavailable
from engine.transport.contract import Bookie, Transport
from engine.transport.inprocess import InProcessTransport


class _Named:
    def __init__(self, bookie_id: str) -> None:
        self.bookie_id = bookie_id


def _bookie(bookie_id: str) -> Bookie:
    return cast(Bookie, _Named(bookie_id))


async def test_a_connection_is_the_bookie_itself() -> None:
    transport = InProcessTransport()
    contract: Transport = transport
    first, second = _bookie("a"), _bookie("b")
    transport.add(first)
    transport.add(second)
    assert await contract.connect("a") is first
    assert await contract.connect("b") is second
    await contract.close()


async def test_an_unknown_bookie_is_unavailable() -> None:
    with pytest.raises(BookieUnavailable):
        await InProcessTransport().connect("a")


async def test_a_removed_bookie_is_unavailable_until_it_is_added_again() -> None:
    transport = InProcessTransport()
    transport.add(_bookie("a"))
    transport.remove("a")
    transport.remove("a")
    with pytest.raises(BookieUnavailable):
        await transport.connect("a")
    restarted = _bookie("a")
    transport.add(restarted)
    assert await transport.connect("a") is restarted


def test_two_bookies_never_have_one_id() -> None:
    transport = InProcessTransport()
    transport.add(_bookie("a"))
    with pytest.raises(AssertionError):
        transport.add(_bookie("a"))
