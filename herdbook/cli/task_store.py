"""What the commands of `herdbook task` share: the broker they ask, and how they tell and end.

Invariants:
- Exit status 0: it worked; 1: it did not, and why is on standard error; 2: the call was wrong.
- With `--json` standard output carries JSON alone, one object a line.
"""

import sys
from collections.abc import Awaitable, Callable, Iterable
from typing import Annotated, Any, TypeVar

import msgspec
import typer

from broker.connection import ANY_MODULE
from broker.errors import BrokerError
from herdbook.cli.sql_errors import harmless
from herdbook.cli.statuses import status_of
from herdbook.cli.store import moment_of, print_facts, print_table, run
from herdbook.cli.working import aside
from herdbook.task_api import TaskApi, open_tasks

R = TypeVar("R")
_WAITING = ("waiting", "delayed", "blocked")

BrokerUrl = Annotated[
    str | None,
    typer.Option(
        "--broker",
        help="The HTTP address of a broker, http://user:password@host:port, instead of a store.",
        show_default=False,
    ),
]
TaskIds = Annotated[list[int], typer.Argument(help="The tasks' ids.", metavar="ID", min=1)]
PAGE_TASKS = 1_000
DEFAULT_TENANT = "default"
LISTED = (
    ("id", "id"),
    ("status", "status"),
    ("type", "type"),
    ("tenant", "tenant"),
    ("try", "attempt"),
    ("worker", "worker_id"),
    ("slot", "slot"),
    ("error", "error"),
)


def with_tasks(
    url: str | None,
    broker: str | None,
    work: Callable[[TaskApi], Awaitable[R]],
    *,
    create: bool = False,
) -> R:
    """Reach the broker, do the work; an error ends the command."""

    async def opened() -> R:
        async with open_tasks(url, broker, create=create) as api:
            return await work(api)

    try:
        return run(opened())
    except BrokerError as error:
        say_error(f"{type(error).__name__}: {error}")
        raise typer.Exit(status_of(error)) from error


async def why_waiting(api: TaskApi, task: dict[str, Any]) -> str:
    """What a task waits for that somebody may not have thought of: a worker; "": nothing such."""
    if task["status"] not in _WAITING:
        return ""
    try:
        workers = (await api.ask("GET", "/workers"))["workers"]
    except BrokerError:
        # A tenant's user may not look: nothing is known then.
        return ""
    linked = [each for each in workers if each["linked"]]
    kind, module = task["type"], ANY_MODULE if ":" in task["type"] else task["type"]
    if any(not each["types"] or {kind, module} & set(each["types"]) for each in linked):
        return ""
    some = "no worker is connected" if not linked else "no connected worker runs that type"
    return f"{some}: {kind} waits until one does (herdbook worker --tasks MODULE)"


def say_error(text: str) -> None:
    """One line on standard error, behind what was written until now."""
    with aside():
        sys.stdout.flush()
        typer.echo(harmless(" ".join(text.split())), err=True)


def write_json(value: Any) -> None:
    """One object on a line of standard output."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")


def tell_tasks(found: list[dict[str, Any]], as_json: bool) -> None:
    """Many tasks: JSON, or a table of one line each that fits a screen; `show` tells the rest."""
    if as_json:
        tell(found, as_json, LISTED)
        return
    alone = all(each["tenant"] == DEFAULT_TENANT for each in found)
    rows = []
    for each in found:
        row = {**each, "error": (each.get("error") or "").partition("\n")[0]}
        if alone:
            row["tenant"] = ""
        rows.append([_cell(name, row.get(name)) for _, name in LISTED])
    headings = [heading for heading, _ in LISTED]
    print_table(headings, rows, cut=set(headings) - {"id", "status"})


def tell(found: Iterable[dict[str, Any]], as_json: bool, shown: Iterable[tuple[str, str]]) -> None:
    """Many things: JSON, or a table with those columns, each a heading and a field."""
    if as_json:
        for each in found:
            write_json(each)
        return
    columns = list(shown)
    rows = [[_cell(name, each.get(name)) for _, name in columns] for each in found]
    print_table([_heading(heading) for heading, _ in columns], rows)


def tell_facts(facts: dict[str, Any], as_json: bool) -> None:
    """One thing: JSON, or what of it is not empty."""
    if as_json:
        write_json(facts)
        return
    print_facts(
        {
            _heading(name): _cell(name, value)
            for name, value in facts.items()
            if value not in (None, "", [], 0, False)
        }
    )


def _heading(name: str) -> str:
    return name.removesuffix("_ms") if _is_moment(name) else name


def _is_moment(name: str) -> bool:
    return name.endswith("_ms") and name not in ("time_limit_ms", "retention_ms", "interval_ms")


def _cell(name: str, value: Any) -> str:
    if value is None or value == "":
        return ""
    if _is_moment(name):
        return moment_of(value) if value else ""
    if isinstance(value, list | dict):
        return harmless(msgspec.json.encode(value).decode())
    return harmless(str(value), newlines=True)
