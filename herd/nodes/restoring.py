"""A new tablespace of a cluster that is there whole or not at all, filled by whoever makes it.

    async with made_whole(client, "sales", open_state) as space:
        await fill(space, workers, manifest, pages)

    /herd/restoring/NAME    ephemeral: the uuid of the tablespace that somebody is filling

Its maker has the only replica, which leads, and fills the log through it. Nodes begin with the
snapshot that it takes in the end, as any replica on an empty disk does.

Invariants:
- The name is taken first, by a fact that says `dropped`: nobody lists, runs or reaches what is not
  whole.
- When all of it is durable one compare-and-set of the fact makes it a tablespace.
- What fails is given up by its maker; what was killed, or lost its session, by the auditor. Given
  up it is a dropped tablespace like any other, and swept.
- It is given up by the same fact before anything of it is swept: a maker that comes back too late
  makes nothing.
- It fills a log only if the fact was still its own when it already led: a name that is another's
  by then has another's log.
"""

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from engine.errors import EngineError, MetadataUnavailable
from engine.ledger.client import LedgerClient
from engine.metadata.contract import MetadataStore
from engine.repair.claim import Claim
from engine.replica import ReplicaSettings
from engine.state.contract import State
from herd.errors import DatabaseError, NameTaken, OperationalError
from herd.nodes.directory import Directory, check_name
from herd.nodes.facts import RESTORING, SpaceFact
from herd.tablespace import Tablespace
from herd.translating import translating

_LET_GO_S: Final = 60.0
"""Longer than sessions last: one that cannot be told has ended by then."""
_RETRY_S: Final = 0.2
_logger = logging.getLogger(__name__)
_ALONE: Final = ReplicaSettings(snapshot_share=1.0)
"""Nobody else waits for the event loop's turns."""


def maker_of(store: MetadataStore, name: str, identity: str) -> Claim:
    """The key by which the maker of a tablespace shows that it is at work."""
    return Claim(store, f"{RESTORING}/{name}", identity)


@asynccontextmanager
async def made_whole(
    client: LedgerClient,
    name: str,
    open_state: Callable[[], Awaitable[State]],
    *,
    expected: int | None = None,
) -> AsyncIterator[Tablespace]:
    """An empty tablespace that this process leads; nodes run it once the block has succeeded.

    `open_state` makes an empty state, which is closed in the end; `expected` is how many replicas
    there should be, None: the cluster's default. If the block fails, there is no such
    tablespace, and its name is free once it is swept. Raises `NameTaken`, `ProgrammingError` for a
    bad name, `OperationalError` if it was given up meanwhile, `LeaderUnavailable`.
    """
    check_name(name)
    directory = Directory(client.store, client.rng)
    identity = str(uuid.UUID(int=client.rng.getrandbits(128), version=4))
    maker = maker_of(client.store, name, identity)
    with translating():
        try:
            if not await maker.hold():
                raise NameTaken(f"tablespace {name} is being restored", hint="take a new name")
            now_ms = client.clock.wall_ms()
            count = (await directory.settings()).replicas if expected is None else expected
            fact = SpaceFact(identity, now_ms, count, dropped=True, restoring=True)
            fact = msgspec.structs.replace(fact, by_default=expected is None)
            await directory.create(name, fact)
            try:
                async with _led(client, name, open_state) as space:
                    if not await _still_ours(directory, name, identity):
                        raise _given_up(name)
                    yield space
            except (EngineError, DatabaseError) as error:
                if await _still_ours(directory, name, identity):
                    raise
                raise _given_up(name) from error
            if not await directory.settle(name, identity, kept=True):
                raise _given_up(name)
        finally:
            await _let_go(directory, maker, name, identity)


async def _still_ours(directory: Directory, name: str, identity: str) -> bool:
    await directory.store.sync()
    fact = await directory.get(name)
    return fact is not None and fact.restoring and fact.uuid == identity


async def _let_go(directory: Directory, maker: Claim, name: str, identity: str) -> None:
    """Give up what is not whole, and the key of its maker, which a living session would keep.

    Tried again while the store does not answer: when the session has ended the auditor does it.
    """
    store, ended = directory.store, asyncio.Event()
    unwatch = store.watch_session(ended.set)
    try:
        async with asyncio.timeout(_LET_GO_S):
            while not ended.is_set():
                try:
                    await directory.settle(name, identity, kept=False)
                    if await maker.still():
                        await store.delete(maker.key)
                    return
                except MetadataUnavailable:
                    await asyncio.sleep(_RETRY_S)
    except (TimeoutError, EngineError) as error:
        _logger.warning("tablespace %s is being restored until this process ends: %s", name, error)
    finally:
        unwatch()


def _given_up(name: str) -> OperationalError:
    return OperationalError(
        f"tablespace {name} was given up: its maker's session had ended",
        hint="there is none now: try again",
    )


@asynccontextmanager
async def _led(
    client: LedgerClient, name: str, open_state: Callable[[], Awaitable[State]]
) -> AsyncIterator[Tablespace]:
    """The only replica, which leads; in the end a snapshot of it, and its log is closed."""
    state = await open_state()
    space = await Tablespace.open(client, name, state, elect=True, replica_settings=_ALONE)
    try:
        await space.replica.until_leading(_ALONE.stall_ms)
        yield space
        await space.replica.snapshot()
    finally:
        await space.close()
