"""The calls of `Calls` as messages: their arguments and results in MessagePack, by their own types.

Invariants:
- The table is made of the contract itself: a call that is added there is known here.
- Arguments are decoded whole, with the types of the contract, or refused.
"""

import inspect
import typing
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from broker.calls import Calls
from broker.errors import BrokerUnavailable, InvalidTask, OutcomeUnknown
from broker.settings import Setting, decode_setting, encode_setting
from broker.translating import translating
from engine.replica import ConfirmedReads

WAIT_MS_MAX: Final = 60_000
"""So long a call waits at most; who wants to wait longer asks again."""
ASKS_MAX: Final = 65_536
"""The most questions in one message of a stream."""
READS: Final = frozenset(
    (
        *("task", "payload", "result", "wait", "tasks", "slots", "transactions", "now_ms"),
        *("settings_of", "schedules", "code_pools", "workers", "resources", "queues", "counts"),
        *("rollout", "rollouts", "held_clusters", "rollout_notes", "ended"),
    )
)
"""Calls that change nothing: to make one again does no harm."""
_OTHER_WAYS: Final = ("connect",)
_encode: Final = msgspec.msgpack.Encoder().encode
_MALFORMED: Final = (msgspec.MsgspecError, UnicodeError, OverflowError, TypeError, ValueError)


class Method:
    """One call of the contract."""

    def __init__(self, name: str, function: Any) -> None:
        self.name = name
        hints = typing.get_type_hints(function)
        returns = hints.pop("return")
        parameters = list(inspect.signature(function).parameters.values())[1:]
        fields: list[Any] = []
        for each in parameters:
            kind = _plain(hints[each.name])
            given = each.default is not each.empty
            fields.append((each.name, kind, each.default) if given else (each.name, kind))
        self._arguments = msgspec.defstruct(name, fields, array_like=True)
        self._names = [each.name for each in parameters]
        self._decode_arguments = msgspec.msgpack.Decoder(self._arguments).decode
        self._decode_result = msgspec.msgpack.Decoder(_plain(returns)).decode

    def pack(self, arguments: Sequence[Any], named: dict[str, Any]) -> bytes:
        """The arguments of a call. Raises `InvalidTask`."""
        try:
            return _encode(self._arguments(*arguments, **named))
        except _MALFORMED as error:
            raise InvalidTask(f"{self.name}: {error}") from error

    async def answer(self, calls: Calls, data: bytes) -> bytes:
        """Call it: the result, packed. Raises `InvalidTask`, and what the call raises."""
        try:
            said = self._decode_arguments(data)
        except _MALFORMED as error:
            raise InvalidTask(f"{self.name}: {error}") from error
        named = {name: getattr(said, name) for name in self._names}
        if self.name == "wait":
            given = named["timeout_ms"]
            named["timeout_ms"] = WAIT_MS_MAX if given is None else min(given, WAIT_MS_MAX)
        if self.name == "set" and named["setting"] is not None:
            named["setting"] = decode_setting(named["kind"], named["name"], named["setting"])
        with translating():
            async with ConfirmedReads():
                result = await getattr(calls, self.name)(**named)
        if self.name == "settings_of":
            result = [(kind, name, encode_setting(each)) for kind, name, each in result]
        return _encode(result)

    def unpack(self, data: bytes) -> Any:
        """A result.

        Raises for one of another version `BrokerUnavailable`, or where the call has changed
        something, `OutcomeUnknown`: it must not be made again.
        """
        try:
            result = self._decode_result(data)
        except _MALFORMED as error:
            kind = BrokerUnavailable if self.name in READS else OutcomeUnknown
            raise kind(f"the broker answers in another way: {error}") from error
        if self.name == "settings_of":
            return [(kind, name, decode_setting(kind, name, each)) for kind, name, each in result]
        return result


def _plain(kind: Any) -> Any:
    """A type as it travels: settings as their own bytes, which kind and name tell apart."""
    if kind == Setting:
        return bytes
    if kind == (Setting | None):
        return bytes | None
    if kind == list[tuple[str, str, Setting]]:
        return list[tuple[str, str, bytes]]
    return kind


METHODS: Final = {
    name: Method(name, function)
    for name, function in vars(Calls).items()
    if inspect.iscoroutinefunction(function) and name not in _OTHER_WAYS
}
