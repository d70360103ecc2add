"""Draws operations: which call with what, and what has to come of it.

Invariants:
- All operations of one round touch different objects, so the order in which they end is of no
  consequence.
- Everything is drawn from the seed and the model; bytes are random, so that none passes for
  another.
"""

import random
from collections.abc import AsyncGenerator, Callable
from typing import Final

from blobit import (
    AsyncBucket,
    BlobNotStored,
    ConditionFailed,
    NoSuchObject,
    ObjectExists,
    ObjectId,
    RangeInvalid,
)
from tests.blobit.oracle.model import (
    Key,
    Model,
    Object,
    Open,
    Operation,
    Pending,
    Unnamed,
    together,
)
from tests.blobit.oracle.store import HOUR_MS, TTL_MS, UPLOAD_TTL_MS, Store

NAMES: Final = [f"{folder}/{name}" for folder in ("a", "b", "ä/c") for name in range(24)]
_WEIGHTS: Final = {
    "put": 26,
    "put_if": 6,
    "append": 14,
    "concat": 5,
    "rename": 5,
    "copy": 5,
    "delete": 9,
    "read": 18,
    "upload": 8,
    "unnamed": 6,
    "open": 6,
}
_OPEN_MAX: Final = 6


class Draw:
    """Draws the operations of one round after the other."""

    def __init__(self, seed: int, store: Store, model: Model) -> None:
        self.rng = random.Random(seed)
        self._store = store
        self._model = model
        self._taken: set[Key] = set()
        self.crashing = False
        self._serial = 0
        self._kinds: dict[str, Callable[[], Operation]] = {
            "put": self._put,
            "put_if": self._put_if,
            "append": self._append,
            "concat": self._concat,
            "rename": self._rename,
            "copy": self._copy,
            "delete": self._delete,
            "read": self._read,
            "upload": self._upload,
            "unnamed": self._unnamed,
            "open": self._open,
        }

    def round(self, count: int, *, crashing: bool = False) -> list[Operation]:
        """Operations that may run at the same time; those of a crash only such as can be judged."""
        self._taken.clear()
        self.crashing = crashing
        for pending in self._model.uploads.values():
            pending.busy = False
        for held in self._model.open.values():
            held.busy = False
        kinds = [kind for kind in _WEIGHTS if not (crashing and kind in ("unnamed", "open"))]
        weights = [_WEIGHTS[kind] for kind in kinds]
        return [self._kinds[kind]() for kind in self.rng.choices(kinds, weights, k=count)]

    # What to draw from

    def _key(self, *, there: bool | None = None, bucket: str | None = None) -> Key:
        """An object that the round does not touch yet, preferably one that is there, or not."""
        rng = self.rng
        wanted = rng.random() < 0.8
        for attempt in range(200):
            chosen = bucket or rng.choices(list(self._store.buckets), (5, 3, 1))[0]
            key = chosen, rng.choice(NAMES)
            if key in self._taken:
                continue
            if there is None or not wanted or attempt > 40:
                break
            if (key in self._model.objects) == there:
                break
        assert key not in self._taken, "a round of too many operations"
        self._taken.add(key)
        return key

    def _next_serial(self) -> int:
        self._serial += 1
        return self._serial

    def _bucket(self, key: Key) -> AsyncBucket:
        return self._store.buckets[key[0]]

    def _data(self) -> bytes:
        rng = self.rng
        most = rng.choices((0, 60, 900, 4_000, 16_000), (4, 40, 36, 14, 6))[0]
        size = rng.randint(0, most)
        if rng.random() < 0.2:
            # Something that compresses.
            return (rng.randbytes(20) * (size // 20 + 1))[:size]
        return rng.randbytes(size)

    def _source(self, data: bytes) -> bytes | AsyncGenerator[bytes, None]:
        """The bytes as they are, or piece by piece."""
        if self.rng.random() < 0.75:
            return data
        step = self.rng.randint(1, 1_500)

        async def pieces() -> AsyncGenerator[bytes, None]:
            for start in range(0, len(data), step):
                yield data[start : start + step]

        return pieces()

    def _expiry(self, key: Key) -> int | None:
        """When an object expires that is put now without being told."""
        return self._store.clock.wall_ms() + TTL_MS if key[0] == "fleeting" else None

    # Putting

    def _put(self) -> Operation:
        key, data = self._key(), self._data()
        source, bucket = self._source(data), self._bucket(key)
        expires_ms = self._expiry(key)
        if self.rng.random() < 0.08:
            hours = self.rng.randint(1, 6)
            expires_ms = self._store.clock.wall_ms() + hours * HOUR_MS
        given = None if key[0] == "fleeting" and expires_ms == self._expiry(key) else expires_ms
        kind = self.rng.choice(("", "text/plain"))
        return Operation(
            f"put {key} {len(data)}",
            lambda: bucket.put(key[1], source, content_type=kind, expires_ms=given),
            {key: Object(data, expires_ms, kind)},
            lambda info: info.length == len(data) and info.etag,
        )

    def _put_if(self) -> Operation:
        key, data = self._key(), self._data()
        bucket, before = self._bucket(key), self._model.objects.get(key)
        after: dict[Key, Object | None] = {key: Object(data, self._expiry(key))}
        if self.rng.random() < 0.5:
            label = f"put {key} if absent"
            error = ObjectExists if before is not None else None
            put = lambda: bucket.put(key[1], data, if_absent=True)  # noqa: E731
            return Operation(label, put, {} if error else after, error=error)
        if before is None or self.rng.random() < 0.3:
            put = lambda: bucket.put(key[1], data, if_match="no such etag")  # noqa: E731
            return Operation(f"put {key} if another", put, error=ConditionFailed)

        async def put_if_same() -> object:
            etag = (await bucket.stat(key[1])).etag
            return await bucket.put(key[1], data, if_match=etag)

        return Operation(f"put {key} if the same", put_if_same, after)

    def _append(self) -> Operation:
        key, data = self._key(there=True), self._data()
        bucket, before = self._bucket(key), self._model.objects.get(key)
        source = self._source(data)
        after = Object(data, self._expiry(key))
        if before is not None:
            after = before._replace(data=before.data + data)
        return Operation(
            f"append {key} {len(data)}",
            lambda: bucket.append(key[1], source),
            {key: after},
            lambda info: info.length == len(after.data),
        )

    def _concat(self) -> Operation:
        rng = self.rng
        target = self._key()
        keys = [self._key(there=True, bucket=target[0]) for _ in range(rng.randint(1, 3))]
        if rng.random() < 0.3 and target in self._model.objects:
            keys.insert(rng.randint(0, len(keys)), target)
        keep, bucket, objects = rng.random() < 0.5, self._bucket(target), self._model.objects
        names = [key[1] for key in keys]
        run = lambda: bucket.concat(target[1], names, keep=keep)  # noqa: E731
        label = f"concat {target} of {names}" + (" kept" if keep else "")
        if any(key not in objects for key in keys):
            return Operation(label, run, error=NoSuchObject)
        ends = [objects[key].expires_ms for key in keys]
        known_ends = [end for end in ends if end is not None]
        expires_ms = max(known_ends) if len(known_ends) == len(ends) else None
        whole = together(objects[key].data for key in keys)
        model = objects.get(target) or objects[keys[0]]
        made = Object(whole, expires_ms, model.content_type)
        after: dict[Key, Object | None] = {} if keep else dict.fromkeys(keys)
        return Operation(label, run, {**after, target: made})

    # Moving

    def _rename(self) -> Operation:
        source = self._key(there=True)
        target = self._key(bucket=source[0])
        bucket, found = self._bucket(source), self._model.objects.get(source)
        if_absent = self.rng.random() < 0.3
        run = lambda: bucket.rename(source[1], target[1], if_absent=if_absent)  # noqa: E731
        label = f"rename {source} {target}"
        if found is None:
            return Operation(label, run, error=NoSuchObject)
        if if_absent and target in self._model.objects:
            return Operation(label, run, error=ObjectExists)
        return Operation(label, run, {source: None, target: found})

    def _copy(self) -> Operation:
        source = self._key(there=True)
        across = self.rng.random() < 0.3
        target = self._key(bucket=None if across else source[0])
        bucket, to = self._bucket(source), self._bucket(target)
        found = self._model.objects.get(source)
        run = lambda: bucket.copy(source[1], target[1], to=to)  # noqa: E731
        label = f"copy {source} {target}"
        if found is None:
            return Operation(label, run, error=NoSuchObject)
        if source[0] != target[0] and (source[0] == "fleeting" or found.expires_ms is None):
            found = found._replace(expires_ms=self._expiry(target))
        return Operation(label, run, {target: found})

    def _delete(self) -> Operation:
        key = self._key(there=True)
        bucket, there = self._bucket(key), key in self._model.objects
        if self.rng.random() < 0.3:
            keys = [key, *(self._key(bucket=key[0]) for _ in range(2))]
            count = sum(each in self._model.objects for each in keys)
            return Operation(
                f"delete {keys}",
                lambda: bucket.delete_many([each[1] for each in keys]),
                dict.fromkeys(keys),
                lambda answer: answer == count,
                apart=True,
            )
        delete = lambda: bucket.delete(key[1])  # noqa: E731
        return Operation(f"delete {key}", delete, {key: None}, lambda answer: answer == there)

    # Reading

    def _read(self) -> Operation:
        key = self._key(there=True)
        bucket, found = self._bucket(key), self._model.objects.get(key)
        kind = self.rng.choice(("get", "range", "stream", "stat", "wrong"))
        if found is None:
            return Operation(f"get {key}", lambda: bucket.get(key[1]), error=NoSuchObject)
        data = found.data
        if kind == "get":
            return Operation(f"get {key}", lambda: bucket.get(key[1]), {}, data.__eq__)
        if kind == "stat":
            length = len(data)
            stat = lambda: bucket.stat(key[1])  # noqa: E731
            return Operation(f"stat {key}", stat, {}, lambda info: info.length == length)
        offset = self.rng.randint(0, len(data))
        size = self.rng.randint(0, len(data) - offset)
        if kind == "wrong":
            wrong = lambda: bucket.get_range(key[1], offset, len(data) + 1)  # noqa: E731
            return Operation(f"range {key}", wrong, error=RangeInvalid)
        wanted = data[offset : offset + size]
        if kind == "range":
            ranged = lambda: bucket.get_range(key[1], offset, size)  # noqa: E731
            return Operation(f"range {key} {offset} {size}", ranged, {}, wanted.__eq__)

        async def stream() -> bytes:
            return together([piece async for piece in bucket.stream(key[1], offset, size)])

        return Operation(f"stream {key} {offset} {size}", stream, {}, wanted.__eq__)

    # Uploads in parts, objects without names

    def _upload(self) -> Operation:
        idle = {
            upload_id: pending
            for upload_id, pending in self._model.uploads.items()
            if not pending.busy and pending.key not in self._taken
        }
        if len(self._model.uploads) < 6 or not idle:
            return self._begin_upload()
        upload_id = self.rng.choice(sorted(idle, key=lambda each: idle[each].serial))
        pending = idle[upload_id]
        pending.busy = True
        bucket, choice = self._bucket(pending.key), self.rng.random()
        if choice < 0.6:
            number, data = self.rng.randint(1, 5), self._data()
            source = self._source(data)
            return Operation(
                f"part {number} of {upload_id}",
                lambda: bucket.put_part(upload_id, number, source),
                done=lambda _: pending.parts.update({number: data}),
                upload=upload_id,
            )

        def forget(_: object) -> None:
            del self._model.uploads[upload_id]

        if choice < 0.7:
            abort = lambda: bucket.abort_upload(upload_id)  # noqa: E731
            return Operation(f"abort {upload_id}", abort, done=forget, upload=upload_id)
        self._taken.add(pending.key)
        numbers = sorted(pending.parts)
        chosen = None
        if self.rng.random() < 0.3:
            chosen = self.rng.sample(numbers, self.rng.randint(0, len(numbers)))
        whole = together(
            pending.parts[number] for number in (numbers if chosen is None else chosen)
        )
        made = Object(whole, self._expiry(pending.key))
        return Operation(
            f"complete {upload_id} {chosen} as {pending.key}",
            lambda: bucket.complete_upload(upload_id, chosen),
            {pending.key: made},
            done=forget,
            upload=upload_id,
        )

    def _begin_upload(self) -> Operation:
        key = self._key()
        bucket = self._bucket(key)
        ends_ms = self._store.clock.wall_ms() + UPLOAD_TTL_MS
        pending = Pending(key, ends_ms, self._next_serial())

        def begun(upload_id: str) -> None:
            self._model.uploads[upload_id] = pending

        return Operation(f"begin {key}", lambda: bucket.create_upload(key[1]), done=begun)

    def _open(self) -> Operation:
        """Begin an upload, write more of one, finish or abort it; hours may lie between."""
        model, choice = self._model, self.rng.random()
        idle = {
            serial: held
            for serial, held in model.open.items()
            if not held.busy and held.key not in self._taken
        }
        if len(model.open) < _OPEN_MAX or not idle:
            key = self._key()
            held = Open(
                key,
                self._expiry(key),
                self._next_serial(),
                self._bucket(key).upload(key[1]),
                model.leaps,
            )
            model.open[held.serial] = held
        else:
            held = idle[self.rng.choice(sorted(idle))]
            held.busy = True
            if choice < 0.3:
                return self._finish(held)
            if choice < 0.4:
                del model.open[held.serial]
                return Operation(f"abandon {held.key}", held.upload.abort)
        data = self.rng.randbytes(self.rng.randint(0, 9_000))

        def written(_: object) -> None:
            held.data += data

        return Operation(
            f"write {len(data)} to {held.key}",
            lambda: held.upload.write(data),
            done=written,
            may_refuse=self._patience(held),
            refused=lambda: self._forget(held),
        )

    def _patience(self, held: Open) -> type[Exception] | None:
        """Hours that pass at once let an upload no time to rest: it may be refused, never mixed."""
        return BlobNotStored if held.leaps != self._model.leaps else None

    async def _forget(self, held: Open) -> None:
        self._model.open.pop(held.serial, None)
        await held.upload.abort()

    def _finish(self, held: Open) -> Operation:
        self._taken.add(held.key)
        del self._model.open[held.serial]
        made = None
        if held.expires_ms is None or held.expires_ms > self._store.clock.wall_ms():
            made = Object(held.data, held.expires_ms)
        return Operation(
            f"finish {held.key} {len(held.data)}",
            held.upload.finish,
            {held.key: made},
            may_refuse=self._patience(held),
        )

    def _unnamed(self) -> Operation:
        model, rng = self._model, self.rng
        if not model.unnamed or rng.random() < 0.4:
            name = rng.choice(("plain", "packed"))
            bucket, data = self._store.buckets[name], self._data()
            serial = self._next_serial()

            def stored(object_id: ObjectId) -> None:
                if object_id.length:
                    model.unnamed[name, str(object_id)] = Unnamed(serial, data)

            return Operation("put unnamed", lambda: bucket.put_unnamed(data), done=stored)
        key = rng.choice(sorted(model.unnamed, key=lambda each: model.unnamed[each].serial))
        data, bucket = model.unnamed[key].data, self._store.buckets[key[0]]
        if key in self._taken or rng.random() < 0.6:
            self._taken.add(key)
            get = lambda: self._store.blobs.get(key[1])  # noqa: E731
            return Operation(f"get {key[1]}", get, {}, data.__eq__)
        self._taken.add(key)
        del model.unnamed[key]
        delete = lambda: bucket.delete_unnamed(key[1])  # noqa: E731
        return Operation(f"delete {key[1]}", delete, {}, bool)
