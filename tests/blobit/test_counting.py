"""The counts of a deleted bucket."""

from blobit.counting import SHARES, count_row, divided, is_shut, shut


def test_a_deleted_bucket_stays_shut_if_an_earlier_program_divides_its_quota() -> None:
    for objects, size_bytes in ((0, 0), (10**9, 2**60 // (SHARES + 1))):
        counts = [count_row(7, number, objects, size_bytes) for number in range(SHARES + 1)]
        rows = [shut(7, row["number"], row) for row in counts]
        # Programs from before counts were shut divide in the same way.
        for _ in range(3):
            rows = divided(rows)
            assert all(map(is_shut, rows))
        assert not any(map(is_shut, counts))
