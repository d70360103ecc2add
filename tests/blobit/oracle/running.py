"""A run: rounds of operations at once, collection beside them, leaps of the clock, crashes.

After each round the model knows what has to be there; the store is compared with it as a whole now
and then, after each opening, and at the end, when everything is deleted and nothing may be left.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from blobit import NoSuchObject, quotas
from tests.blobit.oracle.model import FEW_MS, Key, Model, Object, Operation
from tests.blobit.oracle.operations import Draw
from tests.blobit.oracle.store import HOUR_MS, Store

AT_ONCE: Final = 40
_COMPARE_EVERY: Final = 30
_COLLECT_SHARE: Final = 0.15
_LEAP_SHARE: Final = 0.12
_CRASH_SHARE: Final = 0.03
_REOPEN_SHARE: Final = 0.03
_LAST_ROUNDS_MAX: Final = 8
_HISTORY_MAX: Final = 3_000


@dataclass(slots=True)
class Report:
    """What a run did."""

    operations: int = 0
    refused: int = 0
    rounds: int = 0
    collections: int = 0
    moved_objects: int = 0
    deleted_ledgers: int = 0
    crashes: int = 0
    reopenings: int = 0
    orphans: int = 0


class Run:
    """One run over one folder. Raises `AssertionError` that says what the store did wrong."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.store = Store(folder)
        self.model = Model()
        self.report = Report()
        self._history: deque[str] = deque(maxlen=_HISTORY_MAX)
        self._draw = Draw(seed, self.store, self.model)
        self._rng = self._draw.rng

    async def run(self, operations: int) -> Report:
        """Do so many operations, then delete everything, and look whether it is gone."""
        await self.store.open()
        while self.report.operations < operations:
            await self._step()
        await self._compare(share=1.0)
        await self._empty()
        await self.store.close()
        return self.report

    async def _step(self) -> None:
        report, rng = self.report, self._rng
        report.rounds += 1
        choice = rng.random()
        if choice < _CRASH_SHARE:
            await self._crash()
        elif choice < _CRASH_SHARE + _REOPEN_SHARE:
            report.reopenings += 1
            self.model.open.clear()
            await self.store.close()
            await self.store.open()
            await self._compare()
        if rng.random() < _LEAP_SHARE:
            self._leap(rng.uniform(0.2, 3.0))
        rounds = self._draw.round(rng.randint(1, AT_ONCE))
        beside = [asyncio.ensure_future(self._collect())] if rng.random() < _COLLECT_SHARE else []
        await asyncio.gather(*[self._do(operation) for operation in rounds], *beside)
        if report.rounds % _COMPARE_EVERY == 0:
            await self._compare()

    async def _do(self, operation: Operation) -> None:
        self.report.operations += 1
        self._note(operation.label)
        try:
            answer = await operation.run()
        except Exception as error:
            if operation.may_refuse is not None and isinstance(error, operation.may_refuse):
                self.report.refused += 1
                if operation.refused is not None:
                    await operation.refused()
                return
            expected = operation.error is not None and isinstance(error, operation.error)
            assert expected, f"{operation.label} raised {error!r}"
            self.report.refused += 1
            return
        assert operation.error is None, f"{operation.label} was not refused: {answer!r:.200}"
        right = operation.expect is None or operation.expect(answer)
        assert right, f"{operation.label} answered {answer!r:.200}"
        self.model.apply(operation.after)
        if operation.done is not None:
            operation.done(answer)

    def _note(self, label: str) -> None:
        self._history.append(f"round {self.report.rounds}: {label}")

    def history_of(self, names: Iterable[str]) -> str:
        """What was done with objects lately, and to all of them."""
        wanted = [repr(name) for name in names]
        lines = [
            line for line in self._history if ": *" in line or any(name in line for name in wanted)
        ]
        return "\n  ".join(["", *lines[-30:]])

    def _leap(self, hours: float) -> None:
        clock, model = self.store.clock, self.model
        model.leaps += 1
        clock.ahead_ms += int(hours * HOUR_MS)
        while model.doubtful(clock.wall_ms()):
            clock.ahead_ms += 3 * FEW_MS
        model.expire(clock.wall_ms())
        self._note(f"* {hours:.1f} hours pass, it is {clock.wall_ms()}")

    async def _collect(self) -> None:
        found = await self.store.blobs.collect()
        report = self.report
        moved, gone = found.total("moved_objects"), found.total("deleted_ledgers")
        self._note(f"* collected: {moved} objects moved, {gone} ledgers deleted")
        report.collections += 1
        report.moved_objects += found.total("moved_objects")
        report.deleted_ledgers += found.total("deleted_ledgers")
        report.orphans += found.orphan_ledgers

    # Crashes

    async def _crash(self) -> None:
        """Crash in the middle of a round; every operation has happened, or has not."""
        self.report.crashes += 1
        self.model.open.clear()
        self._note("* crashed")
        operations = self._draw.round(self._rng.randint(1, AT_ONCE), crashing=True)
        tasks = [asyncio.ensure_future(_attempt(operation)) for operation in operations]
        for _ in range(self._rng.randint(0, 400)):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.store.crash()
        await self.store.open()
        for operation in operations:
            self.report.operations += 1
            self._note(f"in the crash: {operation.label}")
            await self._judge(operation)
        await self._forget_uploads(operations)
        await self._compare()

    async def _judge(self, operation: Operation) -> None:
        """Take what an operation left, all of it or nothing."""
        if operation.apart:
            for key, after in operation.after.items():
                await self._judge_together(operation.label, {key: after})
        elif operation.after:
            await self._judge_together(operation.label, operation.after)

    async def _judge_together(self, label: str, after: dict[Key, Object | None]) -> None:
        before = {key: self.model.objects.get(key) for key in after}
        found = {key: await self._data_of(*key) for key in after}
        was = {key: each and each.data for key, each in before.items()}
        would = {key: each and each.data for key, each in after.items()}
        assert found in (was, would), f"{label} left {_sizes(found)} of {_sizes(would)}"
        if found == would != was:
            self.model.apply(after)
        elif found == would:
            # The same bytes; whose times they are, only the store knows.
            for key in after:
                await self._adopt(*key)

    async def _adopt(self, bucket: str, name: str) -> None:
        found = self.model.objects.get((bucket, name))
        if found is not None:
            info = await self.store.buckets[bucket].stat(name)
            times = found._replace(expires_ms=info.expires_ms, content_type=info.content_type)
            self.model.objects[bucket, name] = times

    async def _data_of(self, bucket: str, name: str) -> bytes | None:
        try:
            return await self.store.buckets[bucket].get(name)
        except NoSuchObject:
            return None

    async def _forget_uploads(self, operations: list[Operation]) -> None:
        """What was under way may have got a part, or be over: none of it goes on."""
        touched = {operation.upload for operation in operations}
        for name, bucket in self.store.buckets.items():
            open_ids = {upload.upload_id for upload in await bucket.uploads()}
            for upload_id in sorted(open_ids):
                if upload_id in touched or upload_id not in self.model.uploads:
                    await bucket.abort_upload(upload_id)
            for upload_id, pending in list(self.model.uploads.items()):
                gone = upload_id in touched or upload_id not in open_ids
                if pending.key[0] == name and gone:
                    assert upload_id in touched, f"upload {upload_id} is gone"
                    del self.model.uploads[upload_id]

    # Comparing

    async def _compare(self, share: float = 0.25) -> None:
        """All is there that must be, and nothing else; of a share of it the bytes are right."""
        for name, bucket in self.store.buckets.items():
            wanted = self.model.of_bucket(name)
            found = {info.name: info async for info in bucket.scan()}
            different = found.keys() ^ wanted.keys()
            assert not different, f"{name}: {different} after {self.history_of(different)}"
            assert list(found) == list(wanted), f"{name} is out of order"
            for each, info in found.items():
                assert info.length == len(wanted[each].data), f"{name}/{each}: {info}"
                assert info.content_type == wanted[each].content_type, f"{name}/{each}: {info}"
            names = self._rng.sample(list(wanted), int(share * len(wanted)))
            bodies = await asyncio.gather(*[bucket.get(each) for each in names])
            for each, body in zip(names, bodies, strict=True):
                right = body == wanted[each].data
                assert right, f"{name}/{each} has other bytes: {self.history_of([each])}"
        for (_, object_id), unnamed in self.model.unnamed.items():
            right = await self.store.blobs.get(object_id) == unnamed.data
            assert right, f"{object_id} has other bytes"

    async def _empty(self) -> None:
        """Delete everything; some rounds later nothing may be left, neither bytes nor rows."""
        for name, bucket in self.store.buckets.items():
            await bucket.delete_many(list(self.model.of_bucket(name)))
            for upload in await bucket.uploads():
                await bucket.abort_upload(upload.upload_id)
        for held in self.model.open.values():
            await held.upload.abort()
        for name, object_id in self.model.unnamed:
            await self.store.buckets[name].delete_unnamed(object_id)
        await self.store.close()
        await self.store.open()
        for _ in range(_LAST_ROUNDS_MAX):
            self.store.clock.ahead_ms += 8 * HOUR_MS
            await self._collect()
            if not await self.store.ledgers_of_buckets():
                break
        left = await self.store.ledgers_of_buckets()
        assert not left, f"ledgers {left} are left of nothing"
        for bucket in self.store.buckets.values():
            usage = await bucket.usage()
            assert not any((usage.objects, usage.bytes, usage.ledgers, usage.stored_bytes)), usage
            use = await quotas.use(bucket.core)
            assert (use.objects, use.bytes) == (0, 0), use


async def _attempt(operation: Operation) -> None:
    try:
        await operation.run()
    except Exception:
        return


def _sizes(found: dict[Any, bytes | None]) -> dict[Any, int | None]:
    return {key: None if data is None else len(data) for key, data in found.items()}
