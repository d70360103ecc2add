"""The page of all settings, made of the structures that hold them."""

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from blobit.garbage_settings import GarbageSettings
from blobit.settings import BlobSettings, BucketSettings
from broker.settings import BrokerSettings
from engine.ledger.settings import ClientSettings
from herd.settings import HerdSettings
from herdbook.finding import Configuration
from herdbook.node.settings import NodeSettings

_HEAD: Final = """# Settings

This page is made of the code by `make docs`.

## A node's file

`herdbook serve --config node.toml`. Each key may also stand in the environment,
`HERDBOOK_HERD__LISTEN`, and in a flag, `--set herd.listen=0.0.0.0:7180`. A flag counts over
the environment, and that over the file. `--check` tells all that is wrong at once, an unknown key
with the nearest known one; `--print` shows what counts, without secrets. Times are in
milliseconds, paths relative to the file that says them.
"""
_CLIENT: Final = """
## A client's file

`~/.config/herdbook/config.toml`, below `XDG_CONFIG_HOME` where that is set, or the file that
`HERDBOOK_CONFIG` names. Commands, `blobit://`, Spark and workers find their store by it.
"""
_PROGRAMS: Final = """
## In a program

Plain values, handed to what opens a store. What is not said has the default.
"""

MEANINGS: Final = {
    "advertise": "the address that others dial, where `listen` is not what they see",
    "advertise_grpc": "the same of `grpc`",
    "advertise_http": "the same of the broker's HTTP interface",
    "authorities": "a PEM file of the authorities that sign the other side's certificates",
    "certificate": "a PEM file of this side's certificate",
    "copy_bytes_a_second": "how fast repair copies; 0: without a limit",
    "data": "the folder of this machine that the node keeps",
    "discover": "discoveries of roll-outs: a name, and the command that prints nodes",
    "folders": "one bookie in each: a disk each",
    "grace_ms": "how long a bookie may be away before its ledgers are copied",
    "grpc": "where gRPC is served; empty: nowhere",
    "host": "how other machines call this one; empty: by the machine's own name",
    "lease_ms": "how long a worker that is not heard of keeps its tasks",
    "listen": "the address that is listened at",
    "metrics": "where Prometheus finds `/metrics`; empty: nowhere",
    "on_alarm": "the command that hears of alarms of roll-outs",
    "one_process": "all roles in one process",
    "password_file": "a file that holds the password",
    "private_key": "a PEM file of the certificate's private key",
    "rack": "where the machine stands, `/row-1/rack-7`",
    "replica_grace_ms": "how long a node may be away before its replicas are made anew",
    "roles": "what runs: `bookie`, `repair`, `herd`, `broker`, `http`",
    "scrub_interval_ms": "how often every replica is read; 0: never",
    "secret_file": "a file that holds the cluster's secret, at least 16 bytes",
    "suspend_after_ms": "how long nobody uses a tablespace until it is suspended; 0: never",
    "url": "the store: a folder, or `herdbook://host:port,host:port/path`",
    "user": "the user's name",
    "users": "a file of users of the broker's HTTP interface",
    "wire": "`framed`, or `grpc`",
    "zone": "the zone of the machine, a building for example",
}
"""What keys without words of their own mean."""


def page() -> str:
    """The whole page."""
    parts = [_HEAD, *_tables(NodeSettings, "", "HERDBOOK"), _CLIENT]
    parts += _tables(Configuration, "", "")
    parts.append(_PROGRAMS)
    for of in (ClientSettings, HerdSettings, BlobSettings, BucketSettings, BrokerSettings):
        parts += _structure(of)
    parts += _structure(GarbageSettings)
    return "\n".join(parts)


def keys_of(of: type) -> Iterator[tuple[str, Any, str]]:
    """A structure's keys: name, default, and the text below it in the code."""
    words = _words(of)
    for field in msgspec.structs.fields(of):
        default = field.default
        if default is msgspec.NODEFAULT and field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        yield field.name, default, words.get(field.name, "")


def _words(of: type) -> dict[str, str]:
    """The strings below a class' fields."""
    body = ast.parse(textwrap.dedent(inspect.getsource(of))).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
            words = _line(str(ast.literal_eval(below.value)))
            found[ast.unparse(field.target)] = words[:1].lower() + words[1:].removesuffix(".")
    return found


def _tables(of: type, path: str, environment: str) -> Iterator[str]:
    """A table of keys, and behind it those of the tables within."""
    rows, within = [], []
    for name, default, words in keys_of(of):
        if isinstance(default, msgspec.Struct):
            within.append((name, default))
        elif name != "folder" or of is not Configuration:
            told = f"`{name}`" in (inspect.getdoc(of) or "")
            meaning = words or MEANINGS.get(name, "" if told else name.replace("_", " "))
            rows.append(f"| `{name}` | {_shown(name, default)} | {meaning} |")
    title = f"### [{path}]\n\n{_line(inspect.getdoc(of) or '')}\n\n" if path else ""
    if environment:
        title += f"In the environment: `{environment}{'__' if path else '_'}` and the key.\n"
    yield f"{title}\n| key | unless said | |\n| --- | --- | --- |\n" + "\n".join(rows)
    yield ""
    for name, default in within:
        inner = f"{environment}_{name.upper()}" if environment else ""
        yield from _tables(type(default), name, inner)


def _structure(of: type) -> Iterator[str]:
    """A structure of settings with its own words."""
    yield f"### `{of.__module__}.{of.__name__}`\n\n{inspect.getdoc(of)}\n"
    yield "| | unless said |\n| --- | --- |"
    if dataclasses.is_dataclass(of):
        made = of()
        pairs = [(each.name, getattr(made, each.name)) for each in dataclasses.fields(of)]
    else:
        pairs = [(name, default) for name, default, _ in keys_of(of)]
    for name, default in pairs:
        yield f"| `{name}` | {_shown(name, default)} |"
    yield ""


def _shown(name: str, value: Any) -> str:
    """A default as a reader wants it: sizes in bytes as sizes."""
    if dataclasses.is_dataclass(value):
        return f"`{type(value).__name__}`, below"
    if isinstance(value, str | bool | tuple | dict) or value is None:
        if not value and not isinstance(value, bool):
            return "nothing"
        shown = ", ".join(map(str, value)) if isinstance(value, tuple) else str(value).lower()
        return f"`{shown if isinstance(value, tuple | bool) else value}`"
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if "bytes" in name and value and value % size == 0:
            return f"{value // size} {unit}"
    return f"{value:,}"


def _line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()
