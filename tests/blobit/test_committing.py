"""Changes of names, batch by batch, over rows that fail as told."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import pytest

from blobit.committing import Change, Committer, Effect, Found, LedgerGone
from blobit.errors import (
    BlobError,
    BlobNotStored,
    BlobsClosed,
    CommitOutcomeUnknown,
    ConditionFailed,
    MetadataUnavailable,
    NoSuchBucket,
)
from blobit.rows import Rows, RowsTransaction, told
from blobit.settings import BlobSettings
from blobit.tables import Row, RowKey
from engine.ports.clock import SystemClock
from herd.errors import (
    CommitUnknown,
    Deadlock,
    Error,
    ForeignKeyViolation,
    InternalError,
    LeaderUnavailable,
    TooLarge,
)

SETTINGS = BlobSettings(commit_patience_ms=200)
HOME = "objects: objects_home refers to a row that is not there"
LEDGER = "refs: refs_ledger refers to a row that is not there"


class Table(RowsTransaction):
    """Rows in a dictionary; commits and looks fail in the order given, None works."""

    def __init__(self) -> None:
        self.rows: dict[RowKey, Row | None] = {}
        self.failures: deque[Exception | None] = deque()
        self.refused: dict[RowKey, Exception] = {}
        self.commits: list[int] = []
        self.applies_unknown = False
        self.closed = False
        self.dropped = False
        self.locking = asyncio.Lock()
        self._writes: dict[RowKey, Row | None] = {}

    def at_once(self, keys: Iterable[RowKey]) -> None:
        """It is as if these rows were elsewhere."""

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator["Table"]:
        async with self.locking:
            self._writes = {}
            yield self

    async def lock(self, keys: Iterable[RowKey]) -> dict[RowKey, Row | None]:
        await asyncio.sleep(0)
        return {key: self.rows.get(key) for key in keys}

    async def write(self, rows: Mapping[RowKey, Row | None]) -> None:
        for key in rows:
            if key in self.refused:
                raise self.refused[key]
        self._writes = dict(rows)

    async def why(self, error: Error) -> BlobError:
        return NoSuchBucket("dropped") if self.dropped else told(error)

    async def close(self) -> None:
        self.closed = True

    async def commit(self) -> None:
        failure = self.failures.popleft() if self.failures else None
        if failure is None or (isinstance(failure, CommitUnknown) and self.applies_unknown):
            self.rows.update(self._writes)
            self.commits.append(len(self._writes))
        if failure is not None:
            raise failure


def committer_of(table: Table, settings: BlobSettings = SETTINGS) -> Committer:
    return Committer(cast(Rows, table), SystemClock(), settings)


def key(name: str) -> RowKey:
    return "uploads", (1, name)


def put(name: str, etag: str = "x", if_etag: str | None = None) -> Change[str]:
    """Gives a name an etag, if it has this one."""

    def decide(found: Found) -> Effect[str]:
        row = found[key(name)]
        if if_etag is not None and (row is None or row["etag"] != if_etag):
            raise ConditionFailed(name)
        return Effect({key(name): {"etag": etag}}, etag)

    def confirm(found: Found) -> str | None:
        row = found[key(name)]
        return etag if row is not None and row["etag"] == etag else None

    return Change((key(name),), decide, confirm)


def remove(name: str, if_etag: str | None = None) -> Change[bool]:
    """Removes a name, if it has this etag; answers whether it was there."""

    def decide(found: Found) -> Effect[bool]:
        row = found[key(name)]
        if if_etag is not None and (row is None or row["etag"] != if_etag):
            raise ConditionFailed(name)
        return Effect({key(name): None} if row is not None else {}, row is not None)

    return Change((key(name),), decide, lambda found: True if found[key(name)] is None else None)


async def test_changes_that_come_together_share_a_transaction() -> None:
    table = Table()
    committer = committer_of(table)
    answers = await asyncio.gather(*(committer.change(put(f"{n}", f"e{n}")) for n in range(50)))
    assert answers == [f"e{n}" for n in range(50)]
    assert len(table.commits) <= 2


async def test_a_change_is_decided_by_what_the_one_before_leaves() -> None:
    table = Table()
    committer = committer_of(table)
    answers: Any = await asyncio.gather(
        committer.change(put("cow", "1")),
        committer.change(put("cow", "2", if_etag="1")),
        committer.change(put("cow", "3", if_etag="1")),
        return_exceptions=True,
    )
    assert list(answers[:2]) == ["1", "2"] and isinstance(answers[2], ConditionFailed)
    assert table.rows[key("cow")] == {"etag": "2"}
    assert len(table.commits) == 1


async def test_what_was_decided_in_a_transaction_that_failed_is_decided_again() -> None:
    table = Table()
    table.failures += [Deadlock("again"), LeaderUnavailable("nobody")]
    committer = committer_of(table)
    made, refused = await asyncio.gather(
        committer.change(put("cow", "1")),
        committer.change(put("cow", "2", if_etag="0")),
        return_exceptions=True,
    )
    assert made == "1" and isinstance(refused, ConditionFailed)


async def test_nobody_leading_for_too_long_is_told_and_nothing_was_changed() -> None:
    table = Table()
    table.failures += [LeaderUnavailable("nobody")] * 1_000
    with pytest.raises(MetadataUnavailable, match="nobody") as caught:
        await committer_of(table).change(put("cow"))
    assert isinstance(caught.value.__cause__, LeaderUnavailable)
    assert not isinstance(caught.value, CommitOutcomeUnknown)
    assert table.rows == {}


async def test_a_tablespace_that_was_dropped_is_waited_for_no_longer() -> None:
    table = Table()
    table.dropped = True
    table.failures += [LeaderUnavailable("nobody")] * 1_000
    with pytest.raises(NoSuchBucket, match="dropped"):
        await committer_of(table, BlobSettings()).change(put("cow"))


async def test_one_that_is_refused_by_the_database_leaves_the_others_alone() -> None:
    table = Table()
    table.refused = {
        key("gone"): ForeignKeyViolation(LEDGER),
        key("homeless"): ForeignKeyViolation(HOME),
        key("large"): TooLarge("48 MiB"),
    }
    committer = committer_of(table)
    names = ("a", "gone", "b", "homeless", "large", "c")
    answers: list[Any] = await asyncio.gather(
        *(committer.change(put(name, name)) for name in names), return_exceptions=True
    )
    assert [answers[n] for n in (0, 2, 5)] == ["a", "b", "c"]
    kinds = [type(answers[n]) for n in (1, 3, 4)]
    assert kinds == [LedgerGone, NoSuchBucket, BlobNotStored]


@pytest.mark.parametrize("applied", [True, False])
async def test_a_commit_of_unknown_outcome_is_found_out_by_its_own_mark(applied: bool) -> None:
    table = Table()
    table.rows[key("other")] = {"etag": "before"}
    table.applies_unknown = applied
    table.failures += [CommitUnknown("the leader went away")]
    committer = committer_of(table)
    answers: Any = await asyncio.gather(
        committer.change(put("cow", "mine")),
        committer.change(put("other", "mine too")),
        return_exceptions=True,
    )
    if applied:
        assert list(answers) == ["mine", "mine too"]
    else:
        assert all(isinstance(answer, CommitOutcomeUnknown) for answer in answers)
    assert len(table.commits) == applied


@pytest.mark.parametrize("applied", [True, False])
async def test_a_change_that_wrote_nothing_in_a_lost_commit_is_decided_again(applied: bool) -> None:
    table = Table()
    table.rows[key("cow")] = {"etag": "1"}
    table.applies_unknown = applied
    table.failures += [CommitUnknown("the leader went away")]
    committer = committer_of(table)
    refused, removed, absent, late = await asyncio.gather(
        committer.change(remove("cow", if_etag="0")),
        committer.change(remove("cow", if_etag="1")),
        committer.change(remove("calf")),
        committer.change(remove("cow")),
        return_exceptions=True,
    )
    assert isinstance(refused, ConditionFailed) and absent is False
    if applied:
        assert removed is True and late is False
    else:
        # In the lost commit it found nothing to remove: an earlier removal was in it, too.
        assert isinstance(removed, CommitOutcomeUnknown) and late is True
    assert table.rows.get(key("cow")) is None


async def test_a_defect_below_is_told_to_all_and_the_next_ones_go_on() -> None:
    table = Table()
    table.failures += [InternalError("a defect")]
    committer = committer_of(table)
    with pytest.raises(MetadataUnavailable, match="a defect"):
        await committer.change(put("cow"))
    assert await committer.change(put("cow", "2")) == "2"


@pytest.mark.parametrize("commits_max", [1, 2])
async def test_who_goes_on_as_soon_as_it_was_answered_is_not_forgotten(commits_max: int) -> None:
    table = Table()
    committer = committer_of(table, replace(SETTINGS, commits_max=commits_max))

    async def several(who: int) -> None:
        for number in range(20):
            await committer.change(put(f"{who}-{number}"))

    async with asyncio.timeout(10):
        await asyncio.gather(*(several(who) for who in range(commits_max)))
    await committer.close()
    assert len(table.rows) == 20 * commits_max


async def test_who_is_cancelled_leaves_the_others_of_the_batch_alone() -> None:
    table = Table()
    committer = committer_of(table)
    first = asyncio.ensure_future(committer.change(put("a", "1")))
    second = asyncio.ensure_future(committer.change(put("b", "2")))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == "2"
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_what_waits_is_bounded_in_bytes() -> None:
    table = Table()
    settings = replace(SETTINGS, commit_pending_bytes_max=10_000)
    committer = committer_of(table, settings)
    large = [replace(put(f"{n}", "x"), size_bytes=4_000) for n in range(20)]
    assert await asyncio.gather(*(committer.change(change) for change in large)) == ["x"] * 20
    assert max(table.commits) <= 2


async def test_a_closed_one_ends_what_is_under_way_and_takes_no_more() -> None:
    table = Table()
    committer = committer_of(table)
    under_way = asyncio.ensure_future(committer.change(put("a", "1")))
    await asyncio.sleep(0)
    await committer.close()
    assert await under_way == "1"
    assert table.closed
    with pytest.raises(BlobsClosed):
        await committer.change(put("b"))
