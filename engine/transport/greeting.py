"""How a connection proves the shared secret, on both sides: pure functions of what was said.

    client                                server
    HELLO     options: challenge   ->
                                   <-     CHALLENGE  [challenge]         only with a secret
    PROOF     [proof]              ->
                                   <-     WELCOME    options: proof

A user greets with another option in the place of `challenge`, where the server has a door for users
(`engine.access.door`): `login`, the first message of SCRAM-SHA-256, whose other messages the next
frames carry in the same places; or `token`, which is answered by WELCOME at once.

Invariants:
- A server with a secret welcomes nobody who has not proved it on this very connection.
- A client with a secret believes no server that has not proved it, one without security included.
- A challenge is used once.
"""

from typing import Any, Final

import msgspec

from engine.access.door import new_nonce
from engine.access.scram import ScramClient, ScramServer, ScramVerifier
from engine.access.tokens import TOKEN_CHARACTERS_MAX
from engine.errors import AccessRefused, FrameInvalid
from engine.transport.security import CHALLENGE_BYTES, Security, new_challenge, proofs_match

CHALLENGE: Final = "challenge"
PROOF: Final = "proof"
LOGIN: Final = "login"
TOKEN: Final = "token"


class ServerGreeting:
    """What a server asks of one connection. `binding` is the hash of its own certificate."""

    def __init__(self, security: Security, binding: bytes) -> None:
        self._security = security
        self._binding = binding
        self._client = b""
        self._server = b""

    def challenge(self, options: dict[str, Any]) -> bytes | None:
        """The head of the CHALLENGE that follows a HELLO, None if no secret is asked for.

        Raises `AccessRefused` for a client that did not come to prove anything.
        """
        assert not self._server, "one HELLO a connection"
        if not self._security.secret:
            return None
        said = options.get(CHALLENGE)
        if not isinstance(said, bytes) or len(said) != CHALLENGE_BYTES:
            raise AccessRefused(
                "this server wants a proof of the shared secret: give the secret, or log in"
            )
        self._client, self._server = said, new_challenge()
        return msgspec.msgpack.encode((self._server,))

    def check(self, head: bytes) -> dict[str, Any]:
        """Judge a PROOF; returns what WELCOME says about it.

        Raises `AccessRefused`, `FrameInvalid`.
        """
        if not self._server:
            raise FrameInvalid("a proof that nobody asked for")
        challenges = (self._client, self._server)
        self._client = self._server = b""
        answer = self._security.answer(_one_value(head), *challenges, self._binding)
        if answer is None:
            raise AccessRefused("the client does not know this server's shared secret")
        return {PROOF: answer}


class LoginGreeting:
    """One user's login at a server. `binding` is the hash of its own certificate."""

    def __init__(self, binding: bytes) -> None:
        self._scram = ScramServer(new_nonce(), binding)
        self.user = ""
        self.verifier: ScramVerifier
        """What the proof is checked against; set by `challenge`."""

    def begin(self, first: object) -> str:
        """Read what a HELLO says by `login`; returns the user. Raises as `ScramServer.begin`."""
        if not isinstance(first, bytes):
            raise FrameInvalid("a login is bytes")
        self.user = self._scram.begin(first)
        return self.user

    def challenge(self, verifier: ScramVerifier) -> bytes:
        """The head of the CHALLENGE."""
        self.verifier = verifier
        return msgspec.msgpack.encode((self._scram.challenge(verifier),))

    def check(self, head: bytes) -> dict[str, Any]:
        """Judge a PROOF; returns what WELCOME says about it.

        Raises `AccessRefused`, `FrameInvalid`.
        """
        said = _one_value(head)
        if not isinstance(said, bytes):
            raise FrameInvalid("a proof is bytes")
        return {LOGIN: self._scram.finish(said)}


def token_of(options: dict[str, Any]) -> str | None:
    """The token that a HELLO shows, if it shows one. Raises `FrameInvalid`."""
    said = options.get(TOKEN)
    if said is None:
        return None
    if not isinstance(said, str) or len(said) > TOKEN_CHARACTERS_MAX:
        raise FrameInvalid(f"a token is text of at most {TOKEN_CHARACTERS_MAX} characters")
    return said


class ClientGreeting:
    """What a client says on one connection, and believes."""

    def __init__(self, security: Security) -> None:
        self._security = security
        proves = security.secret and not security.logs_in
        self._client = new_challenge() if proves else b""
        self._scram: ScramClient | None = None
        self._proved = False
        self._expected: bytes | None = None

    @property
    def in_the_clear(self) -> bool:
        """Whether who listens could take what it shows, or what it gets as the user it proves."""
        return bool(self._security.token or self._security.user)

    def options(self, binding: bytes = b"") -> dict[str, Any]:
        """What HELLO says beside the rest. `binding` is the hash of the server's certificate."""
        known = self._security
        if known.user:
            self._scram = ScramClient(known.user, known.password, new_nonce(), binding)
            return {LOGIN: self._scram.first}
        if known.token:
            return {TOKEN: known.token}
        return {CHALLENGE: self._client} if self._client else {}

    def answer(self, head: bytes, binding: bytes) -> bytes:
        """The head of the PROOF that follows a CHALLENGE.

        Raises `AccessRefused` without a secret, `FrameInvalid`.
        """
        if self._scram is not None:
            return self._prove(self._scram, head)
        if not self._client:
            raise AccessRefused(
                "the server wants a proof of the shared secret: give the secret, or log in"
            )
        said = _one_value(head)
        if not isinstance(said, bytes) or len(said) != CHALLENGE_BYTES or self._expected:
            raise FrameInvalid("not a challenge, or a second one")
        self._expected = self._security.server_proof(self._client, said, binding)
        return msgspec.msgpack.encode((self._security.client_proof(self._client, said, binding),))

    def check(self, options: dict[str, Any]) -> None:
        """Judge a WELCOME. Raises `AccessRefused`, `FrameInvalid`."""
        if self._scram is not None:
            shown = options.get(LOGIN)
            if not self._proved or not isinstance(shown, bytes):
                raise AccessRefused("the server did not ask for the password that was given")
            self._scram.check(shown)
        if not self._client:
            return
        if self._expected is None or not proofs_match(options.get(PROOF), self._expected):
            raise AccessRefused("the server did not prove that it knows the shared secret")

    def _prove(self, scram: ScramClient, head: bytes) -> bytes:
        said = _one_value(head)
        if not isinstance(said, bytes) or self._proved:
            raise FrameInvalid("not a challenge, or a second one")
        self._proved = True
        return msgspec.msgpack.encode((scram.prove(said),))


def _one_value(head: bytes) -> object:
    try:
        (value,) = msgspec.msgpack.decode(head, type=tuple[Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FrameInvalid(f"a greeting cannot be read: {error}") from error
    return value
