"""Users, grants and tokens as rows of the system tablespace, which is made with the first user.

    users     name, verifier, admin, made_ms               a verifier is SCRAM-SHA-256's; "": none
    grants    grantee, kind, name, level
    tokens    id, owner, digest, expires_ms, note, made_ms  SHA-256 of the token; 0: never expires

Invariants:
- No password and no token is kept, only what one can be judged by.
- "There is no such user" and "users cannot be looked up" are different answers.
- What belonged to a user is gone before the user is: a new one of that name inherits nothing.
- As long as there are users there is an administrator among them, if there ever was one.
- Who changes what hangs together has locked the rows that it hangs on: the user's, and those of all
  administrators where users come and go. They are always locked in one order.
"""

import hashlib
import ssl
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple, Protocol

from engine.access.principal import SYSTEM, Grant, Principal
from engine.access.scram import SALT_BYTES, ScramVerifier, prepared_name
from engine.errors import InvalidRequest, MetadataUnavailable, NotFound
from engine.ports.clock import Clock
from herd.binding import RowDict
from herd.errors import Error, NameTaken, NoSuchTable, ProgrammingError, UniqueViolation
from herd.table import AsyncTable
from herd.types import BIGINT, TEXT, ColumnType, Kind

TOKEN_MARK: Final = "hbt"
PASSWORD_CHARACTERS_MIN: Final = 8
"""The minimum length of a new password; older ones may be shorter."""
_ID_BYTES: Final = 8
TOKEN_ID_CHARACTERS: Final = 2 * _ID_BYTES
_SECRET_BYTES: Final = 32
_RESERVED: Final = frozenset({"node", "everybody", "nobody", "console"})
"""Names under which nodes, open stores, strangers and logins by ticket are known."""
_USERS: Final = "users"
_GRANTS: Final = "grants"
_TOKENS: Final = "tokens"
_BOOLEAN: Final = ColumnType(Kind.BOOLEAN)
_BLOB: Final = ColumnType(Kind.BLOB)
_TABLES: Final[dict[str, tuple[dict[str, ColumnType], tuple[str, ...]]]] = {
    _USERS: ({"name": TEXT, "verifier": TEXT, "admin": _BOOLEAN, "made_ms": BIGINT}, ("name",)),
    _GRANTS: (
        {"grantee": TEXT, "kind": TEXT, "name": TEXT, "level": TEXT},
        ("grantee", "kind", "name"),
    ),
    _TOKENS: (
        {
            "id": TEXT,
            "owner": TEXT,
            "digest": _BLOB,
            "expires_ms": BIGINT,
            "note": TEXT,
            "made_ms": BIGINT,
        },
        ("id",),
    ),
}


class UserUnknown(NotFound):
    """There is no user of that name. `herdbook user ls` lists them."""


class Tablespaces(Protocol):
    """What is needed of a store's tablespaces."""

    async def names(self) -> list[str]:
        """The tablespaces that there are."""
        ...

    async def make(self, name: str) -> None:
        """Make one, if it is not there."""
        ...

    async def table(self, table: str, name: str) -> AsyncTable:
        """A table. Raises `NoSuchTable`, `ProgrammingError` without the tablespace."""
        ...

    async def session(self, name: str) -> Any:
        """A session in one, which has transactions for its tables."""
        ...

    async def create_table(
        self,
        table: str,
        columns: Mapping[str, ColumnType],
        primary: Sequence[str],
        name: str,
    ) -> AsyncTable:
        """Make a table. Raises `NameTaken`."""
        ...


class Token(NamedTuple):
    """A token that is kept; `expires_ms` 0: it never expires."""

    id: str
    owner: str
    digest: bytes
    expires_ms: int
    note: str


class Known(NamedTuple):
    """A user as their row has them; `verifier` "": they have no password."""

    name: str
    verifier: str
    admin: bool
    made_ms: int


class User(NamedTuple):
    """A user with their grants: the verifier of their password and their rights, from one row."""

    verifier: str
    principal: Principal


class UserRows:
    """The rows. Every method raises `MetadataUnavailable` where they cannot be reached."""

    def __init__(self, herd: Tablespaces, clock: Clock) -> None:
        self._herd = herd
        self._clock = clock
        self._open: dict[str, AsyncTable] = {}

    # Looking

    async def find(self, name: str) -> Known | None:
        """A user, None if there is none of that name."""
        row = await self._get(_USERS, name)
        if row is None:
            return None
        return Known(row["name"], row["verifier"], row["admin"], row["made_ms"])

    async def grants(self, name: str) -> tuple[Grant, ...]:
        """What a user was granted."""
        rows = await self._scan(_GRANTS, prefix=(name,))
        return tuple(Grant(row["kind"], row["name"], row["level"]) for row in rows)

    async def user(self, name: str) -> User | None:
        """A user with their grants. An unknown name takes as long as a known one."""
        known = await self.find(name)
        while True:
            grants = await self.grants(name)
            before, known = known, await self.find(name)
            if known == before:
                break
            # The user was removed and added again: the grants may be those of the one before.
        if known is None:
            return None
        return User(known.verifier, Principal(known.name, known.admin, grants, known.made_ms))

    async def token(self, token_id: str) -> tuple[Token, User] | None:
        """A token and its owner; None if there is no such token."""
        row = await self._get(_TOKENS, token_id)
        user = None if row is None else await self.user(row["owner"])
        # A token is removed with its owner: if it still exists, this user is the one who made it.
        if row is None or user is None or await self._get(_TOKENS, token_id) is None:
            return None
        return _token(row), user

    async def any(self) -> bool:
        """Whether there are users."""
        return bool(await self._scan(_USERS, limit=1))

    async def all(self) -> list[Principal]:
        """All users, by name."""
        users = [(row["name"], row["admin"], row["made_ms"]) for row in await self._scan(_USERS)]
        return [
            Principal(name, admin, await self.grants(name), made_ms)
            for name, admin, made_ms in users
        ]

    async def tokens(self, owner: str = "") -> list[Token]:
        """A user's tokens, or everybody's."""
        found = [_token(row) for row in await self._scan(_TOKENS)]
        return [token for token in found if owner in ("", token.owner)]

    # Changing

    async def add(self, name: str, password: str = "", *, admin: bool = False) -> None:
        """Add a user. Without a password, the user can log in only with a token.

        Raises `InvalidRequest` for a name that is taken or invalid, and for a password with fewer
        than `PASSWORD_CHARACTERS_MIN` characters.
        """
        name, verifier = prepared_name(name), self._verifier(password)
        if name in _RESERVED:
            raise InvalidRequest(f"{name} is what an audit calls others: take another name")
        await self._make_tables()
        row = {"name": name, "verifier": verifier, "admin": admin}
        with_time = {**row, "made_ms": self._clock.wall_ms()}
        async with self._changing(_USERS) as (users, transaction):
            await users.lock_many(await self._administrators(), transaction=transaction)
            try:
                await users.insert(with_time, transaction=transaction)
            except UniqueViolation as error:
                raise InvalidRequest(
                    f"there is a user {name} already: a new password is set by "
                    f"herdbook user passwd {name}"
                ) from error

    async def set_password(self, name: str, password: str) -> None:
        """Give a user another password. Raises `UserUnknown`, `InvalidRequest`."""
        verifier = self._verifier(password)
        async with self._table(_USERS) as users:
            if not await users.update(name, {"verifier": verifier}):
                raise _unknown(name)

    async def remove(self, name: str) -> None:
        """Remove a user with all that was theirs. Raises `UserUnknown`, `InvalidRequest`."""
        async with self._changing(_USERS) as (users, transaction):
            locked = sorted({name, *await self._administrators()})
            rows = await users.lock_many(locked, transaction=transaction)
            found = {row["name"]: row["admin"] for row in rows if row is not None}
            if name not in found:
                raise _unknown(name)
            if found.pop(name) and not any(found.values()):
                if len(await self._scan(_USERS, limit=2)) > 1:
                    raise InvalidRequest(
                        f"{name} is the last administrator: make another one first"
                    )
            async with self._table(_TOKENS) as tokens, self._table(_GRANTS) as grants:
                for token in await self.tokens(name):
                    await tokens.delete(token.id, transaction=transaction)
                for grant in await self.grants(name):
                    key = (name, grant.kind, grant.name)
                    await grants.delete(key, transaction=transaction)
            await users.delete(name, transaction=transaction)

    async def grant(self, name: str, grant: Grant) -> None:
        """Grant a user a right, in place of one to the same thing. Raises `UserUnknown`."""
        async with self._changing(_GRANTS, name) as (grants, transaction):
            row = {"grantee": name, "kind": grant.kind, "name": grant.name}
            await grants.put({**row, "level": grant.right}, transaction=transaction)

    async def revoke(self, name: str, kind: str, thing: str) -> bool:
        """Take back what a user was granted to a thing; whether there was something."""
        await self._known(name)
        async with self._table(_GRANTS) as grants:
            return await grants.delete((name, kind, thing))

    async def make_token(self, name: str, *, expires_ms: int = 0, note: str = "") -> str:
        """A new token of a user: shown this once, kept nowhere. Raises `UserUnknown`."""
        token_id = ssl.RAND_bytes(_ID_BYTES).hex()
        secret = urlsafe_b64encode(ssl.RAND_bytes(_SECRET_BYTES)).rstrip(b"=").decode()
        token = f"{TOKEN_MARK}_{token_id}_{secret}"
        async with self._changing(_TOKENS, name) as (tokens, transaction):
            row = {"id": token_id, "owner": name, "digest": digest_of(token)}
            made = {"expires_ms": expires_ms, "note": note, "made_ms": self._clock.wall_ms()}
            await tokens.insert(row | made, transaction=transaction)
        return token

    async def revoke_token(self, token_id: str) -> bool:
        """End a token; whether there was one."""
        async with self._table(_TOKENS) as tokens:
            return await tokens.delete(token_id)

    # Inside

    async def _known(self, name: str) -> Known:
        found = await self.find(name)
        if found is None:
            raise _unknown(name)
        return found

    async def _administrators(self) -> list[str]:
        """Their names, in order."""
        return [row["name"] for row in await self._scan(_USERS) if row["admin"]]

    @staticmethod
    def _verifier(password: str) -> str:
        if password and len(password) < PASSWORD_CHARACTERS_MIN:
            raise InvalidRequest(f"a password needs at least {PASSWORD_CHARACTERS_MIN} characters")
        salt = ssl.RAND_bytes(SALT_BYTES)
        return str(ScramVerifier.of(password, salt=salt)) if password else ""

    async def _get(self, table: str, key: str) -> RowDict | None:
        try:
            async with self._table(table) as opened:
                return await opened.get(key)
        except UserUnknown:
            return None

    async def _scan(
        self, table: str, *, prefix: tuple[str, ...] | None = None, limit: int = 0
    ) -> list[RowDict]:
        try:
            async with self._table(table) as opened:
                return [row async for row in opened.scan(prefix=prefix, limit=limit or None)]
        except UserUnknown:
            return []

    @asynccontextmanager
    async def _changing(self, table: str, name: str = "") -> AsyncIterator[tuple[AsyncTable, Any]]:
        """A table, and a transaction that is committed with the block. `name` is a user who stays.

        Raises `UserUnknown`.
        """
        async with self._table(table) as opened, self._table(_USERS) as users:
            session = await self._herd.session(SYSTEM)
            try:
                transaction = await session.begin()
                if name and await users.lock_many([name], transaction=transaction) == [None]:
                    raise _unknown(name)
                yield opened, transaction
                await session.commit()
            finally:
                await session.close()

    @asynccontextmanager
    async def _table(self, table: str) -> AsyncIterator[AsyncTable]:
        """One of the tables. Raises `UserUnknown` where there are none yet."""
        try:
            opened = self._open.get(table)
            if opened is None:
                if SYSTEM not in await self._herd.names():
                    raise UserUnknown("the store has no users")
                opened = self._open[table] = await self._herd.table(table, SYSTEM)
            yield opened
        except NoSuchTable as error:
            self._open.pop(table, None)
            raise UserUnknown("the store has no users") from error
        except ProgrammingError as error:
            self._open.pop(table, None)
            raise InvalidRequest(str(error)) from error
        except Error as error:
            self._open.pop(table, None)
            raise MetadataUnavailable(f"users cannot be looked up: {error}") from error

    async def _make_tables(self) -> None:
        try:
            await self._herd.make(SYSTEM)
            for table, (columns, primary) in _TABLES.items():
                try:
                    await self._herd.create_table(table, columns, primary, SYSTEM)
                except NameTaken:
                    continue
        except Error as error:
            raise MetadataUnavailable(f"the system tablespace cannot be made: {error}") from error


def digest_of(token: str) -> bytes:
    """What is kept of a token: it is random enough for a plain hash."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def _unknown(name: str) -> UserUnknown:
    return UserUnknown(f"there is no user {name}")


def _token(row: RowDict) -> Token:
    return Token(row["id"], row["owner"], row["digest"], row["expires_ms"], row["note"])
