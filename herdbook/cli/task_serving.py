"""`herdbook task serve`: a broker's HTTP, until told to stop.

Invariants:
- The first line that it prints says where it serves; it comes when it does.
- Exit status 0: it was told to stop; 1: it could not serve; 2: the call was wrong.
"""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from herdbook.cli.statuses import status_of
from herdbook.cli.store import Url, run, warn_of_clear_password

Certificate = Annotated[Path | None, typer.Option(help="Of this server, PEM.")]
PrivateKey = Annotated[Path | None, typer.Option(help="Its key, PEM.")]
State = Annotated[Path | None, typer.Option(help="Where a cluster's broker keeps its rows.")]
Lease = Annotated[
    int, typer.Option(help="So long a worker that falls silent keeps its tasks.", min=500)
]
AdvertiseHttp = Annotated[
    str, typer.Option(help="The url that others ask instead of --listen: http://host:port.")
]


Listen = Annotated[str, typer.Option(help="Where to serve HTTP: host:port; port 0: a free one.")]
Grpc = Annotated[str, typer.Option(help="Where to serve gRPC, to workers among others: host:port.")]
Advertise = Annotated[
    str, typer.Option(help="What others dial instead of --grpc, behind a translation.")
]
Users = Annotated[
    Path | None,
    typer.Option(help="Who may log in: a file with [users.NAME], password = and admin =."),
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Serve other machines without any login.")
]
Discover = Annotated[
    list[str] | None,
    typer.Option(
        help="NAME=COMMAND: what lists the nodes of roll-outs that say command:NAME. Repeat it."
    ),
]
OnAlarm = Annotated[
    str,
    typer.Option(help="A command for each alarm of roll-outs, as JSON on its standard input."),
]
Proxy = Annotated[
    list[str] | None,
    typer.Option(
        help="The address or network of a proxy whose X-Forwarded-For is trusted. Repeat it."
    ),
]


def serve(
    listen: Listen = "127.0.0.1:7364",
    grpc: Grpc = "",
    advertise: Advertise = "",
    advertise_http: AdvertiseHttp = "",
    state: State = None,
    lease_ms: Lease = 10_000,
    users: Users = None,
    insecure: Insecure = False,
    certificate: Certificate = None,
    private_key: PrivateKey = None,
    discover: Discover = None,
    on_alarm: OnAlarm = "",
    proxy: Proxy = None,
    url: Url = None,
) -> None:
    """Serve the HTTP interfaces of a folder's broker, or as a broker of a cluster."""
    from broker.errors import BrokerError
    from engine.folder.modes import set_private_umask
    from herdbook.task_server import TaskServerSettings, renewed_users, serve_tasks

    set_private_umask()
    warn_of_clear_password(url)

    async def work() -> None:
        known = renewed_users(users) if users is not None else ()
        settings = TaskServerSettings(
            listen,
            grpc,
            advertise,
            advertise_http,
            state,
            known,
            insecure,
            certificate,
            private_key,
            lease_ms,
            _commands(discover),
            _words(on_alarm),
            tuple(proxy or ()),
        )
        await serve_tasks(url, settings, lambda at: typer.echo(f"the broker serves at {at}"))

    try:
        run(work())
    except BrokerError as error:
        typer.echo(f"{type(error).__name__}: {error}", err=True)
        raise typer.Exit(status_of(error)) from error


def _commands(given: list[str] | None) -> dict[str, tuple[str, ...]]:
    """`name=command with its arguments`, each."""
    found = {}
    for each in given or ():
        name, equals, command = each.partition("=")
        if not name or not equals or not command.strip():
            raise typer.BadParameter(f"{each} is not as name=command", param_hint="--discover")
        found[name] = _words(command)
    return found


def _words(command: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(command))
    except ValueError as error:
        raise typer.BadParameter(f"{command}: {error}") from error
