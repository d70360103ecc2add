"""An image brings back every row of its snapshot, and one that is not whole says so."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence

import pytest

from engine.errors import AppendFailed, CannotRead, FormatTooNew
from engine.log.position import START, Position
from engine.ports.system_workers import ThreadWorkers
from engine.state.contract import Row
from engine.state.digest import digest
from engine.state.image import (
    ENTRY_BYTES_MAX,
    FORMAT_MAJOR,
    ImageFooter,
    ImageHeader,
    read_header,
    read_image,
    write_image,
)
from engine.state.memory import MemoryState

HEADER = ImageHeader("cattle", Position(7, 41), 3, 1)


async def no_pause() -> None:
    """As good as none."""


def filled(rows: dict[bytes, bytes]) -> MemoryState:
    state = MemoryState()
    for key, value in rows.items():
        state.put(key, value)
    state.commit(Position(7, 41))
    return state


def many(count: int, value_bytes: int = 100) -> dict[bytes, bytes]:
    rng = random.Random(1)
    return {b"%08d" % number: rng.randbytes(value_bytes) for number in range(count)}


async def image_of(state: MemoryState, workers: ThreadWorkers | None = None) -> list[bytes]:
    entries: list[bytes] = []

    async def append(entry: bytes) -> None:
        entries.append(entry)
        await asyncio.sleep(0)

    await write_image(state.snapshot(), HEADER, append, pause=no_pause, workers=workers)
    return entries


async def each(entries: Sequence[bytes]) -> AsyncIterator[bytes]:
    for entry in entries:
        yield entry


async def rows_of(entries: Sequence[bytes]) -> list[Row]:
    return [row async for rows in read_image(each(entries)) for row in rows]


@pytest.mark.parametrize(
    "rows",
    [
        {},
        {b"\0": b""},
        many(15, 5),
        many(16, 0),
        many(5_000),
        {b"k" * 4_096: b"v", **many(3, 17 * 2**20)},
    ],
    ids=["none", "one", "fifteen", "sixteen", "thousands", "largest"],
)
async def test_an_image_brings_back_every_row(rows: dict[bytes, bytes]) -> None:
    state = filled(rows)
    entries = await image_of(state)
    assert max(map(len, entries)) <= ENTRY_BYTES_MAX
    assert read_header(entries[0]) == HEADER
    again = MemoryState()
    async for page in read_image(each(entries)):
        await again.restore(page)
    await again.restored(HEADER.position)
    assert await rows_of(entries) == sorted(rows.items())
    assert digest(again) == digest(state)


async def test_an_image_is_the_same_whether_threads_compress_it_or_not() -> None:
    state = filled(many(20_000))
    workers = ThreadWorkers(asyncio.get_running_loop())
    entries = await image_of(state, workers)
    assert entries == await image_of(state)
    found = [row async for rows in read_image(each(entries), workers=workers) for row in rows]
    assert found == sorted(many(20_000).items())
    await workers.close()


async def test_the_footer_counts_what_was_written() -> None:
    rows = many(1_000, 300)
    appended: list[bytes] = []

    async def append(entry: bytes) -> None:
        appended.append(entry)

    footer = await write_image(filled(rows).snapshot(), HEADER, append, pause=no_pause)
    assert footer == ImageFooter(1_000, 308_000, len(appended) - 1, footer.digest)


async def test_an_image_that_lacks_any_entry_is_refused() -> None:
    entries = await image_of(filled({**many(8_000), b"~": random.Random(2).randbytes(3 * 2**20)}))
    assert len(entries) >= 8 and {entry[:1] for entry in entries} == {b"H", b"P", b"R", b"F"}
    for missing in range(len(entries)):
        with pytest.raises(CannotRead):
            await rows_of(entries[:missing] + entries[missing + 1 :])
    for end in range(len(entries)):
        with pytest.raises(CannotRead):
            await rows_of(entries[:end])


async def test_an_image_with_entries_in_another_order_or_twice_is_refused() -> None:
    entries = await image_of(filled(many(10_000)))
    for first in range(len(entries) - 1):
        swapped = [*entries]
        swapped[first : first + 2] = reversed(swapped[first : first + 2])
        with pytest.raises(CannotRead):
            await rows_of(swapped)
        with pytest.raises(CannotRead):
            await rows_of([*entries[: first + 1], *entries[first:]])
    with pytest.raises(CannotRead):
        await rows_of([*entries, entries[-1]])


async def test_damage_anywhere_in_an_image_never_changes_a_row() -> None:
    rows = {b"%08d" % number: b"value %d" % (number % 7) for number in range(40)}
    entries = await image_of(filled(rows))
    rng = random.Random(3)
    refused = 0
    for _ in range(300):
        number = rng.randrange(1, len(entries))
        damaged = bytearray(entries[number])
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        try:
            found = await rows_of([*entries[:number], bytes(damaged), *entries[number + 1 :]])
        except CannotRead:
            refused += 1
        else:
            assert found == sorted(rows.items())
    assert refused > 200


async def test_rows_of_another_snapshot_do_not_pass_under_a_footer() -> None:
    rows = many(100)
    entries = await image_of(filled(rows))
    others = await image_of(filled({key: value[::-1] for key, value in rows.items()}))
    with pytest.raises(CannotRead, match="footer"):
        await rows_of([entries[0], others[1], entries[2]])


async def test_an_image_of_a_newer_major_version_is_refused_and_of_a_newer_minor_one_read() -> None:
    header, *rest = await image_of(filled(many(10)))
    newer = bytes([header[0], FORMAT_MAJOR + 1, *header[2:]])
    with pytest.raises(FormatTooNew):
        await rows_of([newer, *rest])
    for number in (0, 200):
        minor = bytes([header[0], FORMAT_MAJOR, number, *header[3:]])
        assert await rows_of([minor, *rest]) == sorted(many(10).items())
    with pytest.raises(CannotRead):
        await rows_of([])


async def test_appends_are_made_in_order_and_few_at_a_time() -> None:
    waiting: list[asyncio.Future[None]] = []
    seen: list[int] = []
    entries = await image_of(filled(many(20_000)))

    async def append(entry: bytes) -> None:
        seen.append(entries.index(entry))
        waiting.append(asyncio.get_running_loop().create_future())
        await waiting[-1]

    writing = asyncio.create_task(
        write_image(filled(many(20_000)).snapshot(), HEADER, append, pause=no_pause)
    )
    for _ in range(50):
        await asyncio.sleep(0)
    assert seen == [0, 1, 2, 3]
    while not writing.done():
        for future in waiting:
            if not future.done():
                future.set_result(None)
        await asyncio.sleep(0)
    assert seen == list(range(len(entries)))


async def test_a_failed_append_ends_the_image_and_leaves_nothing_under_way() -> None:
    made = 0
    ended = 0

    async def append(entry: bytes) -> None:
        nonlocal made, ended
        made += 1
        number = made
        try:
            await asyncio.sleep(0)
            if number >= 3:
                raise AppendFailed("too few bookies")
        finally:
            ended += 1

    with pytest.raises(AppendFailed):
        await write_image(filled(many(20_000)).snapshot(), HEADER, append, pause=no_pause)
    assert made == ended


async def test_an_image_whose_last_append_failed_is_not_whole() -> None:
    failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    appended: list[bytes] = []

    def append(entry: bytes) -> "asyncio.Future[None]":
        appended.append(entry)
        last = entry[:1] == b"F"
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not last:
            done.set_result(None)
        return failed if last else done

    writing = asyncio.ensure_future(
        write_image(filled(many(10)).snapshot(), HEADER, append, pause=no_pause)
    )
    while not appended or appended[-1][:1] != b"F":  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert not writing.done()
    failed.set_exception(AppendFailed("no bookie took it"))
    with pytest.raises(AppendFailed):
        await writing


async def test_the_loop_is_free_between_slices_of_some_hundred_rows() -> None:
    state = filled({b"%06d" % number: b"" for number in range(30_000)})
    snapshot = state.snapshot()
    pages: list[int] = []

    class Counting:
        position = snapshot.position
        get = snapshot.get
        scan = snapshot.scan

        def page(self, above: bytes | None, bytes_max: int) -> list[Row]:
            rows = snapshot.page(above, bytes_max)
            pages.append(len(rows))
            return rows

        def close(self) -> None:
            snapshot.close()

    pauses = 0

    async def pause() -> None:
        nonlocal pauses
        pauses += 1

    async def append(entry: bytes) -> None:
        """Nothing."""

    await write_image(Counting(), HEADER, append, pause=pause)
    assert sum(pages) == 30_000 and max(pages) <= 1_000
    assert pauses == len([count for count in pages if count])


def test_the_digest_depends_on_rows_and_position_and_on_nothing_else() -> None:
    rows = many(3_000)
    backwards = dict(reversed(rows.items()))
    assert digest(filled(rows)) == digest(filled(backwards))
    assert digest(filled({**rows, b"x": b""})) != digest(filled(rows))
    assert digest(filled({b"a": b"bc"})) != digest(filled({b"ab": b"c"}))
    moved = filled(rows)
    moved.commit(Position(7, 42))
    assert digest(moved) != digest(filled(rows))
    assert digest(MemoryState()) == digest(MemoryState()) and MemoryState().position == START
