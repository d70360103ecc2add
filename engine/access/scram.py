"""SCRAM-SHA-256 (RFC 5802, RFC 7677), both sides: pure functions of what was said.

A password never crosses the wire and is not stored: a server keeps a verifier, from which nobody
can log in. Over TLS both sides prove over the server's certificate, too (`tls-server-end-point`,
SHA-256 of it), so that nobody who stands between can pass proofs on.

    client                                           server
    n,,n=ann,r=CLIENT                        ->
                                             <-      r=CLIENTSERVER,s=salt,i=iterations
    c=biws,r=CLIENTSERVER,p=proof            ->
                                             <-      v=signature

Invariants:
- Who judges passwords keeps none: what is in a server's memory lets nobody in.
- Both nonces are in every proof: a recorded exchange is worth nothing.
- An unknown user's exchange has the same steps and the same end as one with a wrong password.
- Proofs are compared in constant time; what cannot be read is refused like what is wrong.
"""

import base64
import binascii
import hashlib
import hmac
import stringprep
import unicodedata
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from engine.errors import AccessRefused, FrameInvalid, InvalidRequest

MECHANISM: Final = "SCRAM-SHA-256"
ITERATIONS: Final = 100_000
ITERATIONS_MIN: Final = 4_096
ITERATIONS_MAX: Final = 10_000_000
"""A server that asks for more wants to keep its clients busy."""
SALT_BYTES: Final = 16
NAME_CHARACTERS_MAX: Final = 256
PASSWORD_CHARACTERS_MAX: Final = 1_024
_MESSAGE_BYTES_MAX: Final = 4_096
_HASH_BYTES: Final = 32
_LONGER: Final = 4
"""Preparing may shorten a text by up to this factor: characters are left out or combined."""
_BINDING: Final = "p=tls-server-end-point"
_PROHIBITED: Final = (
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)


@dataclass(frozen=True, slots=True)
class ScramVerifier:
    """What is kept of a password. `str` gives the text in which it is stored.

    >>> made = ScramVerifier.of("pencil", salt=bytes(16), iterations=4096)
    >>> ScramVerifier.parse(str(made)) == made
    True
    """

    salt: bytes
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    @staticmethod
    def of(password: str, *, salt: bytes, iterations: int = ITERATIONS) -> "ScramVerifier":
        """The verifier of a password. Takes tens of milliseconds.

        Raises `InvalidRequest` for a password that none can be.
        """
        salted = _hashed(prepared(password), salt, iterations)
        return ScramVerifier(salt, iterations, _stored_key(salted), _server_key(salted))

    @staticmethod
    def of_nobody(user: str, key: bytes, iterations: int = ITERATIONS) -> "ScramVerifier":
        """One that no password fits, always the same for a name: who asks twice learns nothing."""
        drawn = hmac.digest(key, b"nobody\0" + user.encode("utf-8", "surrogatepass"), "sha512")
        salt, stored = drawn[:SALT_BYTES], drawn[SALT_BYTES : SALT_BYTES + _HASH_BYTES]
        return ScramVerifier(salt, iterations, stored, hmac.digest(key, stored, "sha256"))

    @staticmethod
    def parse(text: str) -> "ScramVerifier":
        """A stored one. Raises `InvalidRequest`."""
        try:
            mechanism, cost, keys = text.split("$")
            iterations, salt = cost.split(":")
            stored, server = keys.split(":")
            found = ScramVerifier(
                _decoded(salt), _number(iterations), _decoded(stored), _decoded(server)
            )
        except ValueError as error:
            raise InvalidRequest("that is no verifier of a password") from error
        lengths = len(found.stored_key), len(found.server_key)
        if mechanism != MECHANISM or lengths != (_HASH_BYTES, _HASH_BYTES):
            raise InvalidRequest("that is no verifier of a password")
        return found

    def __str__(self) -> str:
        salt, stored, server = map(_encoded, (self.salt, self.stored_key, self.server_key))
        return f"{MECHANISM}${self.iterations}:{salt}${stored}:{server}"

    def fits(self, password: str) -> bool:
        """Whether it is the password's. Takes tens of milliseconds, right or wrong."""
        try:
            text = prepared(password)
        except InvalidRequest:
            text = ""
        salted = _hashed(text, self.salt, self.iterations)
        return hmac.compare_digest(_stored_key(salted), self.stored_key) and bool(text)


class ScramServer:
    """The server's side of one exchange. `binding` is the hash of its certificate, b"" without.

    `nonce` is text that nobody can foresee. Every method raises `FrameInvalid` for what is no
    SCRAM.
    """

    def __init__(self, nonce: str, binding: bytes = b"") -> None:
        self._nonce = nonce
        self._binding = binding
        self._header = b""
        self._first = ""
        self._said = ""
        self._verifier: ScramVerifier | None = None

    def begin(self, message: bytes) -> str:
        """Read the client's first message; returns the user that it names."""
        assert not self._said, "one exchange a server"
        header, bare = _gs2(_text(message))
        bound = header.startswith(_BINDING)
        if bound != bool(self._binding) or (bound and header != f"{_BINDING},,"):
            raise AccessRefused("the client proves over another connection than this one")
        self._header = header.encode()
        attributes = _attributes(bare, "nr")
        self._first, self._said = bare, attributes["r"]
        return _name_of(attributes["n"])

    def challenge(self, verifier: ScramVerifier) -> bytes:
        """The server's first message."""
        assert self._first and self._verifier is None
        self._verifier = verifier
        self._said += self._nonce
        salt = _encoded(verifier.salt)
        first = f"r={self._said},s={salt},i={verifier.iterations}"
        self._first += f",{first}"
        return first.encode()

    def finish(self, message: bytes) -> bytes:
        """Judge the client's proof; returns the server's own. Raises `AccessRefused`."""
        verifier, self._verifier = self._verifier, None
        if verifier is None:
            raise FrameInvalid("a proof that nobody asked for")
        text = _text(message)
        without, comma, _ = text.rpartition(",p=")
        attributes = _attributes(text, "crp")
        proof = _bytes_of(attributes["p"])
        signed = f"{self._first},{without}".encode()
        if not comma or len(proof) != _HASH_BYTES:
            raise FrameInvalid("a proof has 32 bytes and stands last")
        right = _bytes_of(attributes["c"]) == self._header + self._binding
        right &= hmac.compare_digest(attributes["r"].encode(), self._said.encode())
        client_key = _xor(proof, hmac.digest(verifier.stored_key, signed, "sha256"))
        shown = hashlib.sha256(client_key).digest()
        if not (hmac.compare_digest(shown, verifier.stored_key) and right):
            raise AccessRefused(NOT_PROVED)
        signature = hmac.digest(verifier.server_key, signed, "sha256")
        return b"v=" + _encoded(signature).encode()


class ScramClient:
    """The client's side of one exchange. Raises `InvalidRequest` for what no user can be."""

    def __init__(self, user: str, password: str, nonce: str, binding: bytes = b"") -> None:
        self._password = prepared(password)
        self._nonce = nonce
        header = f"{_BINDING},," if binding else "n,,"
        self._channel = _encoded(header.encode() + binding)
        name = prepared_name(user).replace("=", "=3D").replace(",", "=2C")
        self._bare = f"n={name},r={nonce}"
        self.first = f"{header}{self._bare}".encode()
        """The first message."""
        self._signature: bytes | None = None

    def prove(self, message: bytes) -> bytes:
        """The final message, for the server's first. Raises `FrameInvalid`, `AccessRefused`."""
        text = _text(message)
        attributes = _attributes(text, "rsi")
        nonce, iterations = attributes["r"], _iterations(attributes["i"])
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise AccessRefused("the server answers somebody else's greeting")
        salted = _salted(self._password, _bytes_of(attributes["s"]), iterations)
        without = f"c={self._channel},r={nonce}"
        signed = f"{self._bare},{text},{without}".encode()
        client_key = hmac.digest(salted, b"Client Key", "sha256")
        stored_key = hashlib.sha256(client_key).digest()
        proof = _xor(client_key, hmac.digest(stored_key, signed, "sha256"))
        self._signature = hmac.digest(_server_key(salted), signed, "sha256")
        return f"{without},p={_encoded(proof)}".encode()

    def check(self, message: bytes) -> None:
        """Judge the server's own proof. Raises `AccessRefused`, `FrameInvalid`."""
        shown = _bytes_of(_attributes(_text(message), "v")["v"])
        if self._signature is None or not hmac.compare_digest(shown, self._signature):
            raise AccessRefused("the server did not prove that it knows this user")


NOT_PROVED: Final = "the user is not known here, or the password is wrong"


def prepared(password: str) -> str:
    """A password as SASLprep (RFC 4013) wants it. Raises `InvalidRequest`."""
    text = _prepared(password, PASSWORD_CHARACTERS_MAX)
    if not text or len(text) > PASSWORD_CHARACTERS_MAX:
        raise InvalidRequest(f"a password has 1 to {PASSWORD_CHARACTERS_MAX} characters")
    return text


def prepared_name(user: str) -> str:
    """The name of a user in the same form. Raises `InvalidRequest`."""
    name = _prepared(user, NAME_CHARACTERS_MAX)
    if not name or len(name) > NAME_CHARACTERS_MAX or any(each.isspace() for each in name):
        raise InvalidRequest(f"a user's name has 1 to {NAME_CHARACTERS_MAX} visible characters")
    return name


def _prepared(given: str, most: int) -> str:
    """A prepared text of at most about `most` characters. A far longer text is not prepared."""
    if len(given) > _LONGER * most:
        raise InvalidRequest(f"a name or a password has at most {most} characters")
    mapped = (
        " " if stringprep.in_table_c12(each) else each
        for each in given
        if not stringprep.in_table_b1(each)
    )
    text = unicodedata.normalize("NFKC", "".join(mapped))
    if any(forbidden(each) for each in text for forbidden in _PROHIBITED):
        raise InvalidRequest("a name or a password has a character that cannot be typed")
    right = [stringprep.in_table_d1(each) for each in text]
    if any(right):
        if any(map(stringprep.in_table_d2, text)) or not (right[0] and right[-1]):
            raise InvalidRequest("a name or a password mixes directions of writing")
    return text


@lru_cache(maxsize=64)
def _salted(password: str, salt: bytes, iterations: int) -> bytes:
    """For clients alone, who have the password anyway: who connects again and again pays once."""
    return _hashed(password, salt, iterations)


def _hashed(password: str, salt: bytes, iterations: int) -> bytes:
    """Costly on purpose."""
    return hashlib.pbkdf2_hmac("sha256", password.encode(), salt, iterations)


def _stored_key(salted: bytes) -> bytes:
    return hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()


def _server_key(salted: bytes) -> bytes:
    return hmac.digest(salted, b"Server Key", "sha256")


def _xor(one: bytes, other: bytes) -> bytes:
    return (int.from_bytes(one) ^ int.from_bytes(other)).to_bytes(_HASH_BYTES)


def _text(message: bytes) -> str:
    if len(message) > _MESSAGE_BYTES_MAX:
        raise FrameInvalid(f"a message of a login has at most {_MESSAGE_BYTES_MAX} bytes")
    try:
        return message.decode()
    except UnicodeDecodeError as error:
        raise FrameInvalid("a message of a login is no text") from error


def _gs2(text: str) -> tuple[str, str]:
    """The header, with its commas, and what follows it."""
    parts = text.split(",", 2)
    if len(parts) != 3 or parts[1] or not (parts[0] in ("n", "y") or parts[0].startswith("p=")):
        raise FrameInvalid("a login begins with n,, or with its binding to the connection")
    return f"{parts[0]},,", parts[2]


def _attributes(text: str, wanted: str) -> dict[str, str]:
    """The attributes of a message: those, once each and in that order, then extensions."""
    parts = text.split(",")
    names = [part[:1] for part in parts if part[1:2] == "="]
    if len(names) != len(parts) or len(set(names)) != len(names) or "m" in names:
        raise FrameInvalid("a message of a login is garbled")
    if "".join(names[: len(wanted) - 1]) != wanted[:-1] or wanted[-1] not in names:
        raise FrameInvalid(f"a message of a login has the attributes {', '.join(wanted)}")
    return {part[0]: part[2:] for part in parts}


def _name_of(encoded: str) -> str:
    left = encoded.replace("=2C", "").replace("=3D", "")
    if "=" in left or not encoded:
        raise FrameInvalid("a user's name is garbled")
    return encoded.replace("=2C", ",").replace("=3D", "=")


def _iterations(text: str) -> int:
    try:
        count = _number(text)
    except ValueError as error:
        raise FrameInvalid("iterations are a number") from error
    if not ITERATIONS_MIN <= count <= ITERATIONS_MAX:
        raise AccessRefused(
            f"the server asks for {count} iterations: {ITERATIONS_MIN} to {ITERATIONS_MAX} are done"
        )
    return count


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise ValueError(text)
    return int(text)


def _bytes_of(text: str) -> bytes:
    try:
        return _decoded(text)
    except ValueError as error:
        raise FrameInvalid("a message of a login is no base64") from error


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeError) as error:
        raise ValueError(text) from error


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()
