"""How a broker behaves, and the settings that operators change while it runs.

A setting is a row of the replicated state: a kind, a name, and one of the structs below as JSON.
It counts from the next assignment on.

Invariants (checked when a setting is decoded, and by `check_setting` before one is logged):
- A limit is not negative, a weight and a rate are above zero, a burst is at least one.
- What is no setting is refused with a sentence that says why, and changes nothing.
"""

import math
from dataclasses import dataclass
from typing import Final

import msgspec

from broker.errors import InvalidSetting
from broker.spec import NAME_LENGTH_MAX, RESOURCES_MAX

GROUP_ANY: Final = 0
"""In a worker's list of groups: every group that is not excluded."""
GROUP_DEFAULT: Final = 1
"""The group of tenants for whom nothing else is set."""
GROUP_MAX: Final = 2**31
TYPE_ANY: Final = "any"
"""In a worker's places by type: all types together that are not named."""
WEIGHT_MAX: Final = 1_000_000.0
AGING_MS_NEVER: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """Bounds of one broker. Times in milliseconds.

    `lease_ms` is how long a worker that is not heard of keeps its tasks. A task that has waited for
    `aging_ms` counts as one priority higher; 0: priorities are strict. `hint_after_ms` is how long
    a type may find no worker before the log says so. `transaction_ttl_ms` is how long a transaction
    stays open, `retention_ms` how long an ended task and its result are kept, from its end on.
    """

    lease_ms: int = 10_000
    aging_ms: int = 60_000
    hint_after_ms: int = 5_000
    transaction_ttl_ms: int = 300_000
    retention_ms: int = 3_600_000

    def __post_init__(self) -> None:
        assert self.lease_ms > 0 and self.aging_ms >= 0 and self.hint_after_ms > 0
        assert self.transaction_ttl_ms > 0 and self.retention_ms >= 0


class Limit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """At most so many at the same time, on all workers together. Of a resource or a type."""

    limit: int


class TenantLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tenant's share of the places.

    Tenants that wait get places as their weights are; who has fewer than `reserved` comes before
    all who have theirs; nobody has more than `maximum`.
    """

    weight: float = 1.0
    reserved: int = 0
    maximum: int | None = None


class OperatorLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The operator's limits for one worker: the lesser of these and its own counts."""

    places: int | None = None
    places_by_type: dict[str, int] = {}
    resources: dict[str, int] = {}
    share_percent: int = 0


class Target(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which group of workers runs a task, and one unit of which resources each it takes."""

    group: int = GROUP_DEFAULT
    resources: tuple[str, ...] = ()


class Mapping(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tenant's tasks: where they run, and where those of some types do."""

    group: int = GROUP_DEFAULT
    resources: tuple[str, ...] = ()
    types: dict[str, Target] = {}


class Rate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """So many begin in a second, and up to `burst` at once after a pause."""

    per_second: float
    burst: int = 1


class Pause(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nothing more begins until it is taken away. What runs goes on."""

    reason: str = ""


class Quota(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What of a tenant may wait to begin: so many tasks, with payloads of so many bytes together.

    None: any number. Payloads that lie in a bucket are not counted. Of the name "" it is that of
    each tenant that has none of its own.
    """

    tasks: int | None = None
    payload_bytes: int | None = None


Setting = Limit | TenantLimits | OperatorLimits | Mapping | Rate | Pause | Quota

KINDS: Final[dict[str, type[Setting]]] = {
    "resource": Limit,
    "type": Limit,
    "tenant": TenantLimits,
    "worker": OperatorLimits,
    "mapping": Mapping,
    "rate": Rate,
    "pause": Pause,
    "quota": Quota,
}
NAMELESS: Final = ("mapping", "quota")
"""Kinds of which the one without a name is that of all others."""
SCOPES: Final = {"rate": ("tenant", "type", "resource"), "pause": ("tenant", "type")}
_DECODERS: Final = {kind: msgspec.json.Decoder(struct) for kind, struct in KINDS.items()}


def scope_of(kind: str, name: str) -> tuple[str, str]:
    """What a rate or a pause is for: `type:resize` is ("type", "resize").

    Raises `InvalidSetting`.
    """
    scope, colon, rest = name.partition(":")
    if not colon or not rest or scope not in SCOPES[kind]:
        known = ", ".join(f"{one}:NAME" for one in SCOPES[kind])
        raise InvalidSetting(f"a {kind} is set for {known}; not for {name!r}")
    return scope, rest


def decode_setting(kind: str, name: str, value: bytes) -> Setting:
    """A setting from its JSON. Raises `InvalidSetting`."""
    if kind not in KINDS:
        raise InvalidSetting(f"there is no setting {kind!r}; there are {', '.join(KINDS)}")
    try:
        setting: Setting = _DECODERS[kind].decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidSetting(f"the {kind} of {name!r} cannot be set: {error}") from error
    check_setting(kind, name, setting)
    return setting


def encode_setting(setting: Setting) -> bytes:
    """A setting's JSON, the same for equal ones."""
    return msgspec.json.encode(setting, order="deterministic")


def check_setting(kind: str, name: str, setting: Setting) -> None:
    """Raise `InvalidSetting` unless a setting may be what it is."""
    if kind not in KINDS:
        raise InvalidSetting(f"there is no setting {kind!r}; there are {', '.join(KINDS)}")
    if not isinstance(setting, KINDS[kind]):
        raise InvalidSetting(f"a {kind} is a {KINDS[kind].__name__}, no {type(setting).__name__}")
    if kind in SCOPES:
        scope_of(kind, name)
    elif not name and kind not in NAMELESS:
        raise InvalidSetting(f"a {kind} needs a name")
    if len(name) > NAME_LENGTH_MAX:
        raise InvalidSetting(f"the name of a {kind} has up to {NAME_LENGTH_MAX} letters")
    wrong = _wrong(setting)
    if wrong:
        raise InvalidSetting(f"the {kind} of {name!r} cannot be set: {wrong}")


def _wrong(setting: Setting) -> str:
    if isinstance(setting, Limit):
        return _negative({"limit": setting.limit})
    if isinstance(setting, TenantLimits):
        if not 1 / WEIGHT_MAX <= setting.weight <= WEIGHT_MAX:
            return f"a weight lies between {1 / WEIGHT_MAX:f} and {WEIGHT_MAX:.0f}"
        if setting.maximum is not None and setting.maximum < setting.reserved:
            return "the maximum is below what is reserved"
        return _negative({"reserved": setting.reserved, "maximum": setting.maximum})
    if isinstance(setting, Quota):
        return _negative({"tasks": setting.tasks, "payload_bytes": setting.payload_bytes})
    if isinstance(setting, OperatorLimits):
        if not 0 <= setting.share_percent <= 100:
            return "a share lies between 0 and 100 percent"
        places = {"places": setting.places, **setting.places_by_type, **setting.resources}
        return _negative(places)
    if isinstance(setting, Rate):
        if not (0 < setting.per_second < math.inf) or setting.burst < 1:
            return "a rate is above 0 a second, and its burst is 1 or more"
        return ""
    if isinstance(setting, Mapping):
        targets = [Target(setting.group, setting.resources), *setting.types.values()]
        return next(filter(None, map(wrong_target, targets)), "")
    return ""


def wrong_target(target: Target) -> str:
    """Why no task can run there, as the log would not take its assignment; empty: it can."""
    if not GROUP_ANY < target.group <= GROUP_MAX:
        return f"a group is 1 or more, up to {GROUP_MAX}"
    if len(target.resources) > RESOURCES_MAX:
        return f"{len(target.resources)} resources; {RESOURCES_MAX} fit"
    if not all(0 < len(name) <= NAME_LENGTH_MAX for name in target.resources):
        return f"a resource's name has 1 to {NAME_LENGTH_MAX} letters"
    return ""


def _negative(values: dict[str, int | None]) -> str:
    below = [name for name, value in values.items() if value is not None and value < 0]
    return f"{', '.join(below)} is below 0" if below else ""
