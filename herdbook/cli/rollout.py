"""`herdbook task rollout`: maintenance of clusters, node by node.

Invariants:
- Exit status 0: it worked; 1: it did not, and why is on standard error; 2: the call was wrong.
- With `--json` standard output carries JSON alone, one object a line.
"""

import sys
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple
from urllib.parse import quote

import msgspec
import typer

from herdbook.cli.store import AsJson, Url
from herdbook.cli.task_store import BrokerUrl, tell, tell_facts, with_tasks, write_json
from herdbook.task_api import TaskApi

app = typer.Typer(
    help="Roll-outs: what is done to the nodes of a cluster, so many at a time.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Name = Annotated[str, typer.Argument(help="The roll-out's name.", metavar="NAME")]
_PAGE: Final = 1_000


def _path(name: str, rest: str = "") -> str:
    return f"/rollouts/{quote(name, safe='')}{rest}"


class _Doing(NamedTuple):
    """Where a roll-out is to be changed, and how that is told."""

    url: str | None
    broker: str | None
    as_json: bool

    def do(self, name: str, what: str, text: str, body: Any = None) -> None:
        """Carry it out, then tell of it."""
        method = "DELETE" if what == "remove" else "POST"
        path = _path(name, "" if what == "remove" else f"/{what}")
        with_tasks(self.url, self.broker, lambda api: api.ask(method, path, body))
        if self.as_json:
            write_json({"rollout": name, "done": what, **(body or {})})
        else:
            typer.echo(text)


@app.command("start")
def start(
    document: Annotated[
        str, typer.Argument(help="The document, a file of JSON; -: standard input.", metavar="FILE")
    ],
    url: Url = None,
    broker: BrokerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Start a roll-out; agents do its steps, the broker's coordinator drives it."""
    try:
        said = sys.stdin.read() if document == "-" else Path(document).read_text("utf-8")
        body = msgspec.json.decode(said)
    except OSError as error:
        raise typer.BadParameter(f"{document} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise typer.BadParameter(f"{document} is no document: {error}") from error
    told = with_tasks(url, broker, lambda api: api.ask("POST", "/rollouts", body))
    if as_json:
        write_json(told)
    else:
        typer.echo(told["name"])


@app.command("ls")
def list_all(url: Url = None, broker: BrokerUrl = None, as_json: AsJson = False) -> None:
    """List roll-outs, those too that have ended."""

    async def pages(api: TaskApi) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        above = ""
        while True:
            query = {"limit": _PAGE, "above": above}
            page = (await api.ask("GET", "/rollouts", query=query))["rollouts"]
            if not page:
                return found
            found += page
            above = page[-1]["name"]

    found = with_tasks(url, broker, pages)
    shown = ("name", "state", "done", "nodes", "counted", "breaker", "why")
    tell(found, as_json, [(each, each) for each in shown])


@app.command("show")
def show(
    name: Name,
    notes: Annotated[bool, typer.Option("--notes", help="Show its audit log instead.")] = False,
    url: Url = None,
    broker: BrokerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show a roll-out and each of its nodes, or its audit log."""
    if notes:
        told = with_tasks(url, broker, lambda api: api.ask("GET", _path(name, "/notes")))
        columns = (("at", "at_ms"), ("by", "by"), ("node", "node"), ("what", "text"))
        tell(told["notes"], as_json, columns)
        return
    told = with_tasks(url, broker, lambda api: api.ask("GET", _path(name)))
    if as_json:
        write_json(told)
        return
    facts = {key: value for key, value in told.items() if key not in ("each", "document")}
    tell_facts(facts, as_json)
    shown = ("node", "phase", "tries", "task_id", "why")
    tell(told["each"], as_json, [(each.removesuffix("_id"), each) for each in shown])


@app.command("pause")
def pause(
    name: Name,
    why: Annotated[str, typer.Option(help="Why; for people.")] = "",
    url: Url = None,
    broker: BrokerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Begin nothing more for now; what has begun is finished and checked."""
    _Doing(url, broker, as_json).do(name, "pause", f"{name} is paused", {"why": why})


@app.command("resume")
def resume(name: Name, url: Url = None, broker: BrokerUrl = None, as_json: AsJson = False) -> None:
    """Go on, without nodes that are gone."""
    _Doing(url, broker, as_json).do(name, "resume", f"{name} goes on")


@app.command("cancel")
def cancel(name: Name, url: Url = None, broker: BrokerUrl = None, as_json: AsJson = False) -> None:
    """Begin nothing more for good; it ends when every node is proven healthy, or cleared."""
    _Doing(url, broker, as_json).do(name, "cancel", f"{name} is being cancelled")


@app.command("clear")
def clear(
    name: Name,
    node: Annotated[str, typer.Argument(help="A node that you know to be healthy.")],
    done: Annotated[
        bool, typer.Option("--done", help="The action was done there; else it is done again.")
    ] = False,
    url: Url = None,
    broker: BrokerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Mark a node as healthy whose state is unknown, or that failed for good."""
    body = {"node": node, "done": done}
    text = f"{node} is cleared: {'done' if done else 'to be done again'}"
    _Doing(url, broker, as_json).do(name, "clear", text, body)


@app.command("remove")
def remove(name: Name, url: Url = None, broker: BrokerUrl = None, as_json: AsJson = False) -> None:
    """Forget a roll-out that has ended, and its audit log."""
    _Doing(url, broker, as_json).do(name, "remove", f"{name} is removed")
