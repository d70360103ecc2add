"""What every door of the product can be asked, as the product says, and the table of who may.

The table is `doors.txt` beside this file: a line for each action, a word for each role.

    yes      the access check lets it through, whatever comes of it
    no       refused as such: 401, 403, UNAUTHENTICATED, an `AccessRefused` of some kind
    hidden   answered as for something that there is not
    -        the role has no way to this door
"""

import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from broker.http.original_actions import ACTIONS
from broker.http.original_views import VIEWS
from broker.wire.asking import METHODS
from engine.metadata import remote_messages
from engine.transport.frames import Kind
from engine.transport.grpc_generated import access_pb2, bookie_pb2
from engine.transport.server_connection import ServerConnection
from herd.sql import parsing, planning, spaces, system
from herd.sql.statement import Statement
from herd.wire import messages
from herd.wire.grpc_generated import herd_pb2
from tests.attack.fort import ROLES, Fort

TABLE: Final = Path(__file__).with_name("doors.txt")
SQL: Final = ("sql-http", "sql-frames")
SOCKETS: Final = ("socket-own", "socket-other")
WORDS: Final = ("yes", "no", "hidden", "-")
Action = tuple[str, str]
"""The name of a door, and what is asked there."""


def table() -> dict[Action, dict[str, str]]:
    """The table: for each action the word of each role."""
    lines = [line.split() for line in TABLE.read_text(encoding="utf-8").splitlines()]
    found: dict[Action, dict[str, str]] = {}
    for line in lines:
        if not line or line[0].startswith("#"):
            continue
        words = line[-len(ROLES) :]
        action = (line[0], " ".join(line[1 : -len(ROLES)]))
        assert set(words) <= set(WORDS), line
        assert action not in found, f"{action} has two lines"
        found[action] = dict(zip(ROLES, words, strict=True))
    return found


def actions(fort: Fort) -> set[Action]:
    """All that can be asked, found in the product."""
    return {
        *(("node-http", each) for each in _of_http(fort, "node-http")),
        *(("broker-http", each) for each in _of_http(fort, "broker-http")),
        *_of_grpc(),
        *(("broker-ask", name) for name in METHODS),
        *(("herd-frames", kind.__name__) for kind in typing.get_args(messages.Call)),
        *(("bookie-frames", kind) for kind in bookie_kinds(fort)),
        *(
            (door, kind.__name__)
            for door in ("metadata", "metadata-node")
            for kind in typing.get_args(remote_messages.Call)
        ),
        *((door, name) for door in SOCKETS for name in fort.sockets()),
        *((door, f"SELECT FROM {name}") for door in SQL for name in system._TABLES),
    }


def _of_http(fort: Fort, door: str) -> Iterator[str]:
    app = fort.apps[door]
    for route in getattr(app, "app", app).routes:
        for method in sorted(route.methods - {"HEAD"}):
            if route.path == "/majordodo":
                for name in VIEWS if method == "GET" else ACTIONS:
                    yield f"{method} {route.path} {name}"
            elif not route.path.endswith((".js", ".css", ".svg", ".html")):
                yield f"{method} {route.path}"
    yield "GET the files of the console" if door == "node-http" else "GET /healthz"


def _of_grpc() -> Iterator[Action]:
    from broker.wire.grpc_generated import broker_pb2

    for door, described in (
        ("herd-grpc", herd_pb2.DESCRIPTOR),
        ("broker-grpc", broker_pb2.DESCRIPTOR),
        ("bookie-grpc", bookie_pb2.DESCRIPTOR),
        ("login-grpc", access_pb2.DESCRIPTOR),
    ):
        for service in described.services_by_name.values():
            for method in service.methods:
                yield door, method.name


def bookie_kinds(fort: Fort) -> list[str]:
    """The kinds of frames that a bookie's server takes."""

    async def made() -> Any:
        return ServerConnection(fort.bookie_server)

    return [Kind(kind).name for kind in fort.run(made)._handlers]


def statement_words() -> set[str]:
    """The words by which a statement may begin."""
    of_spaces = {f"{verb} {spaces.WORD}" for verb in ("CREATE", "ALTER", "DROP")}
    return {*parsing.CONTROL, *parsing._FIRST, *parsing._UPSERTS, *of_spaces}


def statement_kinds() -> set[str]:
    """The kinds of statements that are planned."""
    return {
        name
        for name, kind in vars(planning).items()
        if isinstance(kind, type) and kind is not Statement and hasattr(kind, "run")
    }
