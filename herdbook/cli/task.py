"""`herdbook task`: tasks of a broker, and the broker's limits; of a folder or of a cluster.

Invariants:
- Exit status 0: it worked; 1: it did not, and why is on standard error; 2: the call was wrong.
- With `--json` standard output carries JSON alone, one object a line.
- Of several ids each is told by itself; one that could not be dealt with makes the status 1.
"""

from typing import Annotated, Any

import typer

from herdbook.cli.rollout import app as rollouts
from herdbook.cli.store import AsJson, Url
from herdbook.cli.task_operating import add_to as add_operating
from herdbook.cli.task_serving import serve
from herdbook.cli.task_store import (
    PAGE_TASKS,
    BrokerUrl,
    TaskIds,
    say_error,
    tell,
    tell_facts,
    tell_tasks,
    why_waiting,
    with_tasks,
    write_json,
)
from herdbook.cli.task_submitting import submit
from herdbook.task_api import TaskApi

app = typer.Typer(
    help="Submit tasks, follow them, set limits.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.command("submit")(submit)
app.command("serve")(serve)
add_operating(app)
app.add_typer(rollouts, name="rollout")

Tenant = Annotated[str, typer.Option(help="Whose they are.")]
Type = Annotated[str, typer.Option("--type", help="Of which type.")]
Limit = Annotated[int, typer.Option(help="At most so many.", min=1)]
Token = Annotated[int, typer.Option(help="Go on above this id.", min=0)]


@app.command("ls")
def list_tasks(
    status: Annotated[str, typer.Option(help="waiting, running, finished, error, ...")] = "",
    tenant: Tenant = "",
    type_: Type = "",
    worker: Annotated[str, typer.Option(help="The worker that has or had them.")] = "",
    slot: Annotated[str, typer.Option(help="The slot that they hold.")] = "",
    limit: Limit = 100,
    token: Token = 0,
    url: Url = None,
    broker: BrokerUrl = None,
    as_json: AsJson = False,
) -> None:
    """List tasks in the order of their ids."""
    query = {
        "status": status,
        "tenant": tenant,
        "type": type_,
        "worker_id": worker,
        "slot": slot,
    }
    found = with_tasks(url, broker, lambda api: _pages(api, "/tasks", query, limit, token))
    tell_tasks(found, as_json)


@app.command("dead")
def list_dead(
    tenant: Tenant = "",
    type_: Type = "",
    limit: Limit = 100,
    token: Token = 0,
    url: Url = None,
    broker: BrokerUrl = None,
    as_json: AsJson = False,
) -> None:
    """List tasks that failed for good: look at them, then retry or delete them."""
    query = {"tenant": tenant, "type": type_}
    found = with_tasks(url, broker, lambda api: _pages(api, "/dead-letters", query, limit, token))
    tell_tasks(found, as_json)


async def _pages(
    api: TaskApi, path: str, query: dict[str, str], limit: int, token: int | None
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while token is not None and len(found) < limit:
        asked = {**query, "token": token, "limit": min(limit - len(found), PAGE_TASKS)}
        page = await api.ask("GET", path, query=asked)
        found += page["tasks"]
        token = page.get("token")
    return found


@app.command("show")
def show(
    task_id: Annotated[int, typer.Argument(help="The task's id.", metavar="ID", min=1)],
    url: Url = None,
    broker: BrokerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show all that is known of a task: payload, result, what happened to it."""

    async def look(api: TaskApi) -> tuple[dict[str, Any], str]:
        task: dict[str, Any] = await api.ask("GET", f"/tasks/{task_id}")
        return task, "" if as_json else await why_waiting(api, task)

    told, waits = with_tasks(url, broker, look)
    events = told.get("events", [])
    if as_json:
        write_json(told)
        return
    tell_facts({name: value for name, value in told.items() if name != "events"}, as_json)
    shown = (("at", "at_ms"), ("event", "kind"), ("attempt", "attempt"), ("who", "who"))
    tell(events, as_json, (*shown, ("detail", "detail")))
    if waits:
        typer.echo(waits)


def _act(what: str, url: str | None, broker: str | None, ids: list[int], as_json: bool) -> None:
    async def act(api: TaskApi) -> list[dict[str, Any]]:
        told = await api.ask("POST", f"/tasks/{what}", {"ids": ids})
        results: list[dict[str, Any]] = told["results"]
        return results

    wrong = False
    for each in with_tasks(url, broker, act):
        error = each.get("error")
        if as_json:
            write_json(each)
        elif error:
            say_error(error["message"])
        else:
            typer.echo(f"task {each['id']}: {each['outcome']}")
        wrong = wrong or bool(error)
    if wrong:
        raise typer.Exit(1)


@app.command("cancel")
def cancel(
    ids: TaskIds, url: Url = None, broker: BrokerUrl = None, as_json: AsJson = False
) -> None:
    """End tasks: at once, or as soon as their workers can."""
    _act("cancel", url, broker, ids, as_json)


@app.command("retry")
def retry(ids: TaskIds, url: Url = None, broker: BrokerUrl = None, as_json: AsJson = False) -> None:
    """Begin ended tasks anew, dead letters among them."""
    _act("retry", url, broker, ids, as_json)


@app.command("delete")
def delete(
    ids: TaskIds, url: Url = None, broker: BrokerUrl = None, as_json: AsJson = False
) -> None:
    """Remove ended tasks and their results now."""
    _act("delete", url, broker, ids, as_json)
