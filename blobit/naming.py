"""How buckets and objects may be called, and the tokens that continue a listing.

Invariants:
- A name is refused before anything is looked up or written.
- Names compare as their UTF-8 bytes, which is how they are kept.
- A token continues only the listing that made it, of the same bucket, prefix and delimiter.
"""

import base64
import binascii
import random
import re
from collections.abc import Mapping
from typing import Final

import google_crc32c
import msgspec

from blobit.errors import InvalidName, InvalidToken, RangeInvalid
from engine.access.principal import SHARED_NAMES

OBJECT_NAME_BYTES_MAX: Final = 1_024
CONTENT_TYPE_CHARACTERS_MAX: Final = 255
METADATA_BYTES_MAX: Final = 64 * 1_024
OWN_TABLESPACES: Final = "blobs_"
"""How all tablespaces are called that the store makes for buckets."""
_BUCKET_FORM: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", re.ASCII)
_SPACE_NAME_CHARACTERS_MAX: Final = 63
_TOKEN_FORMAT: Final = 1
_CHECK_BYTES: Final = 4
_TOKEN_CHARACTERS_MAX: Final = 4 * OBJECT_NAME_BYTES_MAX
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_LAST_CHARACTER: Final = 0x10FFFF
_SURROGATES: Final = (0xD800, 0xE000)


def check_bucket_name(name: object) -> None:
    """Raise `InvalidName` unless a bucket may be called so."""
    if not isinstance(name, str) or _BUCKET_FORM.fullmatch(name) is None:
        raise InvalidName(
            f"{str(name)[:80]!r} cannot be a bucket's name: 3 to 63 of a-z, 0-9, - and ., with a "
            "letter or a digit first and last"
        )


_URL_SAFE: Final = bytes.maketrans(b"+/", b"-_")


def check_object_name(name: object) -> str:
    """The name as rows keep it. Raises `InvalidName` unless an object may be called so."""
    if not isinstance(name, str) or not name:
        raise InvalidName(
            f"{str(name)[:80]!r} cannot be an object's name: it is no text, or an empty one"
        )
    problem = ""
    if "\x00" in name:
        problem = "it has a NUL"
    else:
        try:
            if len(name) > 256 and len(name.encode()) > OBJECT_NAME_BYTES_MAX:
                problem = f"it has more than {OBJECT_NAME_BYTES_MAX} bytes of UTF-8"
            elif not name.isascii():
                name.encode()
        except UnicodeEncodeError:
            problem = "it is no Unicode text"
    if problem:
        raise InvalidName(f"{str(name)[:80]!r} cannot be an object's name: {problem}")
    return _exact(name)


def _exact(text: str) -> str:
    """A text of a type of its own, as NumPy's and of templates are, as a plain one."""
    return text if type(text) is str else str.__str__(text)


def packed_metadata(metadata: Mapping[str, str] | None) -> bytes:
    """A user's metadata as rows keep them. Raises `InvalidName`."""
    if not metadata:
        return b""
    given = dict(metadata)
    if not all(isinstance(text, str) for pair in given.items() for text in pair):
        raise InvalidName("metadata are pairs of texts")
    try:
        packed: bytes = msgspec.msgpack.encode(
            {_exact(key): _exact(text) for key, text in given.items()}
        )
    except UnicodeEncodeError as error:
        raise InvalidName("metadata are no Unicode text") from error
    if len(packed) > METADATA_BYTES_MAX:
        raise InvalidName(f"metadata of {len(packed)} bytes: {METADATA_BYTES_MAX} fit")
    return packed


def check_content_type(content_type: object) -> str:
    """The type as rows keep it. Raises `InvalidName` for what is no content type."""
    if not isinstance(content_type, str) or len(content_type) > CONTENT_TYPE_CHARACTERS_MAX:
        raise InvalidName(f"a content type has at most {CONTENT_TYPE_CHARACTERS_MAX} characters")
    if not (content_type.isascii() and content_type.isprintable()):
        raise InvalidName("a content type is a line of ASCII, as HTTP has it")
    return _exact(content_type)


def check_expiry(expires_ms: int | None) -> None:
    """Raise `RangeInvalid` for what is no moment of the wall clock in milliseconds."""
    if expires_ms is not None and (type(expires_ms) is not int or not 0 <= expires_ms < 2**62):
        raise RangeInvalid(f"{expires_ms!r} is no moment in milliseconds since 1970")


def new_etag(rng: random.Random) -> str:
    """What names one version of an object: 22 characters, never given twice."""
    bits = rng.getrandbits(128).to_bytes(16, "big")
    # As `base64.urlsafe_b64encode`, with fewer calls.
    return binascii.b2a_base64(bits, newline=False).translate(_URL_SAFE).decode("ascii")[:22]


def tablespace_name(bucket: str, bucket_id: int) -> str:
    """What a bucket's own tablespace is called: as no other bucket's ever is.

    >>> tablespace_name("a.b", 37)
    'blobs_a_b_11'
    """
    digits = ""
    while bucket_id:
        bucket_id, digit = divmod(bucket_id, 36)
        digits = _DIGITS[digit] + digits
    end = f"_{digits}"
    start = f"{OWN_TABLESPACES}{bucket.replace('.', '_')}"
    return start[: _SPACE_NAME_CHARACTERS_MAX - len(end)] + end


def pool_tablespace_name(number: int) -> str:
    """What a tablespace is called that buckets share: as no bucket's own, whose name goes on with a
    letter or a digit.

    >>> pool_tablespace_name(3)
    'blobs__pool_3'
    """
    return f"{SHARED_NAMES}{number}"


def is_of_pool(tablespace: str) -> bool:
    """Whether a tablespace is one that buckets share."""
    return tablespace.startswith(SHARED_NAMES)


def check_tablespace_name(name: str) -> None:
    """Raise `InvalidName` for a tablespace that only the store gives to a bucket."""
    if name.lower().startswith(OWN_TABLESPACES):
        raise InvalidName(
            f"tablespace {name:.80}: names that begin with {OWN_TABLESPACES} are the store's own"
        )


def after_prefix(prefix: str) -> str | None:
    """The lowest text above all that begin so; None: there is none.

    >>> after_prefix("a/")
    'a0'
    """
    for index in range(len(prefix) - 1, -1, -1):
        number = ord(prefix[index]) + 1
        if number == _SURROGATES[0]:
            number = _SURROGATES[1]
        if number <= _LAST_CHARACTER:
            return prefix[:index] + chr(number)
    return None


def listing_token(bucket_id: int, prefix: str, delimiter: str, first: str) -> str:
    """What continues a listing at names from `first` on."""
    packed = bytes([_TOKEN_FORMAT]) + _listing(bucket_id, prefix, delimiter) + first.encode()
    return base64.urlsafe_b64encode(packed + _check(packed)).rstrip(b"=").decode("ascii")


def parse_token(token: object, bucket_id: int, prefix: str, delimiter: str) -> str:
    """From which name on a listing continues. Raises `InvalidToken`."""
    if not isinstance(token, str) or len(token) > _TOKEN_CHARACTERS_MAX or not token.isascii():
        raise InvalidToken("this is no token of a listing")
    try:
        packed = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        body, check = packed[:-_CHECK_BYTES], packed[-_CHECK_BYTES:]
        first = body[1 + _CHECK_BYTES :].decode()
    except (binascii.Error, UnicodeDecodeError, ValueError) as error:
        raise InvalidToken("this is no token of a listing") from error
    canonical = base64.urlsafe_b64encode(packed).rstrip(b"=") == token.encode()
    if not canonical or len(body) < 1 + _CHECK_BYTES or _check(body) != check:
        raise InvalidToken("this is no token of a listing: some character of it is wrong")
    if body[0] != _TOKEN_FORMAT:
        raise InvalidToken(f"the token has format {body[0]}, this program reads {_TOKEN_FORMAT}")
    if body[1 : 1 + _CHECK_BYTES] != _listing(bucket_id, prefix, delimiter):
        raise InvalidToken("the token is of a listing of another bucket, prefix or delimiter")
    return first


def _listing(bucket_id: int, prefix: str, delimiter: str) -> bytes:
    """Which listing it is."""
    return _check(msgspec.msgpack.encode([bucket_id, prefix, delimiter]))


def _check(packed: bytes) -> bytes:
    crc: int = google_crc32c.value(packed)
    return crc.to_bytes(_CHECK_BYTES, "little")
