"""Mutants of what queries read: kept pages, checkpoints brought up to now; and of short ways."""

from typing import Final

from tests.mutants.mutant import Mutant, by_test

_CATCHING_UP: Final = "herd/checkpoint/catching_up.py"
_CATCHING_UP_TESTS: Final = "herd/checkpoint/test_catching_up.py"

_BUILDING_TESTS: Final = "herd/checkpoint/test_building.py"
_AS_OF: Final = "test_a_query_of_a_checkpoint_reads_the_pages_and_columns_it_needs_a_few_at_a_time"
_BY_INDEX: Final = "herd/sql/by_index.py"
_BY_INDEX_TESTS: Final = "herd/sql/test_by_index.py"

HERD_READING_MUTANTS: Final = (
    Mutant(
        "a-checkpoint-is-read-by-the-names-of-now",
        "what is read of a checkpoint is as that checkpoint defines it",
        "herd/sql/resolving.py",
        "        found = catalog.find(node.name)\n",
        "        found = now if now is not None else catalog.find(node.name)\n",
        by_test(
            "herd/sql/test_as_of_checkpoint.py",
            "test_a_table_is_read_with_the_columns_that_it_had",
        ),
    ),
    Mutant(
        "a-query-of-a-checkpoint-runs-ahead",
        "of a checkpoint a few pages are read at a time",
        "herd/checkpoint/streaming.py",
        "islice(pages, _AHEAD - 1))",
        "pages)",
        by_test(_BUILDING_TESTS, _AS_OF),
    ),
    Mutant(
        "a-checkpoint-outlives-its-query",
        "a query lets go of the checkpoint that it has read",
        "herd/sql/query.py",
        "            return await self._run(explain=explain)\n        finally:\n",
        "            return await self._run(explain=explain)\n        except OSError:\n",
        by_test("herd/sql/test_query.py", "test_a_checkpoint_is_read_where_somebody_keeps_them"),
    ),
    Mutant(
        "who-waits-for-changes-lets-his-pins-end",
        "whoever waits for more keeps what he has pinned",
        "herd/consumers.py",
        "timeout=max(0.0, self._due_in_s()))",
        "timeout=None)",
        by_test("herd/test_changes.py", "test_what_is_kept_for_a_consumer_that_waits_is_kept_on"),
    ),
    Mutant(
        "what-nobody-was-told-of-is-let-go",
        "what is kept for a consumer moves on only to positions that it was told of",
        "herd/changes.py",
        "                    yield CommittedTransaction(reached, ())\n",
        "                    pass\n",
        by_test(
            "herd/test_changes.py",
            "test_who_follows_a_quiet_table_is_told_how_far_nothing_was_of_interest",
        ),
    ),
    Mutant(
        "what-was-removed-since-the-checkpoint-stays",
        "pages and changes together are the table at the position that was asked for",
        _CATCHING_UP,
        "                    changed[key] = None if row is None else stamped + row",
        "                    changed[key] = stamped + (row or b'')",
        by_test(_CATCHING_UP_TESTS, "test_pages_and_the_log_tell_every_row"),
    ),
    Mutant(
        "pages-of-a-truncated-table-are-read",
        "pages and changes together are the table at the position that was asked for",
        _CATCHING_UP,
        "known.id != table.id or known.store != table.store",
        "known.id != table.id",
        by_test(_CATCHING_UP_TESTS, "test_where_the_pages_say_too_little_the_rows_are_read"),
    ),
    Mutant(
        "a-checkpoint-of-the-future-is-read",
        "pages and changes together are the table at the position that was asked for",
        _CATCHING_UP,
        "if record is None or record.position > position:",
        "if record is None:",
        by_test(_CATCHING_UP_TESTS, "test_a_checkpoint_of_a_later_moment_is_not_used"),
    ),
    Mutant(
        "a-key-that-is-not-there-hides-its-neighbour",
        "every row of the table at that moment is read once",
        "herd/reading.py",
        "            if place == len(keys) or keys[place].as_py() != key:",
        "            if place == len(keys):",
        by_test(
            "herd/test_columns.py",
            "test_random_changes_are_seen_while_pages_are_folded_anew",
        ),
    ),
    Mutant(
        "pages-are-folded-out-of-order",
        "the keys of a page lie in their order",
        "herd/columns.py",
        'pc.sort_indices(rows, sort_keys=[(KEY, "ascending")])',
        'pc.sort_indices(rows, sort_keys=[(KEY, "descending")])',
        by_test(
            "herd/test_columns.py",
            "test_random_changes_are_seen_while_pages_are_folded_anew",
        ),
    ),
    Mutant(
        "many-rows-pass-over-their-own-transaction",
        "a row's key is locked and looked at, also in the transaction's own changes",
        "herd/transaction.py",
        "                return layer.rows[key] is None",
        "                return True",
        by_test(
            "herd/test_many_inserts.py",
            "test_a_key_that_is_there_or_comes_twice_refuses_all_rows",
        ),
    ),
    Mutant(
        "a-short-write-passes-a-leader-that-gives-way",
        "a leader that gives way takes no more",
        "engine/replica/leading.py",
        "        if self._ended is not None or self._draining:",
        "        if self._ended is not None:",
        by_test(
            "engine/replica/test_waiters.py",
            "test_who_gives_way_or_is_closed_refuses_at_once_and_tells_those_who_wait",
        ),
    ),
    Mutant(
        "a-waiter-is-forgotten-when-the-term-ends",
        "what was proposed and is not answered when the term ends is told so",
        "engine/replica/leading.py",
        "            _fail(waiters, NotLeader(",
        "            _fail([], NotLeader(",
        by_test(
            "engine/replica/test_waiters.py",
            "test_a_term_that_ends_leaves_no_waiter_without_an_answer",
        ),
    ),
    Mutant(
        "an-index-that-is-being-built-is-used",
        "only an index that is ready leads to every row",
        _BY_INDEX,
        "[index for index in plan.indexes if index.definition.state is Building.READY]",
        "list(plan.indexes)",
        by_test(_BY_INDEX_TESTS, "test_an_index_that_is_being_built_is_not_used"),
    ),
    Mutant(
        "rows-of-the-own-transaction-are-read-as-they-were-too",
        "every row is read once, with the changes of the query's own transaction",
        "herd/indexed.py",
        "                if key in own or not want.first <= key < want.end:",
        "                if not want.first <= key < want.end:",
        by_test(
            _BY_INDEX_TESTS,
            "test_rows_over_one_batch_are_read_as_a_stream_again_and_again",
        ),
    ),
    Mutant(
        "an-index-of-the-own-transaction-is-looked-for-in-what-is-committed",
        "only an index that is ready leads to every row",
        "herd/sql/query.py",
        "        return self._space.catalog.tables.get(table.id) is table",
        "        return True",
        by_test(
            _BY_INDEX_TESTS,
            "test_an_index_of_the_own_transaction_is_not_looked_for_in_what_is_committed",
        ),
    ),
)
