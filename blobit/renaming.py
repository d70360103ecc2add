"""Other names for bytes that are there: rename and copy, without touching a byte.

Invariants:
- Both names change in one transaction; nobody sees an object twice, or not at all.
- Two objects may hold the same bytes: they go when neither does.
"""

from msgspec import structs

from blobit.bucket_core import Asked, BucketCore, Known, owner_of
from blobit.committing import Change, Effect, Found
from blobit.errors import ObjectExists
from blobit.naming import new_etag
from blobit.tables import ObjectInfo


async def rename(core: BucketCore, source: str, target: str, *, if_absent: bool) -> ObjectInfo:
    """Give an object another name. Raises `NoSuchObject`, `ObjectExists`."""
    core.check()
    known, asked = Known(), Asked(target, if_absent=if_absent)
    old, new = core.object_key(source), core.object_key(target)

    def decide(found: Found) -> Effect[ObjectInfo]:
        info = core.alive(found[old])
        if info is None:
            raise core.missing(source)
        if source == target:
            if if_absent:
                raise ObjectExists(f"object {target!r} has that name already")
            return Effect({}, info)
        core.check_condition(asked, core.alive(found[new]))
        moved = structs.replace(info, name=target)
        writes = core.freed(found[new], known) | core.freed(found[old], known)
        return Effect(writes | core.placed(moved, known), moved)

    # The object keeps its etag, so a rename by somebody else looks the same.
    return await core.commit(Change((old, new), decide, lambda found: None), known)


async def copy(core: BucketCore, source: str, target: str, *, if_absent: bool) -> ObjectInfo:
    """Make another object of the same bytes. Raises `NoSuchObject`, `ObjectExists`."""
    core.check()
    known, asked = Known(), Asked(target, if_absent=if_absent)
    old, new = core.object_key(source), core.object_key(target)
    etag, now_ms = new_etag(core.blobs.client.rng), core.now_ms

    def decide(found: Found) -> Effect[ObjectInfo]:
        info = core.alive(found[old])
        if info is None:
            raise core.missing(source)
        core.check_condition(asked, core.alive(found[new]))
        made = structs.replace(info, name=target, etag=etag, created_ms=now_ms)
        # By the owner who has them: the other one has nothing yet.
        known.of(owner_of(source), info.packed_id)
        return Effect(core.freed(found[new], known) | core.placed(made, known), made)

    def confirm(found: Found) -> ObjectInfo | None:
        info = core.alive(found[new])
        return info if info is not None and info.etag == etag else None

    return await core.commit(Change((old, new), decide, confirm), known)
