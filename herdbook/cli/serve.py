"""`herdbook serve`: a node, in the foreground, until told to stop.

Invariants:
- Each line on standard output says what came about; what roles log is on standard error, with the
  role's name.
- Exit status 0: it was told to stop; 1: it could not go on; 2: what it was told cannot be.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from engine.errors import EngineError, Unavailable
from herdbook.cli.store import AsJson, plain, print_json, print_table, run

if TYPE_CHECKING:
    from herdbook.node.settings import NodeSettings

Config = Annotated[Path | None, typer.Option("--config", help="A TOML file. See docs/node.md.")]
Data = Annotated[
    str | None, typer.Option(help="The folder of this machine that the node keeps: data.")
]
Url = Annotated[
    str | None,
    typer.Option(
        help="The cluster, herdbook://host:port,host:port/path: url. Without one it serves the "
        "folder alone."
    ),
]
Roles = Annotated[
    list[str] | None,
    typer.Option("--role", help="bookie, herd, broker, http or repair; repeat it: roles."),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="Any key of the file, herd.listen=0.0.0.0:7180 for example. Repeat it."
    ),
]
OneProcess = Annotated[
    bool, typer.Option("--one-process", help="All roles in one process: one_process.")
]
Check = Annotated[
    bool,
    typer.Option(
        "--check", help="Only check the settings, and whether the node could start on this machine."
    ),
]
Print = Annotated[
    bool, typer.Option("--print", help="Only show what it is told, all together, as a file.")
]
Status = Annotated[
    bool,
    typer.Option(
        "--status", help="Only show how the node of the folder fares; status 1 if not all serves."
    ),
]


def serve(
    config: Config = None,
    data: Data = None,
    url: Url = None,
    role: Roles = None,
    more: Set = None,
    one_process: OneProcess = False,
    check: Check = False,
    shown: Print = False,
    status: Status = False,
    as_json: AsJson = False,
) -> None:
    """Serve a folder, or as a node of a cluster.

    Bookies, tablespaces, tasks, HTTP and the console, each in a process of its own. Settings come
    from a TOML file, the environment (HERDBOOK_HERD__LISTEN is the key listen of the table herd)
    and flags; each of these overrides the one before. SIGTERM drains it, a second one ends it at
    once.
    """
    flags: dict[str, Any] = dict(_pair(each) for each in more or ())
    for key, value in (("data", data), ("url", url), ("roles", role)):
        if value is not None:
            flags[key] = value
    if one_process:
        flags["one_process"] = True
    settings = _settings(config, flags)
    if shown:
        from herdbook.node.reading import to_toml

        typer.echo(to_toml(settings), nl=False)
    elif status:
        _show(settings, as_json)
    elif check:
        _check(settings)
    else:
        from engine.folder.modes import set_private_umask
        from herdbook.node.serving import serve_node

        set_private_umask()
        run(serve_node(settings, typer.echo))


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise typer.BadParameter(f"{text} is not as key=value", param_hint="--set")
    return key.strip(), value


def _settings(config: Path | None, flags: dict[str, Any]) -> "NodeSettings":
    from herdbook.node.checking import SettingsWrong, read_settings, warnings_of

    try:
        settings = read_settings(config, os.environ, flags)
    except SettingsWrong as error:
        for line in error.errors:
            typer.echo(line, err=True)
        raise typer.Exit(2) from error
    for line in warnings_of(settings):
        typer.echo(f"warning: {line}", err=True)
    return settings


def _check(settings: "NodeSettings") -> None:
    from herdbook.node.refusals import refusals_of

    errors, warnings = refusals_of(settings)
    for line in (*errors, *(f"warning: {each}" for each in warnings)):
        typer.echo(line, err=True)
    if errors:
        raise typer.Exit(2)
    typer.echo(f"no errors: {' '.join(settings.ordered_roles)}")


def _show(settings: "NodeSettings", as_json: bool) -> None:
    from herdbook.node.status import lack_of_room, read_status

    try:
        found = read_status(settings.own_folder)
    except Unavailable as error:
        typer.echo(f"{error}", err=True)
        raise typer.Exit(1) from error
    except EngineError as error:
        typer.echo(f"{type(error).__name__}: {error}", err=True)
        raise typer.Exit(1) from error
    members = {name: plain_state(each) for name, each in found.members.items()}
    lack = lack_of_room(found)
    if as_json:
        print_json([{"pid": found.pid, "url": found.url, "members": members, "lack": lack}])
    else:
        _show_members(members)
        if lack:
            typer.echo(f"no space for new data: {lack}")
    if lack or any(each["state"] != "serving" for each in members.values()):
        raise typer.Exit(1)


def _show_members(members: dict[str, dict[str, Any]]) -> None:
    print_table(
        ("process", "state", "pid", "started again", "serves at", "last error"),
        (
            (
                name,
                each["state"],
                each["pid"] or "",
                each["restarts"] or "",
                "\n".join(f"{role} {at}" for role, at in each["at"].items()),
                each["error"],
            )
            for name, each in members.items()
        ),
    )


def plain_state(state: Any) -> dict[str, Any]:
    """What is known of a process, as JSON has it."""
    from dataclasses import asdict

    return {name: plain(value) for name, value in asdict(state).items()}
