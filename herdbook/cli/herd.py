"""`herdbook herd node`: tablespaces on this machine. And commands over those of a cluster.

Invariants:
- The first line that a node prints says who it is and where it serves; it comes when it does.
- A command has changed a fact when it returns; with `--wait` it has come about.
- Exit status 0: it worked; 1: it did not, and why is on standard error; 2: the call was wrong.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from engine.errors import InvalidRequest
from engine.ports.clock import SystemClock
from herdbook.cli.bookie import MetricsAt, security_of
from herdbook.cli.statuses import status_of
from herdbook.cli.store import (
    AsJson,
    Url,
    called,
    moment_of,
    plain,
    print_json,
    print_table,
    refuse_url_as_data,
    run,
    warn_of_clear_password,
    with_store,
)
from herdbook.cli.working import Working

if TYPE_CHECKING:
    from engine.ledger.client import LedgerClient
    from herd.nodes import Node, SpaceCommands
    from herd.nodes.facts import NodeFact, ReplicaReport, SpaceFact

R = TypeVar("R")
_DEFAULT: Final = "default"
_WAIT_MS: Final = 30_000
_LOOK_S: Final = 0.1

app = typer.Typer(
    help="Run a node of tablespaces; see and move those of a cluster.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Name = Annotated[str, typer.Argument(help="The tablespace.")]
Grpc = Annotated[str, typer.Option(help="Where to serve gRPC, too: host:port; else nowhere.")]
NodeId = Annotated[
    str, typer.Argument(help="A node: its name, its id or the beginning of it, or its address.")
]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Stay until it has come about.")]
Grace = Annotated[
    int | None,
    typer.Option(
        help="How long a node may be away before its replicas are made anew elsewhere, "
        "milliseconds. Default: 60000. That of the auditor counts, which any node may be.",
        min=1,
    ),
]


@app.command("node")
def node(
    data: Annotated[Path, typer.Option(help="This node's folder: the states of its replicas.")],
    cluster: Annotated[
        str | None,
        typer.Option("--url", help="The cluster: herdbook://host:port,host:port/path."),
    ] = None,
    listen: Annotated[str, typer.Option(help="Where clients reach it.")] = "127.0.0.1:7180",
    grpc: Grpc = "",
    advertise: Annotated[str, typer.Option(help="What clients dial instead of --listen.")] = "",
    secret_file: Annotated[
        Path | None, typer.Option(help="A file with the secret that clients prove.")
    ] = None,
    certificate: Annotated[Path | None, typer.Option(help="This node's certificate, PEM.")] = None,
    private_key: Annotated[Path | None, typer.Option(help="The certificate's key, PEM.")] = None,
    authorities: Annotated[
        Path | None, typer.Option(help="Who signs clients' certificates, PEM.")
    ] = None,
    insecure: Annotated[
        bool, typer.Option(help="Serve other machines without asking them for any proof.")
    ] = False,
    replica_grace_ms: Grace = None,
    metrics: MetricsAt = "",
) -> None:
    """Run a node until told to stop: SIGTERM lets others lead, a second one ends it at once."""
    refuse_url_as_data(data, "a node keeps its states in a folder of this machine")
    from engine.folder.modes import set_private_umask
    from herd.errors import Error
    from herd.nodes import NodeSettings
    from herdbook.herd_node import HerdNodeSettings, serve_node
    from herdbook.task_api import read_configured

    set_private_umask()
    warn_of_clear_password(cluster)
    _log_with_times()
    kept = NodeSettings() if replica_grace_ms is None else NodeSettings(grace_ms=replica_grace_ms)

    user = read_configured().make_zookeeper().user
    settings = HerdNodeSettings(listen, grpc, advertise, insecure, kept, zookeeper_user=user)

    async def serving() -> None:
        security = security_of(secret_file, certificate, private_key, authorities)
        async with _cluster(cluster) as client:
            serve = partial(serve_node, data.absolute(), client, settings, security=security)
            await _serve(serve, metrics)

    try:
        run(serving())
    except (Error, OSError) as error:
        typer.echo(f"{type(error).__name__}: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(1) from error


async def _serve(serve: Callable[..., Awaitable[None]], metrics_at: str) -> None:
    """Run a node, with a page of metrics where that is wanted."""
    from herdbook.metrics import MetricsServer, PrometheusMetrics

    if not metrics_at:
        await serve(started=_say, leaving=_say_farewell)
        return
    measures = PrometheusMetrics()
    page = await MetricsServer.start(measures, metrics_at, SystemClock())
    try:
        more = f", metrics at {page.url}"
        told = partial(_say, more=more)
        await serve(metrics=measures, started=told, leaving=_say_farewell)
    finally:
        await page.close()


@app.command("tablespaces")
def show_tablespaces(url: Url = None, as_json: AsJson = False) -> None:
    """List the tablespaces, who leads them, and what their replicas do.

    A replica is ready when it follows or leads. If fewer replicas are ready than wanted, the list
    shows how many are missing. A tablespace that nobody has used for a while is suspended: nobody
    leads it until somebody asks for it.
    """
    from herd.nodes.facts import missing_replicas, ready_replicas

    async def look(
        commands: "SpaceCommands",
    ) -> tuple[dict[str, "SpaceFact"], dict[str, "NodeFact"], dict[str, str]]:
        spaces = await commands.spaces()
        leaders = {name: await commands.leader_of(name) for name in spaces}
        return spaces, await commands.nodes(), leaders

    spaces, nodes, leaders = _with_commands(url, look)
    if as_json:
        print_json(
            {
                "name": name,
                **plain(fact),
                "ready": ready_replicas(name, fact, nodes),
                "missing": missing_replicas(name, fact, nodes),
                "leader_address": leaders[name],
                "states": {each: plain(_report(nodes, each, name)) for each in fact.replicas},
            }
            for name, fact in spaces.items()
        )
        return
    rows = rows_of(spaces, nodes, leaders)
    print_table(("name", "leader", "should lead", "wanted", "ready", "replicas"), rows)


def rows_of(
    spaces: dict[str, "SpaceFact"], nodes: dict[str, "NodeFact"], leaders: dict[str, str]
) -> list[tuple[str, ...]]:
    """Tablespaces for people: a row each, nodes by their names."""
    from herd.nodes.facts import missing_replicas, ready_replicas

    by_address = {node.address: _called(nodes, node_id) for node_id, node in nodes.items()}
    rows: list[tuple[str, ...]] = []
    for name, fact in spaces.items():
        leader = by_address.get(leaders[name], leaders[name]) or "nobody"
        should = fact.leader and _called(nodes, fact.leader)
        wanted = "its folder's owner" if not fact.hosted else str(fact.expected)
        wanted += " by default" if fact.hosted and fact.by_default else ""
        ready, missing = ready_replicas(name, fact, nodes), missing_replicas(name, fact, nodes)
        there = "" if not fact.hosted else f"{ready}, {missing} missing" if missing else str(ready)
        there = "suspended" if fact.suspended else there
        replicas = [
            _called(nodes, each) + ("" if fact.suspended else f" {_does(nodes, each, name)}")
            for each in fact.replicas
        ]
        rows.append((name, leader, should, wanted, there, "\n".join(replicas)))
    return rows


@app.command("check")
def check(name: Name = "default", url: Url = None, as_json: AsJson = False) -> None:
    """Compare the rows of a tablespace's replicas at one position; exit status 1 if they differ.

    It works on meanwhile. A replica that runs and does not answer counts as one that differs.
    """
    from herd.checking import VERDICT_COLUMNS
    from herdbook.cli.sql import opened

    with opened(url) as herd:
        verdict = herd.check_replicas(name)
    names = [column for column, _ in VERDICT_COLUMNS]
    if as_json:
        print_json(dict(zip(names, row, strict=True)) for row in verdict.rows())
    else:
        # All are of one position, which is told below.
        rows = [row[:-2] for row in verdict.rows()]
        shown = [tuple("" if value is None else value for value in row) for row in rows]
        print_table(tuple(names[:-2]), shown)
        position = f"at {verdict.position.ledger}/{verdict.position.entry}"
        typer.echo(f"all replicas agree {position}" if verdict.well else f"not well {position}")
    if not verdict.well:
        raise typer.Exit(1)


@app.command("nodes")
def show_nodes(url: Url = None, as_json: AsJson = False) -> None:
    """List the nodes that are there."""
    nodes = _with_commands(url, lambda commands: commands.nodes())
    if as_json:
        print_json({"node": node_id, **plain(fact)} for node_id, fact in nodes.items())
        return
    print_table(
        ("node", "address", "since", "replicas", "leads"),
        [
            (
                _called(nodes, node_id),
                fact.address,
                moment_of(fact.started_ms),
                len(fact.replicas),
                sum(report.role == "leader" for report in fact.replicas.values()),
            )
            for node_id, fact in nodes.items()
        ],
    )


@app.command("create")
def create(
    name: Name,
    replicas: Annotated[
        int | None,
        typer.Option(help="How many replicas; default: the number of default-replicas.", min=1),
    ] = None,
    on: Annotated[list[str] | None, typer.Option(help="A node for one. Repeat it.")] = None,
    leader: Annotated[str, typer.Option(help="The node that should lead.")] = "",
    url: Url = None,
    wait: Wait = True,
    as_json: AsJson = False,
) -> None:
    """Make a tablespace."""

    async def do(commands: "SpaceCommands") -> tuple[int, str]:
        fact = await commands.create(name, expected=replicas, nodes=on or (), leader=leader)
        return fact.expected, await _led(commands, name, leader, wait)

    wanted, leads = _with_commands(url, do)
    facts = {"tablespace": name, "replicas": wanted, "leader": leads}
    _tell(facts, f"tablespace {name} is made{f'; {leads} leads' if leads else ''}", as_json)


@app.command("drop")
def drop(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """End a tablespace and remove all that it holds."""
    if not yes:
        typer.confirm(f"Remove tablespace {name} with all its tables?", abort=True, err=True)
    _with_commands(url, lambda commands: commands.drop(name))
    _tell({"tablespace": name, "dropped": True}, f"tablespace {name} is being removed", as_json)


@app.command("move-leader")
def move_leader(
    name: Name, to: NodeId, url: Url = None, wait: Wait = True, as_json: AsJson = False
) -> None:
    """Have a node lead a tablespace whenever it can; "" lets any of them."""

    async def do(commands: "SpaceCommands") -> str:
        fact = await commands.move_leader(name, to)
        return await _led(commands, name, fact.leader, wait)

    leads = _with_commands(url, do)
    text = f"{to or 'any node'} is to lead tablespace {name}{f'; {leads} leads' if leads else ''}"
    _tell({"tablespace": name, "wanted": to, "leader": leads}, text, as_json)


@app.command("add-replica")
def add_replica(
    name: Name, on: NodeId, url: Url = None, wait: Wait = True, as_json: AsJson = False
) -> None:
    """Have a replica on a node, too."""

    async def do(commands: "SpaceCommands") -> None:
        fact = await commands.add_replica(name, on)
        if wait:
            node_id = await commands.node(on)
            await _until(lambda: _is_ready(commands, name, fact.uuid, node_id))

    _with_commands(url, do)
    text = f"{on} has a replica of tablespace {name}"
    _tell({"tablespace": name, "node": on, "replica": True}, text, as_json)


@app.command("remove-replica")
def remove_replica(
    name: Name, of: NodeId, url: Url = None, wait: Wait = True, as_json: AsJson = False
) -> None:
    """Have no replica on a node any more."""

    async def do(commands: "SpaceCommands") -> None:
        before = (await commands.spaces()).get(name.lower())
        after = await commands.remove_replica(name, of)
        gone = set(before.replicas if before else ()) - set(after.replicas)

        async def ended() -> bool:
            nodes = await commands.nodes()
            return not any(_report(nodes, each, name) for each in gone)

        if wait:
            await _until(ended)

    _with_commands(url, do)
    text = f"{of} has no replica of tablespace {name}"
    _tell({"tablespace": name, "node": of, "replica": False}, text, as_json)


@app.command("set-replicas")
def set_replicas(
    name: Name,
    count: Annotated[
        str,
        typer.Argument(
            help='How many replicas there should be; "default": the number of default-replicas.'
        ),
    ],
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Set how many replicas there should be; nodes for them are chosen."""
    if count != _DEFAULT and not (count.isascii() and count.isdecimal()):
        raise typer.BadParameter(f'{count!r} is neither a number nor "{_DEFAULT}"')
    given = None if count == _DEFAULT else int(count)
    fact = _with_commands(url, lambda commands: commands.set_expected(name, given))
    facts = {"tablespace": name, "replicas": fact.expected, "by_default": fact.by_default}
    _tell(facts, f"tablespace {name} should have {fact.expected} replicas", as_json)


@app.command("default-replicas")
def default_replicas(
    count: Annotated[
        int | None, typer.Argument(help="The new number; without it, show the current one.", min=1)
    ] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show or set the number of replicas of tablespaces that have no number of their own.

    These include the tablespaces of users and of buckets. Existing tablespaces change, too.
    """

    async def do(commands: "SpaceCommands") -> int:
        if count is None:
            return await commands.default_replicas()
        return await commands.set_default_replicas(count)

    found = _with_commands(url, do)
    _tell({"default_replicas": found}, f"{found} replicas by default", as_json)


def _tell(facts: dict[str, Any], text: str, as_json: bool) -> None:
    if as_json:
        print_json([facts])
    else:
        typer.echo(text)


def _with_commands(url: str | None, work: Callable[["SpaceCommands"], Awaitable[R]]) -> R:
    """Do something with a cluster's tablespaces; an error ends the command."""
    from herd.errors import Error
    from herd.nodes import SpaceCommands

    async def do(client: "LedgerClient") -> R:
        return await work(SpaceCommands(client.store, client.clock, client.rng))

    try:
        with Working("waiting"):
            return with_store(url, do)
    except Error as error:
        typer.echo(f"{type(error).__name__}: {error}", err=True)
        raise typer.Exit(status_of(error)) from error


def _cluster(url: str | None) -> AbstractAsyncContextManager["LedgerClient"]:
    """The cluster that the rule finds. Raises `InvalidRequest` for a folder."""
    from herdbook.finding import find, is_cluster, open_store

    found = find(url)
    if not is_cluster(found):
        raise InvalidRequest(
            f"{found} is a folder: its tablespaces run where it is open; nodes are for clusters"
        )
    return open_store(found)


async def _led(commands: "SpaceCommands", name: str, node_id: str, wait: bool) -> str:
    """Wait for a leader, if that is wanted; who leads, "" if nobody has waited."""
    return str(await commands.until_led(name, _WAIT_MS, node_id)) if wait else ""


async def _is_ready(commands: "SpaceCommands", name: str, uuid: str, node_id: str) -> bool:
    report = _report(await commands.nodes(), node_id, name)
    return report is not None and report.uuid == uuid and report.ready


async def _until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Wait for what other processes do. Raises `OperationalError` when it takes too long."""
    from herd.errors import OperationalError

    try:
        async with asyncio.timeout(_WAIT_MS / 1000):
            while True:
                if await holds():
                    return
                await asyncio.sleep(_LOOK_S)
    except TimeoutError:
        raise OperationalError("it has not come about yet", hint="look again later") from None


def _report(nodes: dict[str, "NodeFact"], node_id: str, name: str) -> "ReplicaReport | None":
    node = nodes.get(node_id)
    return node.replicas.get(name.lower()) if node is not None else None


def _called(nodes: dict[str, "NodeFact"], node_id: str) -> str:
    return called(nodes[node_id].host if node_id in nodes else "", node_id)


def _does(nodes: dict[str, "NodeFact"], node_id: str, name: str) -> str:
    """What a replica does, for people."""
    if node_id not in nodes:
        return "(away)"
    report = _report(nodes, node_id, name)
    if report is None:
        return "(starting)"
    return f"({report.role} at {report.ledger}/{report.entry})"


def _say(node: "Node", more: str = "") -> None:
    typer.echo(f"node {node.node_id} serves at {node.address}{more}")


def _say_farewell() -> None:
    typer.echo("leaving; a second signal ends it at once")


def _log_with_times() -> None:
    """What happens to replicas goes to standard error, each line with its moment."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    for name in ("engine", "herd"):
        logging.getLogger(name).setLevel(logging.INFO)
