"""What repair tells people: who is away and for how long yet, and what happened, line by line."""

import logging

import pytest

from engine.repair.absences import AWAY, read_absences
from engine.repair.scrub import Scrub, read_mark
from engine.repair.status import repair_status
from engine.run import NO_ENTRY
from tests.engine.repair.yard import GRACE_MS, Yard

GRACE_S = GRACE_MS / 1_000


async def test_who_is_away_is_told_with_the_moment_of_giving_up() -> None:
    yard = await Yard.of(4)
    auditor = yard.auditor()
    await auditor.look()
    assert await yard.store.get(AWAY) is None
    gone_ms = yard.clock.wall_ms()
    await yard.lose("b1")
    await yard.look(auditor, GRACE_S - 4)
    assert await read_absences(yard.store) == {"b1": gone_ms + GRACE_MS}
    assert (await repair_status(yard.store)).away_bookies == {"b1": gone_ms + GRACE_MS}
    written = await yard.store.get(AWAY)
    assert written is not None and written.version == 0, "written once, not at each look"
    await yard.look(auditor, 8)
    status = await repair_status(yard.store)
    assert (status.away_bookies, status.lost_bookies) == ({}, ("b1",))


async def test_who_is_away_is_told_while_repair_is_off_too() -> None:
    yard = await Yard.of(4)
    auditor = yard.auditor()
    await auditor.look()
    await yard.lose("b1")
    await yard.look(auditor, 2 * GRACE_S)
    await yard.queue.disable("rack work")
    await yard.lose("b2")
    await yard.look(auditor, 2 * GRACE_S)
    status = await repair_status(yard.store)
    assert (status.away_bookies, status.lost_bookies) == ({"b2": 0}, ("b1",))


async def test_a_pause_of_the_auditor_moves_the_moment() -> None:
    yard = await Yard.of(4)
    auditor = yard.auditor()
    await auditor.look()
    await yard.lose("b1")
    await auditor.look()
    yard.clock.now_s += 100 * GRACE_S
    await auditor.look()
    due_ms = (await read_absences(yard.store))["b1"]
    assert 0 < due_ms - yard.clock.wall_ms() < GRACE_MS


async def test_losses_returns_and_repairs_are_lines_of_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "engine.repair")
    yard = await Yard.of(4)
    metadata = await yard.written()
    auditor, repairer = yard.auditor(), yard.repairer()
    await auditor.look()
    name = metadata.fragments[0].ensemble[0]
    await yard.lose(name)
    await yard.look(auditor, GRACE_S + 8)
    await repairer.run_once()
    await yard.bring_back(name)
    await auditor.look()
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "this process is the auditor now",
        f"bookie {name} is away: given up in 10 s",
        f"bookie {name} was away for too long: its ledgers are copied again",
        f"ledger {metadata.ledger_id} is whole again",
        f"bookie {name} is back",
    ]


async def test_what_a_scrub_found_is_named_and_outlives_the_next_scrub() -> None:
    yard = await Yard.of(3)
    metadata = await yard.written()
    name = metadata.fragments[0].ensemble[1]
    yard.transport.bookies[name].corrupt(metadata.ledger_id, 4)
    mark = await Scrub(yard.workshop()).run()
    (found,) = mark.findings
    assert found.ledger_id == metadata.ledger_id and found.at_ms == yard.clock.wall_ms()
    assert f"from 4 on, on bookie {name}" in found.what
    await yard.repairer().run_once()
    yard.clock.now_s += 60
    mark = await Scrub(yard.workshop()).run()
    assert (mark.faults, mark.findings) == (0, (found,))
    assert await read_mark(yard.store) == mark


async def test_a_scrub_finds_nothing_wrong_with_a_ledger_that_was_closed_empty() -> None:
    yard = await Yard.of(3)
    metadata = await yard.written(count=0)
    assert metadata.last_entry == NO_ENTRY
    mark = await Scrub(yard.workshop()).run()
    assert (mark.ledgers, mark.entries, mark.faults) == (1, 0, 0)


async def test_a_scrub_names_ledgers_whose_entries_no_bookie_returns(
    caplog: pytest.LogCaptureFixture,
) -> None:
    yard = await Yard.of(3)
    closed = await yard.written()
    writer = await yard.client().create_ledger()
    for name in ("b0", "b1", "b2"):
        await yard.lose(name)
    mark = await Scrub(yard.workshop()).run()
    assert (mark.ledgers, mark.faults, mark.unheld) == (2, 0, 2)
    assert f"ledger {closed.ledger_id}: no bookie returns entry 0" in caplog.text
    assert f"ledger {writer.ledger_id}: no bookie returns the entries from 0 on" in caplog.text


async def test_a_scrub_counts_no_ledger_of_which_one_bookie_has_everything() -> None:
    yard = await Yard.of(3)
    await yard.written()
    await yard.lose("b0")
    mark = await Scrub(yard.workshop()).run()
    assert mark.silent and not mark.unheld
