"""What the metadata store knows of nodes and tablespaces.

    /herd/nodes/ID           ephemeral: where a node is, and what its replicas do
    /herd/restoring/NAME     ephemeral: which tablespace, by its uuid, somebody is filling
    /herd/tablespaces/NAME   which nodes have replicas, how many there should be, who should lead
    /herd/settings           settings of all tablespaces of a cluster; defaults if it does not exist

Invariants:
- A fact of a tablespace is changed by compare-and-set only; `epoch` counts the changes, and `token`
  names the last one, so that who lost a reply knows its own change.
- `expected` 0 is a tablespace that the owner of a folder runs by itself: no node touches it.
- A tablespace that is dropped keeps its fact until nothing of it is left, so that its name comes
  back only to a log without a past.
- One that is being restored is dropped, too, until it is whole: programs that do not know
  `restoring` see none.
- A tablespace that is suspended is run by no node until somebody asks for it. All of it is in its
  log; the states on the nodes' disks stay.
- Fields that are not known are passed over: older programs read newer facts of the same format.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from engine.errors import CannotRead
from engine.metadata.majors import FIRST_MAJOR, check_major, encode_major

FORMAT_MAJOR: Final = 1
NODES: Final = "/herd/nodes"
SPACES: Final = "/herd/tablespaces"
AUDITOR: Final = "/herd/auditor"
RESTORING: Final = "/herd/restoring"
SETTINGS: Final = "/herd/settings"
CATCHING_UP: Final = "catching up"
ENDING: Final = "ending"
REPLICAS: Final = 3
REPLICAS_MAX: Final = 64


class SettingsFact(msgspec.Struct, frozen=True, omit_defaults=True):
    """Settings of all tablespaces of a cluster.

    `replicas` is how many replicas a tablespace without a number of its own should have.
    """

    replicas: int = REPLICAS
    format_major: int = FIRST_MAJOR


class SpaceFact(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tablespace. `leader` is the node that should lead, "" for any; the others are ready to."""

    uuid: str
    created_ms: int
    expected: int = 0
    replicas: tuple[str, ...] = ()
    leader: str = ""
    dropped: bool = False
    epoch: int = 0
    token: int = 0
    format_major: int = FIRST_MAJOR
    restoring: bool = False
    """Somebody fills it: it is `dropped` unless that ends well."""
    by_default: bool = False
    """`expected` is the cluster's default: the auditor changes it when the default changes."""
    suspended: bool = False
    """Nobody used it for a while: its nodes run no replica of it until somebody asks for it."""

    @property
    def hosted(self) -> bool:
        """Whether nodes have replicas of it."""
        return self.expected > 0 and not self.dropped

    @property
    def rests(self) -> bool:
        """Whether nobody has anything to do with it until somebody asks for it."""
        return self.suspended and not self.dropped

    @property
    def runs(self) -> bool:
        """Whether the nodes that have replicas of it run them."""
        return self.hosted and not self.suspended


class ReplicaReport(msgspec.Struct, frozen=True, array_like=True):
    """What one replica does. `role`: the engine's, or "starting", "catching up" or "ending"."""

    uuid: str
    role: str
    term: int = 0
    ledger: int = 0
    entry: int = 0
    idle: bool = False
    """Whether nobody has used it for so long that it may be suspended."""

    @property
    def ready(self) -> bool:
        """Whether it follows or leads."""
        return self.role in ("follower", "leader")

    @property
    def position(self) -> tuple[int, int]:
        """The last entry applied."""
        return self.ledger, self.entry


class NodeFact(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node that runs. `address` is where clients reach it; `replicas` by tablespace; `host` is
    what people call it, "" for nothing."""

    address: str
    started_ms: int
    replicas: dict[str, ReplicaReport] = {}
    format_major: int = FIRST_MAJOR
    host: str = ""


def ready_replicas(name: str, fact: SpaceFact, nodes: Mapping[str, NodeFact]) -> int:
    """How many of a tablespace's replicas follow or lead; `nodes` are the nodes that are up."""
    there = (nodes[each].replicas.get(name) for each in fact.replicas if each in nodes)
    return sum(report.uuid == fact.uuid and report.ready for report in there if report)


def missing_replicas(name: str, fact: SpaceFact, nodes: Mapping[str, NodeFact]) -> int:
    """How many replicas of a tablespace are missing; 0 if no nodes run it at the moment."""
    return max(0, fact.expected - ready_replicas(name, fact, nodes)) if fact.runs else 0


_decode_space: Final = msgspec.msgpack.Decoder(SpaceFact).decode
_decode_node: Final = msgspec.msgpack.Decoder(NodeFact).decode
_decode_settings: Final = msgspec.msgpack.Decoder(SettingsFact).decode


def encode_fact(fact: SettingsFact | SpaceFact | NodeFact) -> bytes:
    """What the metadata store keeps of it."""
    return encode_major(fact, FORMAT_MAJOR)


def decode_space(value: bytes) -> SpaceFact:
    """Decode a tablespace's fact. Raises `CannotRead`, `FormatTooNew`."""
    try:
        check_major(value, "the fact of a tablespace", FORMAT_MAJOR)
        return _decode_space(value)
    except msgspec.MsgspecError as error:
        raise CannotRead(f"the fact of a tablespace is damaged: {error}") from error


def decode_node(value: bytes) -> NodeFact:
    """Decode a node's fact. Raises `CannotRead`, `FormatTooNew`."""
    try:
        check_major(value, "the fact of a node", FORMAT_MAJOR)
        return _decode_node(value)
    except msgspec.MsgspecError as error:
        raise CannotRead(f"the fact of a node is damaged: {error}") from error


def decode_settings(value: bytes) -> SettingsFact:
    """Decode the settings of a cluster. Raises `CannotRead`, `FormatTooNew`."""
    try:
        check_major(value, "the fact of a cluster's tablespaces", FORMAT_MAJOR)
        return _decode_settings(value)
    except msgspec.MsgspecError as error:
        raise CannotRead(f"the settings of tablespaces are damaged: {error}") from error
