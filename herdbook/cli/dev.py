"""`herdbook dev`: a whole cluster on this machine, in the foreground, until told to stop.

Invariants:
- What it prints on standard output comes when the cluster can be used: what to try. What nodes log
  goes to `dev.log` in its folder.
- What becomes of a node, and of the whole, is a line on standard error.
- Exit status 0: it was told to stop; 1: it could not run, or could not go on; 2: the call was
  wrong; 128 and the signal's number, 130 for Ctrl-C: it was told to before it was up.
"""

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from herdbook.cli.store import AsJson, print_json, run

if TYPE_CHECKING:
    from herdbook.node.dev import DevCluster, DevSettings

Data = Annotated[
    Path | None,
    typer.Option(help="Folder for the data. Default: a folder that is removed at the end."),
]
Nodes = Annotated[int, typer.Option(help="How many nodes.", min=1, max=9)]
Grace = Annotated[
    int,
    typer.Option(
        help="How long a node may be away before what it held is made anew, milliseconds.", min=1
    ),
]
_BY_SIGNAL: Final = 128
Verbose = Annotated[bool, typer.Option("--verbose", help="Show what nodes log, too.")]


def dev(
    data: Data = None,
    nodes: Nodes = 3,
    grace_ms: Grace = 20_000,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Run a whole cluster on this machine, to try things out.

    A real ZooKeeper, and nodes with all roles. Anybody on this machine can do everything. Ctrl-C
    ends it and leaves nothing but --data. For a cluster of several machines, use herdbook serve.
    """
    from engine.folder.modes import set_private_umask
    from herdbook.node.dev import DevSettings

    set_private_umask()
    run(_serve(DevSettings(nodes, data, grace_ms, quiet=not verbose), as_json))


async def _serve(settings: "DevSettings", as_json: bool) -> None:
    from herdbook.node.dev import check_java, end_by_signals, run_dev
    from herdbook.node.supervisor import Ending

    ending = Ending()
    end_by_signals(ending)
    up = False

    async def ready(cluster: "DevCluster") -> None:
        nonlocal up
        up = True
        if as_json:
            print_json([_facts(cluster)])
        else:
            say_what_to_try(cluster, settings)

    check_java()
    if not as_json:
        typer.echo(f"starting ZooKeeper, nodes: {settings.nodes} ...", err=True)
    await run_dev(settings, ending, ready, partial(typer.echo, err=True))
    kept = "what it held is removed" if settings.data is None else f"{settings.data} is kept"
    typer.echo(f"ended{'' if up else ' before it was up'}; {kept}", err=True)
    if not up:
        raise typer.Exit(_BY_SIGNAL + ending.number)


def _facts(cluster: "DevCluster") -> dict[str, object]:
    return {
        "url": cluster.url,
        "folder": str(cluster.folder),
        "console": list(cluster.console),
        "login": cluster.login,
        "pids": {name: state.pid for name, state in cluster.states().items()},
        "pid": os.getpid(),
    }


def say_what_to_try(cluster: "DevCluster", settings: "DevSettings") -> None:
    """What a person reads when the cluster is up."""
    kept = "kept" if settings.data is not None else "removed when this ends"
    typer.echo(f"""\
The cluster is up. Nodes: {settings.nodes}, each with a bookie, tablespaces, tasks and HTTP.

  console      {"  ".join(cluster.console)}
  url          {cluster.url}
  data         {cluster.folder} ({kept})
  log          {cluster.log}{_moved(cluster)}

In another terminal:

  export HERDBOOK_URL={cluster.url}
  herdbook sql -c 'CREATE TABLE IF NOT EXISTS visit (at INT PRIMARY KEY, who TEXT)'
  herdbook sql -c "INSERT INTO visit VALUES (1, 'Elsa') ON CONFLICT DO NOTHING"
  herdbook sql -c 'SELECT * FROM visit'
  herdbook blob mb letters --exist-ok && echo moo | herdbook blob put - letters/first
  herdbook blob ls letters
  herdbook bookie ls

A node that dies is started again. Ctrl-C ends it.""")


def _moved(cluster: "DevCluster") -> str:
    """Ports that others had."""
    told = [f"{whose} {was} (now {now})" for whose, (was, now) in cluster.moved.items()]
    return f"\n  in use       {', '.join(told)}" if told else ""
