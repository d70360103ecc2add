"""A new tablespace of a cluster that is there whole or not at all, filled by whoever makes it.

    async with made_whole(client, "sales", open_state, expected=3) as space:
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
"""

import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

from engine.errors import EngineError
from engine.ledger.client import LedgerClient
from engine.metadata.contract import MetadataStore
from engine.repair.claim import Claim
from engine.replica import ReplicaSettings
from engine.state.contract import State
from herd.errors import NameTaken, OperationalError
from herd.nodes.directory import Directory, check_name
from herd.nodes.facts import RESTORING, SpaceFact
from herd.tablespace import Tablespace
from herd.translating import translating

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
    expected: int,
) -> AsyncIterator[Tablespace]:
    """An empty tablespace that this process leads; nodes run it once the block has ended well.

    `open_state` makes an empty state, which is closed in the end; `expected` is how many replicas
    there should be. When the block fails there is no such tablespace, and its name is free once it
    is swept. Raises `NameTaken`, `ProgrammingError` for a bad name, `OperationalError` if it was
    given up meanwhile, `LeaderUnavailable`.
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
            fact = SpaceFact(identity, now_ms, expected, dropped=True, restoring=True)
            await directory.create(name, fact)
            try:
                async with _led(client, name, open_state) as space:
                    yield space
            except BaseException:
                # What cannot be said now the auditor finds when the key of the maker is gone.
                with contextlib.suppress(EngineError):
                    await directory.settle(name, identity, kept=False)
                raise
            if not await directory.settle(name, identity, kept=True):
                raise OperationalError(
                    f"tablespace {name} was given up: its maker's session had ended",
                    hint="there is none now: try again",
                )
        finally:
            await maker.release()


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
