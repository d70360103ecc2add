"""Mutants of streams: how far a batch goes, where a log is cut, what is told of a transaction."""

from typing import Final

from tests.mutants.mutant import Mutant, by_test

_SURVEY: Final = "herd/capture/survey.py"
_SURVEY_TESTS: Final = "herd/capture/test_survey.py"
_SHAPE: Final = "herd/capture/shape.py"
_SHAPE_TESTS: Final = "herd/capture/test_shape.py"

HERD_CAPTURE_MUTANTS: Final = (
    Mutant(
        "a-log-is-cut-inside-of-a-command",
        "a step ends where no command is under way: there the log may be cut",
        "herd/capture/walk.py",
        "        if not self._entries.between:\n",
        "        if self._seen < self.at:\n",
        by_test(_SURVEY_TESTS, "test_a_command_in_parts_is_never_cut"),
    ),
    Mutant(
        "a-batch-goes-over-its-limit",
        "a batch ends before the transaction that would go over its limit",
        _SURVEY,
        "            if told and limit.exceeded(rows, size_bytes):\n",
        "            if told and limit.exceeded(rows - step.rows, size_bytes):\n",
        by_test(
            _SURVEY_TESTS,
            "test_batches_are_cut_before_the_transaction_that_goes_over_the_limit",
        ),
    ),
    Mutant(
        "a-stream-ends-before-its-end",
        "what ends a stream is told only when all before it was handed out",
        _SURVEY,
        "                if not told:\n                    raise refused\n                break\n",
        "                raise refused\n",
        by_test(
            _SURVEY_TESTS,
            "test_a_change_of_the_columns_ends_a_stream_after_all_before_it",
        ),
    ),
    Mutant(
        "a-plan-ends-where-the-stream-does",
        "stretches between two positions are all of the log between them",
        _SURVEY,
        "                while walk.at < end:\n",
        "                while walk.at <= start < end:\n",
        by_test(
            _SURVEY_TESTS,
            "test_a_change_of_the_columns_ends_a_stream_after_all_before_it",
        ),
    ),
    Mutant(
        "a-commit-lets-nothing-go",
        "what is kept for a consumer moves on with what it commits",
        _SURVEY,
        "            await self._consumer.move(end)\n",
        "            await self._consumer.dealt_with(end)\n",
        by_test(_SURVEY_TESTS, "test_what_a_consumer_has_not_committed_is_kept"),
    ),
    Mutant(
        "a-table-that-is-emptied-is-silent",
        "a table that is emptied is told to be, before what comes into it",
        _SHAPE,
        "        kind = ChangeKind.DROP if self._now is None else ChangeKind.EMPTY\n",
        "        if self._now is not None:\n            return\n        kind = ChangeKind.DROP\n",
        by_test(_SHAPE_TESTS, "test_a_table_that_is_emptied_tells_so_before_what_comes_into_it"),
    ),
    Mutant(
        "a-span-goes-past-what-is-confirmed",
        "nothing past the last add confirmed is planned or read",
        "engine/spans.py",
        "        end = end if until is None else min(end, until)\n",
        "        end = end if until is None else max(end, until)\n",
        by_test("engine/test_spans.py", "test_nothing_after_the_target_of_a_run_is_told"),
    ),
    Mutant(
        "a-slow-log-is-taken-for-one-without-news",
        "a stream with an end waits for what is known to be there",
        _SURVEY,
        "            if until is None and not await walk.arrives(_IDLE_S):\n",
        "            if not await walk.arrives(_IDLE_S):\n",
        by_test(_SURVEY_TESTS, "test_what_is_known_to_be_there_is_waited_for"),
    ),
    Mutant(
        "other-tables-end-a-stream",
        "what happens to a table that a stream does not tell of never ends it",
        "herd/capture/interest.py",
        "        return not self.names or table.name.lower() in self.names\n",
        "        return True\n",
        by_test(
            _SURVEY_TESTS,
            "test_rows_that_came_before_a_table_that_is_not_told_end_nothing",
        ),
    ),
    Mutant(
        "each-load-pins-the-log",
        "an application needs one pin for all batches after a position",
        "herd/capture/source.py",
        "            and other.position >= self.position\n",
        "            and other.position < self.position\n",
        by_test(
            "herd/capture/test_source.py",
            "test_an_application_needs_one_pin_for_all_batches_after_a_position",
        ),
    ),
    Mutant(
        "a-pin-that-was-lost-is-relied-on",
        "a pin that cannot be renewed stands for no other one",
        "engine/application.py",
        "                    pin.renew()\n",
        "",
        by_test("herd/snapshot/test_opening.py", "test_a_noted_pin_that_is_lost_is_not_relied_on"),
    ),
)
