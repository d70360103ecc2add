"""How a connection proves the shared secret, on both sides: pure functions of what was said.

    client                                server
    HELLO     options: challenge   ->
                                   <-     CHALLENGE  [challenge]         only with a secret
    PROOF     [proof]              ->
                                   <-     WELCOME    options: proof

Invariants:
- A server with a secret welcomes nobody who has not proved it on this very connection.
- A client with a secret believes no server that has not proved it, one without security included.
- A challenge is used once.
"""

from typing import Any

import msgspec

from engine.errors import AccessRefused, FrameInvalid
from engine.transport.security import CHALLENGE_BYTES, Security, new_challenge, proofs_match

CHALLENGE = "challenge"
PROOF = "proof"


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
            raise AccessRefused("this server wants a proof of the shared secret: name the secret")
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
        expected = self._security.client_proof(*challenges, self._binding)
        if not proofs_match(_one_value(head), expected):
            raise AccessRefused("the client does not know this server's shared secret")
        return {PROOF: self._security.server_proof(*challenges, self._binding)}


class ClientGreeting:
    """What a client says on one connection, and believes."""

    def __init__(self, security: Security) -> None:
        self._security = security
        self._client = new_challenge() if security.secret else b""
        self._expected: bytes | None = None

    def options(self) -> dict[str, Any]:
        """What HELLO says beside the rest."""
        return {CHALLENGE: self._client} if self._client else {}

    def answer(self, head: bytes, binding: bytes) -> bytes:
        """The head of the PROOF that follows a CHALLENGE.

        Raises `AccessRefused` without a secret, `FrameInvalid`.
        """
        if not self._client:
            raise AccessRefused("the server wants a proof of the shared secret: name the secret")
        said = _one_value(head)
        if not isinstance(said, bytes) or len(said) != CHALLENGE_BYTES or self._expected:
            raise FrameInvalid("not a challenge, or a second one")
        self._expected = self._security.server_proof(self._client, said, binding)
        return msgspec.msgpack.encode((self._security.client_proof(self._client, said, binding),))

    def check(self, options: dict[str, Any]) -> None:
        """Judge a WELCOME. Raises `AccessRefused`."""
        if not self._client:
            return
        if self._expected is None or not proofs_match(options.get(PROOF), self._expected):
            raise AccessRefused("the server did not prove that it knows the shared secret")


def _one_value(head: bytes) -> object:
    try:
        (value,) = msgspec.msgpack.decode(head, type=tuple[Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FrameInvalid(f"a greeting cannot be read: {error}") from error
    return value
