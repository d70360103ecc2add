"""What no ledger can be: refused by the bookie itself, which stays up and goes on."""

import msgspec
import pytest

from engine.bookie.segment import facts_record
from engine.limits import CUSTOM_METADATA_BYTES_MAX, ENTRY_ID_MAX, LEDGER_ID_MAX
from engine.run import Run
from engine.transport.contract import AppendReply, LedgerFacts, ReadRequest, Status
from tests.engine.bookie.house import KEY, LEDGER, House, bodies_of, facts_of, turns

NO_LEDGER = (-1, -(2**63), LEDGER_ID_MAX + 1, 2**64)
UNSOUND = {
    "ledger_id": 99,
    "ensemble_size": 2,
    "write_quorum": 2,
    "ack_quorum": 0,
    "stripe_entries": 0,
    "key_hash": b"short",
    "created_ms": 2**63,
    "custom": {"app": bytes(CUSTOM_METADATA_BYTES_MAX)},
    "fragment_first": -5,
    "ensemble": ("",),
    "closed_last": -9,
    "closed_length": -1,
}


def moo(ledger_id: int, first: int = 0) -> Run:
    """One entry; unpacked, for its numbers may be anything."""
    sound = Run.pack(LEDGER, 0, [b"moo"], lac=-1, length_before=0)
    return msgspec.structs.replace(sound, ledger_id=ledger_id, first=first, lac=first - 1)


async def appended(house: House, run: Run, facts: LedgerFacts | None = None) -> Status:
    replies: list[AppendReply] = []
    house.service.append([run], replies.append, key=KEY, facts=facts)
    await turns(100)
    return replies[0].status


@pytest.mark.parametrize("ledger_id", NO_LEDGER)
async def test_what_is_no_ledgers_id_is_refused_and_stops_nothing(ledger_id: int) -> None:
    house = House()
    service = await house.start()
    facts = facts_of(ledger_id)
    assert await appended(house, moo(ledger_id), facts) is Status.INVALID
    assert (await service.fence(ledger_id, KEY)).status is Status.INVALID
    assert (await service.wait_lac(ledger_id, -1, 0)).status is Status.INVALID
    assert (await service.read(ReadRequest(ledger_id, 0, 5, 100))).status is Status.INVALID
    assert (await service.read(ReadRequest(ledger_id, 0, 5, 100, KEY))).status is Status.INVALID
    service.confirm(ledger_id, 3)
    service.record(facts, KEY)
    await turns(100)
    assert service.failure is None and service.writable
    await service.close()


async def test_ids_of_entries_that_cannot_be_are_refused_and_stop_nothing() -> None:
    house = House()
    service = await house.start()
    await house.stored(0, b"moo")
    for first in (-5, ENTRY_ID_MAX, 2**64):
        assert await appended(house, moo(LEDGER, first)) is Status.INVALID
        asked = ReadRequest(LEDGER, first, ENTRY_ID_MAX + 1, 100)
        assert (await service.read(asked)).status is Status.INVALID
    service.confirm(LEDGER, ENTRY_ID_MAX + 1)
    await house.indexed()
    assert service.failure is None
    assert bodies_of(await house.read(0, 0)) == [b"moo"]
    await service.close()


@pytest.mark.parametrize("name", UNSOUND)
async def test_facts_that_cannot_be_are_neither_stored_nor_acknowledged(name: str) -> None:
    house = House()
    service = await house.start()
    facts = msgspec.structs.replace(facts_of(LEDGER), **{name: UNSOUND[name]})
    assert await appended(house, moo(LEDGER), facts) is Status.INVALID
    if name != "ledger_id":
        service.record(facts, KEY)
        await turns(100)
    assert (await house.read(0, 0)).status is Status.NO_SUCH_LEDGER
    assert service.failure is None
    await service.close()


async def test_an_unsound_append_is_refused_also_behind_one_that_is_looked_up() -> None:
    house = House()
    service = await house.start()
    await house.stored(0, b"moo", b"baa")
    house.journal.holding = True
    again = house.append(0, b"moo", b"baa")
    other = msgspec.structs.replace(moo(LEDGER, 2), table=b"")
    assert await appended(house, other) is Status.INVALID
    house.journal.release()
    await turns(100)
    assert [reply.status for reply in again] == [Status.OK]
    await service.close()


async def test_a_folder_that_holds_unsound_facts_is_read_all_the_same() -> None:
    house = House()
    await house.start()
    await house.stored(0, b"moo", b"baa")
    striped = msgspec.structs.replace(facts_of(LEDGER), stripe_entries=0)
    await house.service.write([facts_record(striped)])
    for _ in range(2):
        assert bodies_of(await house.read(0, 1)) == [b"moo", b"baa"]
        assert house.service.failure is None
        await house.crash()
        await house.start()
    await house.service.close()


async def test_a_fence_keeps_nothing_longer_than_the_hash_of_a_key() -> None:
    house = House()
    service = await house.start()
    assert (await service.fence(LEDGER, b"herdbook repair\0" + bytes(1_000))).status is Status.OK
    kept = service.storage.states.get(LEDGER).key_hash
    assert kept is not None and len(kept) == 32
    await service.close()
