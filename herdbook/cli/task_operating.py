"""`herdbook task`: workers, resources, slots, schedules, settings, pauses.

Invariants:
- Exit status 0: it worked; 1: it did not, and why is on standard error; 2: the call was wrong.
- With `--json` standard output carries JSON alone, one object a line.
"""

from typing import Annotated, Any, Final
from urllib.parse import quote

import msgspec
import typer

from herdbook.cli.store import AsJson, Url
from herdbook.cli.task_store import BrokerUrl, tell, with_tasks, write_json
from herdbook.cli.task_submitting import Arguments, payload_of

SCOPES: Final = {"tenant": "tenants", "type": "types", "schedule": "schedules"}

_OBJECTS: Final = {
    "tenant": '{"weight": 2}',
    "worker": '{"places": 4}',
    "mapping": '{"group": 2}',
    "rate": '{"per_second": 5}',
    "quota": '{"tasks": 1000}',
}
"""Settings that are no mere limit, and what one looks like."""

Scope = Annotated[
    str, typer.Argument(help="tenant:NAME, type:NAME or schedule:NAME.", metavar="SCOPE:NAME")
]


def workers(url: Url = None, broker: BrokerUrl = None, as_json: AsJson = False) -> None:
    """List workers, those too that have left."""
    told = with_tasks(url, broker, lambda api: api.ask("GET", "/workers"))
    shown = ("state", "location", "running", "places", "since_ms")
    tell(told["workers"], as_json, (("worker", "worker_id"), *((each, each) for each in shown)))


def resources(url: Url = None, broker: BrokerUrl = None, as_json: AsJson = False) -> None:
    """List resources and types: how many tasks use them, and how many may."""
    told = with_tasks(url, broker, lambda api: api.ask("GET", "/resources"))
    names = ("name", "kind", "running", "limit", "paused")
    # Of a quota it is what waits.
    shown = [("in use" if each == "running" else each, each) for each in names]
    tell(told["resources"], as_json, shown)


def slots(url: Url = None, broker: BrokerUrl = None, as_json: AsJson = False) -> None:
    """List slots that are held, and the tasks in them."""
    told = with_tasks(url, broker, lambda api: api.ask("GET", "/slots"))
    tell(told["slots"], as_json, (("slot", "slot"), ("task", "task_id")))


def schedules(url: Url = None, broker: BrokerUrl = None, as_json: AsJson = False) -> None:
    """List schedules, when each is due next, and what came of it."""
    told = with_tasks(url, broker, lambda api: api.ask("GET", "/schedules"))
    shown = ["name", "type", "cron", "zone", "interval_ms", "next_due_ms", "paused", "fired"]
    if any(each.get("trouble") for each in told["schedules"]):
        shown.append("trouble")
    tell(told["schedules"], as_json, [(each, each) for each in shown])


def schedule(
    name: Annotated[str, typer.Argument(help="The schedule's name.")],
    type_: Annotated[str, typer.Argument(help="The type of its tasks.", metavar="TYPE")] = "",
    arguments: Arguments = None,
    cron: Annotated[str, typer.Option(help='When, as "5 4 * * *".')] = "",
    zone: Annotated[str, typer.Option(help="In which time zone.")] = "UTC",
    every_ms: Annotated[int, typer.Option(help="Or every so many milliseconds.", min=0)] = 0,
    payload: Annotated[
        str | None, typer.Option(help="Their payload, instead of arguments.")
    ] = None,
    tenant: Annotated[str, typer.Option(help="Whose they are.")] = "",
    remove: Annotated[bool, typer.Option("--remove", help="Remove the schedule instead.")] = False,
    url: Url = None,
    broker: BrokerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Add or replace a schedule, or remove it.

    What it submits counts for its tenant's quota and is never refused by it.
    """
    path = f"/schedules/{quote(name, safe='')}"
    if remove:
        told = with_tasks(url, broker, lambda api: api.ask("DELETE", path))
    else:
        if not type_:
            raise typer.BadParameter("a schedule submits tasks of a TYPE")
        if bool(cron) == bool(every_ms):
            raise typer.BadParameter("a schedule has --cron or --every-ms, one of the two")
        wanted: dict[str, Any] = {
            "task": {"type": type_, "tenant": tenant, **payload_of(arguments or [], payload)},
            "cron": cron,
            "zone": zone,
            "interval_ms": every_ms,
        }
        told = with_tasks(url, broker, lambda api: api.ask("PUT", path, wanted))
    if as_json:
        write_json(told)
    else:
        typer.echo(f"schedule {name} is {'removed' if remove else 'set'}")


def change(
    kind: Annotated[
        str | None,
        typer.Argument(
            help="resource, type, tenant, worker, mapping, rate or quota (which schedules, "
            "retries and roll-outs pass). None: list all."
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Argument(help="Of what. The mapping * is that of all other tenants.")
    ] = None,
    value: Annotated[
        str | None,
        typer.Argument(help="JSON, or for a limit a number.", metavar="VALUE"),
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Take the setting away.")] = False,
    url: Url = None,
    broker: BrokerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Change a setting, which counts from the next assignment on; or list settings."""
    if name is None:
        query = {"kind": kind}
        told = with_tasks(url, broker, lambda api: api.ask("GET", "/settings", query=query))
        tell(told["settings"], as_json, [(each, each) for each in ("kind", "name", "value")])
        return
    path = f"/settings/{quote(kind or '', safe='')}/{quote(name, safe='')}"
    if remove == (value is not None):
        raise typer.BadParameter("give a VALUE, or --remove")
    if value is None:
        told = with_tasks(url, broker, lambda api: api.ask("DELETE", path))
    else:
        setting = _setting(kind or "", value)
        told = with_tasks(url, broker, lambda api: api.ask("PUT", path, setting))
    _tell_change(told, f"{kind} {name} {'is taken away' if remove else 'is set'}", as_json)


def _setting(kind: str, value: str) -> Any:
    try:
        setting = msgspec.json.decode(value)
    except msgspec.MsgspecError as error:
        raise typer.BadParameter(f"{value!r} is no JSON: {error}") from error
    if not isinstance(setting, int):
        return setting
    if kind in _OBJECTS:
        raise typer.BadParameter(f"a {kind} is set to an object, as '{_OBJECTS[kind]}'")
    return {"limit": setting}


def pause(
    scope: Scope,
    reason: Annotated[str, typer.Option(help="Why; for people.")] = "",
    url: Url = None,
    broker: BrokerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Let nothing more begin of a tenant, a type or a schedule; what runs goes on."""
    path = _scope(scope)
    body = None if path.startswith("/schedules/") else {"reason": reason}
    told = with_tasks(url, broker, lambda api: api.ask("POST", f"{path}/pause", body))
    _tell_change(told, f"{scope} is paused", as_json)


def resume(
    scope: Scope, url: Url = None, broker: BrokerUrl = None, as_json: AsJson = False
) -> None:
    """Take a pause away."""
    path = _scope(scope)
    told = with_tasks(url, broker, lambda api: api.ask("POST", f"{path}/resume"))
    _tell_change(told, f"{scope} goes on", as_json)


def _scope(scope: str) -> str:
    kind, colon, name = scope.partition(":")
    if not colon or not name or kind not in SCOPES:
        raise typer.BadParameter(f"{scope!r} is not tenant:NAME, type:NAME or schedule:NAME")
    return f"/{SCOPES[kind]}/{quote(name, safe='')}"


def _tell_change(told: dict[str, Any], text: str, as_json: bool) -> None:
    if as_json:
        write_json(told)
    else:
        typer.echo(text if told.get("changed", True) else f"{text} already")


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (workers, resources, slots, schedules, schedule, pause, resume):
        app.command()(command)
    app.command("set")(change)
