"""One number for the memory of a node: divided so that the parts never come to more."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import InvalidRequest
from engine.limits import MIB
from engine.replica import ReplicaSettings
from herd.settings import HerdSettings
from herd.sql.query import QueryEngine
from herd.store import open_folder
from herdbook.memory_plan import LEAST, USUAL, Holding, plan
from herdbook.node.checking import check
from herdbook.node.settings import MemoryTable, NodeSettings, Role

ROLES = ("bookie", "herd", "broker", "http")
HOLDINGS = st.builds(
    Holding,
    bookies=st.integers(0, 12),
    tablespaces=st.integers(0, 50),
    roles=st.sets(st.sampled_from(ROLES), min_size=1).map(tuple),
)


@given(holding=HOLDINGS, spare_mib=st.integers(0, 100_000))
def test_the_parts_are_at_most_what_was_given_and_at_least_what_is_needed(
    holding: Holding, spare_mib: int
) -> None:
    bytes_max = holding.least_bytes + spare_mib * MIB
    bounds = plan(bytes_max, holding)
    assert holding.fixed_bytes + holding.total(bounds) <= bytes_max
    assert bounds.journal_queue_bytes >= LEAST.journal_queue_bytes
    assert bounds.query_bytes >= LEAST.query_bytes
    assert bounds.transaction_bytes <= min(
        bounds.pending_bytes, HerdSettings().transaction_bytes_max
    )


@given(holding=HOLDINGS)
def test_too_little_is_told_with_what_it_takes(holding: Holding) -> None:
    with pytest.raises(InvalidRequest, match=f"at least {holding.least_bytes // MIB} MiB"):
        plan(holding.least_bytes - 1, holding)


def test_with_as_much_as_usual_every_bound_is_as_usual_and_more_goes_to_queries() -> None:
    holding = Holding(2, 3, ROLES)
    usual = holding.fixed_bytes + holding.total(USUAL)
    assert plan(usual, holding) == USUAL
    more = plan(usual + 900 * MIB, holding)
    assert (more.query_bytes, more.columns_bytes) == (612 * MIB, 612 * MIB)
    assert more.pending_bytes == USUAL.pending_bytes
    assert USUAL.pending_bytes == ReplicaSettings().pending_bytes_max


def node(bytes_max: int, **more: object) -> NodeSettings:
    return NodeSettings(
        roles=(Role.BOOKIE, Role.HERD),
        data="/disk",
        url="herdbook://zk:2181/prod",
        memory=MemoryTable(bytes_max=bytes_max, tablespaces=2),
        **more,  # type: ignore[arg-type]
    )


def test_a_node_is_divided_by_its_roles_and_says_when_that_is_too_little() -> None:
    assert node(0).bounds == USUAL
    settings = node(1024 * MIB)
    assert settings.holding == Holding(1, 2, ("bookie", "herd"))
    assert settings.bounds.query_bytes < USUAL.query_bytes
    told = [each for each in check(node(100 * MIB)) if each.startswith("memory.")]
    assert len(told) == 1 and "100 MiB do not do for 1 bookies, 2 tablespaces" in told[0]
    assert not [each for each in check(settings) if each.startswith("memory.")]


async def test_a_tablespace_s_queries_have_the_bounds_of_its_settings(tmp_path: Path) -> None:
    settings = HerdSettings(query_bytes=48 * MIB, columns_bytes=40 * MIB)
    async with open_folder(tmp_path, settings=settings) as herd:
        queries = herd.queries(await herd.tablespace())
    assert queries._pool._settings.memory_bytes == 48 * MIB
    assert isinstance(queries, QueryEngine)
    assert queries.columns._settings.bytes_max == 40 * MIB
