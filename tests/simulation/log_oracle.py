"""What must hold of a log at every step, and of all of it at the end.

Invariants checked (a breach raises `Violation` where it happens):
- The epoch never goes back; ledgers are listed in ascending order, each under the epoch that its
  own metadata name, and only when the one before is closed where the list says.
- Neither a pin nor the entries that it protects are removed before the pin expires, by the clock of
  the machine that set it, or is released.
- No ledger is dropped before its retention time is over, by the clock of the machine that listed
  the next one.
- Nothing is acknowledged in a ledger that is not listed, nor out of the order of the appends.
- When a leader begins, it knows every entry that was ever acknowledged in an older epoch.
- In the end the log holds each body once, in the order of the epochs. Of each writer it holds a
  prefix of its appends, which includes all acknowledged ones. Every tail saw exactly these entries.
"""

import struct
from collections.abc import Callable
from typing import Final

from engine.log.log_list import LogList, decode_list
from engine.log.position import START, Position, Span
from engine.metadata.ledgers import LEDGERS, decode_metadata
from engine.metadata.memory import MemoryTree
from tests.simulation.oracles import Violation
from tests.simulation.trace import Trace

_HEAD: Final = struct.Struct(">II")
_PADDING: Final = bytes(range(256))


class WriterOracle:
    """One leader's term: what it appended, and which appends were acknowledged."""

    def __init__(self, log: "LogOracle", number: int, epoch: int) -> None:
        self.epoch = epoch
        self.appended = 0
        self.acknowledged = 0
        self._log = log
        self._number = number
        self._unheard: dict[int, int] = {}

    def bodies(self, count: int) -> list[bytes]:
        """The next entries to append."""
        first = self.appended
        self.appended += count
        return [_body(self._number, index) for index in range(first, first + count)]

    def unsend(self, count: int) -> None:
        """The last ones were refused at once."""
        self.appended -= count

    def on_cancelled(self, first: int, count: int) -> None:
        """These appends were cancelled; acknowledging later entries acknowledges them, too."""
        self._unheard[first] = count

    def on_acknowledged(self, first: int, count: int, spans: tuple[Span, ...]) -> None:
        """Entries from `first` on are said to be durable at `spans`."""
        while self.acknowledged in self._unheard:
            self.acknowledged += self._unheard.pop(self.acknowledged)
        require(first == self.acknowledged, f"{first} acknowledged after {self.acknowledged}")
        self.acknowledged += count
        positions = [position for span in spans for position in span.positions()]
        require(len(positions) == count, f"{count} entries at {spans}")
        for index, position in enumerate(positions, first):
            self._log.on_acknowledged(self.epoch, position, _body(self._number, index))


class LogOracle:
    """All that is known from outside about one log."""

    def __init__(self, tree: MemoryTree, trace: Trace, key: str) -> None:
        self.list = LogList()
        self.newest = START
        self.writers: list[WriterOracle] = []
        self._acknowledged: dict[Position, bytes] = {}
        self._begun: dict[int, Position] = {}
        self._seen: dict[Position, bytes] = {}
        self._ends: dict[int, int | None] = {}
        self._pins: dict[str, float] = {}
        """Until when each pin shall hold."""
        self.retention_s = 0.0
        self.moment_s: Callable[[int], float] = lambda listed_ms: 0.0
        """When the process that is changing the list had a given time on its wall clock."""
        self._listed_s: dict[int, float] = {}
        self._tails: list[tuple[Position, list[Position]]] = []
        self._tree = tree.tree
        self._trace = trace
        self._key = key
        self._tree.watch(key, self._changed)

    def leads(self, epoch: int, last: Position) -> WriterOracle:
        """A takeover has come to its end; its leader believes that the log ends at `last`."""
        require(epoch not in self._begun, f"two leaders in epoch {epoch}")
        self._begun[epoch] = last
        for position in self._acknowledged:
            ledger_epoch = self._epoch_of(position)
            require(
                ledger_epoch >= epoch or position <= last,
                f"epoch {epoch} begins after {last}, yet {position} was acknowledged",
            )
        writer = WriterOracle(self, len(self.writers), epoch)
        self.writers.append(writer)
        return writer

    def on_acknowledged(self, epoch: int, position: Position, body: bytes) -> None:
        """A leader was told that an entry is durable."""
        require(position not in self._acknowledged, f"{position} was given twice")
        require(position.ledger in self._ends, f"{position} is in a ledger that was never listed")
        for newer, last in self._begun.items():
            require(
                newer <= epoch or position <= last,
                f"epoch {epoch} got {position} acknowledged; epoch {newer} began after {last}",
            )
        self._acknowledged[position] = body
        self.newest = max(self.newest, position)
        self.on_entry(position, body)

    def on_entry(self, position: Position, body: bytes) -> None:
        """An entry was read at a position."""
        require(self._seen.setdefault(position, body) == body, f"two entries at {position}")

    def pinned(self, name: str, until_s: float) -> None:
        """Somebody begins to set a pin, for ever or until some moment."""
        self._pins[name] = until_s

    def unpinned(self, name: str) -> None:
        """A client begins to release a pin."""
        self._pins.pop(name, None)

    def tail(self, after: Position) -> list[Position]:
        """Somebody begins to read after a position; add to the list what is handed out."""
        self._tails.append((after, []))
        return self._tails[-1][1]

    def check_truncated(self, position: Position) -> None:
        """Somebody was told that entries after a position are gone."""
        require(not self.list.keeps_after(position), f"all after {position} is kept")

    # The list

    def _changed(self) -> None:
        found = self._tree.get(self._key)
        require(found is not None, "the list of the log is gone")
        assert found is not None
        old, new = self.list, decode_list(found.value)
        self._trace.event("list", new.epoch, new.ledgers, tuple(new.dropped_through))
        require(new.epoch >= old.epoch, "the epoch went back")
        require(new.dropped_through >= old.dropped_through, "what was dropped came back")
        require(old.first_ledger in (0, new.first_ledger), "the first ledger changed")
        self._check_pins(old, new)
        self._check_retention(old, new)
        for listed in new.listed:
            known = listed.ledger in self._ends
            if not known:
                self._listed_s[listed.ledger] = self.moment_s(listed.listed_ms)
                require(not self._ends or listed.ledger > max(self._ends), "listed in between")
                require(self._epoch_in_tree(listed.ledger) == new.epoch, "listed by an old leader")
            if listed.last_entry is not None and self._ends.get(listed.ledger) is None:
                self._check_closed(listed.ledger, listed.last_entry)
            self._ends[listed.ledger] = listed.last_entry
        self.list = new

    def _check_pins(self, old: LogList, new: LogList) -> None:
        names = {pin.name for pin in new.pins}
        for pin in old.pins:
            if self._trace.now_s < self._pins.get(pin.name, 0.0):
                require(pin.name in names, f"{pin.name} has gone before its time")
                held = new.dropped_through <= pin.position
                require(held, f"{pin.name} at {pin.position}, dropped {new.dropped_through}")

    def _check_retention(self, old: LogList, new: LogList) -> None:
        for ledger, after in zip(old.ledgers, old.ledgers[1:], strict=False):
            if ledger not in new.ledgers:
                age_s = self._trace.now_s - self._listed_s[after]
                kept = age_s >= self.retention_s - 0.002
                require(kept, f"ledger {ledger} is dropped after {age_s:.3f} s")

    def _check_closed(self, ledger: int, last_entry: int) -> None:
        found = self._tree.get(f"{LEDGERS}/{ledger}")
        require(found is not None, f"ledger {ledger} is gone, and the next one is listed")
        assert found is not None
        metadata = decode_metadata(found.value)
        require(
            metadata.last_entry == last_entry,
            f"ledger {ledger} ends at {metadata.last_entry}, the list says {last_entry}",
        )

    def _epoch_in_tree(self, ledger: int) -> int:
        found = self._tree.get(f"{LEDGERS}/{ledger}")
        require(found is not None, f"ledger {ledger} is listed and does not exist")
        assert found is not None
        return int(decode_metadata(found.value).custom["epoch"])

    def _epoch_of(self, position: Position) -> int:
        number: int = _HEAD.unpack_from(self._acknowledged[position])[0]
        return self.writers[number].epoch

    # The end

    def judge(self, last: Position, archive: list[Position]) -> None:
        """All of the log, which ends at `last`; `archive` is what one tail saw from START on."""
        self._ends = {
            ledger: last.entry if ledger == last.ledger else end
            for ledger, end in self._ends.items()
            if ledger <= last.ledger
        }
        whole: list[Position] = []
        for ledger, end in sorted(self._ends.items()):
            assert end is not None
            whole += [Position(ledger, entry) for entry in range(end + 1)]
        require(archive == whole, "the tail from the beginning did not see all of the log")
        for after, positions in self._tails:
            reached = positions[-1] if positions else after
            expected = [position for position in whole if after < position <= reached]
            require(positions == expected, f"a tail after {after} saw {_difference(positions)}")
        self._judge_bodies(whole)

    def _judge_bodies(self, whole: list[Position]) -> None:
        places = set(whole)
        for position in self._acknowledged:
            require(position in places, f"{position} was acknowledged and is lost")
        counts = [0] * len(self.writers)
        epoch = 0
        for position in whole:
            number, index = _HEAD.unpack_from(self._seen[position])
            writer = self.writers[number]
            require(writer.epoch >= epoch, f"epoch {writer.epoch} at {position}, after {epoch}")
            epoch = writer.epoch
            require(index == counts[number], f"{number}/{index} after {counts[number]} others")
            require(self._seen[position] == _body(number, index), f"other bytes at {position}")
            counts[number] += 1
        for writer, count in zip(self.writers, counts, strict=True):
            require(
                writer.acknowledged <= count <= writer.appended,
                f"epoch {writer.epoch}: {count} entries in the log, {writer.acknowledged} "
                f"acknowledged, {writer.appended} appended",
            )


def require(holds: bool, message: str) -> None:
    """Raises `Violation` unless it holds."""
    if not holds:
        raise Violation(f"log: {message}")


def _body(number: int, index: int) -> bytes:
    return _HEAD.pack(number, index) + _PADDING[: (number * 31 + index * 7) % 40]


def _difference(positions: list[Position]) -> str:
    return f"{len(positions)} entries up to {positions[-1] if positions else None}"
