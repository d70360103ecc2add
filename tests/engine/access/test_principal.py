"""Who may do what: the ladder of rights, names, and the system's own tablespace."""

import json

import pytest

from engine.access.audit import LineAudit
from engine.access.principal import ALL, EVERYBODY, RIGHTS, SYSTEM, Grant, Kind, Principal
from engine.errors import AccessRefused, InvalidRequest
from tests.engine.access.known_users import user


@pytest.mark.parametrize(
    ("granted", "may"),
    [("read", {"read"}), ("write", {"read", "write"}), ("admin", {"read", "write", "admin"})],
)
def test_a_right_brings_those_below_it(granted: str, may: set[str]) -> None:
    ann = Principal("ann", grants=(Grant("bucket", "a", granted),))  # type: ignore[arg-type]
    found = {right for right in ("read", "write", "admin") if ann.allows("bucket", "a", right)}
    assert found == may


def test_what_no_grant_names_is_refused() -> None:
    ann = user("ann", ("tablespace", "shop", "admin"))
    for kind, name in (("tablespace", "shops"), ("bucket", "shop"), ("tenant", "shop")):
        assert not ann.allows(kind, name, "read")  # type: ignore[arg-type]
    with pytest.raises(AccessRefused, match="ann may not write to bucket shop"):
        ann.check("bucket", "shop", "write")
    with pytest.raises(AccessRefused):
        ann.check_admin()


@pytest.mark.parametrize(("kind", "name"), [("tablespace", "blobs"), ("bucket", "herdbook-tasks")])
def test_a_grant_to_all_does_not_reach_what_holds_everybodys(kind: Kind, name: str) -> None:
    assert not user("ann", (kind, ALL, "admin")).allows(kind, name, "read")
    assert user("ann", (kind, name, "read")).allows(kind, name, "read")


@pytest.mark.parametrize("name", ["blobs", "BLOBS", "blobs_letters_2x7"])
def test_no_grant_lets_anybody_write_what_says_what_buckets_hold(name: str) -> None:
    for granted in (name, name.lower(), ALL):
        ann = user("ann", ("tablespace", granted, "admin"))
        assert not ann.allows("tablespace", name, "write")
        assert not ann.allows("tablespace", name, "admin")
    assert user("ann", ("tablespace", name, "admin")).allows("tablespace", name, "read")
    assert user("ann", ("tablespace", "blobsy", "admin")).allows("tablespace", "blobsy", "write")
    assert user("ann", ("bucket", "blobs", "write")).allows("bucket", "blobs", "write")
    assert Principal("root", admin=True).allows("tablespace", name, "write")
    assert EVERYBODY.allows("tablespace", name, "admin")


@pytest.mark.parametrize("name", ["blobs__pool_1", "BLOBS__POOL_20"])
def test_what_many_buckets_share_is_read_by_whom_the_names_of_all_buckets_are_granted(
    name: str,
) -> None:
    for granted in (name, name.lower(), ALL):
        ann = user("ann", ("tablespace", granted, "admin"))
        for right in RIGHTS:
            assert not ann.allows("tablespace", name, right)
    bob = user("bob", ("tablespace", "blobs", "admin"))
    assert bob.allows("tablespace", name, "read")
    assert not bob.allows("tablespace", name, "write")
    assert Principal("root", admin=True).allows("tablespace", name, "admin")


def test_a_grant_to_all_does_not_reach_the_users() -> None:
    ann = user("ann", ("tablespace", ALL, "admin"))
    assert ann.allows("tablespace", "shop", "admin")
    assert not ann.allows("tablespace", SYSTEM, "read")
    assert Principal("root", admin=True).allows("tablespace", SYSTEM, "admin")
    assert EVERYBODY.allows("tablespace", SYSTEM, "admin")


@pytest.mark.parametrize(
    "wrong", [("barn", "a", "read"), ("bucket", "", "read"), ("bucket", "a", "own")]
)
def test_a_grant_of_unknown_words_is_none(wrong: tuple[str, str, str]) -> None:
    with pytest.raises(InvalidRequest):
        Grant(*wrong)  # type: ignore[arg-type]


def test_the_audit_is_a_line_of_json_an_event() -> None:
    lines: list[str] = []
    LineAudit(lines.append, lambda: 5).note("ann\n", "log in", "herd", allowed=False, why="x" * 999)
    [line] = lines
    told = json.loads(line)
    assert "\n" not in line and len(told["why"]) == 200
    assert (told["at_ms"], told["who"], told["allowed"]) == (5, "ann\n", False)


def test_an_audit_that_cannot_be_written_ends_nothing() -> None:
    def fail(_: str) -> None:
        raise OSError("the disk is full")

    audit = LineAudit(fail, lambda: 0)
    audit.note("ann", "log in", "herd", allowed=True)
    audit.note("ann", "log in", "herd", allowed=True)
    assert audit.lost == 2


def test_strangers_cannot_push_out_of_an_audit_what_others_did() -> None:
    lines: list[str] = []
    now_ms = [1_000]
    audit = LineAudit(lines.append, lambda: now_ms[0])
    for port in range(500):
        audit.note(f"guess-{port}", "log in", "herd", allowed=False, peer=f"10.0.0.9:{port}")
    audit.note("ann", "log in", "herd", allowed=True, peer="10.0.0.9:7")
    audit.note("ann", "DELETE", "/api/v1/buckets/a", allowed=False, peer="10.0.0.9:7")
    audit.note("ben", "log in", "herd", allowed=False, peer="10.0.0.8:7")
    now_ms[0] += 1_000
    audit.note("guess", "log in", "herd", allowed=False, peer="10.0.0.9:7")
    told = [json.loads(line) for line in lines]
    assert [(each["who"], each["before"]) for each in told] == [
        ("guess-0", 0),
        ("ann", 0),
        ("ann", 0),
        ("ben", 0),
        ("guess", 499),
    ]
