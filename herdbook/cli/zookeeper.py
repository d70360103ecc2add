"""`herdbook zookeeper`: a real ZooKeeper server in the foreground, for development and small sites.

Invariants:
- The server ends with the command: on SIGINT and SIGTERM it is stopped, and the status is 0; on
  Linux it ends even when the command is killed.
- A server that ends by itself ends the command with status 1.
"""

import signal
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from engine.errors import EngineError
from engine.folder.modes import set_private_umask
from herdbook.cli.store import refuse_url_as_data
from herdbook.zookeeper_server import ZooKeeperServer

PORT_DEFAULT = 2181


class _Asked(BaseException):
    """A signal asked the command to end. No `except Exception` on the way may catch it."""


def zookeeper(
    data: Annotated[Path, typer.Option(help="Where the server keeps its data and its log.")],
    port: Annotated[
        int, typer.Option(help="The port for clients; 0 takes a free one.", min=0, max=65_535)
    ] = PORT_DEFAULT,
    listen: Annotated[
        str, typer.Option(help="The address to listen on; 0.0.0.0 is every address.")
    ] = "127.0.0.1",
) -> None:
    """Run a ZooKeeper server until it is told to stop. Its address is the first line printed."""
    refuse_url_as_data(data, "the server keeps its data in a folder of this machine")
    set_private_umask()
    server = ZooKeeperServer(data, port=port, host=listen, ends_with_parent=True)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _ask)
    try:
        server.start()
        typer.echo(server.hosts)
        status = server.wait()
    except _Asked:
        return
    except (EngineError, OSError) as error:
        typer.echo(f"{error}", err=True)
        raise typer.Exit(1) from error
    finally:
        server.stop()
    typer.echo(f"the server ended by itself with status {status}, see {server.log}", err=True)
    raise typer.Exit(1)


def _ask(number: int, frame: FrameType | None) -> None:
    raise _Asked
