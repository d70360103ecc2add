"""What a server keeps for one client: results until they are fetched, or given up."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from engine.access.door import BY_SECRET
from engine.errors import NotLeader
from herd.tablespace import Tablespace
from herd.wire import guest as module
from herd.wire import messages
from herd.wire.guest import Guest
from herd.wire.messages import Failed, Opened, Piece, Table
from herd.wire.results import arrow_of
from herd.wire.service import HerdService
from herd.wire.settings import WireSettings
from tests.engine.access.known_users import KnownUsers, door_of, user
from tests.herd.wire.test_route import NodeOf
from tests.herd.wire.wiring import embedded

LARGE = "SELECT i, repeat('x', 100) FROM range(20000) r(i)"


async def opened(guest: Guest) -> int:
    """A session."""
    answer = await guest.ask(messages.Open("default"))
    assert isinstance(answer, Opened)
    return answer.session


async def asked(guest: Guest, session: int) -> Any:
    """A large result."""
    return await guest.ask(messages.Execute(session, 1, LARGE))


async def test_a_result_that_nobody_fetches_is_forgotten_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with embedded(tmp_path) as herd:
        service = HerdService(NodeOf(herd), herd.workers)
        guest = Guest(service)
        session = await opened(guest)
        first = await asked(guest, session)
        kept_bytes = service.results_bytes
        second = await asked(guest, session)
        assert isinstance(first, Table) and first.result and service.results_bytes == 2 * kept_bytes
        monkeypatch.setattr(module, "_FORGOTTEN_S", -1.0)
        third = await asked(guest, session)
        assert service.results_bytes == kept_bytes
        assert isinstance(await guest.ask(messages.Fetch(first.result)), Failed)
        assert isinstance(await guest.ask(messages.Fetch(second.result)), Failed)
        assert isinstance(await guest.ask(messages.Fetch(third.result)), Piece)
        await guest.close()
        assert service.results_bytes == 0


async def test_results_have_a_bounded_size_together(tmp_path: Path) -> None:
    async with embedded(tmp_path) as herd:
        small = WireSettings(results_bytes_max=3_000_000)
        service = HerdService(NodeOf(herd), herd.workers, small)
        guest = Guest(service)
        session = await opened(guest)
        first = await asked(guest, session)
        refused = await asked(guest, session)
        assert isinstance(refused, Failed) and refused.name == "TooLarge"
        await guest.ask(messages.Fetch(first.result, drop=True))
        assert isinstance(await asked(guest, session), Table)
        await guest.close()


async def test_pieces_of_one_result_are_made_one_after_the_other(tmp_path: Path) -> None:
    async with embedded(tmp_path) as herd:
        service = HerdService(NodeOf(herd), herd.workers, WireSettings(piece_bytes=100_000))
        guest = Guest(service)
        made = await asked(guest, await opened(guest))
        fetches = [guest.ask(messages.Fetch(made.result)) for _ in range(20)]
        answers: list[Any] = await asyncio.gather(*fetches)
        first, *others = answers
        assert isinstance(first, Piece)
        assert all(isinstance(each, Failed) and "being made" in each.message for each in others)
        pieces = [made.data, first.data]
        while first.more:
            answer = await guest.ask(messages.Fetch(made.result))
            assert isinstance(answer, Piece)
            first = answer
            pieces.append(first.data)
        assert arrow_of(pieces).num_rows == 20_000
        await guest.close()


async def users_of(service: HerdService, *names: str) -> list[Guest]:
    """Guests that are users, and last one that came by the secret."""
    read = [user(name, ("tablespace", "default", "read")) for name in names]
    door = door_of(KnownUsers(*read))
    callers = [await door.by_token(f"token-{name}", "") for name in names]
    return [Guest(service, caller) for caller in (*callers, BY_SECRET)]


async def test_a_user_has_a_share_of_the_sessions_and_nodes_keep_some(tmp_path: Path) -> None:
    async with embedded(tmp_path) as herd:
        service = HerdService(NodeOf(herd), herd.workers, WireSettings(sessions_max=36))
        names = [f"user-{number}" for number in range(16)]
        *users, node = await users_of(service, *names)
        first, last = users[0], users[-1]
        for _ in range(2):
            await first.ask(messages.Begin(await opened(first), 1))
        refused = await first.ask(messages.Open("default"))
        assert isinstance(refused, Failed) and refused.name == "TooManySessions"
        idle = [await opened(last) for _ in range(3)]
        assert isinstance(await last.ask(messages.Begin(idle[0], 1)), Failed), "the oldest one went"
        for guest in users[1:-1]:
            await guest.ask(messages.Begin(await opened(guest), 1))
        assert service.session_count == 18, "half of it is there for users who come"
        for _ in range(18):
            await node.ask(messages.Begin(await opened(node), 1))
        assert isinstance(await node.ask(messages.Open("default")), Opened), "an idle one went"
        for guest in (*users, node):
            await guest.close()
        assert service.session_count == 0


async def test_a_user_has_a_share_of_the_results_that_wait(tmp_path: Path) -> None:
    async with embedded(tmp_path) as herd:
        share = WireSettings(results_bytes_max=12_000_000)
        service = HerdService(NodeOf(herd), herd.workers, share)
        ann, ben, node = await users_of(service, "ann", "ben")
        session = await opened(ann)
        first = await asked(ann, session)
        refused = await asked(ann, session)
        assert isinstance(refused, Failed) and refused.name == "TooLarge"
        for other in (ben, node):
            assert isinstance(await asked(other, await opened(other)), Table)
        await ann.ask(messages.Fetch(first.result, drop=True))
        assert isinstance(await asked(ann, session), Table)
        for guest in (ann, ben, node):
            await guest.close()
        assert service.results_bytes == 0


async def test_a_commit_under_way_outlives_its_guest(tmp_path: Path) -> None:
    async with embedded(tmp_path) as herd:
        guest = Guest(HerdService(NodeOf(herd), herd.workers))
        session = await opened(guest)
        for text in (
            "CREATE TABLE cow (id INT PRIMARY KEY)",
            "BEGIN",
            "INSERT INTO cow VALUES (1)",
        ):
            assert not isinstance(await guest.ask(messages.Execute(session, 1, text)), Failed)
        commit = asyncio.ensure_future(guest.ask(messages.Commit(session, 1)))
        await asyncio.sleep(0)
        commit.cancel()
        await guest.close()
        found = await (await herd.session()).execute("SELECT id FROM cow")
        assert found.rows[:] == [(1,)]


async def test_a_transaction_ends_if_what_one_of_its_statements_read_is_not_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with embedded(tmp_path) as herd:
        guest = Guest(HerdService(NodeOf(herd), herd.workers))
        session = await opened(guest)
        add = "UPDATE cows SET litres = litres + 1 WHERE id = 1"

        async def told(text: str) -> Any:
            return await guest.ask(messages.Execute(session, messages.AUTOCOMMIT, text))

        await told("CREATE TABLE cows (id INT PRIMARY KEY, litres INT)")
        await told("INSERT INTO cows VALUES (1, 10)")
        with _deposed(await herd.tablespace(), monkeypatch):
            await guest.ask(messages.Begin(session, messages.AUTOCOMMIT))
            failed = await told(add)
            assert isinstance(failed, Failed) and failed.name == "LeaderUnavailable"
            assert failed.state == messages.ENDED_TRANSACTION
        again = await told(add)
        assert isinstance(again, Failed) and again.name == "TransactionEnded"
        await guest.ask(messages.Rollback(session))
        await guest.close()


async def test_a_deposed_leader_says_nothing_of_tables_that_it_does_not_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with embedded(tmp_path) as herd:
        guest = Guest(HerdService(NodeOf(herd), herd.workers))
        session = await opened(guest)
        with _deposed(await herd.tablespace(), monkeypatch):
            for text in (
                *("SELECT * FROM cows", "INSERT INTO cows VALUES (1)", "DROP TABLE cows"),
                "DROP TABLE IF EXISTS cows",
            ):
                failed = await guest.ask(messages.Execute(session, messages.AUTOCOMMIT, text))
                assert isinstance(failed, Failed) and failed.name == "LeaderUnavailable", text
        await guest.close()


@contextmanager
def _deposed(space: Tablespace, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The replica has no lease, and its log confirms nothing."""

    async def refuse() -> None:
        raise NotLeader("another replica leads")

    leading = space.replica._leading
    assert leading is not None
    with monkeypatch.context() as patch:
        patch.setattr(leading.holding, "holds", lambda: False)
        patch.setattr(leading, "lease_ms", 60_000)
        patch.setattr(leading, "confirm", refuse)
        yield
