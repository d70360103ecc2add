"""Mutants of writing in bulk: once, all of it, by the definition that holds."""

from typing import Final

from tests.mutants.mutant import Mutant, by_test

_CRASHES: Final = "test_a_write_that_ends_at_any_step_is_whole_or_leaves_nothing"

HERD_STAGING_MUTANTS: Final = (
    Mutant(
        "a-job-that-is-repeated-is-written-again",
        "a job is written once, whoever asks for it again",
        "herd/staging/marks.py",
        "        if newest == self._sequence:",
        "        if newest < 0:",
        by_test(
            "herd/staging/test_ingesting.py",
            "test_the_batches_of_a_series_are_written_once_each[row by row]",
        ),
    ),
    Mutant(
        "a-job-is-the-same-in-all-tables",
        "what a job is called says nothing about other tables",
        "herd/staging/marks.py",
        "        named = table_id.to_bytes(4) + series",
        "        named = series",
        by_test(
            "herd/staging/test_marks.py",
            "test_a_job_of_one_name_is_another_one_in_each_table",
        ),
    ),
    Mutant(
        "the-mark-of-a-job-goes-with-the-next-one",
        "a mark stays for a month, however many others come",
        "herd/staging/marks.py",
        "is_over(_made_ms(key) + KEPT_MS, now_ms)",
        "_made_ms(key) <= now_ms",
        by_test(
            "herd/staging/test_marks.py",
            "test_a_job_is_remembered_however_many_clients_have_committed_since",
        ),
    ),
    Mutant(
        "rows-are-taken-for-another-definition",
        "rows are taken only for the definition of which they were made",
        "herd/staging/ingesting.py",
        "        if digest(table) != self._order.definition:",
        "        if not self._order.definition:",
        by_test(
            "herd/staging/test_ingesting.py",
            "test_a_table_that_was_changed_since_takes_no_rows[in bulk]",
        ),
    ),
    Mutant(
        "a-store-that-is-filled-is-erased-at-once",
        "a store that somebody fills is not erased, though it is marked",
        "herd/tablespace.py",
        "                stores = [one for one in marked if one[0] not in self._kept_stores]",
        "                stores = marked",
        by_test(
            "herd/staging/test_bulk.py",
            "test_a_write_that_is_cut_short_is_done_again_and_leaves_nothing[Mode.APPEND]",
        ),
    ),
    Mutant(
        "a-store-is-let-go-while-its-last-command-is-under-way",
        "who erased by a mark whose end is in the log, and not applied, would empty a table",
        "herd/staging/bulk.py",
        "                await asyncio.wait([ending.logged])",
        "                pass",
        by_test(
            "herd/staging/test_bulk.py",
            "test_who_stops_waiting_at_the_last_moment_loses_no_rows",
        ),
    ),
    Mutant(
        "the-new-store-keeps-its-mark",
        "the command that gives a store to a table takes its mark away",
        "herd/staging/bulk.py",
        "[*changes, erasing(table.store), unmarked]",
        "[*changes, erasing(table.store)]",
        by_test(
            "herd/staging/test_ingesting.py",
            "test_appended_rows_come_to_those_that_are_there[in bulk]",
        ),
    ),
    Mutant(
        "the-store-is-not-marked-before-it-is-filled",
        "what a write that was cut short left is erased by whoever leads then",
        "herd/catalog.py",
        "catalog._changed(catalog.tables, catalog.views, [erasing(store)])",
        "catalog._changed(catalog.tables, catalog.views, [])",
        by_test("herd/staging/test_crash_points.py", f"{_CRASHES}[Mode.APPEND-in bulk]"),
    ),
    Mutant(
        "a-block-is-whole-before-the-next-one-begins",
        "what a block that is not read yet may begin with has to wait",
        "herd/staging/merging.py",
        "bisect_left(rows, limit, key=_first)",
        "bisect_right(rows, limit, key=_first)",
        by_test(
            "herd/staging/test_merging.py",
            "test_a_key_of_two_runs_is_noticed_wherever_their_blocks_end",
        ),
    ),
    Mutant(
        "a-ledger-is-registered-by-nobody",
        "no ledger of staged rows exists that is not registered",
        "herd/staging/registry.py",
        "metadata=label.metadata, announce=_register(client, label))",
        "metadata=label.metadata)",
        by_test(
            "herd/staging/test_registry.py",
            "test_all_ledgers_of_a_run_go_with_it_and_no_others",
        ),
    ),
    Mutant(
        "a-row-that-is-given-twice-is-kept-once",
        "of two rows with one key none is chosen",
        "herd/staging/merging.py",
        "        if len(set(map(_first, ready))) < place:",
        "        if not rows:",
        by_test(
            "herd/staging/test_ingesting.py",
            "test_a_key_that_two_rows_have_is_refused[in bulk-Mode.UPSERT]",
        ),
    ),
    Mutant(
        "a-task-of-a-run-that-was-given-up-goes-on",
        "who registers after a run was given up takes its ledger away",
        "herd/staging/registry.py",
        "    if await client.store.get(_mark(",
        "    if not await client.store.get(_mark(",
        by_test(
            "herd/staging/test_registry.py",
            "test_a_task_that_outlives_its_run_leaves_nothing_and_the_next_run_is_free_to",
        ),
    ),
    Mutant(
        "a-part-is-held-for-a-run-that-was-given-up",
        "a task that outlives its run finds that out before it holds anything",
        "blobit/holding.py",
        "            if self._given_up is not None and found[self._given_up] is not None:",
        "            if not found:",
        by_test(
            "blobit/staging/test_jobs.py",
            "test_a_task_that_outlives_its_run_holds_nothing_and_the_next_run_is_free_to",
        ),
    ),
    Mutant(
        "each-step-of-erasing-begins-anew",
        "who erases passes over nothing that is gone already",
        "herd/tablespace.py",
        "                above = erased_last(",
        "                erased_last(",
        by_test(
            "herd/test_tablespace.py",
            "test_rows_of_a_dropped_table_are_erased_in_steps",
        ),
    ),
    Mutant(
        "a-name-goes-before-its-ledger-was-made",
        "a missing ledger may still be created: its name stays until it is old",
        "herd/staging/registry.py",
        "        # It was deleted, or will still be created: a later check will show which.\n"
        "        return\n",
        "        pass\n",
        by_test(
            "herd/staging/test_registry.py",
            "test_a_ledger_created_after_its_run_was_dropped_is_swept",
        ),
    ),
)
