"""Bookies' servers pass the metadata store on to those whom they let in."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from engine.access.tokens import READ, Claims, key_of, sign
from engine.errors import (
    AccessRefused,
    EngineError,
    FolderMismatch,
    InvalidRequest,
    KeyExists,
    VersionConflict,
)
from engine.metadata.contract import MetadataStore
from engine.metadata.ledgers import LEDGERS, decode_metadata, encode_metadata
from engine.metadata.passed_on import PassedOn
from engine.metadata.remote import RemoteStore
from engine.ports.clock import SystemClock
from engine.server import BookieServer
from engine.server_settings import ServerSettings
from engine.transport.security import NO_SECURITY, Security
from tests.engine.access.known_users import KeptAudit
from tests.engine.metadata.test_ledgers import metadata
from tests.engine.test_server import Site, site

SECRET = Security(secret=b"a secret of many letters")


@asynccontextmanager
async def reached(
    server: BookieServer, *, security: Security = NO_SECURITY, cluster_id: str = "cluster"
) -> AsyncIterator[RemoteStore]:
    """The store as the server passes it on."""

    async def find() -> str:
        return server.address

    store = await RemoteStore.open(
        find,
        clock=SystemClock(),
        rng=random.Random(1),
        cluster_id=cluster_id,
        security=security,
    )
    try:
        yield store
    finally:
        await store.close()


async def refused(made: Site, server: BookieServer, **how: Security | str) -> EngineError:
    """What somebody hears who is not let in."""
    with pytest.raises(EngineError) as caught:
        async with reached(server, **how):  # type: ignore[arg-type] # (both are named rightly)
            pass
    return caught.value


async def test_what_is_written_through_a_bookies_server_is_in_the_store(tmp_path: Path) -> None:
    async with site(tmp_path) as made:
        server, own = await made.serve("one"), made.tree.session()
        async with reached(server) as store:
            assert await store.create("/farm/cow", b"moo") == 0
            assert await store.set("/farm/cow", b"muh", 0) == 1
            with pytest.raises(KeyExists):
                await store.create("/farm/cow", b"moo")
            with pytest.raises(VersionConflict):
                await store.set("/farm/cow", b"moo", 0)
            assert await store.children("/farm") == ["cow"]
            assert await store.next_id("/numbers") == 1
            await store.sync()
            found = await own.get("/farm/cow")
            assert found is not None and found.value == b"muh"
            assert await store.get("/farm/pig") is None
            await store.delete("/farm/cow")
            assert await own.get("/farm/cow") is None


async def test_the_end_of_one_client_is_none_of_the_server_and_of_no_other(tmp_path: Path) -> None:
    async with site(tmp_path) as made:
        server = await made.serve("one")
        async with reached(server) as other:
            async with reached(server) as store:
                changed = asyncio.Event()
                store.watch("/farm/cow", changed.set)
                await store.create("/farm/cow", b"moo")
                await asyncio.wait_for(changed.wait(), 30)
            found = await other.get("/farm/cow")
            assert found is not None and found.value == b"moo"
            told = asyncio.Event()
            other.watch("/farm/cow", told.set)
            await other.sync()
            await made.tree.session().set("/farm/cow", b"muh", 0)
            await asyncio.wait_for(told.wait(), 30)
        assert await made.registered(), "the server's own session goes on"


async def test_bookies_tell_the_audit_whom_they_do_not_let_in(tmp_path: Path) -> None:
    audit = KeptAudit()
    async with site(tmp_path) as made:
        settings = ServerSettings(audit=audit)
        server = await made.serve("one", security=SECRET, settings=settings)
        forged = Security(read_token=sign(Claims(READ, "ann", 2**52), bytes(32))).at_bookies()
        assert type(await refused(made, server, security=forged)) is AccessRefused
    [event] = audit.events
    assert (event.what, event.where, event.allowed) == ("log in", "bookie", False)
    assert event.peer.startswith("127.0.0.1:")


async def test_nothing_that_rests_on_a_session_is_made_through_a_server(tmp_path: Path) -> None:
    async with site(tmp_path) as made, reached(await made.serve("one")) as store:
        with pytest.raises(InvalidRequest, match="ephemeral"):
            await store.create("/bookies/forged", b"", ephemeral=True)
        assert await store.get("/bookies/forged") is None


async def test_only_who_is_let_in_and_of_the_same_cluster_is_passed_on(tmp_path: Path) -> None:
    async with site(tmp_path) as made:
        server = await made.serve("one", security=SECRET)
        async with reached(server, security=SECRET) as store:
            assert len(await store.children("/bookies")) == 1
        assert type(await refused(made, server)) is AccessRefused
        wrong = Security(secret=b"another secret of letters")
        assert type(await refused(made, server, security=wrong)) is AccessRefused
        other = await refused(made, server, security=SECRET, cluster_id="another")
        assert type(other) is FolderMismatch
        silent = await made.serve("two", settings=ServerSettings(passes_metadata_on=False))
        assert "no metadata is served here" in str(await refused(made, silent))


async def test_a_reader_sees_bookies_and_the_ledgers_that_it_may_read(tmp_path: Path) -> None:
    claims = Claims(READ, "ann", SystemClock().wall_ms() + 60_000, (("tablespace", "shop"),))
    reader = Security(read_token=sign(claims, key_of(SECRET.secret))).at_bookies()
    async with site(tmp_path) as made:
        server, own = await made.serve("one", security=SECRET), made.tree.session()
        for ledger_id, owner in enumerate((b"herd:shop", b"herd:barn", b"")):
            record = metadata(ledger_id, custom={"owner": owner})
            await own.create(f"{LEDGERS}/{ledger_id}", encode_metadata(record))
        async with reached(server, security=reader) as store:
            assert len(await store.children("/bookies")) == 1
            found = await store.get(f"{LEDGERS}/0")
            assert found is not None
            assert decode_metadata(found.value).fragments == metadata(0).fragments
            assert decode_metadata(found.value).key_hash == bytes(32)
            assert await store.get(f"{LEDGERS}/9") is None
            for ledger_id in (1, 2):
                with pytest.raises(AccessRefused):
                    await store.get(f"{LEDGERS}/{ledger_id}")
            for forbidden in (
                store.get("/repair/disabled"),
                store.children(LEDGERS),
                store.page(LEDGERS),
                store.next_id("/ids/ledger"),
                store.create("/repair/disabled", b""),
                store.set(f"{LEDGERS}/0", b"", 0),
                store.delete(f"{LEDGERS}/0"),
            ):
                with pytest.raises(AccessRefused):
                    await forbidden
        assert await own.get(f"{LEDGERS}/0") is not None


async def test_a_client_of_a_server_learns_the_time_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def server_ms() -> int:
        return 1_700_000_000_000

    async with site(tmp_path) as made:
        server = await made.serve("one")
        server.store.server_ms = server_ms  # type: ignore[attr-defined]
        async with reached(server) as store:
            told_ms = await store.server_ms()
            assert told_ms is not None and 0 <= told_ms - 1_700_000_000_000 < 60_000
            monkeypatch.setattr("engine.metadata.remote.CLOCK_MINOR", 99)
            monkeypatch.delattr("engine.metadata.remote_messages.ServerTime")
            assert await store.server_ms() is None, "a server of an earlier version is not asked"


async def test_a_session_sees_what_had_been_written_before_it_began(tmp_path: Path) -> None:
    async with site(tmp_path) as made:
        behind = Behind(made.tree.session())
        for look in ("get", "children"):
            session = PassedOn(behind)
            await getattr(session, look)("/farm")
            assert behind.syncs.pop() == "sync"
            await getattr(session, look)("/farm")
            assert not behind.syncs, "once per session"


class Behind:
    """A store that counts how often it had to catch up."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.syncs: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def sync(self) -> None:
        self.syncs.append("sync")
        await self._store.sync()
