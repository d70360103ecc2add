"""Mutants of tables: transactions, locks, constraints, foreign keys."""

from typing import Final

from tests.mutants.mutant import Mutant, by_seeds, by_test

HERD_MUTANTS: Final = (
    Mutant(
        "a-failed-statement-keeps-its-changes",
        "a statement that fails leaves no change",
        "herd/transaction.py",
        "                self._drop(mark)\n                raise",
        "                raise",
        by_test(
            "herd/test_transactions.py",
            "test_a_statement_that_fails_leaves_nothing_and_the_rest_stays",
        ),
    ),
    Mutant(
        "a-snapshot-overwrites-what-it-has-not-seen",
        "SNAPSHOT changes a row only if nobody has changed it since",
        "herd/transaction.py",
        "changed = not value.startswith(FRESH) and changed_at(value) > snapshot.position",
        "changed = False",
        by_test(
            "herd/test_isolation.py",
            "test_snapshots_show_no_skewed_read_and_no_lost_update[0]",
        ),
    ),
    Mutant(
        "a-snapshot-puts-anew-what-has-gone",
        "SNAPSHOT notices that a row has gone, too",
        "herd/transaction.py",
        "            changed = bool(key) and not own and snapshot.get(key) is not None",
        "            changed = False",
        by_test(
            "herd/test_changing.py",
            "test_a_key_that_a_snapshot_shows_and_that_is_gone_is_not_put_anew",
        ),
    ),
    Mutant(
        "what-is-undone-counts-on",
        "a transaction is bounded by what it changes, not by what it undid",
        "herd/transaction.py",
        "            self.size_bytes = self._sizes_bytes.pop()",
        "            self._sizes_bytes.pop()",
        by_test(
            "herd/test_transactions.py",
            "test_what_is_undone_makes_room_again",
        ),
    ),
    Mutant(
        "locks-fall-before-the-commit-is-applied",
        "who takes a lock reads what its last holder committed",
        "herd/transaction.py",
        "            if self.logged is None or self.logged.done():\n                self._let_go()",
        "            if self._ended:\n                self._let_go()",
        by_test(
            "herd/test_tablespace.py",
            "test_a_rollback_during_the_commit_comes_too_late",
        ),
    ),
    Mutant(
        "a-transaction-outlives-its-term",
        "a transaction belongs to one term of one leader",
        "herd/transaction.py",
        "        if not self._ended and self.term != self._space.term:",
        "        if not self._ended and self.term < 0:",
        by_test(
            "herd/test_tablespace.py",
            "test_a_transaction_ends_with_the_term_of_its_leader",
        ),
    ),
    Mutant(
        "many-row-locks-stay-single",
        "past so many row locks a transaction locks the table",
        "herd/transaction.py",
        "        if count > self._space.settings.row_locks_max:",
        "        if count < 0:",
        by_test(
            "herd/test_transactions.py",
            "test_many_row_locks_become_one_of_the_table",
        ),
    ),
    Mutant(
        "what-nobody-changed-is-told-as-changed",
        "before images are of rows that the transaction changed",
        "herd/transaction.py",
        "for key, value in self._before.items() if key in changed]",
        "for key, value in self._before.items()]",
        by_test(
            "herd/test_transactions.py",
            "test_what_was_before_is_told_of_rows_that_changed_and_of_no_others",
        ),
    ),
    Mutant(
        "definitions-are-committed-over-others",
        "what others defined meanwhile is not in a transaction's catalog",
        "herd/transaction.py",
        "        if self.defines and self._space.catalog.version != self._defined_over:",
        "        if self.defines and not self._space.catalog:",
        by_test(
            "herd/test_tablespace.py",
            "test_two_that_define_at_once_do_not_both_succeed",
        ),
    ),
    Mutant(
        "definitions-under-way-are-not-waited-for",
        "a definition counts when it is applied, not when it is logged",
        "herd/transaction.py",
        "                    await self.lock_name(SCHEMA)\n",
        "                    await asyncio.sleep(0)\n",
        by_test(
            "herd/test_autocommit.py",
            "test_two_that_commit_definitions_at_once_do_not_both_succeed",
        ),
    ),
    Mutant(
        "who-is-in-a-deadlock-keeps-its-locks",
        "the others go on only if the victim goes",
        "herd/transaction.py",
        '            self.end("it was in a deadlock")\n',
        "",
        by_test(
            "herd/test_transactions.py",
            "test_a_deadlock_ends_the_one_that_closed_it_and_the_other_goes_on",
        ),
    ),
    Mutant(
        "what-no-replica-could-store-is-logged",
        "apply cannot fail: sizes are checked before the log",
        "herd/transaction.py",
        "        if size_bytes > _LARGE_BYTES:",
        "        if size_bytes < 0:",
        by_test(
            "herd/test_transactions.py",
            "test_a_row_or_key_that_no_replica_could_store_is_refused_before_the_log",
        ),
    ),
    Mutant(
        "a-sharer-passes-a-waiter",
        "those who wait are served in their order",
        "herd/locks.py",
        "        if (found.queue and holder not in found.holders) or not "
        "found.free_for(holder, exclusive):",
        "        if not found.free_for(holder, exclusive):",
        by_test(
            "herd/test_locks.py",
            "test_a_sharer_does_not_pass_one_who_waits_for_it_alone",
        ),
    ),
    Mutant(
        "a-cancelled-waiter-stays-in-the-queue",
        "who has ended waits for nothing",
        "herd/locks.py",
        "            lock.queue.pop(wait, None)\n",
        "",
        by_test(
            "herd/test_locks.py",
            "test_a_waiter_that_is_cancelled_leaves_nothing_and_lets_the_next_one_in",
        ),
    ),
    Mutant(
        "a-sharer-takes-it-alone-beside-others",
        "an exclusive lock has one holder",
        "herd/locks.py",
        "            return not exclusive or self.exclusive or len(self.holders) == 1",
        "            return True",
        by_test(
            "herd/test_locks.py",
            "test_two_sharers_that_both_want_it_alone_are_a_deadlock",
        ),
    ),
    Mutant(
        "the-end-of-a-holder-wakes-no-waiter",
        "who waits goes on when the lock falls",
        "herd/locks.py",
        "            found.exclusive = False\n            self._serve(found, key)",
        "            found.exclusive = False",
        by_test(
            "herd/test_locks.py",
            "test_those_who_wait_are_served_in_their_order",
        ),
    ),
    Mutant(
        "a-key-is-taken-twice",
        "a primary key is one row's",
        "herd/changing.py",
        "        if newest is not None:\n            raise self._taken(",
        "        if newest is not None and not newest:\n            raise self._taken(",
        by_test(
            "herd/test_changing.py",
            "test_a_primary_key_is_taken_once",
        ),
    ),
    Mutant(
        "a-unique-key-is-taken-twice",
        "a unique key is one row's",
        "herd/changing.py",
        "                if transaction.get_newest_plain(entry) is not None:",
        '                if transaction.get_newest_plain(entry) == b"":',
        by_test(
            "herd/test_changing.py",
            "test_a_unique_key_is_taken_once_and_null_is_nobodys",
        ),
    ),
    Mutant(
        "a-unique-key-is-looked-up-in-the-snapshot",
        "constraints look at what is committed now",
        "herd/changing.py",
        "                if transaction.get_newest_plain(entry) is not None:",
        "                if transaction.get_plain(entry) is not None:",
        by_test(
            "herd/test_changing.py",
            "test_a_unique_key_that_a_snapshot_does_not_show_is_taken_all_the_same",
        ),
    ),
    Mutant(
        "a-moved-row-leaves-its-entries",
        "what a change removes from the indexes is what the row before put there",
        "herd/changing.py",
        " new if new_key == key else _NONE)",
        " new)",
        by_test(
            "herd/test_changing.py",
            "test_a_row_moves_to_another_key_with_all_its_entries",
        ),
    ),
    Mutant(
        "a-column-takes-null",
        "NOT NULL",
        "herd/changing.py",
        "                if row[column.number] is None:",
        "                if row[column.number] is row:",
        by_test(
            "herd/test_changing.py",
            "test_a_column_that_takes_no_null_gets_none",
        ),
    ),
    Mutant(
        "a-parent-is-looked-at-unlocked",
        "a row that is named is locked before it is looked at",
        "herd/foreign_keys.py",
        "        await transaction.lock_row(parent, key, exclusive=False)\n"
        "        return transaction.get_newest(key)",
        "        return transaction.get_newest(key)",
        by_test(
            "herd/test_foreign_keys.py",
            "test_a_parent_that_goes_while_a_child_comes",
        ),
    ),
    Mutant(
        "children-are-looked-for-in-the-snapshot",
        "children are looked for among what is committed now",
        "herd/foreign_keys.py",
        "    scan = transaction.scan_newest_plain if plain else transaction.scan_newest",
        "    scan = transaction.scan_plain if plain else transaction.scan",
        by_test(
            "herd/test_foreign_keys.py",
            "test_children_that_a_snapshot_does_not_show_are_found",
        ),
    ),
    Mutant(
        "a-parent-goes-though-it-is-named",
        "RESTRICT",
        "herd/foreign_keys.py",
        "            await _check_missed(missed)",
        "            await asyncio.sleep(0) if missed is None else None",
        by_test(
            "herd/test_foreign_keys.py",
            "test_a_row_that_is_named_stays",
        ),
    ),
    Mutant(
        "a-refusal-rests-on-a-lease-that-lapsed",
        "what is answered without the log counts only while the lease holds",
        "herd/autocommit.py",
        "        except Exception:\n            self._space.rows_get(key)\n            raise",
        "        except Exception:\n            raise",
        by_test(
            "herd/test_autocommit.py",
            "test_who_may_have_been_replaced_refuses_no_write_for_what_it_sees",
        ),
    ),
    Mutant(
        "a-busy-transaction-is-idle",
        "only who is in no statement and no wait is idle",
        "herd/tablespace.py",
        "            if now_s - transaction.used_s > idle_s and not transaction.busy:",
        "            if now_s - transaction.used_s > idle_s:",
        by_test(
            "herd/test_tablespace.py",
            "test_a_transaction_in_a_long_statement_is_not_idle",
        ),
    ),
    Mutant(
        "what-was-ended-while-it-waited-for-room-is-logged",
        "nothing is logged by who has let go of its locks",
        "herd/tablespace.py",
        "                    transaction.check()\n                if self.replica.term != term:",
        "                    pass\n                if self.replica.term != term:",
        by_test(
            "herd/test_tablespace.py",
            "test_a_commit_that_waits_for_room_is_not_idle_and_is_not_logged_once_it_is_ended",
        ),
    ),
    Mutant(
        "reads-of-tables-without-a-lease",
        "a leader that may have been replaced answers no reads",
        "herd/tablespace.py",
        "            return self.replica.read_now(lambda rows: rows.get(key))",
        "            return self.stale_read(lambda rows: rows.get(key))[0]",
        by_test(
            "herd/test_tablespace.py",
            "test_a_leader_whose_lease_is_over_answers_no_read_by_key_nor_of_a_range",
        ),
    ),
    Mutant(
        "rows-are-changed-unlocked",
        "a row is locked before it is read to be changed",
        "herd/transaction.py",
        "        before = len(self.locks)\n        self._check_open()\n",
        "        before = len(self.locks)\n        self._check_open()\n"
        "        if exclusive:\n            return\n",
        by_seeds(0, 1, "--herd"),
    ),
    Mutant(
        "a-snapshot-begins-without-a-lease",
        "a leader that was replaced without knowing it answers no reads",
        "herd/transaction.py",
        "            self._space.rows_get(COUNTERS)\n",
        "",
        by_test(
            "herd/test_autocommit.py",
            "test_a_transaction_begins_to_read_only_while_the_lease_holds",
        ),
    ),
    Mutant(
        "a-short-write-lets-go-before-it-is-applied",
        "the lock of a short write is released when the row is applied",
        "herd/autocommit.py",
        "            waiter = waiting\n",
        """            waiter = waiting
            locks.release_short(table_id, key)
            waiting._table, waiting._key = object(), object()
            locks.try_short(waiting._table, waiting._key)
""",
        by_test(
            "herd/test_autocommit.py",
            "test_a_short_write_keeps_its_lock_until_it_is_applied",
        ),
    ),
    Mutant(
        "a-short-write-passes-a-waiter",
        "a short write does not begin while somebody waits for the table",
        "herd/locks.py",
        "            if found.queue:\n                return False\n        elif",
        "            if False:\n                return False\n        elif",
        by_test(
            "herd/test_locks.py",
            "test_a_short_write_does_not_overtake_a_waiter_for_the_table",
        ),
    ),
    Mutant(
        "who-shares-a-lock-is-another-to-itself",
        "other holders of a lock do not include the caller",
        "herd/locks.py",
        "            return bool(found.holders - {holder})",
        "            return bool(found.holders)",
        by_test(
            "herd/test_locks.py",
            "test_the_only_holder_of_a_lock_finds_no_other_holders",
        ),
    ),
    Mutant(
        "a-snapshot-goes-on-with-other-definitions",
        "a snapshot never shows rows by definitions that others have changed since",
        "herd/transaction.py",
        "            if not now.shows_as(self._defined_then):\n",
        "            if False:\n",
        by_test(
            "herd/test_transactions.py",
            "test_a_snapshot_ends_when_others_have_changed_definitions",
        ),
    ),
    Mutant(
        "a-checkpoints-pin-ends-by-another-clock",
        "a pin lasts as long as requested, by the requester's clock",
        "engine/expiry.py",
        "    return expires_ms + clock_difference_ms <= now_ms\n",
        "    return expires_ms <= now_ms\n",
        by_test(
            "herd/checkpoint/test_pins.py",
            "test_a_pin_lasts_as_long_as_requested_by_the_requesters_clock",
        ),
    ),
)
