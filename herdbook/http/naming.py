"""The names of things that somebody may see, and of things in a path."""

from typing import TYPE_CHECKING

from engine.access.principal import Principal
from herd.errors import ProgrammingError
from herd.store import DEFAULT, AsyncHerd
from herdbook.http.errors import HttpError
from herdbook.http.house import House

if TYPE_CHECKING:
    from blobit.tables import BucketInfo
    from herd.sql.session import Session
    from herd.wire.session import RemoteSession


async def tablespaces_of(house: House, who: Principal) -> list[str]:
    """The tablespaces that somebody may read, in order."""
    return [each for each in await _names(house) if who.allows("tablespace", each, "read")]


async def _names(house: House) -> list[str]:
    """Those that there are; a folder's first one is made when it is used."""
    names = await house.herd.names()
    return sorted({*names, DEFAULT}) if isinstance(house.herd, AsyncHerd) else names


async def buckets_of(house: House, who: Principal) -> "list[BucketInfo]":
    """The buckets that somebody may read, by name."""
    found = await house.blobs.buckets()
    return [each for each in found if who.allows("bucket", each.name, "read")]


async def session_in(house: House, name: str, who: Principal) -> "Session | RemoteSession":
    """A session for SQL in a tablespace; close it. Raises `HttpError` for one that is not there.

    Its leader answers without the metadata store, so the names are only looked up after an error.
    """
    try:
        return await house.herd.session(name.lower(), whose=who)
    except ProgrammingError:
        if name.lower() not in await _names(house):
            raise HttpError(404, "no_such_tablespace", f"there is no tablespace {name}") from None
        raise
