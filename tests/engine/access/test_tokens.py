"""Signed tokens: what says something, and what says nothing at all."""

import base64

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.access.door import ReaderDoor
from engine.access.owners import may_read, owner_of
from engine.access.principal import Grant, Principal
from engine.access.signing import LIFETIME_MS, LIFETIME_MS_MAX, ReadSigner
from engine.access.tokens import READ, SESSION, Claims, key_of, sign, verify
from engine.errors import AccessRefused, InvalidRequest
from engine.expiry import CLOCK_DIFFERENCE_MS
from tests.engine.access.known_users import KEY, user

KEYS = (KEY,)
NOW_MS = 1_000_000
CLAIMS = Claims(READ, "ann", NOW_MS + 1, (("tablespace", "shop"),))


class Clock:
    """A clock that stands."""

    def __init__(self) -> None:
        self.now_ms = NOW_MS

    def monotonic(self) -> float:
        return self.now_ms / 1000

    def wall_ms(self) -> int:
        return self.now_ms


def test_a_token_says_what_was_signed() -> None:
    assert verify(sign(CLAIMS, KEY), KEYS, READ, NOW_MS) == CLAIMS


def test_a_token_has_its_bytes() -> None:
    made = sign(Claims("read", "ann", 2_000, (("bucket", "a"),)), key_of(b"0123456789abcdef"))
    mark, claims, signature = made.split(".")
    packed = base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4))
    assert mark == "hb1" and len(signature) == 43
    assert msgspec.msgpack.decode(packed) == ["read", "ann", 2_000, [["bucket", "a"]], 0]


def test_a_token_ends_with_its_moment() -> None:
    token, last_ms = sign(CLAIMS, KEY), CLAIMS.expires_ms + CLOCK_DIFFERENCE_MS
    assert verify(token, KEYS, READ, last_ms - 1) == CLAIMS
    with pytest.raises(AccessRefused, match="expired"):
        verify(token, KEYS, READ, last_ms)


def test_a_token_of_another_cluster_or_of_another_use_is_none() -> None:
    with pytest.raises(AccessRefused, match="not one of this cluster"):
        verify(sign(CLAIMS, key_of(b"another secret of a cluster")), KEYS, READ, NOW_MS)
    with pytest.raises(AccessRefused, match="not one of this cluster"):
        verify(sign(CLAIMS, KEY), KEYS, SESSION, NOW_MS)


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_no_changed_byte_passes(place: int, change: int) -> None:
    token = bytearray(sign(CLAIMS, KEY).encode())
    token[place % len(token)] ^= change
    with pytest.raises(AccessRefused):
        verify(token.decode("latin-1"), KEYS, READ, NOW_MS)


@pytest.mark.parametrize(
    "said",
    [
        ["read", "ann", NOW_MS + 1, [["tablespace", "shop"]], 0, 5],
        ["read", "ann", NOW_MS + 1, [["tablespace", "shop"]]],
        ["read", "ann", NOW_MS + 1, [["barn", "shop"]]],
        ["read", "ann", NOW_MS + 1, [["tablespace", ""]]],
        ["write", "ann", NOW_MS + 1, []],
        ["read", "ann", "soon", []],
        {"use": "read"},
    ],
)
def test_claims_that_are_signed_and_wrong_are_refused(said: object) -> None:
    import hmac

    text = base64.urlsafe_b64encode(msgspec.msgpack.encode(said)).rstrip(b"=").decode()
    head = f"hb1.{text}"
    mac = base64.urlsafe_b64encode(hmac.digest(KEY, head.encode(), "sha256")).rstrip(b"=").decode()
    with pytest.raises(AccessRefused):
        verify(f"{head}.{mac}", KEYS, READ, NOW_MS)


def test_a_signer_says_no_more_than_the_grants() -> None:
    clock = Clock()
    ann = user(
        "ann", ("tablespace", "shop", "write"), ("tenant", "t", "read"), ("bucket", "b", "read")
    )
    claims = verify(ReadSigner(lambda: KEYS, clock).sign(ann), KEYS, READ, NOW_MS)
    assert claims.grants == (("tablespace", "shop"), ("bucket", "b"))
    assert claims.expires_ms == NOW_MS + LIFETIME_MS
    root = verify(ReadSigner(lambda: KEYS, clock).sign(Principal("root", True)), KEYS, READ, NOW_MS)
    assert root.grants == (("tablespace", "*"), ("bucket", "*"), ("tablespace", "blobs"))
    many = Principal(
        "ann", grants=tuple(Grant("bucket", f"letters-{n}", "read") for n in range(300))
    )
    with pytest.raises(InvalidRequest, match="more grants"):
        ReadSigner(lambda: KEYS, clock).sign(many)
    for wrong in (-1, LIFETIME_MS_MAX + 1):
        with pytest.raises(InvalidRequest):
            ReadSigner(lambda: KEYS, clock).sign(ann, wrong)


async def test_who_was_let_in_by_a_token_is_sent_away_when_it_expires() -> None:
    clock = Clock()
    caller = await ReaderDoor(lambda: KEYS, clock).by_token(sign(CLAIMS, KEY), "")
    assert (await caller.now()).allows("tablespace", "shop", "read")
    assert not caller.principal.allows("tablespace", "shop", "write")
    clock.now_ms = CLAIMS.expires_ms + CLOCK_DIFFERENCE_MS
    with pytest.raises(AccessRefused):
        await caller.now()


def test_a_ledger_says_whose_it_is() -> None:
    assert owner_of({"owner": b"herd:shop", "purpose": b"checkpoint"}) == ("tablespace", "shop")
    assert owner_of({"owner": b"log:herd/shop"}) == ("tablespace", "shop")
    assert owner_of({"owner": b"blobit", "bucket": b"7", "name": b"a"}) == ("bucket", "a")
    nobodys: list[dict[str, bytes]] = [
        *({}, {"owner": b"herd:"}, {"owner": b"log:broker"}, {"owner": b"blobit", "bucket": b"7"}),
        *({"owner": b"herd-staging", "tablespace": b"shop"}, {"owner": b"herd:\xff"}),
    ]
    ann = user("ann", ("tablespace", "*", "admin"), ("bucket", "*", "admin"))
    for custom in nobodys:
        assert owner_of(custom) is None and not may_read(ann, custom)
    assert may_read(ann, {"owner": b"herd:shop"})
    assert not may_read(ann, {"owner": b"log:herd/system"})
