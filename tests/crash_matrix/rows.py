"""The rows of the matrix, as data: what runs, what is killed, and what uses it meanwhile.

In words `{data}` is the row's folder, `{url}` its cluster, `{http}` and the like addresses that are
free, `{roles}` the roles of the round.
"""

import itertools
from dataclasses import dataclass, field
from typing import Final

READY: Final = "ready"
LOAD: Final = "tests.crash_matrix.client load"
_ROLES: Final = ("bookie", "herd", "broker", "http")
ROLE_SETS: Final = tuple(
    each for count in range(1, 5) for each in itertools.combinations(_ROLES, count)
)
_LISTENING: Final = "--set broker.listen={broker} --set broker.grpc={grpc} --set http.listen={http}"
_SERVE: Final = f"herdbook serve --data {{data}} {_LISTENING}"
_NODE: Final = (
    f"herdbook serve --data {{data}}/node --url {{url}} {_LISTENING} --set herd.listen={{herd}} "
    '--set bookie.listen={bookie} --set bookie.folders=["{data}/b1","{data}/b2","{data}/b3"]'
)
_GUEST: Final = f"{LOAD} {{data}} {{notes}} {{seed}} entry row object task"
_MEMBER: Final = f"{LOAD} {{url}} {{notes}} {{seed}} entry row object task"


@dataclass(frozen=True, slots=True)
class Runs:
    """A command of a row: its words, what it prints when it is ready, whether it may be killed.

    `node` is the folder of a node's status, where a process that was killed is started again.
    """

    words: str
    ready: str = READY
    killed: bool = True
    node: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A way to run. `store` is where the judge looks, `kinds` what it tries itself.

    `weight`: how many of the rounds it has, against the other rows.
    """

    name: str
    runs: tuple[Runs, ...]
    store: str = "{data}"
    kinds: str = "entry,row,object,task"
    weight: int = 2
    cluster: bool = False


@dataclass(frozen=True, slots=True)
class Writes:
    """A command that writes once; it may say that it was done before, with these words.

    `first` makes what it works on, each time.
    """

    words: str
    before: tuple[str, ...] = ()
    first: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CommandRow:
    """Commands that are killed while they work, and run again; `serves` runs at the same time."""

    name: str
    commands: tuple[Writes, ...] = field(default=())
    serves: tuple[Runs, ...] = ()
    weight: int = 2
    cluster: bool = False


_ASKS: Final = Runs(f"{LOAD} http://{{http}} {{notes}} {{seed}} row object task", killed=False)
_WORKER: Final = "herdbook worker --tasks tests.crash_matrix.functions --processes 2"

RUNNING_ROWS: Final = (
    Row("open", (Runs(_GUEST),)),
    Row(
        "open-child",
        (Runs(f"{LOAD} process:{{data}} {{notes}} {{seed}} entry"),),
        kinds="entry",
        weight=1,
    ),
    Row("guests", (Runs(_GUEST), Runs(_GUEST), Runs(_GUEST))),
    Row("serve", (Runs(_SERVE, node="{data}"), _ASKS), "http://{http}", "row,object,task", 4),
    Row(
        "serve-one-process",
        (Runs(f"{_SERVE} --one-process", node="{data}"), _ASKS),
        "http://{http}",
        "row,object,task",
        weight=1,
    ),
    Row("serve-roles", (Runs(f"{_SERVE} {{roles}}", node="{data}"), Runs(_GUEST)), weight=4),
    Row(
        "task-serve",
        (
            Runs("herdbook task serve --url {data} --listen {http}", "the broker serves at"),
            Runs(f"{LOAD} http://{{http}} {{notes}} {{seed}} task", killed=False),
        ),
        "http://{http}",
        "task",
        weight=1,
    ),
    Row(
        "worker",
        (
            Runs(_SERVE, killed=False, node="{data}"),
            Runs(f"{_WORKER} --url {{data}}", "worker "),
            Runs(f"{LOAD} {{data}} {{notes}} {{seed}} done", killed=False),
        ),
        kinds="done",
    ),
    Row(
        "worker-alone",
        (
            Runs(f"{_WORKER} --url {{data}}", "worker "),
            Runs(f"{LOAD} {{data}} {{notes}} {{seed}} done task"),
        ),
        kinds="done",
    ),
    Row(
        "dev",
        (
            Runs("herdbook dev --data {data} --nodes 1 --json", '"url"', node="{data}"),
            Runs(_MEMBER.replace("{url}", "{dev}"), killed=False),
        ),
        "{dev}",
    ),
    Row(
        "node",
        (Runs(_NODE, node="{data}/node"), Runs(_MEMBER, killed=False)),
        "{url}",
        weight=3,
        cluster=True,
    ),
    Row(
        "node-one-process",
        (Runs(f"{_NODE} --one-process", node="{data}/node"), Runs(_MEMBER, killed=False)),
        "{url}",
        cluster=True,
    ),
    Row(
        "nodes",
        (
            *(
                Runs(
                    f"herdbook serve --data {{data}}/n{n} --url {{url}} --one-process --role bookie"
                    " --role herd --role broker"
                    f" --set bookie.listen={{bookie{n}}} --set herd.listen={{herd{n}}}"
                    f" --set broker.listen={{broker{n}}} --set broker.grpc={{grpc{n}}}",
                    node=f"{{data}}/n{n}",
                )
                for n in (1, 2, 3)
            ),
            Runs(_MEMBER, killed=False),
        ),
        "{url}",
        cluster=True,
    ),
    Row(
        "cluster-worker",
        (
            Runs(f"{_NODE} --one-process", killed=False, node="{data}/node"),
            Runs(f"{_WORKER} --url {{url}}", "worker "),
            Runs(f"{LOAD} {{url}} {{notes}} {{seed}} done", killed=False),
        ),
        "{url}",
        "done",
        weight=1,
        cluster=True,
    ),
)

_SQL: Final = "herdbook sql --url {store} -c"
_COMMANDS: Final = (
    Writes(f"{_SQL} CREATE~TABLE~IF~NOT~EXISTS~t{{n}}~(id~INT~PRIMARY~KEY)"),
    Writes(f"{_SQL} INSERT~INTO~kept~VALUES~({{n}},'moo')~ON~CONFLICT~DO~NOTHING"),
    Writes("herdbook blob mb bucket{n} --exist-ok --url {store}"),
    Writes("herdbook blob put {file} kept/put{n} --url {store}"),
    Writes("herdbook blob cp kept/a kept/copy{n} --url {store}"),
    Writes(
        "herdbook blob mv kept/from{n} kept/to{n} --url {store}",
        ("NoSuchObject", "there is no object"),
        ("herdbook blob put {file} kept/from{n} --url {store}",),
    ),
    Writes("herdbook blob rm kept/a{n} --url {store}", ("NoSuchObject", "there is no object")),
    Writes("herdbook blob quota kept --bytes 1GB --url {store}"),
    Writes("herdbook blob gc --url {store}"),
    Writes("herdbook task submit milk --url {store}"),
    Writes("herdbook task set type milk 7 --url {store}"),
    Writes("herdbook task schedule s{n} milk --every-ms 3600000 --url {store}"),
    Writes("herdbook task pause schedule:s --url {store}"),
    Writes("herdbook task resume schedule:s --url {store}"),
    Writes("herdbook checkpoint {store}"),
    Writes("herdbook backup {store} {data}.t{n}", ("there already", "exists")),
    Writes("herdbook user add ann --password-file {word} --url {store}", ("there is a user",)),
    Writes("herdbook store backup {data}.backups --url {store}"),
    Writes("herdbook ledger recover 1 --url {store}"),
)
_CLUSTER_COMMANDS: Final = (
    Writes("herdbook herd create c{n} --replicas 1 --url {store}", ("there is a tablespace",)),
    Writes("herdbook repair off --url {store}"),
    Writes("herdbook repair on --url {store}"),
    Writes("herdbook repair scrub --url {store}"),
    Writes("herdbook blob put {file} kept/put{n} --url {store}"),
    Writes(f"{_SQL} INSERT~INTO~kept~VALUES~({{n}},'moo')~ON~CONFLICT~DO~NOTHING"),
    Writes("herdbook store backup {data}.backups --url {store}"),
)
COMMAND_ROWS: Final = (
    CommandRow("commands", _COMMANDS, weight=4),
    CommandRow("commands-beside-serve", _COMMANDS, (Runs(_SERVE, node="{data}"),)),
    CommandRow(
        "commands-of-a-cluster",
        _CLUSTER_COMMANDS,
        (Runs(f"{_NODE} --one-process", node="{data}/node"),),
        cluster=True,
    ),
    CommandRow(
        "restore",
        (
            Writes(
                "herdbook store restore {data}.backups --url {data}.restored{n}", ("is not empty",)
            ),
        ),
        weight=3,
    ),
)
