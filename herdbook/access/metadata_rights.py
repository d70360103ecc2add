"""What a user sees of a cluster's metadata through a node, and what the user may change.

In addition to the rules for ledgers and bookies in `engine.metadata.permitted`:

    key                                  who may read it
    /herd/nodes/ID                       every user, without the replicas of other tablespaces
    /herd/settings                       every user
    /herd/tablespaces/NAME               whoever may read the tablespace
    /herd/tablespaces/NAME/checkpoints   whoever may read the tablespace, with the user's own pins
    /logs/herd/NAME/list                 whoever may read the tablespace, without the pins
    /logs/broker/list                    whoever may read some tenant's tasks, without the pins

Users can make two changes: whoever may read a tablespace may resume it if it is suspended, and may
pin its checkpoints for a limited time. Administrators and parts of the cluster may do what clients
of ZooKeeper may do, but cannot create ephemeral keys.

Invariants:
- A user adds, renews and ends only its own pins, through any node, and does not see the pins of
  other users. The name under which a pin is stored contains the user's name.
- The number of a user's pins is limited, and so are the length of their names and their duration.
  A list of checkpoints with users' pins is limited in size, so that the leader always has room for
  its own changes.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

import msgspec

from engine.access.door import Caller
from engine.access.principal import Principal
from engine.errors import EngineError
from engine.log.log_list import LOGS, decode_list, encode_list
from engine.metadata.contract import MetadataStore, ServerClock
from engine.metadata.passed_on import PassedOn
from engine.metadata.permitted import (
    LEDGER_LISTS,
    LEDGER_RULES,
    PermittedStore,
    Shown,
    every_name,
    whole,
)
from herd.checkpoint.manifest import Checkpoints, decode_checkpoints, encode_checkpoints
from herd.nodes.facts import NODES, SETTINGS, SPACES, decode_node, decode_space, encode_fact
from herd.reading_log import LOGS as LOGS_OF_TABLESPACES

BROKER: Final = "broker"
"""The log of the broker (as in `broker.service`, which this process need not load)."""
PINS_MAX: Final = 100
"""How many pins one user may have on one tablespace."""
PIN_MS_MAX: Final = 24 * 3_600_000
PIN_CHARACTERS_MAX: Final = 128
LIST_BYTES_MAX: Final = 256 * 1024
_CHECKPOINTS: Final = "/checkpoints"


def metadata_for(
    store: MetadataStore,
    wall_ms: Callable[[], int],
    caller: Caller,
    *,
    time: ServerClock | None = None,
) -> MetadataStore:
    """A session of the store with the rights of a caller. `time` knows the store's time."""
    session = PassedOn(store, time)
    if not caller.passing:
        return session
    return PermittedStore(
        session,
        caller,
        (*LEDGER_RULES, _nodes, _settings, _spaces, _checkpoint_lists, _logs),
        {**LEDGER_LISTS, NODES: every_name, SPACES: _readable},
        (_resumed, partial(_pinned, wall_ms)),
    )


def _nodes(_principal: Principal, key: str) -> Shown | None:
    return _node if key.rpartition("/")[0] == NODES else None


def _node(principal: Principal, value: bytes) -> bytes | None:
    fact = decode_node(value)
    seen = {name: fact.replicas[name] for name in _readable(principal, fact.replicas)}
    return encode_fact(msgspec.structs.replace(fact, replicas=seen))


def _settings(_principal: Principal, key: str) -> Shown | None:
    return whole if key == SETTINGS else None


def _spaces(principal: Principal, key: str) -> Shown | None:
    folder, _, name = key.rpartition("/")
    return whole if folder == SPACES and _may_read(principal, name) else None


def _logs(principal: Principal, key: str) -> Shown | None:
    name = key.removeprefix(f"{LOGS}/").removesuffix("/list")
    if key != f"{LOGS}/{name}/list":
        return None
    space = name.removeprefix(LOGS_OF_TABLESPACES)
    if name == BROKER:
        allowed = bool(principal.named("tenant", "read"))
    else:
        allowed = space != name and _may_read(principal, space)
    return _log_list if allowed else None


def _log_list(_principal: Principal, value: bytes) -> bytes | None:
    return encode_list(msgspec.structs.replace(decode_list(value), pins=()))


def _resumed(_principal: Principal, key: str, before: bytes, after: bytes) -> bytes | None:
    """The fact of a tablespace that is resumed; None if anything else was changed."""
    if key.rpartition("/")[0] != SPACES:
        return None
    try:
        old, new = decode_space(before), decode_space(after)
    except EngineError:
        return None
    resumed = msgspec.structs.replace(old, suspended=False, token=new.token, epoch=old.epoch + 1)
    if not old.suspended or new != resumed:
        return None
    # Fields that a newer program has written stay. Other fields that the user wrote are ignored.
    fields = msgspec.msgpack.decode(before)
    fields |= {"suspended": False, "token": new.token, "epoch": resumed.epoch}
    return msgspec.msgpack.encode(fields)


def _checkpoint_lists(principal: Principal, key: str) -> Shown | None:
    space = _pinned_space(key)
    return _checkpoints if space is not None and _may_read(principal, space) else None


def _checkpoints(principal: Principal, value: bytes) -> bytes | None:
    held, mark = decode_checkpoints(value), _mark_of(principal)
    own = tuple(
        msgspec.structs.replace(pin, name=pin.name.removeprefix(mark))
        for pin in held.pins
        if pin.name.startswith(mark)
    )
    return encode_checkpoints(msgspec.structs.replace(held, pins=own))


def _pinned(
    wall_ms: Callable[[], int], principal: Principal, key: str, before: bytes, after: bytes
) -> bytes | None:
    """The list with the user's pins as requested, and the pins of others unchanged."""
    if _pinned_space(key) is None:
        return None
    try:
        held, wanted = decode_checkpoints(before), decode_checkpoints(after)
    except EngineError:
        return None
    if wanted != msgspec.structs.replace(held, pins=wanted.pins):
        return None
    if not _may_have(wanted, wall_ms() + PIN_MS_MAX):
        return None
    mark = _mark_of(principal)
    others = tuple(pin for pin in held.pins if not pin.name.startswith(mark))
    own = tuple(msgspec.structs.replace(pin, name=mark + pin.name) for pin in wanted.pins)
    value = encode_checkpoints(msgspec.structs.replace(held, pins=(*others, *own)))
    return value if len(value) <= max(LIST_BYTES_MAX, len(before)) else None


def _may_have(wanted: Checkpoints, latest_ms: int) -> bool:
    numbers = {one.number for one in wanted.kept}
    return len(wanted.pins) <= PINS_MAX and all(
        len(pin.name) <= PIN_CHARACTERS_MAX
        and pin.number in numbers
        and pin.expires_ms <= latest_ms
        for pin in wanted.pins
    )


def _mark_of(principal: Principal) -> str:
    """The prefix of the names of a user's stored pins. No other user's pins have it."""
    return f"user:{len(principal.name)}:{principal.name}:"


def _pinned_space(key: str) -> str | None:
    """The tablespace whose checkpoints a key lists."""
    space = key.removeprefix(f"{SPACES}/").removesuffix(_CHECKPOINTS)
    return space if key == f"{SPACES}/{space}{_CHECKPOINTS}" else None


def _may_read(principal: Principal, tablespace: str) -> bool:
    return "/" not in tablespace and principal.allows("tablespace", tablespace, "read")


def _readable(principal: Principal, tablespaces: Iterable[str]) -> list[str]:
    return [name for name in tablespaces if _may_read(principal, name)]
