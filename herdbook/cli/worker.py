"""`herdbook worker`: run tasks on this machine.

Invariants:
- The first line that it prints says what it runs; it comes when its processes are ready.
- Exit status 0: drained, and all that ran has ended; 3: drained, and what ran too long was ended;
  1: it did not work, and why is on standard error; 2: the call was wrong.
"""

import os
import socket
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from herdbook.cli.statuses import status_of
from herdbook.cli.store import Url, run, warn_of_clear_password

if TYPE_CHECKING:
    from broker.worker.pool import Pool
    from broker.worker.worker import Worker
    from herdbook.worker_process import WorkerChoice

ENDED_TASKS: Final = 3
_MIB: Final = 1024 * 1024
_PLACES_A_PROCESS: Final = 20
_PROBE_S: Final = 2.0
_HTTP: Final = b"HTTP/1"
# What begins each connection of gRPC, with empty settings. Servers of HTTP/1 refuse it in words.
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))


Tasks = Annotated[
    list[str],
    typer.Option(help="A module whose @task functions are run, as my.module. Repeat it."),
]
Brokers = Annotated[
    list[str] | None,
    typer.Option(help="A broker's gRPC address, host:port, instead of a store. Repeat it."),
]
Name = Annotated[str, typer.Option(help="What it is called. Default: host and process number.")]
Processes = Annotated[
    int, typer.Option(help="How many child processes run tasks. 0: one a processor.", min=0)
]
Places = Annotated[
    int,
    typer.Option(help="How many tasks run at the same time. 0: 20 a process.", min=0),
]
Ahead = Annotated[
    int,
    typer.Option(help="So many more tasks wait here, assigned, for others to end.", min=0),
]
OfTypes = Annotated[
    list[str] | None,
    typer.Option(help="At most so many of a type, as resize=2; any=8: of others. Repeat it."),
]
Groups = Annotated[
    list[int] | None,
    typer.Option(help="A group, in the order to serve them; 0: any. Repeat it."),
]
Excluded = Annotated[
    list[int] | None, typer.Option(help="A group that is never served. Repeat it.")
]
OfResources = Annotated[
    list[str] | None,
    typer.Option(help="At most so many that use a resource here, as gpu=1. Repeat it."),
]
Share = Annotated[
    int, typer.Option(help="How much of the free places one tenant may have.", min=0, max=100)
]
Memory = Annotated[
    int, typer.Option(help="End a child process that has more in memory. 0: never.", min=0)
]
CodePools = Annotated[
    bool,
    typer.Option(
        "--code-pools",
        help="Run tasks that bring their own code, too: those of the types module:function.",
    ),
]
Agent = Annotated[
    str,
    typer.Option(
        help="Be the agent of this node: take the steps of roll-outs there, and nothing else.",
    ),
]
Drain = Annotated[int, typer.Option(help="How long tasks may go on after a SIGTERM.", min=0)]


def worker(
    tasks: Tasks,
    url: Url = None,
    broker: Brokers = None,
    name: Name = "",
    processes: Processes = 0,
    places: Places = 0,
    ahead: Ahead = 0,
    place: OfTypes = None,
    group: Groups = None,
    exclude: Excluded = None,
    resource: OfResources = None,
    share_percent: Share = 0,
    memory_limit_mib: Memory = 0,
    code_pools: CodePools = False,
    drain_ms: Drain = 30_000,
    agent: Agent = "",
) -> None:
    """Run tasks until told to stop. SIGTERM drains, a second one ends what still runs."""
    from broker.connection import WorkerLimits
    from herdbook.worker_process import WorkerChoice

    for address in broker or ():
        _check_wire(address, *_host_port(address))
    if not broker:
        warn_of_clear_password(url)
    many = processes or os.cpu_count() or 1
    limits = WorkerLimits(
        (places or many * _PLACES_A_PROCESS) + ahead,
        _numbers("--place", place),
        tuple(group or (0,)),
        tuple(exclude or ()),
        _numbers("--resource", resource),
        share_percent,
    )
    choice = WorkerChoice(
        tuple(_module(each) for each in tasks),
        limits,
        many,
        url,
        tuple(broker or ()),
        name,
        memory_limit_mib * _MIB,
        drain_ms,
        ahead,
        code_pools,
        agent,
    )
    _work(choice)


def _work(choice: "WorkerChoice") -> None:
    from broker.errors import BrokerError
    from herdbook.worker_process import run_worker

    try:
        whole = run(run_worker(choice, _say, partial(_say_leaving, choice.drain_ms)))
    except BrokerError as error:
        typer.echo(f"{type(error).__name__}: {error}", err=True)
        raise typer.Exit(status_of(error)) from error
    if not whole:
        typer.echo("the worker has left; tasks that ran too long were ended", err=True)
        raise typer.Exit(ENDED_TASKS)
    typer.echo("the worker has left")


def _say_leaving(drain_ms: int) -> None:
    typer.echo(
        f"leaving: tasks that run may take up to {drain_ms / 1000:g} s to end; "
        "Ctrl-C again ends them at once",
        err=True,
    )


def _say(worker: "Worker", pool: "Pool") -> None:
    limits = worker.limits
    types = f"tasks of the types {', '.join(worker.types)}" if worker.types else "all tasks"
    typer.echo(
        f"worker {worker.worker_id}: {limits.places} places in {pool.processes} processes, "
        f"for {types}"
    )


def _host_port(address: str) -> tuple[str, int]:
    from engine.errors import InvalidRequest
    from engine.transport.address import parse_host_port

    try:
        return parse_host_port(address)
    except InvalidRequest as error:
        raise typer.BadParameter(str(error), param_hint="--broker") from error


def _check_wire(address: str, host: str, port: int) -> None:
    """End the command if HTTP is spoken there; who does not answer may do so later."""
    try:
        with socket.create_connection((host, port), _PROBE_S) as probe:
            probe.settimeout(_PROBE_S)
            probe.sendall(_PREFACE)
            answer = probe.recv(len(_HTTP))
    except OSError:
        return
    if answer == _HTTP:
        raise typer.BadParameter(
            f"{address} speaks HTTP: name the broker's gRPC address, which herdbook serve --status "
            "shows beside it",
            param_hint="--broker",
        )


def _module(name: str) -> str:
    """A module's name, also of one that is given as a file."""
    if "," in name:
        each = " ".join(f"--tasks {one.strip()}" for one in name.split(",") if one.strip())
        raise typer.BadParameter(f"say {each}, an option for each", param_hint="--tasks")
    if name.endswith(".py"):
        return ".".join(Path(name).with_suffix("").parts)
    if not all(part.isidentifier() for part in name.split(".")):
        raise typer.BadParameter(f"{name} is no module's name", param_hint="--tasks")
    return name


def _numbers(option: str, given: list[str] | None) -> dict[str, int]:
    """`name=number`, each."""
    found: dict[str, int] = {}
    for each in given or ():
        name, equals, number = each.rpartition("=")
        if not equals or not name or not (number.isascii() and number.isdigit()):
            raise typer.BadParameter(f"{each} is not as name=2", param_hint=option)
        found[name] = int(number)
    return found
