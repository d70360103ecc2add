"""Bookies that do not let a client in: the refusal is named, and no ledger is left behind."""

import pytest

from engine.errors import AccessRefused, AppendFailed, CannotRead, RecoveryIncomplete, Unavailable
from engine.transport.contract import Bookie
from tests.engine.ledger.scripted import Cluster, ScriptedTransport

WORDS = "this server wants a proof of the shared secret"


class GuardedTransport(ScriptedTransport):
    """Some bookies want another secret than the client has."""

    def __init__(self) -> None:
        super().__init__()
        self.refusing: set[str] = set()

    async def connect(self, bookie_id: str) -> Bookie:
        if bookie_id in self.refusing:
            raise AccessRefused(WORDS)
        return await super().connect(bookie_id)


async def guarded(count: int) -> tuple[Cluster, GuardedTransport]:
    cluster = await Cluster.of(count)
    transport = GuardedTransport()
    transport.bookies = cluster.transport.bookies
    cluster.transport = transport
    return cluster, transport


async def test_a_client_that_nobody_lets_in_is_told_so_and_leaves_no_ledger() -> None:
    cluster, transport = await guarded(3)
    transport.refusing = {"b0", "b1", "b2"}
    client = cluster.client()
    with pytest.raises(AccessRefused, match=WORDS):
        await client.create_ledger()
    assert await client.list_ledgers() == []


async def test_no_ledger_exists_before_it_was_announced_and_no_try_takes_an_announced_id() -> None:
    cluster, transport = await guarded(6)
    transport.refusing = {"b0", "b1", "b2"}
    client = cluster.client()
    announced: list[int] = []

    async def announce(ledger_id: int) -> None:
        assert ledger_id not in await client.list_ledgers()
        announced.append(ledger_id)

    made: list[int] = []
    for _ in range(5):
        made.append((await client.create_ledger(announce=announce)).ledger_id)
    assert len(set(announced)) == len(announced) > len(made), "no try failed"
    assert set(made) <= set(announced) and await client.list_ledgers() == sorted(made)


async def test_a_ledger_whose_announcement_fails_is_not_made() -> None:
    cluster, _ = await guarded(3)
    client = cluster.client()

    async def announce(ledger_id: int) -> None:
        raise LookupError(ledger_id)

    with pytest.raises(LookupError):
        await client.create_ledger(announce=announce)
    assert await client.list_ledgers() == []


async def test_a_ledger_is_written_to_those_that_let_a_client_in() -> None:
    cluster, transport = await guarded(6)
    transport.refusing = {"b0", "b1", "b2"}
    client = cluster.client()
    for _ in range(5):
        writer = await client.create_ledger()
        assert await writer.append(b"moo") == 0
        await writer.close()
    for ledger_id in await client.list_ledgers():
        metadata = await client.ledger_metadata(ledger_id)
        assert len(set(metadata.fragments[-1].ensemble) - transport.refusing) >= 2


async def test_an_append_that_fails_names_who_refused_this_client() -> None:
    cluster, transport = await guarded(3)
    transport.refusing = {"b1"}
    writer = await cluster.client().create_ledger()
    await writer.append(b"moo")
    transport.bookies["b0"].down = True
    with pytest.raises(AppendFailed, match=f"b1: AccessRefused: {WORDS}") as failed:
        await writer.append(b"baa")
    assert isinstance(failed.value.__cause__, AccessRefused)


async def test_reading_and_recovery_name_refusals() -> None:
    cluster, transport = await guarded(3)
    writer = await cluster.client().create_ledger()
    await writer.append_many([b"moo", b"baa"])
    transport.refusing = {"b0", "b1", "b2"}
    client = cluster.client()
    reader = await client.open_ledger(writer.ledger_id, recover=False)
    with pytest.raises(Unavailable, match=WORDS) as unheard:
        await reader.read_last_add_confirmed()
    assert isinstance(unheard.value.__cause__, AccessRefused)
    with pytest.raises(RecoveryIncomplete, match=WORDS) as unfenced:
        await client.open_ledger(writer.ledger_id)
    assert isinstance(unfenced.value.__cause__, AccessRefused)
    transport.refusing = set()
    await client.open_ledger(writer.ledger_id)
    transport.refusing = {"b0", "b1", "b2"}
    reader = await client.open_ledger(writer.ledger_id)
    with pytest.raises(CannotRead, match=WORDS) as unread:
        _ = [entry async for entry in reader.read(0, 1)]
    assert isinstance(unread.value.__cause__, AccessRefused)


async def test_a_trouble_that_is_over_is_not_named_any_more() -> None:
    cluster, transport = await guarded(3)
    writer = await cluster.client().create_ledger()
    await writer.append(b"moo")
    client = cluster.client()
    transport.refusing = {"b0", "b1", "b2"}
    reader = await client.open_ledger(writer.ledger_id, recover=False)
    transport.refusing = {"b1"}
    assert await reader.read_last_add_confirmed() == 0
    transport.refusing = set()
    assert await reader.read_last_add_confirmed() == 0
    cluster.transport.bookies["b0"].down = cluster.transport.bookies["b2"].down = True
    with pytest.raises(Unavailable) as unheard:
        await reader.read_last_add_confirmed()
    assert "is down" in str(unheard.value) and WORDS not in str(unheard.value)
