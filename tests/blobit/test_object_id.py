"""Object ids: one text each, and no other text is one."""

import base64
import string

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blobit.errors import InvalidObjectId
from blobit.object_id import EMPTY, Kind, ObjectId, pack_parts, parse_parts

ALPHABET = string.ascii_letters + string.digits + "-_"
SIZES = st.one_of(st.integers(1, 200_000), st.integers(1, 2**40))


def data_id(ledger_id: int, first: int, entry_bytes: int, length: int, checksum: int) -> ObjectId:
    return ObjectId(Kind.DATA, ledger_id, first, entry_bytes, length, length, checksum)


DATA_IDS = st.builds(
    data_id,
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**61),
    st.integers(1, 4 * 1024 * 1024),
    SIZES,
    st.integers(0, 2**32 - 1),
)
LIST_IDS = st.builds(
    ObjectId,
    st.just(Kind.LIST),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**61),
    st.integers(1, 4 * 1024 * 1024),
    SIZES,
    st.integers(1, 2**20),
    st.integers(0, 2**32 - 1),
)
IDS = st.one_of(DATA_IDS, LIST_IDS, st.just(EMPTY))
SAMPLE = data_id(41, 1_000_000, 65536, 35_000, 0xDEADBEEF)


def packed_with_check(body: bytes) -> str:
    packed = body + google_crc32c.value(body).to_bytes(4, "little")
    return base64.urlsafe_b64encode(packed).rstrip(b"=").decode()


@given(IDS)
def test_every_id_survives_its_text(object_id: ObjectId) -> None:
    text = str(object_id)
    assert ObjectId.parse(text) == object_id
    assert set(text) <= set(ALPHABET)


@given(IDS, st.data())
def test_a_text_with_one_character_changed_is_refused(
    object_id: ObjectId, data: st.DataObject
) -> None:
    text = str(object_id)
    position = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.sampled_from(ALPHABET.replace(text[position], "")))
    with pytest.raises(InvalidObjectId):
        ObjectId.parse(text[:position] + other + text[position + 1 :])


def test_every_single_character_change_of_one_text_is_refused() -> None:
    text = str(SAMPLE)
    for position in range(len(text)):
        for other in ALPHABET + "=+/. \n\x00é":
            changed = text[:position] + other + text[position + 1 :]
            if changed != text:
                with pytest.raises(InvalidObjectId):
                    ObjectId.parse(changed)


@given(st.one_of(st.text(max_size=80), st.text(ALPHABET, max_size=80)))
def test_garbage_is_refused_with_one_error(text: str) -> None:
    with pytest.raises(InvalidObjectId):
        ObjectId.parse(text)


@given(IDS, st.integers(1, 20))
def test_a_text_cut_short_or_made_longer_is_refused(object_id: ObjectId, count: int) -> None:
    text = str(object_id)
    for changed in (text[:-count], text[count:], text + "A" * count, text + "=", " " + text):
        with pytest.raises(InvalidObjectId):
            ObjectId.parse(changed)


def test_a_newer_format_is_refused_by_its_number() -> None:
    body = bytes([2 << 4]) + SAMPLE.to_bytes()[1:-4]
    with pytest.raises(InvalidObjectId, match="format 2"):
        ObjectId.parse(packed_with_check(body))


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"\x13" + b"\x00" * 8, "no kind 3"),
        (b"\x10\x80\x00\x00\x01\x01\x00\x00\x00\x00", "too long"),
        (b"\x10" + b"\xff" * 9 + b"\x01" + b"\x00\x01\x01\x00\x00\x00\x00", "too long"),
        (b"\x10\x01\x00", "cut short"),
        (b"\x10\x01\x00\x01\x01\x00\x00\x00", "wrong length"),
        (b"\x10\x01\x00\x01\x01\x00\x00\x00\x00\x00", "wrong length"),
        (b"\x10\x01\x00\x00\x01\x00\x00\x00\x00", "entries of 0 bytes"),
        (b"\x10\x00\x00\x00\x00\x01\x00\x00\x00", "only zeros"),
        (b"\x11\x01\x00\x01\x01\x00\x00\x00\x00\x00", "names no entry"),
        (b"\x12\x01\x00\x01\x01\x00\x00\x00\x00\x00", "names no entry"),
    ],
)
def test_fields_that_do_not_fit_are_refused_though_the_check_is_right(
    body: bytes, why: str
) -> None:
    with pytest.raises(InvalidObjectId, match=why):
        ObjectId.parse(packed_with_check(body))


def test_entries_past_the_highest_id_are_refused() -> None:
    with pytest.raises(InvalidObjectId, match="highest entry id"):
        data_id(1, 2**63 - 2, 1, 3, 0)


def test_the_text_of_an_id_never_changes_between_versions() -> None:
    assert str(SAMPLE) == "ECnAhD2AgAS4kQLvvq3ep_IWUg"
    assert str(EMPTY) == "EAAAAAAAAAAAfPvuzg"


@given(st.lists(DATA_IDS, min_size=2, max_size=5))
def test_a_list_of_parts_survives_its_packing(parts: list[ObjectId]) -> None:
    assert parse_parts(pack_parts(parts)) == parts


@given(st.lists(DATA_IDS, min_size=2, max_size=3), st.integers(1, 10))
def test_a_list_of_parts_cut_short_is_refused(parts: list[ObjectId], count: int) -> None:
    with pytest.raises(InvalidObjectId):
        parse_parts(pack_parts(parts)[:-count])


def test_a_list_that_names_a_list_or_nothing_is_refused() -> None:
    nested = ObjectId(Kind.LIST, 1, 0, 64, 100, 50, 0)
    for part in (nested, EMPTY):
        with pytest.raises(InvalidObjectId, match="another list or nothing"):
            parse_parts(pack_parts([SAMPLE, part]))


def test_the_range_of_entries_follows_from_length_and_entry_size() -> None:
    object_id = data_id(1, 10, 4, 9, 0)
    assert (object_id.entry_count, object_id.last_entry) == (3, 12)
    assert (EMPTY.entry_count, EMPTY.last_entry) == (0, -1)
