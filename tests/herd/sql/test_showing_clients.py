"""sysclients, sysstatements and sysconfig: who is there, what runs, what was set."""

import ast
import asyncio
import gc
import subprocess
import sys
from pathlib import Path

import herd
from herd.settings import HerdSettings
from tests.herd.sql.sessions import asking


async def test_a_session_is_a_client_until_it_is_closed_or_forgotten() -> None:
    async with asking() as one:
        other, third = one.another(autocommit=False), one.another()
        await other.execute("SELECT 1")
        rows = await one.rows(
            "SELECT client_id, autocommit, transaction_id IS NOT NULL, running FROM sysclients "
            "ORDER BY client_id"
        )
        assert rows == [(1, True, False, True), (2, False, True, False), (3, True, False, False)]
        await other.close()
        await other.close()
        assert await one.rows("SELECT client_id FROM sysclients ORDER BY 1") == [(1,), (3,)]
        del third
        gc.collect()
        assert await one.rows("SELECT client_id FROM sysclients") == [(1,)]


async def test_a_statement_that_waits_for_a_lock_is_seen_with_its_text_and_transaction() -> None:
    async with asking() as one:
        await one.run(
            "CREATE TABLE cow (id INT PRIMARY KEY, n INT)", "INSERT INTO cow VALUES (1, 0)"
        )
        holder, waiter = one.another(autocommit=False), one.another(autocommit=False)
        await holder.execute("UPDATE cow SET n = 1")
        waiting = asyncio.ensure_future(waiter.execute("UPDATE cow SET n = 2 WHERE n >= 0"))
        seen: list[tuple[object, ...]] = []
        while not any(transaction is not None for _, transaction, _ in seen):
            seen = await one.rows(
                "SELECT client_id, transaction_id, query FROM sysstatements WHERE client_id > 1"
            )
        assert waiter.transaction is not None
        assert seen == [(3, waiter.transaction.number, "UPDATE cow SET n = 2 WHERE n >= 0")]
        await holder.rollback()
        await waiting
        assert await one.rows("SELECT query FROM sysstatements WHERE client_id > 1") == []
        await waiter.rollback()


async def test_a_statement_that_failed_runs_no_longer() -> None:
    async with asking() as one:
        other = one.another()
        for text in ("SELECT nothing FROM nowhere", "SELECT FROM WHERE"):
            try:
                await other.execute(text)
            except herd.Error:
                continue
            raise AssertionError(f"this should have failed: {text}")
        assert await one.rows("SELECT query FROM sysstatements WHERE client_id = 2") == []


async def test_the_settings_of_a_tablespace_are_shown() -> None:
    async with asking() as one:
        shown = dict(await one.rows("SELECT config_name, config_value FROM sysconfig"))
        assert set(shown) == set(HerdSettings.__dataclass_fields__)
        assert shown["checkpoints_kept"] == str(one.space.settings.checkpoints_kept)


_GUEST = """
import sys, herd
with herd.connect(sys.argv[1]) as guest:
    print(guest.cursor().execute("SELECT process FROM sysclients").fetchall())
"""


def test_a_session_of_another_process_names_it(tmp_path: Path) -> None:
    with herd.connect(tmp_path) as owner:
        [own] = owner.cursor().execute("SELECT process FROM sysclients").fetchall()
        assert own == (None,)
        command = [sys.executable, "-c", _GUEST, str(tmp_path)]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        names = [name for (name,) in ast.literal_eval(said) if name is not None]
        assert len(names) == 1 and len(bytes.fromhex(names[0])) == 16
