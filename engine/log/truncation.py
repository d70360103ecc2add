"""What a log may drop, and what holds it back: pure functions over the list.

Invariants:
- A ledger is dropped whole, from the front, when the checkpoint and every pin have passed its end
  and the next ledger was listed at least the retention time ago, by the clock of the
  machine that listed it, within the allowed difference of clocks. The last one is never dropped.
- Pins stand in the list itself: compare-and-set decides between a pin and a truncation.
- A pin is over only when the clock has passed its expiry by what clocks may differ.
- However many others pin the log, a replica that restores itself finds a place for its pin.
"""

from typing import Final

import msgspec

from engine.errors import InvalidRequest, Overloaded, PositionTruncated
from engine.expiry import is_over
from engine.log.log_list import LogList, Pin
from engine.log.position import Position
from engine.log.settings import LogSettings
from engine.run import NO_ENTRY

PINS_MAX: Final = 1_000
FOR_REPLICAS: Final = 50
"""So many of these are left to replicas."""
REPLICA: Final = "replica "
"""How the names of their pins begin."""
PIN_NAME_BYTES_MAX: Final = 200


def pinned(current: LogList, pin: Pin, now_ms: int, settings: LogSettings) -> LogList:
    """The list with a pin, in place of an older one of its name.

    Raises `PositionTruncated`, `InvalidRequest`, `Overloaded` (too many pins).
    """
    if not 0 < len(pin.name.encode()) <= PIN_NAME_BYTES_MAX:
        raise InvalidRequest(f"a pin's name has 1 to {PIN_NAME_BYTES_MAX} bytes: {pin.name[:50]!r}")
    check_kept(current, pin.position)
    standing = _standing(current, now_ms, settings)
    others = [other for other in standing if other.name != pin.name]
    if len(others) == len(standing):
        _check_room(pin.name, others)
    return msgspec.structs.replace(current, pins=(*others, pin))


def unpinned(current: LogList, name: str) -> LogList | None:
    """The list without a pin; None if there is none of this name."""
    kept = tuple(pin for pin in current.pins if pin.name != name)
    return None if len(kept) == len(current.pins) else msgspec.structs.replace(current, pins=kept)


def truncated(
    current: LogList, checkpoint: Position, now_ms: int, settings: LogSettings
) -> LogList | None:
    """The list without the ledgers that nobody needs; None if all of them are needed."""
    pins = tuple(_standing(current, now_ms, settings))
    floor = min([checkpoint, *(pin.position for pin in pins)])
    dropped_through = current.dropped_through
    drop = 0
    for listed, after in zip(current.listed, current.listed[1:], strict=False):
        assert listed.last_entry is not None
        end = Position(listed.ledger, listed.last_entry)
        if end > floor or _retained(after.listed_ms, now_ms, settings):
            break
        drop += 1
        if listed.last_entry != NO_ENTRY:
            dropped_through = end
    if drop == 0:
        return None
    return msgspec.structs.replace(
        current, listed=current.listed[drop:], dropped_through=dropped_through, pins=pins
    )


def check_kept(current: LogList, position: Position) -> None:
    """Raises `PositionTruncated` unless every entry after a position is kept."""
    if not current.keeps_after(position):
        raise PositionTruncated(
            f"the log keeps nothing up to {tuple(current.dropped_through)}; "
            f"entries after {tuple(position)} are wanted"
        )


def _check_room(name: str, others: list[Pin]) -> None:
    counted, pins_max = others, PINS_MAX
    if not name.startswith(REPLICA):
        counted = [other for other in others if not other.name.startswith(REPLICA)]
        pins_max -= FOR_REPLICAS
    if len(counted) >= pins_max:
        raise Overloaded(f"the log has {len(counted)} pins already")


def _standing(current: LogList, now_ms: int, settings: LogSettings) -> list[Pin]:
    """The pins that are not over."""
    allowed_ms = settings.clock_difference_ms
    return [pin for pin in current.pins if not is_over(pin.expires_ms, now_ms, allowed_ms)]


def _retained(next_listed_ms: int, now_ms: int, settings: LogSettings) -> bool:
    """Whether a ledger is too young to drop. `next_listed_ms`: when the next one was listed."""
    kept_until_ms = next_listed_ms + settings.retention_ms
    wanted = settings.retention_ms > 0
    return wanted and not is_over(kept_until_ms, now_ms, settings.clock_difference_ms)
