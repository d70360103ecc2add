"""Each side of a greeting alone: a challenge counts once, and only a whole one."""

import msgspec
import pytest

from engine.errors import AccessRefused, FrameInvalid
from engine.transport.greeting import CHALLENGE, PROOF, ClientGreeting, ServerGreeting
from engine.transport.security import CHALLENGE_BYTES, NO_SECURITY, Security

SECRET = Security(secret=b"the cows come home at six")
BINDING = bytes(range(32))


def packed(value: object) -> bytes:
    return msgspec.msgpack.encode((value,))


def challenged(client: ClientGreeting, server: ServerGreeting) -> bytes:
    head = server.challenge(client.options())
    assert head is not None
    return head


def test_both_sides_that_know_the_secret_believe_each_other() -> None:
    client, server = ClientGreeting(SECRET), ServerGreeting(SECRET, BINDING)
    proof = client.answer(challenged(client, server), BINDING)
    client.check(server.check(proof))


def test_a_challenge_is_used_once_whether_the_proof_was_right_or_wrong() -> None:
    for first in (b"wrong", None):
        client, server = ClientGreeting(SECRET), ServerGreeting(SECRET, BINDING)
        right = client.answer(challenged(client, server), BINDING)
        if first is None:
            server.check(right)
        else:
            with pytest.raises(AccessRefused):
                server.check(packed(first))
        with pytest.raises(FrameInvalid, match="nobody asked for"):
            server.check(right)


def test_a_proof_before_any_challenge_is_refused() -> None:
    with pytest.raises(FrameInvalid, match="nobody asked for"):
        ServerGreeting(SECRET, BINDING).check(packed(b"proof"))


def test_a_client_answers_one_challenge_only() -> None:
    """A second answer would be a proof for whoever stands behind this server."""
    client = ClientGreeting(SECRET)
    client.answer(challenged(client, ServerGreeting(SECRET, BINDING)), BINDING)
    with pytest.raises(FrameInvalid, match="a second one"):
        client.answer(challenged(client, ServerGreeting(SECRET, BINDING)), BINDING)


@pytest.mark.parametrize(
    "said", [b"", bytes(CHALLENGE_BYTES - 1), bytes(CHALLENGE_BYTES + 1), "x" * 32, None, 7]
)
def test_what_is_no_whole_challenge_is_refused_on_both_sides(said: object) -> None:
    with pytest.raises(AccessRefused, match="give the secret"):
        ServerGreeting(SECRET, BINDING).challenge({CHALLENGE: said})
    with pytest.raises(FrameInvalid, match="not a challenge"):
        ClientGreeting(SECRET).answer(packed(said), BINDING)


def test_a_client_without_the_secret_proves_nothing_and_says_so() -> None:
    with pytest.raises(AccessRefused, match="give the secret"):
        ClientGreeting(NO_SECURITY).answer(packed(bytes(CHALLENGE_BYTES)), BINDING)


def test_a_server_that_never_challenged_is_not_believed() -> None:
    with pytest.raises(AccessRefused, match="did not prove"):
        ClientGreeting(SECRET).check({PROOF: bytes(32)})
