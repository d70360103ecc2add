"""Versions of values in the metadata store, as programs of two versions see them."""

import importlib
from collections.abc import Callable
from typing import Any, Final

import msgspec
import pytest

from engine.errors import FormatTooNew
from engine.log.log_list import LogList, decode_list
from engine.metadata.liveness import Record, decode_record
from engine.metadata.majors import encode_major
from engine.replica.snapshots import SnapshotRecord, decode_snapshot
from herd.checkpoint.manifest import Checkpoints, decode_checkpoints, encode_checkpoints
from herd.nodes.facts import (
    NodeFact,
    SettingsFact,
    SpaceFact,
    decode_node,
    decode_settings,
    decode_space,
    encode_fact,
)

Decode = Callable[[bytes], Any]
VALUES: Final[tuple[tuple[Any, Decode], ...]] = (
    (LogList(), decode_list),
    (Record(1_000), decode_record),
    (SnapshotRecord(1, 2), decode_snapshot),
    (SpaceFact("u", 5), decode_space),
    (NodeFact("a", 5), decode_node),
    (SettingsFact(), decode_settings),
)


@pytest.mark.parametrize(("value", "decode"), VALUES)
def test_a_value_of_a_newer_version_is_refused_though_its_fields_are_the_same(
    value: Any, decode: Decode, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module(type(value).__module__)
    known = module.FORMAT_MAJOR
    assert decode(encode_major(value, known)) == msgspec.structs.replace(value, format_major=known)
    newer = encode_major(value, known + 1)
    with pytest.raises(FormatTooNew, match=f"has format {known + 1}.* up to {known}.*start that"):
        decode(newer)
    monkeypatch.setattr(module, "FORMAT_MAJOR", known + 1)
    assert decode(newer).format_major == known + 1
    without = msgspec.msgpack.encode(value)
    assert decode(without).format_major == 1, "what has no version is of the first one"


@pytest.mark.parametrize("decode", [decode for _, decode in VALUES])
def test_a_newer_version_may_have_other_fields_and_is_not_taken_for_damage(decode: Decode) -> None:
    with pytest.raises(FormatTooNew):
        decode(msgspec.msgpack.encode({"format_major": 9, "epoch": "x", "replicas": "y"}))


def test_a_newer_list_of_checkpoints_is_refused() -> None:
    with pytest.raises(FormatTooNew):
        decode_checkpoints(encode_checkpoints(Checkpoints(format=2)))
    with pytest.raises(FormatTooNew):
        decode_checkpoints(msgspec.msgpack.encode({"format": 2, "kept": "x"}))


def test_whoever_writes_a_fact_writes_its_own_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("herd.nodes.facts.FORMAT_MAJOR", 2)
    newer = encode_fact(SpaceFact("u", 5))
    monkeypatch.undo()
    with pytest.raises(FormatTooNew):
        decode_space(newer)
