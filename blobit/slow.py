"""Objects whose storing or reading took long: lines of the log of slow operations.

Invariants:
- A name is not told, only the bucket's and the object's id: names are data of users.
"""

from typing import TYPE_CHECKING

from engine.slow import SLOW, waited_longest

if TYPE_CHECKING:
    from blobit.bucket_core import BucketCore
    from blobit.object_id import ObjectId


def note_put(core: "BucketCore", name: "ObjectId", began_s: float, stored_s: float) -> None:
    """Tell of a put that took long: until its bytes were stored, or from then on its name."""
    now_s = core.blobs.client.clock.monotonic()
    if now_s - began_s > SLOW.object_s:
        parts = waited_longest(bytes=stored_s - began_s, name=now_s - stored_s)
        _note("put", core, name, now_s - began_s, parts)


def note_get(core: "BucketCore", name: "ObjectId", began_s: float, found_s: float) -> None:
    """Tell of a get that took long: until its name was found, or from then on its bytes."""
    now_s = core.blobs.client.clock.monotonic()
    if now_s - began_s > SLOW.object_s:
        parts = waited_longest(name=found_s - began_s, bytes=now_s - found_s)
        _note("get", core, name, now_s - began_s, parts)


def _note(
    kind: str, core: "BucketCore", name: "ObjectId", took_s: float, parts: dict[str, str | float]
) -> None:
    told: dict[str, str | float] = {"bucket": core.info.name, "object": str(name)}
    SLOW.note(kind, took_s, **parts, **told, length=name.length)
