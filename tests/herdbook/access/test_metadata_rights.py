"""Every method of the metadata store, with every kind of key, called by every kind of user."""

import asyncio
import dataclasses
import inspect
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from msgspec.structs import replace

import engine
from broker.service import LOG
from engine.access.door import BY_SECRET, Caller
from engine.access.principal import Principal
from engine.errors import AccessRefused, VersionConflict
from engine.ledger.client import LedgerClient
from engine.log.log_list import LogList, Pin, decode_list, encode_list
from engine.log.position import Position
from engine.metadata.contract import MetadataStore, ServerClock
from engine.metadata.ledgers import decode_metadata, encode_metadata
from engine.metadata.memory import MemoryTree
from herd.checkpoint.manifest import (
    Checkpoints,
    Locator,
    ManifestRecord,
    decode_checkpoints,
    encode_checkpoints,
)
from herd.checkpoint.manifest import Pin as CheckpointPin
from herd.nodes.facts import NodeFact, ReplicaReport, SpaceFact, decode_node, encode_fact
from herdbook.access.metadata_rights import (
    BROKER,
    LIST_BYTES_MAX,
    PIN_CHARACTERS_MAX,
    PIN_MS_MAX,
    PINS_MAX,
    _mark_of,
    metadata_for,
)
from tests.engine.access.known_users import user
from tests.engine.metadata.test_ledgers import metadata

NOW_MS: Final = 1_000_000
SHOP: Final = "/herd/tablespaces/shop"
BARN: Final = "/herd/tablespaces/barn"
CHECKPOINTS: Final = f"{SHOP}/checkpoints"
USERS: Final = {
    "root": user("root", admin=True),
    "ann": user("ann", ("tablespace", "shop", "admin"), ("tenant", "elsa", "admin")),
    "cat": user("cat", ("tablespace", "shop", "read")),
    "dan": user("dan", ("tenant", "elsa", "read"), ("bucket", "letters", "read")),
    "eve": user("eve", ("tablespace", "*", "admin")),
    "zoe": user("zoe"),
}
READERS: Final = {
    "/bookies/one": {"ann", "cat", "dan", "eve", "zoe"},
    "/herd/nodes/one": {"ann", "cat", "dan", "eve", "zoe"},
    "/herd/settings": {"ann", "cat", "dan", "eve", "zoe"},
    SHOP: {"ann", "cat", "eve"},
    CHECKPOINTS: {"ann", "cat", "eve"},
    "/logs/herd/shop/list": {"ann", "cat", "eve"},
    BARN: {"eve"},
    f"{BARN}/checkpoints": {"eve"},
    "/logs/herd/barn/list": {"eve"},
    "/herd/tablespaces/system": set(),
    "/herd/tablespaces/blobs__pool_1": set(),
    "/logs/herd/system/list": set(),
    "/logs/broker/list": {"ann", "dan"},
    "/logs/mine/list": set(),
    "/logs/herd/shop/leader": set(),
    "/ledgers/1": {"ann", "cat", "eve"},
    "/ledgers/2": {"eve"},
    "/ledgers/3": {"dan"},
    "/ledgers/4": set(),
    "/processes/one": set(),
    "/repair/disabled": set(),
    "/boots/one": set(),
    "/broker/http/one": set(),
    "/herd/tablespaces/shop/x/checkpoints": set(),
}
"""Which users may read each key, besides root."""
LISTS: Final = {"/bookies", "/herd/nodes", "/herd/tablespaces"}
CALLS: Final[dict[str, Callable[[MetadataStore, str], Awaitable[Any]]]] = {
    "get": lambda store, key: store.get(key),
    "create": lambda store, key: store.create(f"{key}/new", b""),
    "set": lambda store, key: store.set(key, b"", 0),
    "delete": lambda store, key: store.delete(key),
    "children": lambda store, key: store.children(key),
    "page": lambda store, key: store.page(key),
    "next_id": lambda store, key: store.next_id(key),
}
WITHOUT_A_KEY: Final = {"cluster_id", "sync", "server_ms", "watch", "watch_session", "close"}
"""What every session may do, and `watch`, which has a test of its own."""


class Passing(Caller):
    """A user whose rights are checked again from time to time."""

    @property
    def passing(self) -> bool:
        return True

    async def now(self) -> Principal:
        return self.principal


def replica(role: str) -> ReplicaReport:
    return ReplicaReport("uuid", role)


CHECKPOINT: Final = ManifestRecord(7, Position(1, 2), 3, NOW_MS, Locator(1, 0, 10, 0))
VALUES: Final = {
    "/herd/nodes/one": encode_fact(
        NodeFact("tcp:one:7180", 1, {"shop": replica("leader"), "barn": replica("follower")})
    ),
    SHOP: encode_fact(SpaceFact("shop's", 1, 3, ("one",), suspended=True)),
    BARN: encode_fact(SpaceFact("barn's", 1, 3, ("one",))),
    CHECKPOINTS: encode_checkpoints(
        Checkpoints((CHECKPOINT,), (CheckpointPin("other", 7, NOW_MS),))
    ),
    f"{BARN}/checkpoints": encode_checkpoints(Checkpoints()),
    **{
        f"/logs/{name}/list": encode_list(LogList(3, pins=(Pin("other", Position(1, 2), NOW_MS),)))
        for name in ("herd/shop", "herd/barn", "herd/system", "broker", "mine")
    },
    **{
        f"/ledgers/{number}": encode_metadata(metadata(number, custom=custom))
        for number, custom in enumerate(
            (
                {"owner": b"herd:shop"},
                {"owner": b"log:herd/barn"},
                {"owner": b"blobit", "name": b"letters"},
                {},
            ),
            start=1,
        )
    },
}


async def store_of(name: str, tree: MemoryTree | None = None) -> MetadataStore:
    """The metadata as a user sees it."""
    if tree is None:
        tree = await made_tree()
    return metadata_for(tree.session(), lambda: NOW_MS, Passing(USERS[name]))


async def made_tree() -> MemoryTree:
    tree = MemoryTree("c")
    own = tree.session()
    for key in READERS:
        await own.create(key, VALUES.get(key, b"value"))
    return tree


def test_every_method_of_the_store_is_covered() -> None:
    methods = {
        name
        for contract in (MetadataStore, ServerClock)
        for name, _ in inspect.getmembers(contract)
        if not name.startswith("_")
    }
    assert methods == CALLS.keys() | WITHOUT_A_KEY


def test_the_brokers_log_has_the_name_that_the_rules_use() -> None:
    assert BROKER == LOG


@pytest.mark.parametrize("method", CALLS)
@pytest.mark.parametrize("name", USERS)
async def test_a_user_may_do_with_each_key_what_the_table_says(name: str, method: str) -> None:
    for key, readers in {**READERS, **{folder: set() for folder in LISTS}}.items():
        store = await store_of(name)
        may = method == "get" and name in readers
        may = may or (method == "children" and key in LISTS) or name == "root"
        try:
            await CALLS[method](store, key)
        except AccessRefused as refusal:
            assert not may, f"{name} may not {method} {key}: {refusal}"
        except VersionConflict:
            assert may, f"{name} may {method} {key}"
        else:
            assert may, f"{name} may {method} {key}"


@pytest.mark.parametrize("name", USERS)
async def test_a_watch_fires_for_what_the_user_may_read(name: str) -> None:
    for key, readers in READERS.items():
        tree = await made_tree()
        store, fired = await store_of(name, tree), [0]

        def changed(fired: list[int] = fired) -> None:
            fired[0] += 1

        end = store.watch(key, changed)
        await turns()
        first = fired[0]
        await tree.session().set(key, b"", 0)
        await turns()
        end()
        await tree.session().set(key, b"", 1)
        await turns()
        may = name == "root" or name in readers
        assert fired[0] == (first + 1 if may else 0), f"{name} {key}"


async def test_a_watch_on_a_missing_key_is_not_kept() -> None:
    tree = await made_tree()
    cat, fired = await store_of("cat", tree), asyncio.Event()
    cat.watch("/ledgers/77", fired.set)
    await asyncio.wait_for(fired.wait(), 10)
    fired.clear()
    await tree.session().create("/ledgers/77", b"")
    await turns()
    assert not fired.is_set()


async def test_a_new_administrator_has_the_old_rights_in_this_session() -> None:
    tree, caller = await made_tree(), Passing(USERS["cat"])
    store = metadata_for(tree.session(), lambda: NOW_MS, caller)
    caller.principal = replace_admin(USERS["cat"])
    with pytest.raises(AccessRefused):
        await store.get("/repair/disabled")
    with pytest.raises(AccessRefused):
        await store.set("/ledgers/1", b"", 0)
    again = metadata_for(tree.session(), lambda: NOW_MS, caller)
    assert await again.get("/repair/disabled") is not None


async def turns() -> None:
    """Let everything that is ready run."""
    for _ in range(20):
        await asyncio.sleep(0)


def replace_admin(principal: Principal) -> Principal:
    return dataclasses.replace(principal, admin=True)


async def test_parts_of_the_cluster_see_everything() -> None:
    tree = await made_tree()
    store = metadata_for(tree.session(), lambda: NOW_MS, BY_SECRET)
    for key in READERS:
        found = await store.get(key)
        assert found is not None and found.value == VALUES.get(key, b"value")


@pytest.mark.parametrize(
    ("name", "seen"), [("cat", ["shop"]), ("zoe", []), ("eve", ["barn", "shop"])]
)
async def test_a_list_of_tablespaces_has_those_that_the_user_may_read(
    name: str, seen: list[str]
) -> None:
    assert await (await store_of(name)).children("/herd/tablespaces") == seen


async def test_a_value_that_a_user_sees_contains_nothing_of_others() -> None:
    cat = await store_of("cat")
    node = await cat.get("/herd/nodes/one")
    assert node is not None and set(decode_node(node.value).replicas) == {"shop"}
    log = await cat.get("/logs/herd/shop/list")
    assert log is not None and decode_list(log.value) == LogList(3)
    ledger = await cat.get("/ledgers/1")
    assert ledger is not None and decode_metadata(ledger.value).key_hash == bytes(32)
    checkpoints = await cat.get(CHECKPOINTS)
    assert checkpoints is not None and not decode_checkpoints(checkpoints.value).pins


async def test_a_revoked_grant_no_longer_counts() -> None:
    tree, caller = await made_tree(), Passing(USERS["cat"])
    store = metadata_for(tree.session(), lambda: NOW_MS, caller)
    assert await store.get(SHOP) is not None
    caller.principal = USERS["zoe"]
    with pytest.raises(AccessRefused):
        await store.get(SHOP)


async def test_a_reader_resumes_a_tablespace_and_changes_nothing_else_of_it() -> None:
    tree = await made_tree()
    cat, fact = await store_of("cat", tree), SpaceFact("shop's", 1, 3, ("one",), suspended=True)
    resumed = replace(fact, suspended=False, token=5, epoch=1)
    for wrong in (
        replace(resumed, replicas=("two",)),
        replace(resumed, dropped=True),
        replace(resumed, epoch=2),
        replace(resumed, uuid="barn's"),
        replace(resumed, suspended=True),
    ):
        with pytest.raises(AccessRefused):
            await cat.set(SHOP, encode_fact(wrong), 0)
    with pytest.raises(AccessRefused):
        await cat.set(SHOP, b"no fact", 0)
    with pytest.raises(VersionConflict):
        await cat.set(SHOP, encode_fact(resumed), 1)
    await cat.set(SHOP, encode_fact(resumed), 0)
    with pytest.raises(AccessRefused):
        await cat.set(SHOP, encode_fact(replace(resumed, epoch=2)), 1)
    with pytest.raises(AccessRefused):
        await (await store_of("zoe", tree)).set(SHOP, encode_fact(resumed), 1)


async def test_newer_fields_of_a_fact_stay_and_fields_added_by_a_user_do_not() -> None:
    tree = await made_tree()
    fields = msgspec.msgpack.decode(VALUES[SHOP]) | {"newer": 1}
    await tree.session().set(SHOP, msgspec.msgpack.encode(fields), 0)
    resumed = fields | {"suspended": False, "token": 5, "epoch": 1, "forged": 2}
    del resumed["newer"]
    await (await store_of("cat", tree)).set(SHOP, msgspec.msgpack.encode(resumed), 1)
    found = await tree.session().get(SHOP)
    assert found is not None
    written = msgspec.msgpack.decode(found.value)
    assert written["newer"] == 1 and not written["suspended"] and "forged" not in written


async def test_a_reader_pins_a_checkpoint_and_ends_only_its_own_pins() -> None:
    tree = await made_tree()
    own = tree.session()

    async def pins(store: MetadataStore) -> list[str]:
        found = await store.get(CHECKPOINTS)
        assert found is not None
        return sorted(pin.name for pin in decode_checkpoints(found.value).pins)

    await changed(await store_of("cat", tree), CheckpointPin("mine", 7, NOW_MS + 1))
    # Another session of the same user, as after a node was lost.
    cat = await store_of("cat", tree)
    assert await pins(cat) == ["mine"]
    await changed(cat, CheckpointPin("mine", 7, NOW_MS + 2), CheckpointPin("second", 7, NOW_MS))
    eve = await store_of("eve", tree)
    assert await pins(eve) == []
    await changed(eve, CheckpointPin("mine", 7, NOW_MS))
    assert await pins(own) == [
        *("other", "user:3:cat:mine", "user:3:cat:second", "user:3:eve:mine"),
    ]
    await changed(eve)
    await changed(cat, CheckpointPin("second", 7, NOW_MS))
    assert await pins(own) == ["other", "user:3:cat:second"]


def test_no_user_name_makes_a_pin_of_another_user() -> None:
    names = ("a", "a:", "a:b", "1:a", "")
    for one in names:
        for other in names:
            if one != other:
                mark = _mark_of(Principal(one))
                assert not f"{_mark_of(Principal(other))}pin".startswith(mark)


@pytest.mark.parametrize(
    "pins",
    [
        (CheckpointPin("mine", 8, NOW_MS),),
        (CheckpointPin("m" * (PIN_CHARACTERS_MAX + 1), 7, NOW_MS),),
        (CheckpointPin("mine", 7, NOW_MS + PIN_MS_MAX + 1),),
        tuple(CheckpointPin(str(number), 7, NOW_MS) for number in range(PINS_MAX + 1)),
    ],
    ids=["no such checkpoint", "long name", "long time", "too many"],
)
async def test_pins_of_users_are_limited(pins: tuple[CheckpointPin, ...]) -> None:
    with pytest.raises(AccessRefused):
        await changed(await store_of("cat"), *pins)


async def test_many_users_leave_room_for_the_leader() -> None:
    tree, refused = await made_tree(), 0
    for number in range(60):
        caller = Passing(user(f"u{number}", ("tablespace", "shop", "read")))
        store = metadata_for(tree.session(), lambda: NOW_MS, caller)
        pins = [CheckpointPin(f"{pin:0{PIN_CHARACTERS_MAX}}", 7, NOW_MS) for pin in range(PINS_MAX)]
        try:
            await changed(store, *pins)
        except AccessRefused:
            refused += 1
    found = await tree.session().get(CHECKPOINTS)
    assert found is not None and len(found.value) <= LIST_BYTES_MAX and refused


async def test_a_user_opens_a_ledger_that_it_may_read(tmp_path: Path) -> None:
    async with engine.open(tmp_path) as client:
        writer = await client.create_ledger(metadata={"owner": b"herd:shop"}, password=b"moo")
        await writer.append(b"milk")
        await writer.close()
        for name, may in (("cat", True), ("zoe", False)):
            store = metadata_for(client.store, lambda: NOW_MS, Passing(USERS[name]))
            reading = LedgerClient(
                store=store,
                transport=client.transport,
                clock=client.clock,
                rng=random.Random(1),
                settings=client.settings,
            )
            if may:
                reader = await reading.open_ledger(writer.ledger_id, recover=False)
                assert [entry.body async for entry in reader.read(0, 0)] == [b"milk"]
            else:
                with pytest.raises(AccessRefused):
                    await reading.open_ledger(writer.ledger_id, recover=False)


async def test_a_reader_changes_nothing_but_pins_of_checkpoints() -> None:
    cat = await store_of("cat")
    found = await cat.get(CHECKPOINTS)
    assert found is not None
    held = decode_checkpoints(found.value)
    for wrong in (replace(held, kept=()), replace(held, epoch=9)):
        with pytest.raises(AccessRefused):
            await cat.set(CHECKPOINTS, encode_checkpoints(wrong), found.version)


async def changed(store: MetadataStore, *pins: CheckpointPin) -> None:
    """Change the pins in the current list, as a client does."""
    found = await store.get(CHECKPOINTS)
    assert found is not None
    wanted = replace(decode_checkpoints(found.value), pins=pins)
    await store.set(CHECKPOINTS, encode_checkpoints(wanted), found.version)
