"""The key that repair shows: it knows of a ledger only the hash of its key.

A ledger's password never reaches those who copy its entries. They show the hash that the metadata
keep, marked, so that no password can make the same bytes. Bookies take it where nothing new can be
written with it: for fences, facts, and the writes of recovery.

Invariants:
- A repair key is never taken for a normal append.
- `key_hash_of` is the same for a ledger's key and for its repair key, and always as long.
"""

import hashlib
from typing import Final

KEY_HASH_BYTES: Final = 32
_MARK: Final = b"herdbook repair\0"
_REPAIR_KEY_BYTES: Final = len(_MARK) + KEY_HASH_BYTES


def repair_key(key_hash: bytes) -> bytes:
    """The key with which a ledger of that key hash is repaired.

    >>> key_hash_of(repair_key(key_hash_of(b"key"))) == key_hash_of(b"key")
    True
    """
    return _MARK + key_hash


def is_repair_key(key: bytes) -> bool:
    """Whether a key is one of repair's."""
    return len(key) == _REPAIR_KEY_BYTES and key.startswith(_MARK)


def key_hash_of(key: bytes) -> bytes:
    """What bookies and metadata keep of a key."""
    return key[len(_MARK) :] if is_repair_key(key) else hashlib.sha256(key).digest()
