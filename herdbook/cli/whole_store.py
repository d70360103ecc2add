"""`herdbook store backup`, `check`, `restore` and `upgrade`: a whole store, in one command each.

Invariants:
- A store works on while it is backed up or checked.
- Exit status 1 also for a backup, or a store, that is not whole.
- With `--json` standard output is one JSON object; bars are drawn on standard error.
"""

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import msgspec
import typer

from engine.errors import EngineError
from engine.ports.system_workers import ThreadWorkers
from herdbook.cli.store import (
    AsJson,
    Url,
    moment_of,
    plain,
    print_facts,
    print_json,
    progress,
    run,
    with_store,
)
from herdbook.finding import check_store, find, is_cluster, open_store

if TYPE_CHECKING:
    from rich.progress import Progress

    from engine.ledger.client import LedgerClient
    from engine.repair.outlook import Workshop
    from engine.repair.scrub import ScrubMark
    from herdbook.archive.backup import Backed
    from herdbook.archive.checking import BackupCheck
    from herdbook.archive.restore import Restored

app = typer.Typer(
    help="Back up, check, restore or upgrade a whole store.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_KIB: Final = 1024
_MIB: Final = 1024 * 1024
_FINDINGS_SHOWN: Final = 20

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of the backups.")]
Number = Annotated[
    int | None, typer.Option("--number", help="Which backup. Default: the newest.", min=1)
]


@app.command("backup")
def backup(
    folder: Folder,
    url: Url = None,
    keep: Annotated[
        int | None, typer.Option(help="How many backups the folder keeps. Default: 7.", min=1)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write all of a store into a folder: tablespaces, buckets, ledgers, tasks, users.

    What an earlier backup in the folder has is not copied again. The store works on meanwhile.
    It holds what users' passwords are checked by: nobody else gets to read its files.
    """

    from herdbook.archive.backup import KEEP, back_up

    async def work(client: "LedgerClient", kind: str) -> "Backed":
        workers = ThreadWorkers(asyncio.get_running_loop())
        try:
            with _bars("copying") as (bar,):
                return await back_up(
                    client, workers, folder.absolute(), kind=kind, keep=keep or KEEP, progress=bar
                )
        finally:
            await workers.close()

    with _told(folder):
        kind = "cluster" if is_cluster(_run_find(url)) else "folder"
        made = with_store(url, lambda client: work(client, kind))
    for wrong in made.unreadable:
        typer.echo(
            f"an earlier backup cannot be read, so no old one was removed: {wrong}", err=True
        )
    if as_json:
        print_json([plain(made)])
        return
    typer.echo(
        f"backup {made.number} is whole: {made.ledgers:,} ledgers with {_size(made.length)}; "
        f"{made.ledgers_copied:,} were copied into {_size(made.written_bytes)} "
        f"in {made.seconds:.1f} s"
    )


@app.command("check")
def check(
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="[BACKUP]", help="A folder of backups. Default: the store itself."),
    ] = None,
    url: Url = None,
    number: Number = None,
    as_json: AsJson = False,
) -> None:
    """Read every byte of a backup; or, of a store, every replica of every ledger.

    What a store's check finds is put into the queue of repair. Exit status 1 if anything is wrong.
    """
    if folder is None:
        if number is not None:
            raise typer.BadParameter("a number is of a backup: name its folder")
        _check_store(url, as_json)
        return
    if url is not None:
        raise typer.BadParameter("either a backup is checked or a store: leave --url out")
    from herdbook.archive.checking import check_backup

    with _told(folder), _bars("checking") as (bar,):
        found = _blocking(partial(check_backup, folder.absolute(), number, bar))
    if as_json:
        print_json([_facts(found)])
    else:
        _show(found, folder)
    if not found.whole:
        raise typer.Exit(1)


@app.command("restore")
def restore(
    folder: Folder,
    url: Annotated[
        str,
        typer.Option(
            "--url", help="The new store: a folder that is not there yet, or a cluster of bookies."
        ),
    ],
    number: Number = None,
    bookies: Annotated[
        int | None,
        typer.Option(help="Copies in a new folder. Default: as the old one had, else 1.", min=1),
    ] = None,
    replicas: Annotated[
        int, typer.Option(help="Replicas of a folder's tablespaces in a cluster.", min=1)
    ] = 3,
    as_json: AsJson = False,
) -> None:
    """Make a new store of a backup, all of which is checked before the first byte is written.

    Ids of ledgers and objects stay as they are. A folder appears when it is whole; of a cluster
    start the bookies alone, and its nodes and brokers afterwards. What was interrupted goes on
    where it was when the same command is given again.
    """
    with _told(folder), _bars("checking", "writing") as (checking, writing):
        told = {"number": number, "checking": checking, "progress": writing}
        if is_cluster(url):
            if bookies is not None:
                raise typer.BadParameter("a cluster has the bookies that run in it")
            made = run(_into_cluster(folder.absolute(), url, replicas, told))
        else:
            target = Path(url).absolute()
            made = run(_into_folder(folder.absolute(), target, bookies, told))
    if as_json:
        print_json([plain(made)])
        return
    typer.echo(
        f"{url} holds backup {made.number}: {made.ledgers:,} ledgers with {_size(made.length)}, "
        f"{made.written:,} written now, in {made.seconds:.1f} s"
    )


@app.command("upgrade")
def upgrade(
    url: Url = None,
    settle: Annotated[
        int,
        typer.Option(help="Seconds to wait for bookies that are still starting.", min=0),
    ] = 600,
    as_json: AsJson = False,
) -> None:
    """Move a cluster's metadata to the layout of this version, after all programs are upgraded.

    The cluster can be used meanwhile. If the command is interrupted, run it again. From its first
    step on, programs of earlier versions cannot connect. Folders need no upgrade.
    """

    async def work() -> int:
        from engine.connecting import open_metadata
        from engine.metadata.cluster_url import parse_url
        from engine.metadata.upgrade import Upgrade
        from engine.ports.clock import SystemClock
        from herdbook.task_api import read_configured

        configured = read_configured()
        found = find(url, configuration=configured)
        if not is_cluster(found):
            check_store(Path(found))
            return 0
        store = await open_metadata(
            parse_url(found), configured.make_zookeeper(), random.SystemRandom()
        )
        try:
            with progress() as bar:
                task = bar.add_task("moving", total=None)
                upgrading = Upgrade(store, SystemClock(), settle)
                return await upgrading.run(lambda count: bar.update(task, completed=count))
        finally:
            await store.close()

    moved = run(work())
    if as_json:
        print_json([{"moved": moved}])
    else:
        typer.echo(f"{moved:,} keys were moved: the store has the layout of this version")


async def _into_folder(
    backup: Path, target: Path, bookies: int | None, told: dict[str, Any]
) -> "Restored":
    from herdbook.archive.restore import restore_folder

    workers = ThreadWorkers(asyncio.get_running_loop())
    try:
        return await restore_folder(workers, backup, target, bookies=bookies, **told)
    finally:
        await workers.close()


async def _into_cluster(backup: Path, url: str, replicas: int, told: dict[str, Any]) -> "Restored":
    from herdbook.archive.restore import restore_cluster

    workers = ThreadWorkers(asyncio.get_running_loop())
    try:
        async with open_store(url) as client:
            return await restore_cluster(client, workers, backup, replicas=replicas, **told)
    finally:
        await workers.close()


# A store's check


def _check_store(url: str | None, as_json: bool) -> None:
    from engine.metadata.lost_logs import lost_logs
    from engine.metadata.restoring import restoration_in
    from engine.repair.outlook import Workshop
    from engine.repair.scrub import Scrub
    from engine.repair.settings import RepairSettings

    async def work(client: "LedgerClient") -> "tuple[ScrubMark, Workshop, dict[str, int], str]":
        filling = await restoration_in(client.store)
        unfinished = filling.command if filling is not None and filling.under_way else ""
        workshop = Workshop(
            store=client.store,
            transport=client.transport,
            clock=client.clock,
            rng=client.rng,
            settings=RepairSettings(copy_bytes_a_second=0),
        )
        with progress() as bar:
            task = bar.add_task("checking", total=None)

            def step(mark: "ScrubMark", total: int) -> None:
                bar.update(task, completed=mark.ledgers, total=total)

            mark = await Scrub(workshop).run(resume=False, progress=step)
        return mark, workshop, await lost_logs(client.store), unfinished

    mark, workshop, lost, unfinished = with_store(url, work)
    whole = not (
        mark.faults or mark.silent or mark.unheld or workshop.unreadable or lost or unfinished
    )
    facts = {
        "whole": whole,
        "ledgers": mark.ledgers,
        "entries": mark.entries,
        "faulty": mark.faults,
        "unheld": mark.unheld,
        "silent": mark.silent,
        "unreadable": sorted(workshop.unreadable),
        "lost_logs": sorted(lost),
        "unfinished": unfinished,
    }
    if as_json:
        print_json([facts])
    else:
        _show_store(facts, workshop.unreadable)
    if not whole:
        raise typer.Exit(1)


def _show_store(facts: dict[str, Any], unreadable: dict[int, str]) -> None:
    typer.echo(
        f"read every replica of {facts['ledgers']:,} ledgers and {facts['entries']:,} entries: "
        f"{facts['faulty']:,} ledgers are faulty, {facts['unheld']:,} have entries that no bookie "
        f"returns, {facts['silent']:,} replicas did not answer"
    )
    for ledger_id, why in sorted(unreadable.items())[:_FINDINGS_SHOWN]:
        typer.echo(f"ledger {ledger_id}: its metadata cannot be read: {why}", err=True)
    for name in facts["lost_logs"]:
        typer.echo(f"log {name}: its list was lost with the metadata", err=True)
    if command := facts["unfinished"]:
        typer.echo(f"this store is not fully restored: `{command}` continues", err=True)
    if facts["faulty"]:
        # The log has already named them.
        typer.echo("follow their repair with `herdbook repair status`", err=True)


# Told


def _run_find(url: str | None) -> str:
    async def found() -> str:
        return find(url)

    return run(found())


def _blocking(work: "Callable[[], BackupCheck]") -> "BackupCheck":
    async def called() -> "BackupCheck":
        return work()

    return run(called())


def _facts(found: "BackupCheck") -> dict[str, Any]:
    manifest = found.manifest
    return {
        "whole": found.whole,
        "number": manifest.number,
        "cluster_id": manifest.cluster_id,
        "of": manifest.kind,
        "version": manifest.version,
        "cut_ms": manifest.cut_ms,
        "ledgers": len(manifest.ledgers),
        "length": manifest.length,
        "files_bytes": found.files_bytes,
        "tablespaces": found.tablespaces,
        "missing": list(found.missing),
        "damaged": list(found.damaged),
        "unfinished": found.unfinished,
        "one_moment": manifest.one_moment,
    }


def _show(found: "BackupCheck", folder: Path) -> None:
    manifest = found.manifest
    print_facts(
        {
            "backup": f"{manifest.number} in {folder}, of a {manifest.kind}",
            "store as of": moment_of(manifest.cut_ms),
            "ledgers": f"{len(manifest.ledgers):,} with {_size(manifest.length)}, "
            f"in files of {_size(found.files_bytes)}",
            "tablespaces": ", ".join(found.tablespaces) or "none",
            "state": "whole" if found.whole else "NOT WHOLE",
        }
    )
    for wrong in (*found.missing, *found.damaged)[:_FINDINGS_SHOWN]:
        typer.echo(wrong, err=True)
    if not manifest.one_moment:
        typer.echo(
            "an earlier version took this backup: its logs may end at different moments; "
            "take a new one",
            err=True,
        )
    if found.unfinished:
        typer.echo("a later backup was begun and is not finished: give the command again", err=True)


@contextmanager
def _bars(*names: str) -> Iterator[list[Callable[[int, int, int], None]]]:
    """A bar of ledgers for each of some steps, and what was read; nothing where nobody looks."""
    with progress() as bar:
        yield [_stepping(bar, name) for name in names]


def _stepping(bar: "Progress", name: str) -> Callable[[int, int, int], None]:
    task = bar.add_task(name, total=None, visible=False)

    def step(done: int, total: int, size_bytes: int) -> None:
        told = f"{name}, {_size(size_bytes)}"
        bar.update(task, completed=done, total=total, description=told, visible=True)

    return step


@contextmanager
def _told(folder: Path) -> Iterator[None]:
    """Files that cannot be read or written end the command with one line."""
    try:
        yield
    except OSError as error:
        _fail(f"{error.filename or folder}: {error.strerror or error}")
    except (EngineError, msgspec.MsgspecError) as error:
        _fail(f"{type(error).__name__}: {error}")


def _size(size_bytes: int) -> str:
    """A size for people.

    >>> _size(700), _size(54_000), _size(3_000_000)
    ('0.7 KiB', '52.7 KiB', '2.9 MiB')
    """
    if size_bytes < _MIB:
        return f"{size_bytes / _KIB:,.1f} KiB"
    return f"{size_bytes / _MIB:,.1f} MiB"


def _fail(text: str) -> NoReturn:
    typer.echo(text, err=True)
    raise typer.Exit(1)
