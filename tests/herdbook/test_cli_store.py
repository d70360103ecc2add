"""The commands that look at a store and mend it, over a folder."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import herdbook
from engine import cluster
from engine.metadata.bookies import Bookies
from engine.metadata.garbage_asks import GarbageAsk, GarbageAsks
from engine.metadata.repairs import RepairItem, RepairQueue
from herd.staging.layout import Job
from herd.staging.registry import Label
from herdbook.cli.main import app


def call(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"HERDBOOK_URL": "", **environment})


def objects(result: Result) -> list[dict[str, Any]]:
    """What a command with --json printed."""
    return [json.loads(line) for line in result.stdout.splitlines()]


@asynccontextmanager
async def opened(folder: Path, bookies: int = 3) -> AsyncIterator[cluster.Engine]:
    """The folder, as long as the block lasts."""
    async with cluster.open(folder, bookies=bookies) as engine:
        yield engine


def within(folder: Path, work: Callable[[cluster.Engine], Awaitable[Any]], bookies: int = 3) -> Any:
    """Work in a folder, on a loop of its own."""

    async def run() -> Any:
        async with opened(folder, bookies) as engine:
            return await work(engine)

    return asyncio.run(run())


async def written(engine: cluster.Engine, *, close: bool = True) -> int:
    """A ledger with ten entries."""
    writer = await engine.create_ledger(metadata={"owner": b"test"})
    await writer.append_many([b"moo%d" % number for number in range(10)])
    if close:
        await writer.close()
    return writer.ledger_id


def test_the_store_is_found_by_the_environment_too(tmp_path: Path) -> None:
    ledger_id = within(tmp_path, written)
    listed = call("ledger", "ls", "--json", HERDBOOK_URL=str(tmp_path))
    assert listed.exit_code == 0, listed.output
    assert [each["ledger"] for each in objects(listed)] == [ledger_id]


def test_without_a_store_every_command_names_the_three_places(tmp_path: Path) -> None:
    for command in (
        ["ledger", "ls"],
        ["ledger", "show", "1"],
        ["bookie", "ls"],
        ["bookie", "check"],
        ["repair", "status"],
        ["repair", "scrub"],
    ):
        answer = call(*command, XDG_CONFIG_HOME=str(tmp_path), HERDBOOK_CONFIG="")
        assert answer.exit_code == 2
        assert answer.stdout == "" and len(answer.stderr.splitlines()) == 1
        assert all(word in answer.stderr for word in ("--url", "HERDBOOK_URL", "config.toml"))


def test_an_open_ledger_is_recovered_by_hand(tmp_path: Path) -> None:
    async def leave_open(engine: cluster.Engine) -> int:
        return await written(engine, close=False)

    number = str(within(tmp_path, leave_open))
    assert (
        objects(call("ledger", "show", number, "--url", str(tmp_path), "--json"))[0]["state"]
        == "OPEN"
    )
    done = call("ledger", "recover", number, "--url", str(tmp_path))
    assert done.exit_code == 0 and "closed with 10 entries" in done.stdout
    again = objects(call("ledger", "recover", number, "--url", str(tmp_path), "--json"))
    assert (again[0]["state"], again[0]["last_entry"]) == ("CLOSED", 9)
    read = call("ledger", "read", number, "--first", "8", "--url", str(tmp_path))
    assert read.stdout == "moo8moo9"


def test_a_ledger_of_objects_is_deleted_by_force_alone(tmp_path: Path) -> None:
    free = str(within(tmp_path, written))
    with herdbook.open(tmp_path) as book:
        owned = str(book.blobs.put(b"moo").ledger_id)
    delete = ("ledger", "delete", free, owned, "--yes", "--url", str(tmp_path))
    refused = call(*delete)
    assert refused.exit_code == 1
    assert f"ledger {owned} belongs to blobit" in refused.stderr and "--force" in refused.stderr
    assert len(objects(call("ledger", "ls", "--url", str(tmp_path), "--json"))) == 2
    assert call(*delete, "--force").exit_code == 0
    assert objects(call("ledger", "ls", "--url", str(tmp_path), "--json")) == []


def test_staged_rows_of_a_job_are_deleted_by_force_alone(tmp_path: Path) -> None:
    async def stage(engine: cluster.Engine) -> int:
        label = Label(tablespace="shop", job=Job("copies"))
        writer = await engine.create_ledger(metadata=label.metadata)
        await writer.close()
        return writer.ledger_id

    staged = str(within(tmp_path, stage, bookies=1))
    delete = ("ledger", "delete", staged, "--yes", "--url", str(tmp_path))
    refused = call(*delete)
    assert refused.exit_code == 1
    assert f"ledger {staged} belongs to herd-staging" in refused.stderr
    assert call(*delete, "--force").exit_code == 0


def test_a_ledger_is_deleted_only_after_a_yes(tmp_path: Path) -> None:
    number = str(within(tmp_path, written))
    refused = call("ledger", "delete", number, "--url", str(tmp_path))
    assert refused.exit_code == 2 and "--yes" in refused.stderr
    assert objects(call("ledger", "ls", "--url", str(tmp_path), "--json"))
    done = call("ledger", "delete", number, "4711", "--yes", "--url", str(tmp_path), "--json")
    assert objects(done) == [
        {"ledger": int(number), "deleted": True},
        {"ledger": 4711, "deleted": False},
    ]
    assert done.exit_code == 1 and "NoSuchLedger: ledger 4711" in done.stderr
    assert objects(call("ledger", "ls", "--url", str(tmp_path), "--json")) == []


def test_ledgers_are_listed_by_what_is_wrong_and_by_bookie(tmp_path: Path) -> None:
    async def one_whole_one_degraded(engine: cluster.Engine) -> tuple[int, int, list[str]]:
        whole = await written(engine)
        await engine.stop_bookie(2)
        return whole, await written(engine), engine.bookies

    whole, degraded, bookies = within(tmp_path, one_whole_one_degraded)
    listed = objects(call("ledger", "ls", "--degraded", "--url", str(tmp_path), "--json"))
    assert [each["ledger"] for each in listed] == [degraded]
    listed = objects(call("ledger", "ls", "--bookie", bookies[0], "--url", str(tmp_path), "--json"))
    assert [each["ledger"] for each in listed] == [whole, degraded]
    short = call("ledger", "ls", "--bookie", bookies[0][:8], "--url", str(tmp_path), "--json")
    assert objects(short) == listed
    nobody = call("ledger", "ls", "--bookie", "nobody", "--url", str(tmp_path))
    assert nobody.exit_code == 1 and "there is no bookie 'nobody'" in nobody.stderr
    assert "not apart" not in call("ledger", "ls", "--url", str(tmp_path)).stdout
    assert "missing" in call("ledger", "ls", "--url", str(tmp_path)).stdout


def test_bookies_are_listed_asked_and_checked(tmp_path: Path) -> None:
    within(tmp_path, written)
    listed = objects(call("bookie", "ls", "--url", str(tmp_path), "--json"))
    assert [each["state"] for each in listed] == ["writable"] * 3
    name = listed[0]["bookie"]
    shown = objects(call("bookie", "info", name[:8], "--url", str(tmp_path), "--json"))[0]
    assert shown["bookie"] == name and shown["ledgers"] == 1 and shown["problem"] == ""
    assert shown["total_bytes"] >= shown["free_bytes"] > 0
    checked = call("bookie", "check", "--url", str(tmp_path))
    assert checked.exit_code == 0 and checked.stdout.count("serves") == 3
    unknown = call("bookie", "info", "nobody", "--url", str(tmp_path))
    assert unknown.exit_code == 1 and unknown.stderr.startswith("InvalidRequest: there is no")


async def test_a_bookie_that_is_away_fails_the_check(tmp_path: Path) -> None:
    async with opened(tmp_path) as engine:
        stopped = engine.bookies[1]
        await engine.stop_bookie(1)
        checking = asyncio.get_running_loop().run_in_executor(
            None, lambda: call("bookie", "check", "--url", str(tmp_path), "--json")
        )
        checked = await checking
    assert checked.exit_code == 1
    problems = {each["bookie"]: each["problem"] for each in objects(checked)}
    assert problems[stopped] == "not registered"
    assert sorted(problems.values()) == ["", "", "not registered"]


def test_repair_is_switched_and_its_queue_is_shown(tmp_path: Path) -> None:
    async def ask(engine: cluster.Engine) -> int:
        ledger_id = await written(engine)
        await RepairQueue(engine.store).request(ledger_id, RepairItem(reasons=("for a test",)))
        return ledger_id

    ledger_id = within(tmp_path, ask)
    url = ("--url", str(tmp_path))
    assert call("repair", "off", "--reason", "a move of house", *url).stdout == "repair is off\n"
    status = objects(call("repair", "status", *url, "--json"))[0]
    assert status["disabled"] == "a move of house" and status["queued"] == 1
    assert status["ledgers"][0]["ledger_id"] == ledger_id
    text = call("repair", "status", *url).stdout
    assert "a move of house" in text and "for a test" in text
    assert objects(call("repair", "on", *url, "--json")) == [{"on": True}]
    assert objects(call("repair", "status", *url, "--json"))[0]["disabled"] is None


def test_a_scrub_of_a_sound_store_finds_nothing(tmp_path: Path) -> None:
    ledger_id = within(tmp_path, written)
    done = call("repair", "scrub", "--url", str(tmp_path), "--json")
    assert done.exit_code == 0, done.output
    mark = objects(done)[0]
    assert (mark["ledgers"], mark["entries"], mark["unrepaired"]) == (1, 10, [])
    some = call("repair", "scrub", str(ledger_id), "--url", str(tmp_path))
    assert some.exit_code == 0 and "1 ledgers and 10 entries were read; 0" in some.stdout
    assert "finished: 1 ledgers" in call("repair", "status", "--url", str(tmp_path)).stdout
    none = call("repair", "scrub", str(ledger_id), "4711", "--url", str(tmp_path))
    assert none.exit_code == 1 and "NoSuchLedger: ledger 4711" in none.stderr


def test_a_scrub_finds_what_a_bookie_lacks_and_has_it_repaired(tmp_path: Path) -> None:
    async def lose_a_replica(engine: cluster.Engine) -> None:
        writer = await engine.create_ledger()
        await writer.append(b"first")
        await engine.stop_bookie(0)
        await writer.append_many([b"moo"] * 9)
        await writer.close()
        await engine.start_bookie(0)

    within(tmp_path, lose_a_replica)
    found = call("repair", "scrub", "--url", str(tmp_path), "--json")
    assert found.exit_code == 1 and objects(found)[0]["faults"] == 1
    mended = call("repair", "scrub", "--wait", "--url", str(tmp_path), "--json")
    assert mended.exit_code == 0, mended.output
    assert objects(mended)[0]["unrepaired"] == []
    again = call("repair", "scrub", "--url", str(tmp_path), "--json")
    assert again.exit_code == 0 and objects(again)[0]["faults"] == 0


def test_a_bookie_is_emptied_and_may_go(tmp_path: Path) -> None:
    async def one_of_several(engine: cluster.Engine) -> str:
        ledgers = [await written(engine) for _ in range(4)]
        return (await engine.ledger_metadata(ledgers[0])).fragments[0].ensemble[0]

    bookie = within(tmp_path, one_of_several, bookies=4)
    url = ("--url", str(tmp_path))
    seen = objects(call("bookie", "decommission", bookie, "--no-wait", *url, "--json"))[0]
    assert seen["left"] == seen["total"] > 0 and seen["blocking"]
    listed = {each["bookie"]: each for each in objects(call("bookie", "ls", *url, "--json"))}
    assert listed[bookie]["leaving"]
    call("repair", "off", "--reason", "rack work", *url)
    waited = call("bookie", "decommission", bookie, "--timeout", "0.1", *url)
    assert waited.exit_code == 1 and "--cancel lets it stay after all" in waited.stderr
    assert "repair is off (rack work)" in waited.stdout
    call("repair", "on", *url)
    done = call("bookie", "decommission", bookie, *url)
    assert done.exit_code == 0 and "may be stopped" in done.stdout, done.output
    assert objects(call("ledger", "ls", "--bookie", bookie, *url, "--json")) == []
    assert "stays" in call("bookie", "decommission", bookie, "--cancel", *url).stdout

    async def leaving(engine: cluster.Engine) -> list[str]:
        return await Bookies(engine.store).decommissioning()

    assert within(tmp_path, leaving, bookies=4) == []


def test_a_bookie_that_asks_before_it_forgets_is_shown_and_answered(tmp_path: Path) -> None:
    async def ask(engine: cluster.Engine) -> str:
        name = engine.bookies[0]
        await GarbageAsks(engine.store).put(name, GarbageAsk(30, 100), None)
        return name

    url = ("--url", str(tmp_path))
    name = within(tmp_path, ask)
    assert "asks (bookie gc)" in call("bookie", "ls", *url).stdout
    assert "asks (bookie gc)" in call("bookie", "info", name, *url).stdout
    shown = {"bookie": name, "doomed": 30, "held": 100, "confirmed": 0}
    assert objects(call("bookie", "gc", *url, "--json")) == [shown]
    assert call("bookie", "gc", "--confirm", *url).exit_code == 2
    assert call("bookie", "gc", name, "--confirm", *url).exit_code == 0
    assert objects(call("bookie", "gc", name, *url, "--json")) == [{**shown, "confirmed": 30}]
    assert "asks (bookie gc)" not in call("bookie", "ls", *url).stdout

    async def withdraw(engine: cluster.Engine) -> None:
        asks = GarbageAsks(engine.store)
        held = await asks.read(name)
        assert held is not None
        await asks.withdraw(name, held)

    within(tmp_path, withdraw)
    refused = call("bookie", "gc", name, "--confirm", *url)
    assert refused.exit_code == 1 and "asks nothing" in refused.output


@pytest.mark.parametrize("group", ["ledger", "bookie", "repair"])
def test_every_group_explains_itself(group: str) -> None:
    answer = call(group, "--help")
    assert answer.exit_code == 0
    verbs = {
        "ledger": ("ls", "show", "read", "recover", "delete"),
        "bookie": ("ls", "info", "check", "gc", "decommission", "forget"),
        "repair": ("status", "on", "off", "scrub"),
    }
    assert all(f" {verb} " in answer.stdout for verb in verbs[group])
