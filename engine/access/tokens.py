"""Signed tokens: what a node vouches for, for a while, to who cannot ask.

    hb1.CLAIMS.SIGNATURE          both in base64url without padding

Three kinds. A *read* token lets its holder read the ledgers of the tablespaces and buckets that it
names, from bookies, and do nothing else; a node checks the grants before it signs. A *session*
token says that a user has proved who they are a short while ago; what they may is asked anew. A
*known* token says that a user has logged in from a browser once: it lets nobody in, but others who
guess at its user's address do not delay the next login.

The key is derived from the cluster's shared secret, so every node can check what any of them has
signed, and nobody else can sign.

Invariants:
- Signatures are compared in constant time, before anything of the claims is believed.
- A token is what `sign` would make of its claims, to the byte: there is no other way to say it.
- A token of one kind is none of the other.
"""

import base64
import binascii
import hmac
from collections.abc import Callable
from typing import Final, Literal

import msgspec

from engine.access.principal import Grant, Kind, Principal
from engine.errors import AccessRefused, EngineError
from engine.expiry import is_over

READ: Final = "read"
SESSION: Final = "session"
KNOWN: Final = "known"
SESSION_MS: Final = 600_000
"""How long a session token is good."""
TOKEN_CHARACTERS_MAX: Final = 3_000
"""What a frame of a greeting, and a header of gRPC, have room for."""
_MARK: Final = "hb1"
_KEY_LABEL: Final = b"herdbook token\0"


class Claims(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a token says: `grants` are kinds and names that may be read."""

    use: Literal["read", "session", "known"]
    user: str
    expires_ms: int
    grants: tuple[tuple[Kind, str], ...] = ()
    made_ms: int = 0
    """Of a session: when the user was added, so that another one of that name is nobody here."""

    def principal(self) -> Principal:
        """Who holds a read token: nothing but reading what it names."""
        return Principal(
            self.user, grants=tuple(Grant(kind, name, "read") for kind, name in self.grants)
        )


Keys = Callable[[], tuple[bytes, ...]]
"""The current keys: the first one signs, all of them are accepted."""
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Claims).decode


def key_of(secret: bytes) -> bytes:
    """What tokens are signed with where this is the shared secret."""
    assert secret
    return hmac.digest(secret, _KEY_LABEL, "sha256")


def sign(claims: Claims, key: bytes) -> str:
    """The token that says so.

    >>> key = key_of(b"sixteen bytes or more")
    >>> token = sign(Claims("read", "ann", 2000, (("tablespace", "shop"),)), key)
    >>> verify(token, (key,), READ, now_ms=1000).user
    'ann'
    """
    said = f"{_MARK}.{_text_of(_encode(claims))}"
    return f"{said}.{_text_of(hmac.digest(key, said.encode(), 'sha256'))}"


def verify(token: str, keys: tuple[bytes, ...], use: str, now_ms: int) -> Claims:
    """The claims of a token that was signed with one of the keys.

    Raises `AccessRefused`, with the same message whatever is wrong with the token, unless it has
    expired.
    """
    if len(token) > TOKEN_CHARACTERS_MAX or not token.isascii():
        raise _refusal()
    said, _, signature = token.rpartition(".")
    expected = [_text_of(hmac.digest(key, said.encode(), "sha256")) for key in keys]
    if not any(hmac.compare_digest(signature.encode(), each.encode()) for each in expected):
        raise _refusal()
    mark, _, packed = said.partition(".")
    try:
        claims = _decode(_bytes_of(packed))
        exact = mark == _MARK and _text_of(_encode(claims)) == packed
        claims.principal()
    except (msgspec.MsgspecError, ValueError, UnicodeError, EngineError) as error:
        raise _refusal() from error
    if not exact or claims.use != use:
        raise _refusal()
    if is_over(claims.expires_ms, now_ms):
        raise AccessRefused("the token has expired: get another one")
    return claims


def ends_ms(token: str) -> int:
    """When a token ends, by what it says itself: nobody has judged that. 0 for what is none.

    >>> ends_ms(sign(Claims("read", "ann", 2000), key_of(b"sixteen bytes or more"))), ends_ms("")
    (2000, 0)
    """
    try:
        return _decode(_bytes_of(token.split(".")[1])).expires_ms
    except (IndexError, msgspec.MsgspecError, ValueError, UnicodeError):
        return 0


def is_signed(token: str) -> bool:
    """Whether a text looks like a signed token rather than one that is kept."""
    return token.startswith(f"{_MARK}.")


def _refusal() -> AccessRefused:
    return AccessRefused("the token is not one of this cluster")


def _text_of(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes_of(text: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError(text) from error
