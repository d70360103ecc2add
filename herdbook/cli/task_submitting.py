"""`herdbook task submit`: one task, and waiting for its end.

Invariants:
- Exit status 0: it was taken, and with `--wait-ms` it has finished; 1: it was not, or has another
  end, or none yet; 2: the call was wrong.
"""

import base64
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from herdbook.cli.store import AsJson, Url
from herdbook.cli.task_store import BrokerUrl, say_error, tell_facts, why_waiting, with_tasks
from herdbook.cli.working import Working
from herdbook.task_api import TaskApi

WAIT_STEP_MS: Final = 30_000

Type = Annotated[str, typer.Argument(help="The task's type.", metavar="TYPE")]
Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        help="Arguments by name: width=640 as JSON where it is some, else as text.",
        metavar="[NAME=VALUE]...",
    ),
]
Tenant = Annotated[str, typer.Option(help="Whose it is.")]
Payload = Annotated[str | None, typer.Option(help="The payload, instead of arguments.")]
PayloadFile = Annotated[
    Path | None, typer.Option(help="A file that is the payload; - is standard input.")
]
Priority = Annotated[int, typer.Option(help="Higher ones go first.")]
Delay = Annotated[int, typer.Option(help="Not before so long.", min=0)]
Timeout = Annotated[int, typer.Option(help="It must have ended by then.", min=0)]
TimeLimit = Annotated[int, typer.Option(help="For one attempt.", min=0)]
AttemptsMax = Annotated[
    int, typer.Option(help="How often it may be begun. 0: without limit.", min=0)
]
AtMostOnce = Annotated[bool, typer.Option("--at-most-once", help="Never begin it a second time.")]
Slot = Annotated[str, typer.Option(help="One task at a time has it.")]
UniqueKey = Annotated[str, typer.Option(help="A second task with it is refused.")]
After = Annotated[list[int] | None, typer.Option(help="A task that must succeed first. Repeat it.")]
Wait = Annotated[int, typer.Option(help="Stay until it has ended, at most so long.", min=0)]
Create = Annotated[
    bool, typer.Option("--create", help="Make the store's folder if it is not there.")
]


def submit(
    type_: Type,
    arguments: Arguments = None,
    tenant: Tenant = "",
    payload: Payload = None,
    payload_file: PayloadFile = None,
    priority: Priority = 0,
    delay_ms: Delay = 0,
    timeout_ms: Timeout = 0,
    time_limit_ms: TimeLimit = 0,
    attempts_max: AttemptsMax = 1,
    at_most_once: AtMostOnce = False,
    slot: Slot = "",
    unique_key: UniqueKey = "",
    after: After = None,
    wait_ms: Wait = 0,
    create: Create = False,
    url: Url = None,
    broker: BrokerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Submit a task; prints its id.

    What a function's decorator says, @task(attempts_max=3), counts where a program submits the
    function itself. Here the type is only a name, and these options are all that is known.
    """
    wanted: dict[str, Any] = {
        "type": type_,
        "tenant": tenant,
        "priority": priority,
        "delay_ms": delay_ms,
        "timeout_ms": timeout_ms,
        "time_limit_ms": time_limit_ms,
        "attempts_max": attempts_max,
        "at_most_once": at_most_once,
        "slot": slot,
        "unique_key": unique_key,
        "parents": [{"task_id": task_id} for task_id in after or ()],
        **payload_of(arguments or [], payload, payload_file),
    }
    send = partial(_send, wanted=wanted, wait_ms=wait_ms, hint=not as_json)
    with Working("waiting"):
        told = with_tasks(url, broker, send, create=create)
    if not wait_ms and not as_json:
        typer.echo(told["id"])
        return
    tell_facts({name: value for name, value in told.items() if name != "events"}, as_json)
    if wait_ms and told["status"] != "finished":
        raise _not_finished(told, wait_ms)


def _not_finished(task: dict[str, Any], wait_ms: int) -> typer.Exit:
    if not task["finished_ms"]:
        say_error(f"the wait of {wait_ms} ms is over; task {task['id']} goes on without it")
    return typer.Exit(1)


async def _send(
    api: TaskApi, *, wanted: dict[str, Any], wait_ms: int, hint: bool
) -> dict[str, Any]:
    made: dict[str, Any] = await api.ask("POST", "/tasks", wanted)
    waits = await why_waiting(api, {"type": wanted["type"], "status": "waiting"}) if hint else ""
    if waits:
        # Not among what a script reads.
        say_error(waits)
    return await _ended(api, made["id"], wait_ms) if wait_ms else made


async def _ended(api: TaskApi, task_id: int, wait_ms: int) -> dict[str, Any]:
    """The task when it has ended, or as it is when the time is over."""
    while True:
        step_ms = min(wait_ms, WAIT_STEP_MS)
        task: dict[str, Any] = await api.ask(
            "GET", f"/tasks/{task_id}/wait", query={"timeout_ms": step_ms}
        )
        wait_ms -= step_ms
        if wait_ms <= 0 or task["finished_ms"]:
            return task


def payload_of(
    arguments: list[str], payload: str | None, payload_file: Path | None = None
) -> dict[str, Any]:
    """The fields of a request that say what a task is called with."""
    if sum((bool(arguments), payload is not None, payload_file is not None)) > 1:
        raise typer.BadParameter("arguments, --payload and --payload-file exclude each other")
    if payload is not None:
        _check_text(payload)
        return {"payload": payload}
    if payload_file is not None:
        try:
            data = (
                sys.stdin.buffer.read() if str(payload_file) == "-" else payload_file.read_bytes()
            )
        except OSError as error:
            raise typer.BadParameter(f"{payload_file}: {error.strerror}") from error
        return {"payload_base64": base64.b64encode(data).decode()}
    return {"arguments": dict(map(_argument, arguments))} if arguments else {}


def _check_text(payload: str) -> None:
    """Refuse what is meant to be JSON and is none: a worker would only find that out later."""
    if payload.lstrip()[:1] not in ("{", "["):
        return
    try:
        msgspec.json.decode(payload)
    except msgspec.MsgspecError as error:
        raise typer.BadParameter(
            f"{payload!r} begins like JSON and is none: {error}; bytes that are to be left as "
            "they are go by --payload-file",
            param_hint="--payload",
        ) from error


def _argument(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise typer.BadParameter(f"{text!r} is not as name=value")
    try:
        return name, msgspec.json.decode(value)
    except msgspec.MsgspecError:
        return name, value
