"""`herdbook repair status|on|off|scrub` and `herdbook bookie decommission`.

In a cluster the bookies' machines repair, and the commands ask and watch. In a folder nobody else
does: the commands that need it repair while they run.

Invariants:
- `status` changes nothing.
- A scrub that ends with status 0 has read every replica and found nothing wrong.
- A command that is interrupted leaves what it began to be gone on with.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.progress import Progress

from engine.errors import InvalidRequest
from engine.ports.clock import SystemClock
from herdbook.cli.bookies import BookieId, find_bookie
from herdbook.cli.store import (
    AsJson,
    Url,
    moment_of,
    plain,
    print_facts,
    print_json,
    print_table,
    progress,
    with_store,
)

if TYPE_CHECKING:
    from engine.ledger.client import LedgerClient
    from engine.repair.decommission import Decommission, DecommissionProgress
    from engine.repair.outlook import Workshop
    from engine.repair.scrub import Found, ScrubMark
    from engine.repair.settings import RepairSettings
    from engine.repair.status import RepairStatus

LOOK_INTERVAL_S: Final = 0.2
_STAYS_LEAVING: Final = (
    "it goes on being emptied, and takes no new ledger: --cancel lets it stay after all"
)

app = typer.Typer(
    help="Show what is being repaired, and start checks.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Stay until it is done.")]


@app.command("status")
def show_status(
    url: Url = None,
    limit: Annotated[int, typer.Option(help="How many ledgers to name.", min=0)] = 100,
    as_json: AsJson = False,
) -> None:
    """Show whether repair is on, which bookies are lost, and which ledgers wait for what."""
    from engine.repair.status import repair_status

    status = with_store(url, lambda client: repair_status(client.store, limit))
    if as_json:
        print_json([plain(status)])
    else:
        _show(status, SystemClock().wall_ms())


@app.command("off")
def switch_off(
    reason: Annotated[str, typer.Option(help="The reason, for other operators.")] = "by hand",
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Repair nothing until it is switched on again. What waits goes on waiting."""
    from engine.metadata.repairs import RepairQueue

    with_store(url, lambda client: RepairQueue(client.store).disable(reason))
    _say_switch(False, as_json)


@app.command("on")
def switch_on(url: Url = None, as_json: AsJson = False) -> None:
    """Let repair go on."""
    from engine.metadata.repairs import RepairQueue

    with_store(url, lambda client: RepairQueue(client.store).enable())
    _say_switch(True, as_json)


@app.command("forget-log")
def forget_log(
    name: Annotated[str, typer.Argument(help="The log, as `rebuild-metadata` names it.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Let a log whose list was lost begin anew, from the states that are left.

    Its ledgers are deleted once it does.
    """
    from engine.metadata.lost_logs import forget_lost, lost_logs

    if not yes:
        question = f"log {name} begins anew, without what only its ledgers hold; go on?"
        typer.confirm(question, abort=True)

    async def work(client: "LedgerClient") -> None:
        if not await forget_lost(client.store, name):
            known = ", ".join(sorted(await lost_logs(client.store))) or "none"
            raise InvalidRequest(f"the list of log {name} was not lost; lost are: {known}")

    with_store(url, work)
    if as_json:
        print_json([{"log": name, "forgotten": True}])
    else:
        typer.echo(f"log {name} begins anew when somebody leads it")


@app.command("scrub")
def scrub(
    ledger_ids: Annotated[
        list[int] | None, typer.Argument(help="The ledgers' ids. Default: all.", min=0)
    ] = None,
    url: Url = None,
    resume: Annotated[
        bool, typer.Option(help="Go on where an interrupted scrub of all ledgers was.")
    ] = True,
    wait: Wait = False,
    as_json: AsJson = False,
) -> None:
    """Read all replicas, check every checksum, and have repaired what is wrong.

    Exit status 1 if anything was, or a bookie did not answer; with --wait only if it still is.
    """
    from engine.repair.scrub import Scrub

    async def work(client: "LedgerClient") -> tuple["ScrubMark", list[int], str]:
        workshop = _workshop(client)
        with progress() as bar:
            task = bar.add_task("scrubbing", total=None)
            reader = Scrub(workshop)

            def step(mark: "ScrubMark", total: int) -> None:
                bar.update(task, completed=mark.ledgers, total=total)

            if ledger_ids:
                await _refuse_unknown(client, ledger_ids)
                mark = await reader.run_for(ledger_ids, progress=step)
            else:
                mark = await reader.run(resume=resume, progress=step)
            left = list(mark.faulty)
            if wait and left:
                async with _repairing(client):
                    left = await _settled(workshop, left, bar)
        return mark, left, workshop.troubles.tell(workshop.troubles.bookies)

    mark, left, troubles = with_store(url, work)
    if as_json:
        print_json([{**plain(mark), "unrepaired": left}])
    else:
        typer.echo(
            f"{mark.ledgers:,} ledgers and {mark.entries:,} entries were read; {mark.faults:,} "
            f"ledgers were faulty, {len(left):,} still are; {mark.silent:,} replicas gave no answer"
        )
        _show_findings([found for found in mark.findings if found.at_ms >= mark.started_ms])
    if mark.silent and troubles:
        typer.echo(f"bookies that could not be reached:{troubles}", err=True)
    if left or mark.silent:
        raise typer.Exit(1)


async def _refuse_unknown(client: "LedgerClient", ledger_ids: Sequence[int]) -> None:
    """Raises `NoSuchLedger` if one of them is not there."""
    for ledger_id in ledger_ids:
        await client.ledger_metadata(ledger_id)


def decommission(
    bookie_id: BookieId,
    url: Url = None,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Let the bookie stay after all.")
    ] = False,
    wait: Wait = True,
    timeout_s: Annotated[
        float | None,
        typer.Option("--timeout", help="How long to wait, seconds. Default: for ever.", min=0),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Empty a bookie that is to go, and show what still keeps it. It may be stopped afterwards.

    Exit status 0 when no ledger names it any more, or when nobody was to wait for that; 1 when
    the time was up first. The others go on emptying it then.
    """
    from engine.repair.decommission import Decommission

    async def work(client: "LedgerClient") -> "DecommissionProgress | None":
        name = (await find_bookie(client, bookie_id))["bookie"]
        leaving = Decommission(_workshop(client), name)
        if cancel:
            await leaving.cancel()
            return None
        await leaving.begin()
        if not wait:
            return await leaving.look()
        try:
            async with asyncio.timeout(timeout_s):
                return await _emptied(client, leaving)
        except TimeoutError:
            return await leaving.look()

    found = with_store(url, work)
    if found is None:
        typer.echo(f"bookie {bookie_id} stays" if not as_json else '{"cancelled": true}')
    elif as_json:
        print_json([plain(found)])
    elif found.left:
        typer.echo(f"{found.left:,} ledgers still name bookie {found.bookie_id}")
        print_table(("ledger", "why"), ((each.ledger_id, each.why) for each in found.blocking))
        if wait:
            typer.echo(_STAYS_LEAVING, err=True)
    else:
        typer.echo(f"no ledger names bookie {found.bookie_id} any more: it may be stopped")
    if found is not None and found.left and wait:
        raise typer.Exit(1)


def forget(bookie_id: BookieId, url: Url = None, as_json: AsJson = False) -> None:
    """Take a bookie that will not come back out of all lists, if no ledger names it."""
    from engine.repair.forgetting import forget as forget_bookie

    async def work(client: "LedgerClient") -> str:
        name: str = (await find_bookie(client, bookie_id))["bookie"]
        await forget_bookie(_workshop(client), name)
        return name

    name = with_store(url, work)
    typer.echo(f"bookie {name} is forgotten" if not as_json else '{"forgotten": true}')


async def _emptied(client: "LedgerClient", leaving: "Decommission") -> "DecommissionProgress":
    """Wait until a bookie is empty, and tell each time when what keeps it changes."""
    told = ""

    def step(found: "DecommissionProgress") -> None:
        nonlocal told
        bar.update(task, completed=found.total - found.left, total=found.total)
        why = found.trouble or (found.blocking[0].why if found.blocking else "")
        if why and why != told:
            left = f"{found.left:,} of {found.total:,} ledgers are left"
            bar.console.print(f"{left}: {why}", markup=False, soft_wrap=True)
        told = why

    with progress() as bar:
        task = bar.add_task("emptying", total=None)
        async with _repairing(client):
            return await leaving.run(step)


@asynccontextmanager
async def _repairing(client: "LedgerClient") -> AsyncIterator[None]:
    """In a folder, repair meanwhile; in a cluster others do."""
    from engine.cluster import Engine
    from engine.repair.node import RepairNode

    if not isinstance(client, Engine):
        yield
        return
    node = RepairNode(
        store=client.store,
        transport=client.transport,
        clock=client.clock,
        rng=client.rng,
        settings=_eager(),
    )
    await node.start()
    try:
        yield
    finally:
        await node.close()


async def _settled(workshop: "Workshop", ledger_ids: list[int], bar: Progress) -> list[int]:
    """Wait until the ledgers have left the queue, or each was tried in vain; those that have not.

    Ledgers that are not tried at all, since repair is off or nobody does, are left too.
    """
    task = bar.add_task("repairing", total=len(ledger_ids))
    deadline_s = workshop.clock.monotonic() + workshop.settings.recovery_timeout_ms / 1000
    left = list(ledger_ids)
    while left:
        waiting = [await workshop.queue.read(ledger_id) for ledger_id in left]
        still = [held for held in waiting if held is not None]
        if len(still) < len(left):
            deadline_s = workshop.clock.monotonic() + workshop.settings.recovery_timeout_ms / 1000
        left = [held.ledger_id for held in still]
        bar.update(task, completed=len(ledger_ids) - len(left))
        in_vain = all(held.item.blocked for held in still)
        if not still or in_vain or workshop.clock.monotonic() > deadline_s:
            break
        await asyncio.sleep(LOOK_INTERVAL_S)
    return left


def _workshop(client: "LedgerClient") -> "Workshop":
    from engine.repair.outlook import Workshop

    return Workshop(
        store=client.store,
        transport=client.transport,
        clock=client.clock,
        rng=client.rng,
        settings=_eager(),
    )


def _eager() -> "RepairSettings":
    from engine.repair.settings import RepairSettings

    return RepairSettings(look_interval_ms=1_000, scrub_interval_ms=0, copy_bytes_a_second=0)


def _say_switch(on: bool, as_json: bool) -> None:
    if as_json:
        print_json([{"on": on}])
    else:
        typer.echo(f"repair is {'on' if on else 'off'}")


def _absences(status: "RepairStatus", now_ms: int) -> list[str]:
    """Who is away, and how long the auditor will wait; its grace counts, not the bookie's own."""
    found = []
    for name, due_ms in status.away_bookies.items():
        if status.disabled is not None:
            found.append(f"{name}, not given up while repair is off")
            continue
        minutes, seconds = divmod(max(0, due_ms - now_ms) // 1000, 60)
        left = f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
        found.append(f"{name}, given up in {left}")
    return found


def _show(status: "RepairStatus", now_ms: int) -> None:
    switch = "on" if status.disabled is None else f"off: {status.disabled}"
    if status.disabled is None and status.auditor is None:
        switch = "on, but nobody is there to repair"
    facts: dict[str, Any] = {
        "repair": switch,
        "auditor": status.auditor or "none",
        "bookies away": "; ".join(_absences(status, now_ms)) or "none",
        "lost bookies": ", ".join(status.lost_bookies) or "none",
        "leaving bookies": ", ".join(status.leaving_bookies) or "none",
        "ledgers that wait": f"{status.queued:,}",
        "newest scrub": _scrub_of(status.scrub),
    }
    print_facts(facts)
    if status.ledgers:
        print_table(
            ("ledger", "why", "under way", "the last try"),
            (
                (each.ledger_id, each.reason, "yes" if each.under_way else "", each.blocked)
                for each in status.ledgers
            ),
        )
    if status.scrub is not None and status.scrub.findings:
        typer.echo("what scrubs found last:")
        _show_findings(status.scrub.findings)


def _show_findings(findings: Sequence["Found"]) -> None:
    if findings:
        print_table(
            ("ledger", "found at", "what"),
            ((each.ledger_id, moment_of(each.at_ms), each.what) for each in findings),
        )


def _scrub_of(mark: "ScrubMark | None") -> str:
    if mark is None:
        return "never"
    how = "finished" if mark.finished else f"up to ledger {mark.last_ledger}"
    return f"{how}: {mark.ledgers:,} ledgers, {mark.faults:,} faulty, {mark.silent:,} silent"
