"""The limits hold together: what one part lets through, the next one takes."""

import importlib.util
import typing

import msgspec
import pytest

from engine import limits
from engine.run import NO_ENTRY, Run


def _named_limits() -> dict[str, int]:
    return {name: value for name, value in vars(limits).items() if name.isupper()}


def test_every_limit_is_a_positive_whole_number_and_final() -> None:
    hints = limits.__annotations__
    for name, value in _named_limits().items():
        assert value > 0, name
        assert hints[name] is typing.Final, name


def test_the_biggest_entry_fits_in_a_frame_with_room_for_the_rest_of_the_message() -> None:
    run = Run.pack(1, 0, [bytes(limits.ENTRY_BYTES_MAX)], lac=NO_ENTRY, length_before=0)
    assert len(msgspec.msgpack.encode(run)) < limits.FRAME_BYTES_MAX


def test_a_read_reply_over_its_limit_by_one_entry_fits_in_a_frame() -> None:
    biggest = limits.READ_BYTES_MAX + limits.ENTRY_BYTES_MAX + 8 * limits.RUN_ENTRIES_MAX
    assert biggest < limits.FRAME_BYTES_MAX


def test_a_journal_batch_fits_in_a_segment() -> None:
    assert limits.JOURNAL_BATCH_BYTES_MAX + limits.ENTRY_BYTES_MAX < limits.SEGMENT_BYTES


def test_a_full_run_reaches_its_entries_and_its_bytes_together() -> None:
    assert limits.RUN_ENTRIES_MAX * limits.KIB == limits.RUN_BYTES_MAX
    assert limits.RUN_ENTRIES_MAX == limits.STRIPE_ENTRIES


@pytest.mark.parametrize("name", ["RUN_BYTES_MAX", "FRAME_BYTES_MAX", "SPECULATIVE_READ_MS"])
def test_limits_that_do_not_fit_each_other_are_refused_at_import(name: str) -> None:
    source = importlib.util.find_spec("engine.limits")
    assert source is not None and source.origin is not None
    with open(source.origin, encoding="utf-8") as file:
        text = file.read()
    value = 1 if name == "FRAME_BYTES_MAX" else 2**40
    line = next(line for line in text.splitlines() if line.startswith(f"{name}: Final"))
    with pytest.raises(AssertionError):
        exec(compile(text.replace(line, f"{name}: Final = {value}"), "limits", "exec"), {})
