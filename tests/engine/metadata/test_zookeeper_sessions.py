"""What a session that ends in the middle of a call makes of its answer; no server is needed."""

import random
import socket
from collections.abc import Callable

import pytest

from engine.errors import MetadataUnavailable
from engine.metadata.zookeeper import ZooKeeperStore
from engine.metadata.zookeeper_client import Link, _wait_in_thread
from engine.metadata.zookeeper_paths import Layout
from engine.metadata.zookeeper_settings import ZooKeeperSettings


class Answering:
    """A client that has made each node, and does something before it says so."""

    def __init__(self, before: Callable[[], None]) -> None:
        self._before = before
        self.made: list[str] = []

    async def create(self, path: str, value: bytes, *, ephemeral: bool = False) -> None:
        self.made.append(path)
        self._before()


def store_whose_answers_follow(link: Link | None) -> ZooKeeperStore:
    store = ZooKeeperStore("h:1", Layout("/"), ZooKeeperSettings(), random.Random(1), True, "")
    store._ready = True

    def before() -> None:
        if link is not None:
            store._on_link(link)

    store._client = Answering(before)  # type: ignore[assignment]
    return store


async def test_a_key_of_a_session_that_ended_before_its_answer_is_not_called_made() -> None:
    store = store_whose_answers_follow(Link.LOST)
    with pytest.raises(MetadataUnavailable):
        await store.create("/bookies/b1", b"", ephemeral=True)


async def test_a_key_that_rests_on_no_session_is_made_whatever_becomes_of_it() -> None:
    assert await store_whose_answers_follow(Link.LOST).create("/ledgers/1", b"x") == 0
    store = store_whose_answers_follow(None)
    assert await store.create("/bookies/b1", b"", ephemeral=True) == 0


def test_waiting_returns_the_sockets_that_are_ready() -> None:
    one, other = socket.socketpair()
    third, fourth = socket.socketpair()
    with one, other, third, fourth:
        assert _wait_in_thread([one, third], [], [], 0.01) == ([], [], [])
        assert _wait_in_thread([one, third], [], [], -1.0) == ([], [], [])
        assert _wait_in_thread([one], [third], [], 60.0) == ([], [third], [])
        assert _wait_in_thread([], [one], [], None) == ([], [one], [])
        other.send(b"moo")
        assert _wait_in_thread([one, third], [], [], None) == ([one], [], [])
        fourth.close()
        assert _wait_in_thread([one, third], [], [], 60.0) == ([one, third], [], [])
    with pytest.raises(ValueError, match="negative"):
        _wait_in_thread([one], [], [], 0.0)
