"""How objects are divided among tasks: every row once, every byte of what is split once."""

import random

import pytest

from blobit import SettingsInvalid
from blobit.snapshot.planning import Share, divided, plan_ids
from blobit.snapshot.wanted import Mode, parse_wanted
from tests.blobit.snapshot.ids import object_id_of


def test_rows_are_divided_into_shares_of_about_as_many_bytes() -> None:
    rng = random.Random(5)
    for _ in range(200):
        lengths = [rng.choice([0, 1, 30, 100, 350]) for _ in range(rng.randrange(0, 30))]
        for is_split in (False, True):
            found = divided(lengths, 100, is_split=is_split)
            whole = [row for one in found for row in range(one.first, one.first + one.rows)]
            assert sorted(set(whole)) == list(range(len(lengths)))
            for one in found:
                some = lengths[one.first : one.first + one.rows]
                assert sum(some) <= 100 or len([length for length in some if length]) == 1
                assert one.parts == (-(-some[0] // 100) if is_split and some[0] > 100 else 1)
            again = [one for one in found if one.part > 0]
            assert len(whole) == len(set(whole)) + len(again)


def test_the_parts_of_an_object_have_each_of_its_ranges_once() -> None:
    for length in (1, 19, 20, 21, 1_000):
        for parts in (1, 2, 7, 99):
            found = [
                start
                for part in range(parts)
                for start in Share(part=part, parts=parts).ranges(length, 20)
            ]
            assert found == list(range(0, length, 20))


def test_ids_are_planned_in_the_order_in_which_they_lie() -> None:
    ids = [str(object_id_of(ledger, entry)) for ledger, entry in ((2, 0), (1, 5), (1, 2))]
    [share] = plan_ids(ids, is_split=False)
    assert share.ids == (ids[2], ids[1], ids[0])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"bucket": "cows", "mood": "x"}, "no option mood"),
        ({"bucket": "cows", "content": "no"}, "content='no'"),
        ({"bucket": "cows", "range_bytes": "0"}, "range_bytes='0'"),
        ({"bucket": "cows", "mode": "lines", "content": "false"}, "rows of mode=lines"),
        ({"bucket": "cows", "schema": "id int"}, "mode=objects has a schema of its own"),
        ({"bucket": "cows", "snapshot": "old"}, "snapshot='old'"),
        ({"ids": str(object_id_of(1, 1)), "prefix": "a"}, "leave out prefix"),
        ({"path": "cows/a", "bucket": "cows"}, "take one of them"),
        ({}, "no bucket is named"),
    ],
)
def test_an_option_that_means_nothing_is_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(SettingsInvalid, match=said):
        parse_wanted(options)


def test_a_path_names_bucket_and_prefix() -> None:
    wanted = parse_wanted({"path": "blobit://cows/2024/", "mode": "RANGES", "range_bytes": "5"})
    assert (wanted.bucket, wanted.prefix, wanted.range_bytes) == ("cows", "2024/", 5)
    assert wanted.mode is Mode.RANGES and wanted.is_split
