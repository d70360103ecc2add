"""Finding out who knows the users of a store that is open.

    authenticator = await users_of(book)                     # of a folder or of a cluster

Invariants:
- In a cluster tokens are signed with its shared secret, so that every node takes them. Without one
  there are no users at its wires: who reaches it is a part of it.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Final

from engine.access.door import ReaderDoor, UserDoor
from engine.access.guesses import Guesses
from engine.access.secret_files import secret_in
from engine.access.tokens import Keys
from engine.errors import InvalidRequest
from engine.ledger.client import LedgerClient
from engine.ports.clock import Clock
from engine.transport.security import Security
from herdbook.access.auditing import configured_audit
from herdbook.access.authenticator import StoreAuthenticator, own_key
from herdbook.access.proving import PasswordThreads
from herdbook.access.rows import Tablespaces, UserRows
from herdbook.task_api import read_configured

KEY_FILE: Final = ".browsers.key"
"""The name of a folder's file with what signs the tokens by which browsers are recognized."""


async def users_of(book: Any) -> StoreAuthenticator:
    """Who knows the users of an open book, or of an open cluster.

    Raises `InvalidRequest` for a configuration that cannot be read.
    """
    return users_in(book.herd, book.ledgers.clock, read_configured().make_security())


def keys_of(folder: str) -> Keys:
    """What signs the tokens by which browsers are recognized: the keys of the cluster's secret.

    Without one, a key that the folder keeps; where it cannot keep one, a key of this process.
    """
    security = read_configured().make_security()
    if security.secret:
        return security.token_keys
    key = _kept_key(Path(folder) / KEY_FILE) if folder else own_key()
    return lambda: (key,)


def _kept_key(file: Path) -> bytes:
    with suppress(OSError, ValueError, InvalidRequest):
        if not file.exists():
            with NamedTemporaryFile(dir=file.parent, prefix=".") as made:
                made.write(own_key().hex().encode())
                made.flush()
                with suppress(FileExistsError):
                    os.link(made.name, file)
        return bytes.fromhex(secret_in(file).decode())
    return own_key()


def users_in(herd: Tablespaces, clock: Clock, security: Security) -> StoreAuthenticator:
    """Who knows the users of a store, by its tablespaces."""
    own = (own_key(),)
    keys = security.token_keys if security.secret else lambda: own
    return StoreAuthenticator(UserRows(herd, clock), keys, clock, PasswordThreads())


@asynccontextmanager
async def users_of_cluster(
    client: LedgerClient, security: Security
) -> AsyncIterator[StoreAuthenticator | None]:
    """Who knows the users of a cluster, asked as one of its nodes; None without a shared secret."""
    if not security.secret:
        yield None
        return
    from herd.wire.cluster import tablespaces_of

    async with tablespaces_of(client, security=security) as herd:
        yield users_in(herd, client.clock, security)


@asynccontextmanager
async def users_door(
    client: LedgerClient, security: Security, where: str, *, readers: bool = False
) -> AsyncIterator[UserDoor | None]:
    """The door of one kind of server of a cluster; None without a shared secret.

    With `readers` it also lets in holders of read tokens.

    Raises `InvalidRequest` where the audit cannot be kept.
    """
    audit = configured_audit(where)
    async with users_of_cluster(client, security) as known:
        if known is None:
            yield None
            return
        read = ReaderDoor(security.token_keys, client.clock) if readers else None
        yield UserDoor(known, audit, where, Guesses(client.clock), readers=read)
