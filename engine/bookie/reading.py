"""From places to runs: few reads of the disk, every header and table checked.

Invariants:
- A run is handed out only if the header stands where the place says, with the salted CRC of that
  place, and the table matches the header.
- What cannot be read is unknown, never missing.
- Records that lie close together are fetched with one read.
- The quick way for small records far apart takes only what is plain; whatever is not, the way for
  one record judges: damaged, gone or unreadable.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.bookie.index import Place
from engine.bookie.indexing import DAMAGED
from engine.bookie.segment import joined_run, name_of, run_at, seed_of
from engine.bookie.window import RecentRuns
from engine.limits import KIB, RUN_BYTES_MAX, RUN_ENTRIES_MAX
from engine.ports.disk import Disk
from engine.run import Run

_CHUNK_BYTES_MAX = 2 * 1024 * KIB

_SCATTERED_BYTES_MAX = 16 * KIB
"""A record up to this size is read and joined with others like it, wherever they lie."""


class NeedsDisk(Exception):
    """A run is not in memory and no disk was given."""


@dataclass(slots=True)
class Found:
    """Runs without a gap, and why they end; see `ReadReply`.

    `damaged` names places whose bytes proved damaged, `vanished` that a segment has gone: look the
    places up again.
    """

    runs: list[Run] = field(default_factory=list)
    missing: tuple[int, int] | None = None
    unknown: tuple[int, int] | None = None
    damaged: Place | None = None
    vanished: bool = False


class Gatherer:
    """Collects runs for one request. Without a disk it may run on the loop."""

    def __init__(
        self,
        disk: Disk | None,
        salt: int,
        recent: RecentRuns,
        stripe_entries: int,
        gap_bytes: int,
    ) -> None:
        self._disk = disk
        self._gap_bytes = gap_bytes
        self._salt = salt
        self._recent = recent
        self._stripe_entries = stripe_entries
        self._chunk = b""
        self._chunk_segment = 0
        self._chunk_start = 0
        self._seed = 0
        self._name = ""

    def gather(
        self, places: Sequence[Place], complete: bool, first: int, last: int, max_bytes: int
    ) -> Found:
        """Runs from `first` to `last`, about `max_bytes` of them.

        `complete` says that ids in no place are positively not held. Raises `NeedsDisk`.
        """
        found = Found()
        following = first
        size_bytes = index = 0
        while index < len(places):
            if following > last or size_bytes >= max_bytes:
                return found
            place = places[index]
            if place.last < following:
                # What newer places left of an older one may lie before all that was asked for.
                index += 1
                continue
            if place.first > following:
                found.missing = (following, min(place.first - 1, last))
                return found
            end = min(place.last, last)
            if place.segment == DAMAGED:
                found.unknown = (following, end)
                return found
            run, taken = self._scattered(places, index, last, max_bytes - size_bytes)
            if run is None:
                run, taken = self._run(places, index, max_bytes - size_bytes, found), 1
                if run is None:
                    found.unknown = (following, end)
                    return found
                if run.first != following or run.first + run.count - 1 != end:
                    run = run.cut(following, end)
            found.runs.append(run)
            size_bytes += len(run.body)
            following += run.count
            index += taken
        if complete and following <= last and size_bytes < max_bytes:
            found.missing = (following, last)
        return found

    def _scattered(
        self, places: Sequence[Place], start: int, last: int, wanted_bytes: int
    ) -> tuple[Run | None, int]:
        """Small records far apart, from place number `start` on, as one run within a stripe.

        Also how many places it took; None and 0 where it is not sure of the first.
        """
        disk = self._disk
        segment, following = places[start].segment, places[start].record_first
        if disk is None or segment != self._chunk_segment:
            return None, 0
        newest = self._recent.starts_at(segment)
        stripe_end = following - following % self._stripe_entries + self._stripe_entries - 1
        end = min(last, stripe_end, following + RUN_ENTRIES_MAX - 1)
        near, gap_bytes = self._chunk_start + len(self._chunk), self._gap_bytes
        wanted_bytes = min(wanted_bytes, RUN_BYTES_MAX)
        ranges: list[tuple[int, int]] = []
        for place in places[start : start + RUN_ENTRIES_MAX]:
            _, held_first, held_last, held_segment, offset, size_bytes, record_first = place
            if not held_first == record_first == following or held_last > end:
                break
            if held_segment != segment or size_bytes > min(_SCATTERED_BYTES_MAX, wanted_bytes):
                break
            if -_CHUNK_BYTES_MAX < offset - near <= gap_bytes or offset >= newest:
                break
            ranges.append((offset, size_bytes))
            near = offset + size_bytes
            wanted_bytes -= size_bytes
            following = held_last + 1
        if len(ranges) < 2:
            return None, 0
        try:
            records = disk.read_each(self._name, ranges)
        except OSError:
            return None, 0
        return joined_run(records, places[start : start + len(ranges)], self._seed)

    def _run(
        self, places: Sequence[Place], index: int, wanted_bytes: int, found: Found
    ) -> Run | None:
        place = places[index]
        run = self._recent.get(place.segment, place.offset)
        if run is None:
            if self._disk is None:
                raise NeedsDisk
            try:
                run = self._read(self._disk, places, index, wanted_bytes)
            except FileNotFoundError:
                found.vanished = True
                return None
            except OSError:
                # The disk's own complaint may pass: it is no proof of damage.
                return None
        if run is None or run.ledger_id != place.ledger_id:
            found.damaged = place
            return None
        if run.first != place.record_first or run.first > place.first or run.last < place.last:
            found.damaged = place
            return None
        return run

    def _read(
        self, disk: Disk, places: Sequence[Place], index: int, wanted_bytes: int
    ) -> Run | None:
        place = places[index]
        at = place.offset - self._chunk_start
        inside = self._chunk_segment == place.segment and at >= 0
        if not inside or at + place.size_bytes > len(self._chunk):
            wanted_bytes = min(wanted_bytes, _CHUNK_BYTES_MAX)
            end = _extent(places, index, wanted_bytes, self._gap_bytes)
            if place.segment != self._chunk_segment:
                self._chunk_segment = place.segment
                self._seed = seed_of(self._salt, place.segment)
                self._name = name_of(place.segment)
            self._chunk = disk.read(self._name, place.offset, end - place.offset)
            self._chunk_start = place.offset
            at = 0
        run = run_at(self._chunk, at, self._seed, place.offset)
        if run is None or len(run.table) != 8 * run.count:
            return None
        return run


def joined(runs: Sequence[Run], stripe_entries: int) -> list[Run]:
    """The same entries in fewer runs: small neighbours within a stripe become one.

    A reader unpacks one run of fifty entries far quicker than fifty of one. No run may cross a
    stripe: a recovery writes what it read to the write set of the run's first entry.
    """
    result: list[Run] = []
    group: list[Run] = []
    entries = size_bytes = stripe = 0
    for run in runs:
        count, length = run.count, len(run.body)
        fits = (
            group
            and run.first // stripe_entries == stripe
            and entries + count <= RUN_ENTRIES_MAX
            and size_bytes + length <= RUN_BYTES_MAX
        )
        if not fits:
            if group:
                result.append(_join(group))
            group = []
            entries = size_bytes = 0
            stripe = run.first // stripe_entries
        group.append(run)
        entries += count
        size_bytes += length
    if group:
        result.append(_join(group))
    return result


def _join(runs: list[Run]) -> Run:
    first, last = runs[0], runs[-1]
    if first is last:
        return first
    return Run(
        first.ledger_id,
        first.first,
        last.first + last.count - first.first,
        first.lac,
        last.length,
        b"".join([run.table for run in runs]),
        b"".join([run.body for run in runs]),
    )


def _extent(places: Sequence[Place], index: int, wanted_bytes: int, gap_bytes: int) -> int:
    """Where to end a read that begins with a place and takes neighbours along."""
    place = places[index]
    start, end = place.offset, place.offset + place.size_bytes
    for following in places[index + 1 :]:
        near = 0 <= following.offset - end <= gap_bytes
        if following.segment != place.segment or not near or end - start >= wanted_bytes:
            break
        end = following.offset + following.size_bytes
    return end
