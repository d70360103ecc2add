"""What a roll-out is asked for in: a document of published fields, read strictly.

    {"action": "cassandra:restart", "version": 1.2, "limit": 2, "cluster_name": "geo",
     "discovery": "zookeeper:/geo/members", "owner": "storage", "task_id": "geo-2026-11",
     "params": {"action_args": {"force": true}, "workqueue_args": {"retry_count": 3}},
     "nodes": [], "destnode": ""}

It names code and never brings any: the action is a name that agents know, the discovery one that
the coordinator knows.

Invariants:
- A field that is not published is refused, and so is a value out of its bounds.
- `limit` is below the number of nodes, unless there is one node: some node is always left alone.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from broker.errors import InvalidTask

NODES_MAX: Final = 2_000
"""So that the record of a roll-out fits, whatever its nodes are called and what befell them."""
TEXT_MAX: Final = 200
"""The longest name; with what is put before a node's one it must fit a slot's."""
NODE_TEXT_MAX: Final = 150
STATIC: Final = "static"
HOUR_MS: Final = 3_600_000

Text = Annotated[str, Meta(min_length=1, max_length=TEXT_MAX)]
_NODE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]*")
Wait = Annotated[int, Meta(ge=0, le=365 * 24 * HOUR_MS)]
Positive = Annotated[int, Meta(ge=1, le=365 * 24 * HOUR_MS)]
_ARGUMENTS_BYTES_MAX: Final = 64 * 1024


class Queue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How steps are queued and tried. Times in milliseconds.

    `retry_count` is how often a node's failed action, or its failed post-check, is tried again.
    A step that no agent has begun after `start_ms` is taken back; a check may take `check_ms`, the
    action `action_ms`. A roll-out that got no node done for `stale_ms` is alarmed. The breaker
    opens after `breaker_failures` failed post-checks in a row, for `breaker_ms`.
    """

    retry_count: Annotated[int, Meta(ge=0, le=1_000)] = 3
    retry_ms: Wait = 10_000
    start_ms: Positive = 60_000
    check_ms: Positive = 600_000
    action_ms: Positive = HOUR_MS
    stale_ms: Positive = HOUR_MS
    breaker_failures: Annotated[int, Meta(ge=1, le=1_000)] = 1
    breaker_ms: Wait = 60_000
    discover_ms: Positive = 30_000


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of the action, and of the queue."""

    action_args: dict[str, Any] = {}
    workqueue_args: Queue = Queue()


class Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A roll-out. `limit`: so many nodes at most are not proven healthy at a time.

    `nodes` are those nodes, without them `discovery` says which. `task_id` is the roll-out's name,
    made of cluster and time if it is empty. `destnode` is filled in for the agent of a node.
    """

    action: Text
    version: Annotated[str, Meta(min_length=1, max_length=TEXT_MAX)] | int | float
    limit: Annotated[int, Meta(ge=1, le=1_000)]
    cluster_name: Annotated[str, Meta(min_length=1, max_length=NODE_TEXT_MAX)]
    discovery: Annotated[str, Meta(max_length=1_000)] = STATIC
    owner: Annotated[str, Meta(max_length=TEXT_MAX)] = ""
    task_id: Annotated[str, Meta(max_length=TEXT_MAX, pattern=r"^[^\s/]*$")] = ""
    params: Params = Params()
    nodes: Annotated[list[str], Meta(max_length=NODES_MAX)] = []
    destnode: Annotated[str, Meta(max_length=NODE_TEXT_MAX)] = ""

    @property
    def queue(self) -> Queue:
        """How its steps are queued."""
        return self.params.workqueue_args


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent is asked to do: a part of a document's action, for the node `destnode`."""

    part: str
    """One of `PARTS`."""
    document: Document
    tries: int = 0
    """How often the action was tried on the node before."""
    node: str = ""
    """Where it runs: another node than `destnode` if that one is checked from outside."""

    @property
    def destnode(self) -> str:
        """The node that it is about."""
        return self.document.destnode

    @property
    def arguments(self) -> dict[str, Any]:
        """The document's arguments of the action."""
        return self.document.params.action_args


PRE_CHECK: Final = "pre_check"
EXECUTE: Final = "execute"
POST_CHECK: Final = "post_check"
CHECK_NODE: Final = "check_node"
PARTS: Final = (PRE_CHECK, EXECUTE, POST_CHECK, CHECK_NODE)

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(Document).decode


def read_document(given: Document | Mapping[str, Any] | bytes | str) -> Document:
    """A document from what was given, as JSON or as an object. Raises `InvalidTask`.

    >>> read_document({"action": "restart"})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    broker.errors.InvalidTask: the document of a roll-out: Object missing required field ...
    """
    try:
        # Objects go by way of JSON: what cannot travel is refused here, and bounds hold for them.
        document = _decode(given if isinstance(given, bytes | str) else _encode(given))
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise InvalidTask(f"the document of a roll-out: {error}") from error
    if document.destnode:
        raise InvalidTask("the document of a roll-out: destnode is filled in for each node")
    if document.discovery == STATIC and not document.nodes:
        raise InvalidTask("the document of a roll-out: it names neither nodes nor a discovery")
    if len(_encode(document.params.action_args)) > _ARGUMENTS_BYTES_MAX:
        raise InvalidTask(f"action_args have at most {_ARGUMENTS_BYTES_MAX:,} bytes of JSON")
    wrong = wrong_nodes(document, document.nodes) if document.nodes else ""
    if wrong:
        raise InvalidTask(f"the document of a roll-out: {wrong}")
    return document


def wrong_nodes(document: Document, nodes: list[str]) -> str:
    """Why a roll-out over these nodes may not be; empty: it may."""
    if not nodes:
        return f"the cluster {document.cluster_name} has no nodes"
    if len(nodes) > NODES_MAX:
        return f"{len(nodes):,} nodes; {NODES_MAX:,} fit"
    wrong = next((name for name in nodes if not _may_be(name)), None)
    if wrong is not None:
        return _no_node(wrong)
    if len(set(nodes)) < len(nodes):
        return "a node is named twice"
    if document.limit >= len(nodes) > 1:
        return f"limit {document.limit} of {len(nodes)} nodes leaves none alone"
    return ""


def check_node(name: str) -> None:
    """Raise `InvalidTask` for what cannot be a node's name."""
    if not _may_be(name):
        raise InvalidTask(_no_node(name))


def _may_be(name: str) -> bool:
    return len(name) <= NODE_TEXT_MAX and _NODE.fullmatch(name) is not None


def _no_node(name: str) -> str:
    return f"{name[:NODE_TEXT_MAX]!r} is no node: up to {NODE_TEXT_MAX} of A-Z a-z 0-9 . _ : @ -"


def version_text(version: str | float) -> str:
    """A version as text, so that 2 and "2" are one.

    >>> version_text(1.2), version_text("1.2")
    ('1.2', '1.2')
    """
    return version if isinstance(version, str) else f"{version:g}"
