"""SCRAM-SHA-256 as the RFCs have it, and what must not pass."""

from base64 import b64decode, b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.access import scram
from engine.access.scram import (
    ITERATIONS_MIN,
    NOT_PROVED,
    ScramClient,
    ScramServer,
    ScramVerifier,
    prepared,
    prepared_name,
)
from engine.errors import AccessRefused, EngineError, FrameInvalid, InvalidRequest
from tests.engine.access.known_users import verifier

# The exchange of RFC 7677, section 3.
RFC_SALT = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
RFC_CLIENT = "rOprNGfwEbeRWgbNEkqO"
RFC_SERVER = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
RFC_MESSAGES = (
    b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO",
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
    b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
    b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
)


def exchanged(
    name: str,
    password: str,
    known: ScramVerifier,
    *,
    client_binding: bytes = b"",
    server_binding: bytes = b"",
) -> str:
    """An exchange that goes well; the user that the server has met."""
    client = ScramClient(name, password, "client", client_binding)
    server = ScramServer("server", server_binding)
    met = server.begin(client.first)
    client.check(server.finish(client.prove(server.challenge(known))))
    return met


def test_both_sides_say_what_the_rfc_says() -> None:
    known = ScramVerifier.of("pencil", salt=RFC_SALT, iterations=4096)
    client, server = ScramClient("user", "pencil", RFC_CLIENT), ScramServer(RFC_SERVER)
    user = server.begin(client.first)
    first = server.challenge(known)
    proof = client.prove(first)
    last = server.finish(proof)
    client.check(last)
    assert user == "user"
    assert (client.first, first, proof, last) == RFC_MESSAGES


@pytest.mark.parametrize("name", ["ann", "a,b", "a=b", "=2C", "jürgen", "=,="])
def test_any_name_proves_its_password(name: str) -> None:
    assert exchanged(name, "ann's word", verifier("ann's word")) == prepared_name(name)


def test_a_wrong_password_is_refused() -> None:
    with pytest.raises(AccessRefused, match=NOT_PROVED):
        exchanged("ann", "bob's word", verifier("ann's word"))


def test_an_unknown_user_gets_the_same_steps_and_the_same_words() -> None:
    nobody = ScramVerifier.of_nobody("zoe", b"key", ITERATIONS_MIN)
    assert nobody == ScramVerifier.of_nobody("zoe", b"key", ITERATIONS_MIN)
    assert nobody.salt != ScramVerifier.of_nobody("yan", b"key", ITERATIONS_MIN).salt
    known = verifier("ann's word")
    assert (len(nobody.salt), nobody.iterations) == (len(known.salt), known.iterations)
    with pytest.raises(AccessRefused, match=NOT_PROVED):
        exchanged("zoe", "zoe's word", nobody)


def test_a_recorded_exchange_is_worth_nothing() -> None:
    known = verifier("ann's word")
    client, server = ScramClient("ann", "ann's word", "client"), ScramServer("one")
    server.begin(client.first)
    recorded = client.prove(server.challenge(known))
    server.finish(recorded)
    again = ScramServer("two")
    again.begin(client.first)
    again.challenge(known)
    with pytest.raises(AccessRefused):
        again.finish(recorded)
    with pytest.raises(FrameInvalid):
        server.finish(recorded)


def test_a_proof_over_another_certificate_is_none_here() -> None:
    known, one, other = verifier("ann's word"), b"1" * 32, b"2" * 32
    exchanged("ann", "ann's word", known, client_binding=one, server_binding=one)
    for seen, own in ((other, one), (b"", one), (one, b"")):
        with pytest.raises(AccessRefused):
            exchanged("ann", "ann's word", known, client_binding=seen, server_binding=own)


def test_a_server_that_does_not_know_the_user_is_not_believed() -> None:
    client = ScramClient("ann", "ann's word", "client")
    server = ScramServer("server")
    server.begin(client.first)
    client.prove(server.challenge(verifier("ann's word")))
    with pytest.raises(AccessRefused):
        client.check(b"v=" + b64encode(bytes(32)))
    asleep = ScramClient("ann", "ann's word", "client")
    with pytest.raises(AccessRefused):
        asleep.check(b"v=" + b64encode(bytes(32)))


@pytest.mark.parametrize(
    "first",
    [
        b"r=other-server,s=AAAA,i=4096",
        b"r=client,s=AAAA,i=4096",
        b"r=clientserver,s=AAAA,i=1",
        b"r=clientserver,s=AAAA,i=99999999",
    ],
)
def test_a_client_does_not_prove_for_a_server_that_asks_wrongly(first: bytes) -> None:
    with pytest.raises(AccessRefused):
        ScramClient("ann", "ann's word", "client").prove(first)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,",
        b"n,,n=ann",
        b"n,,r=x,n=ann",
        b"n,,n=a=b,r=x",
        b"n,a=bob,n=ann,r=x",
        b"n,,m=ext,n=ann,r=x",
        b"x,,n=ann,r=x",
        b"n,,n=ann,n=bob,r=x",
        b"\xff,,n=ann,r=x",
        b"n,,n=ann,r=" + b"x" * 5_000,
    ],
)
def test_a_first_message_that_is_none_is_refused(message: bytes) -> None:
    with pytest.raises(FrameInvalid):
        ScramServer("server").begin(message)


@given(st.binary(max_size=200))
def test_no_final_message_but_the_right_one_passes(message: bytes) -> None:
    client, server = ScramClient("ann", "ann's word", "client"), ScramServer("server")
    server.begin(client.first)
    client.prove(server.challenge(verifier("ann's word")))
    with pytest.raises(EngineError):
        server.finish(message)


def test_a_verifier_is_kept_as_text_and_shows_no_key() -> None:
    known = verifier("ann's word")
    assert ScramVerifier.parse(str(known)) == known
    assert b64encode(known.stored_key).decode() not in repr(known)
    for wrong in ("", "SCRAM-SHA-256$x", str(known).replace("256", "1"), str(known) + "AAAA"):
        with pytest.raises(InvalidRequest):
            ScramVerifier.parse(wrong)


def test_who_judges_a_password_keeps_none() -> None:
    scram._salted.cache_clear()
    known = ScramVerifier.of("ann's word", salt=bytes(16), iterations=ITERATIONS_MIN)
    assert known.fits("ann's word") and not known.fits("another word")
    assert scram._salted.cache_info().currsize == 0


def test_names_and_passwords_are_prepared_as_the_rfc_wants() -> None:
    assert prepared("I\u00adX") == "IX"
    assert prepared("\u00aa") == "a"
    assert prepared("a\u00a0b") == "a b"
    for wrong in ("", "\u0007", "\u0627\u0031"):
        with pytest.raises(InvalidRequest):
            prepared(wrong)
    for wrong in ("", "two words", "x" * 300):
        with pytest.raises(InvalidRequest):
            prepared_name(wrong)


def test_names_and_passwords_that_are_far_too_long_are_not_prepared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = verifier("ann's word")
    monkeypatch.setattr(scram, "stringprep", None)
    for wrong in ("x" * 50_000, "\u00e9" * 50_000):
        for prepare in (prepared, prepared_name):
            with pytest.raises(InvalidRequest, match="at most"):
                prepare(wrong)
        assert not known.fits(wrong)
