"""`herdbook user`: users of a store, what they may, their tokens.

Invariants:
- A password is never an argument: others of this machine see a command's arguments.
- A token is printed once, alone on standard output; nobody can show it again.
- With `--json` standard output carries JSON alone.
"""

import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from engine.access.principal import ALL, Grant, Principal
from engine.access.secret_files import why_not_private
from engine.errors import InvalidRequest
from engine.ports.clock import SystemClock
from herdbook.cli.store import AsJson, Url, moment_of, print_json, print_table, run
from herdbook.finding import check_store, find, is_cluster
from herdbook.task_api import read_configured

if TYPE_CHECKING:
    from herdbook.access.rows import UserRows

R = TypeVar("R")
_UNITS_MS: Final = {"m": 60_000, "h": 3_600_000, "d": 86_400_000}
_STDIN: Final = "-"
_NEEDS_SECRET: Final = (
    "a cluster with users has a shared secret, by which its nodes know each other: give "
    "secret_file in [security] of the configuration file, here and at every node"
)

app = typer.Typer(
    help="Manage the users of a store, their rights and tokens.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


class KindName(StrEnum):
    """The kinds of things that a grant is for."""

    TABLESPACE = "tablespace"
    BUCKET = "bucket"
    TENANT = "tenant"


class RightName(StrEnum):
    """The rights that a grant gives; each has those before it."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"


Name = Annotated[str, typer.Argument(help="The user's name.")]
GrantKind = Annotated[KindName, typer.Argument(help="What the thing is.")]
GrantRight = Annotated[RightName, typer.Argument(help="What they may do with it.")]
Thing = Annotated[str, typer.Argument(help=f"Its name, or '{ALL}' for all of that kind.")]
PasswordFile = Annotated[
    str,
    typer.Option(help="The file of the password, - for standard input. Default: ask for it."),
]


@app.command("add")
def add_user(
    name: Name,
    admin: Annotated[bool, typer.Option("--admin", help="May do everything.")] = False,
    password_file: PasswordFile = "",
    no_password: Annotated[
        bool, typer.Option("--no-password", help="Comes by tokens alone.")
    ] = False,
    url: Url = None,
) -> None:
    """Add a user. The first one of a store makes its system tablespace."""
    password = "" if no_password else _password(password_file)

    async def add(rows: "UserRows") -> bool:
        first = not await rows.any()
        await rows.add(name, password, admin=admin)
        return first

    first = with_users(url, add)
    typer.echo(f"user {name} is added{', an administrator' if admin else ''}")
    if first:
        typer.echo("this store has users now: who comes without a login is refused", err=True)


@app.command("passwd")
def set_password(name: Name, password_file: PasswordFile = "", url: Url = None) -> None:
    """Give a user another password. Sessions that are open go on."""
    password = _password(password_file)
    with_users(url, lambda rows: rows.set_password(name, password))


@app.command("rm")
def remove_user(name: Name, url: Url = None) -> None:
    """Remove a user with grants and tokens. Their sessions end within seconds."""

    async def remove(rows: "UserRows") -> bool:
        await rows.remove(name)
        return await rows.any()

    left = with_users(url, remove)
    typer.echo(f"user {name} is removed")
    if not left:
        typer.echo("this store has no users any more: it is open as it was before", err=True)


@app.command("grant")
def grant(
    name: Name,
    kind: GrantKind,
    thing: Thing,
    right: GrantRight,
    url: Url = None,
) -> None:
    """Let a user read, write or administer a tablespace, a bucket or a tenant's tasks."""
    given = Grant(kind.value, _lowered(kind, thing), right.value)
    with_users(url, lambda rows: rows.grant(name, given))
    typer.echo(f"{name} may {right.value} {kind.value} {given.name}")


@app.command("revoke")
def revoke(name: Name, kind: GrantKind, thing: Thing, url: Url = None) -> None:
    """Take a grant back. It ends within seconds."""
    found = with_users(url, lambda rows: rows.revoke(name, kind.value, _lowered(kind, thing)))
    if not found:
        typer.echo(f"{name} has no grant to {kind.value} {thing}", err=True)
        raise typer.Exit(1)
    typer.echo(f"{name} has no grant to {kind.value} {_lowered(kind, thing)} any more")


@app.command("token")
def make_token(
    name: Name,
    lifetime: Annotated[
        str, typer.Option("--for", help="How long it is good: 30m, 12h, 90d. Default: for ever.")
    ] = "",
    note: Annotated[str, typer.Option(help="What it is for, to be told apart in ls.")] = "",
    end: Annotated[str, typer.Option("--revoke", help="End the token of this id instead.")] = "",
    url: Url = None,
) -> None:
    """Make a token by which programs come as a user, and print it; or end one."""
    if end:

        async def revoke(rows: "UserRows") -> bool:
            own = {token.id for token in await rows.tokens(name)}
            return end in own and await rows.revoke_token(end)

        if not with_users(url, revoke):
            typer.echo(f"{name} has no token {end}", err=True)
            raise typer.Exit(1)
        return
    clock = SystemClock()
    expires_ms = clock.wall_ms() + _milliseconds(lifetime) if lifetime else 0
    typer.echo(
        with_users(url, lambda rows: rows.make_token(name, expires_ms=expires_ms, note=note))
    )


@app.command("ls")
def list_users(url: Url = None, as_json: AsJson = False) -> None:
    """List users with their grants and tokens."""

    async def look(rows: "UserRows") -> list[dict[str, Any]]:
        tokens = await rows.tokens()
        return [
            _facts(user) | {"tokens": [_token(one) for one in tokens if one.owner == user.name]}
            for user in await rows.all()
        ]

    facts = with_users(url, look)
    if as_json:
        print_json(facts)
        return
    if not facts:
        typer.echo("no users: anybody who reaches the store can use it")
        return
    print_table(("user", "administrator", "grants", "tokens"), (_row(each) for each in facts))


def with_users(url: str | None, work: "Callable[[UserRows], Awaitable[R]]") -> R:
    """Open the users of the store that the rule finds, do the work; an error ends the command."""

    async def opened() -> R:
        async with open_users(url) as rows:
            return await work(rows)

    return run(opened())


@asynccontextmanager
async def open_users(url: str | None) -> "AsyncIterator[UserRows]":
    """The users of the store that the rule finds.

    Raises `StoreNotFound`, `InvalidRequest`, and `MetadataUnavailable` for one out of reach.
    """
    from engine.errors import MetadataUnavailable
    from herd.errors import Error
    from herd.reaching import open_any
    from herdbook.access.rows import UserRows

    configuration = read_configured()
    found = find(url, configuration=configuration)
    security = zookeeper = None
    if is_cluster(found):
        security, zookeeper = configuration.make_security(), configuration.make_zookeeper()
        if not (security.secret or security.logs_in):
            raise InvalidRequest(_NEEDS_SECRET)
    else:
        check_store(Path(found))
    try:
        async with open_any(found, security=security, zookeeper=zookeeper) as herd:
            yield UserRows(herd, SystemClock())
    except Error as error:
        raise MetadataUnavailable(str(error)) from error


def _password(file: str) -> str:
    if not file:
        if not sys.stdin.isatty():
            raise typer.BadParameter(
                "nobody is here to type it: give --password-file FILE, or - for standard input"
            )
        return str(typer.prompt("Password", hide_input=True, confirmation_prompt=True))
    try:
        if file != _STDIN and (why := why_not_private(Path(file))):
            raise typer.BadParameter(why, param_hint="--password-file")
        text = sys.stdin.read() if file == _STDIN else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise typer.BadParameter(f"{file} cannot be read: {error}") from error
    password = text.rstrip("\r\n")
    if not password:
        raise typer.BadParameter("the password is empty: --no-password says that there is none")
    return password


def _milliseconds(text: str) -> int:
    number, unit = text[:-1], text[-1:]
    if not number.isdecimal() or not int(number) or unit not in _UNITS_MS:
        raise typer.BadParameter(f"{text} is no time as 30m, 12h or 90d", param_hint="--for")
    return int(number) * _UNITS_MS[unit]


def _lowered(kind: KindName, thing: str) -> str:
    """Names of tablespaces are in small letters, whoever writes them."""
    return thing.lower() if kind is KindName.TABLESPACE else thing


def _facts(user: Principal) -> dict[str, Any]:
    grants = [{"kind": one.kind, "name": one.name, "right": one.right} for one in user.grants]
    return {"name": user.name, "admin": user.admin, "grants": grants}


def _token(token: Any) -> dict[str, Any]:
    return {"id": token.id, "expires_ms": token.expires_ms or None, "note": token.note}


def _row(facts: dict[str, Any]) -> list[str]:
    grants = [f"{one['kind']} {one['name']} {one['right']}" for one in facts["grants"]]
    tokens = [_token_text(one) for one in facts["tokens"]]
    admin = "yes" if facts["admin"] else ""
    return [facts["name"], admin, "\n".join(grants), "\n".join(tokens)]


def _token_text(token: dict[str, Any]) -> str:
    until = f" until {moment_of(token['expires_ms'])}" if token["expires_ms"] else ""
    note = f" ({token['note']})" if token["note"] else ""
    return f"{token['id']}{until}{note}"
