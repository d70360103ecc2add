"""Openers of one lock: one serves, the others reach it, and its end makes room for the next."""

import asyncio
import os
import random
import socket
from pathlib import Path
from typing import Any

import pytest

from engine.errors import FolderMismatch, FormatTooNew, InvalidRequest
from engine.folder import sockets
from engine.folder.lock import FolderLock, Ownership
from engine.folder.serving import FolderServing
from engine.ports.clock import SystemClock
from engine.transport.framed_client import ClientConnection
from engine.transport.framed_server import FramedServer
from engine.transport.framed_settings import FramedSettings


class Barn:
    """What one opener runs. It notes what the others are told and may do when it ends."""

    def __init__(self, root: Path, nonce: str) -> None:
        def admit(options: dict[str, Any]) -> None:
            if options != {"nonce": nonce}:
                raise InvalidRequest("another barn is served here")

        self.server = FramedServer(cluster_id="barn", admit=admit)
        self.at_end: list[object] = []
        self._root = root

    async def close(self) -> None:
        """End it."""
        lock = FolderLock.of(self._root)
        self.at_end += [lock.read(), lock.try_take()]
        lock.close()
        await self.server.close()


class Opener:
    """One opener of a barn."""

    def __init__(self, root: Path) -> None:
        self.serving: FolderServing[Barn, ClientConnection] = FolderServing(root, random.Random())
        self.looks = 0
        self._root = root

    async def run(self, nonce: str) -> Barn:
        """Begin here."""
        return Barn(self._root, nonce)

    async def look(self) -> None:
        """Run it or reach who does."""
        self.looks += 1
        if await self.serving.take(self.run):
            return
        owner = self.serving.owner()
        assert owner is not None, "it is served"
        options = {"nonce": owner.nonce}
        dialling = ClientConnection.dial(owner.address, options, SystemClock(), FramedSettings())
        self.serving.there = await dialling


async def fail(nonce: str) -> Barn:
    """A start that fails."""
    raise RuntimeError("no barn today")


async def test_one_opener_serves_and_the_others_reach_it(tmp_path: Path) -> None:
    openers = [Opener(tmp_path) for _ in range(3)]
    assert openers[0].serving.who("nobody") == "nobody"
    for opener in openers:
        await opener.serving.find(opener.look)
    first = openers[0].serving.here
    assert first is not None and len(first.server.connections) == 2
    for opener in openers[1:]:
        assert opener.serving.here is None and opener.serving.found
        assert opener.serving.who("nobody") == f"process {os.getpid()}"
    for opener in openers:
        await opener.serving.close()


async def test_of_all_who_ask_at_once_one_looks(tmp_path: Path) -> None:
    opener = Opener(tmp_path)
    await asyncio.gather(*(opener.serving.find(opener.look) for _ in range(5)))
    assert opener.looks == 1
    await opener.serving.close()


async def test_who_serves_takes_its_address_back_before_it_ends_and_the_lock_falls_after_it(
    tmp_path: Path,
) -> None:
    one, two = Opener(tmp_path), Opener(tmp_path)
    await one.look()
    await two.look()
    here, there, owner = one.serving.here, two.serving.there, one.serving.owner()
    assert here is not None and there is not None and owner is not None
    lost = asyncio.Event()
    there.when_lost(lost.set)
    await one.serving.close()
    await one.serving.close()
    assert here.at_end == [None, False]
    assert not _exists(owner.address)
    await lost.wait()
    assert not two.serving.found
    await two.serving.find(two.look)
    assert two.serving.here is not None
    await two.serving.close()


async def test_a_start_that_fails_leaves_nothing_running_and_nothing_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = Opener(tmp_path), Opener(tmp_path)
    with pytest.raises(RuntimeError, match="no barn"):
        await one.serving.take(fail)
    begun: list[Barn] = []

    async def run(nonce: str) -> Barn:
        begun.append(Barn(tmp_path, nonce))
        return begun[0]

    def refuse(lock: FolderLock, ownership: Ownership | None) -> None:
        monkeypatch.undo()
        raise OSError("the disk is full")

    monkeypatch.setattr(FolderLock, "publish", refuse)
    with pytest.raises(OSError, match="is full"):
        await one.serving.take(run)
    assert begun[0].at_end == [None, False] and not one.serving.found
    assert await two.serving.take(two.run)
    await two.serving.close()
    await one.serving.close()


async def test_the_socket_of_one_that_was_killed_is_removed_by_the_next(tmp_path: Path) -> None:
    lock = FolderLock.of(tmp_path)
    assert lock.try_take()
    end, address = sockets.listen("killed".ljust(16, "0"))
    lock.publish(Ownership(1, "killed", address))
    lock.close()
    end.close()
    assert _exists(address)
    opener = Opener(tmp_path)
    assert await opener.serving.take(opener.run)
    assert not _exists(address)
    await opener.serving.close()


async def test_what_a_newer_one_left_is_refused_and_stays_free(tmp_path: Path) -> None:
    lock = FolderLock.of(tmp_path)
    assert lock.try_take()
    lock.publish(Ownership(1, "newer", "unix:/nowhere", format_major=99))
    lock.release()
    opener = Opener(tmp_path)
    with pytest.raises(FormatTooNew):
        await opener.serving.take(opener.run)
    assert opener.serving.who("nobody") == "nobody"
    assert lock.try_take()
    lock.close()
    await opener.serving.close()


async def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letter").touch()
    opener = Opener(tmp_path)
    with pytest.raises(FolderMismatch):
        await opener.serving.take(opener.run)
    await opener.serving.close()


async def test_a_forked_child_keeps_neither_lock_nor_sockets_and_ends_nothing(
    tmp_path: Path,
) -> None:
    one, two = Opener(tmp_path), Opener(tmp_path)
    await one.look()
    await two.look()
    # As in a child: the parent's are looked at, and left to the parent.
    kept = [opener.serving.after_fork() for opener in (one, two)]
    assert [opener.serving.forked for opener in (one, two)] == [True, True]
    kinds = [[_is_socket(descriptor) for descriptor in each] for each in kept]
    assert kinds == [[True, True, False], [True, False]]
    for opener in (two, one):
        await opener.serving.close()
    assert one.serving.found and one.serving.owner() is not None
    for opener in (two, one):
        opener.serving._forked = False
        await opener.serving.close()
    assert [opener.serving.after_fork() for opener in (one, two)] == [[], []]


def _exists(address: str) -> bool:
    return Path(address.removeprefix("unix:")).exists()


def _is_socket(descriptor: int) -> bool:
    try:
        socket.socket(fileno=os.dup(descriptor)).close()
    except OSError:
        return False
    return True
