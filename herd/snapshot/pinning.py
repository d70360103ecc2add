"""Checkpoints kept for an application: found, made if wanted, pinned.

Invariants:
- What is handed out is pinned, so that all who read it by its number read the same.
- An application keeps one pin of a checkpoint, however many frames were loaded of it.
- A look makes nothing: neither a tablespace nor, unless it is to be fresh, a checkpoint.
"""

import warnings
from contextlib import suppress
from typing import NamedTuple

import msgspec

from engine.application import RENEWED_MS, Application, Renewable
from engine.errors import EngineError, NotFound
from engine.ledger.client import LedgerClient
from engine.place import Place, held_client
from herd.checkpoint.manifest import ManifestRecord
from herd.checkpoint.record import CheckpointList
from herd.errors import Error, OperationalError, ProgrammingError
from herd.nodes.facts import decode_space
from herd.place import HeldHerd, held_herd
from herd.store import TABLESPACES
from herd.translating import translating


class CheckpointPin(msgspec.Struct, frozen=True):
    """A pin of an application on one checkpoint; `Renewable`."""

    place: Place
    tablespace: str
    number: int
    name: str

    def renew(self) -> None:
        """Keep the checkpoint for `RENEWED_MS` more. Raises `NotFound` if it is kept no more."""
        held = held_client(self.place)
        kept = _list_of(held.client, self.tablespace)
        held.run(lambda: kept.pin(self.name, self.number, RENEWED_MS))

    def drop(self) -> None:
        """Keep it no longer for this application."""
        held = held_client(self.place)
        kept = _list_of(held.client, self.tablespace)
        held.run(lambda: kept.unpin(self.name))

    def keeps(self, other: Renewable) -> bool:
        """Whether another pin is on the same checkpoint."""
        return isinstance(other, CheckpointPin) and (
            (other.place, other.tablespace, other.number)
            == (self.place, self.tablespace, self.number)
        )

    def note(self, application: Application) -> "CheckpointPin":
        """Leave it to the application's driver to renew it, unless that renews one like it.

        Returns which of the two is kept.
        """
        found = application.noted_for(self)
        if not isinstance(found, CheckpointPin):
            application.note(self, self.name.rpartition(":")[2])
            return self
        with suppress(EngineError):
            self.drop()
        return found


class Pinned(NamedTuple):
    """A checkpoint, and what keeps it."""

    record: ManifestRecord
    pin: CheckpointPin


def pin_checkpoint(
    place: Place, application: Application, tablespace: str, *, fresh: bool, number: int = 0
) -> Pinned:
    """Pin a checkpoint of a tablespace for an application: a number, or the newest (0).

    `fresh` has the leader take one first. If it does not answer the newest is taken, and a warning
    tells its age. Whoever keeps what it returns notes the pin with the application; else it ends
    by itself. Blocks. Raises `ProgrammingError` for a tablespace that is not there or a
    checkpoint that is not kept, `LeaderUnavailable`, `StorageFailed`.
    """
    late: Error | None = None
    with translating():
        client = held_client(place)
        client.run(lambda: _check_space(client.client, tablespace))
    if fresh:
        try:
            herd = held_herd(place)
            herd.run(lambda: _take(herd, tablespace))
        except OperationalError as error:
            late = error
    with translating():
        found = client.run(lambda: _pin(client.client, place, application, tablespace, number))
        if isinstance(found, str):
            raise late or ProgrammingError(found, hint="SHOW CHECKPOINTS lists what is kept")
    if late is not None:
        age_s = (client.client.clock.wall_ms() - found.record.taken_ms) // 1000
        warnings.warn(
            f"the leader of tablespace {tablespace} takes no checkpoint now, so this reads "
            f"checkpoint {found.record.number}, which is {age_s} s old: {late}",
            stacklevel=2,
        )
    return found


async def _check_space(client: LedgerClient, tablespace: str) -> None:
    fact = await client.store.get(f"{TABLESPACES}/{tablespace}")
    if fact is None or decode_space(fact.value).dropped:
        known = ", ".join(await client.store.children(TABLESPACES)) or "none yet"
        raise ProgrammingError(f"there is no tablespace {tablespace}", hint=f"there are {known}")


async def _take(held: HeldHerd, tablespace: str) -> None:
    session = await held.herd.session(tablespace)
    try:
        await session.execute("CHECKPOINT IF CHANGED")
    finally:
        await session.close()


async def _pin(
    client: LedgerClient, place: Place, application: Application, tablespace: str, number: int
) -> Pinned | str:
    """A pinned checkpoint, or why there is none."""
    owner = application.name or f"{client.rng.getrandbits(64):016x}"
    name = f"spark:{owner}:{client.rng.getrandbits(128):032x}"
    kept = _list_of(client, tablespace)
    try:
        record = await kept.pin(name, number or None, application.pin_ms)
    except NotFound:
        numbers = ", ".join(f"{one.number}" for one in (await kept.get()).kept)
        if not number:
            return f"tablespace {tablespace} has no checkpoint yet"
        return f"checkpoint {number} of tablespace {tablespace} is not kept; {numbers} are"
    return Pinned(record, CheckpointPin(place, tablespace, record.number, name))


def _list_of(client: LedgerClient, tablespace: str) -> CheckpointList:
    return CheckpointList(client.store, tablespace, client.time)
