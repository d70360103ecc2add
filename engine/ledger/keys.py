"""From a ledger's password to the key that bookies ask for.

The key is SHA-256 over a fixed prefix and the password. Metadata and bookies keep only SHA-256 of
the key, so neither reveals what a writer must show.
"""

import hashlib
import hmac


def key_of(password: bytes) -> bytes:
    """The key a client shows for appends and fences.

    >>> len(key_of(b"secret"))
    32
    """
    return hashlib.sha256(b"herdbook ledger key\0" + password).digest()


def key_hash(key: bytes) -> bytes:
    """What metadata and bookies keep of a key."""
    return hashlib.sha256(key).digest()


def key_matches(key: bytes, expected_hash: bytes) -> bool:
    """Whether a key is the one of which a hash was kept, in constant time."""
    return hmac.compare_digest(key_hash(key), expected_hash)
