"""Which nodes get a tablespace's replicas, as a pure decision."""

import msgspec
import pytest

from herd.nodes.facts import (
    NodeFact,
    ReplicaReport,
    SpaceFact,
    decode_node,
    decode_space,
    encode_fact,
)
from herd.nodes.placing import placed
from herd.store import TablespaceFact

READY = ReplicaReport("u", "follower")
LEADS = ReplicaReport("u", "leader", 7)
STARTS = ReplicaReport("u", "starting")


def fact(expected: int, *replicas: str, leader: str = "") -> SpaceFact:
    return SpaceFact("u", 1, expected, replicas, leader)


def decided(
    before: SpaceFact,
    loads: dict[str, int],
    *,
    given_up: tuple[str, ...] = (),
    reports: dict[str, ReplicaReport] | None = None,
    default_replicas: int = 3,
    busy: str = "",
) -> SpaceFact:
    found = dict.fromkeys(before.replicas, READY) | (reports or {})
    return placed(before, found.get, given_up, loads, default_replicas, busy.__contains__)


def test_a_new_tablespace_gets_its_replicas_on_the_nodes_with_the_fewest() -> None:
    assert decided(fact(2), {"a": 3, "b": 1, "c": 1, "d": 0}).replicas == ("d", "b")
    assert decided(fact(3), {"a": 0}).replicas == ("a",)
    assert decided(fact(3), {}).replicas == ()


def test_a_replica_that_is_away_for_a_moment_is_not_replaced() -> None:
    before = fact(3, "a", "b", "c")
    assert decided(before, {"a": 1, "b": 1, "d": 0}) == before
    after = decided(before, {"a": 1, "b": 1, "d": 0}, given_up=("c",))
    assert after.replicas == ("a", "b", "c", "d")


def test_a_tablespace_gets_one_more_replica_at_a_time_on_the_node_with_the_fewest() -> None:
    loads = {"a": 3, "b": 2, "c": 1, "d": 0}
    grown = decided(fact(3, "a"), loads)
    assert grown.replicas == ("a", "d")
    for state in ("starting", "catching up"):
        assert decided(grown, loads, reports={"d": ReplicaReport("u", state)}) == grown
    unheard = placed(grown, {"a": LEADS}.get, (), loads, 3, "".__contains__)
    assert unheard == grown
    assert decided(grown, loads).replicas == ("a", "d", "c")


def test_a_node_that_makes_many_replicas_gets_no_other_one_meanwhile() -> None:
    loads = {"a": 3, "b": 2, "c": 1}
    assert decided(fact(2, "a"), loads, busy="c").replicas == ("a", "b")
    assert decided(fact(2, "a"), loads, busy="bc").replicas == ("a",)
    assert decided(fact(2), loads, busy="bc").replicas == ("c", "b")


def test_a_replica_is_added_though_the_only_one_is_away() -> None:
    assert decided(fact(3, "a"), {"b": 0, "c": 0}).replicas == ("a", "b")
    assert decided(fact(1, "a"), {"b": 0, "c": 0}).replicas == ("a",)


def test_one_that_is_given_up_is_not_waited_for_before_the_next_is_added() -> None:
    loads = {"a": 1, "b": 1, "c": 0}
    failed = {"b": ReplicaReport("u", "failed")}
    before = fact(2, "a", "b")
    assert decided(before, loads, reports=failed) == before
    assert decided(before, loads, given_up=("b",), reports=failed).replicas == ("a", "b", "c")


def test_one_that_comes_back_while_another_takes_its_place_stays_and_the_other_goes() -> None:
    loads = {"a": 1, "b": 1, "c": 1, "d": 1}
    before = fact(3, "a", "b", "c", "d")
    assert decided(before, loads, reports={"d": STARTS}).replicas == ("a", "b", "c")


def test_a_tablespace_without_a_number_of_its_own_has_as_many_as_the_cluster_says() -> None:
    follows = msgspec.structs.replace(fact(3, "a", "b", "c"), by_default=True)
    loads = {"a": 1, "b": 1, "c": 1, "d": 0}
    more = decided(follows, loads, default_replicas=4)
    assert (more.expected, more.replicas) == (4, ("a", "b", "c", "d"))
    fewer = decided(follows, loads, reports={"a": LEADS}, default_replicas=1)
    assert (fewer.expected, fewer.replicas) == (1, ("a",))
    own = fact(3, "a", "b", "c")
    assert decided(own, loads, default_replicas=5) == own


def test_what_is_away_leaves_when_enough_others_are_ready_and_not_before() -> None:
    before = fact(3, "a", "b", "c", "d")
    loads = {"a": 1, "b": 1, "d": 1}
    assert decided(before, loads, given_up=("c",), reports={"d": STARTS}) == before
    assert decided(before, loads, given_up=("c",)).replicas == ("a", "b", "d")


def test_one_that_failed_for_good_is_replaced_though_its_node_is_there() -> None:
    before = fact(2, "a", "b")
    failed = {"b": ReplicaReport("u", "failed")}
    loads = {"a": 1, "b": 1, "c": 0}
    grown = decided(before, loads, given_up=("b",), reports=failed)
    assert grown.replicas == ("a", "b", "c")
    assert decided(grown, loads, given_up=("b",), reports=failed).replicas == ("a", "c")


def test_surplus_goes_from_the_fullest_node_and_never_from_who_leads_or_should() -> None:
    before = fact(2, "a", "b", "c", "d", leader="b")
    loads = {"a": 9, "b": 8, "c": 5, "d": 7}
    after = decided(before, loads, reports={"a": LEADS})
    assert set(after.replicas) == {"a", "b"} and after.leader == "b"
    one = decided(msgspec.structs.replace(before, expected=1), loads, reports={"a": LEADS})
    assert one.replicas == ("b",)


def test_a_designated_leader_without_a_replica_is_none() -> None:
    before = fact(1, "a", "b", leader="b")
    after = decided(before, {"a": 1}, given_up=("b",))
    assert after.replicas == ("a",) and after.leader == ""


@pytest.mark.parametrize("expected", [1, 2, 3])
def test_a_decision_decides_nothing_more(expected: int) -> None:
    loads = {"a": 1, "b": 2, "c": 0}
    for before in (fact(expected), fact(expected, "a", "b", "c"), fact(expected, "x", "a")):
        once = decided(before, loads, given_up=("x",))
        for _ in range(3):
            once = decided(once, loads, given_up=("x",))
        assert decided(once, loads, given_up=("x",)) == once
        assert len(once.replicas) == expected


def test_a_tablespace_of_a_folder_is_nobodys_to_place() -> None:
    own = SpaceFact("u", 1)
    assert placed(own, lambda node: None, (), {"a": 0}, 3, "".__contains__) is own
    dropped = SpaceFact("u", 1, 3, ("a",), dropped=True)
    assert placed(dropped, lambda node: None, ("a",), {"b": 0}, 3, "".__contains__) is dropped


def test_programs_that_know_less_of_a_tablespace_read_its_fact_and_the_other_way_round() -> None:
    value = encode_fact(SpaceFact("u", 5, 3, ("a", "b"), "b", token=9))
    assert msgspec.msgpack.decode(value, type=TablespaceFact) == TablespaceFact("u", 5)
    older = decode_space(msgspec.msgpack.encode(TablespaceFact("u", 5)))
    assert older == SpaceFact("u", 5) and not older.hosted
    assert decode_space(value).replicas == ("a", "b")
    node = NodeFact("a:1", 3, {"farm": LEADS})
    assert decode_node(encode_fact(node)) == node
