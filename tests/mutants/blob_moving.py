"""Mutants of moves of buckets between tablespaces."""

from typing import Final

from tests.mutants.mutant import Mutant, by_test

_MOVING: Final = "blobit/test_moving.py"
_COUNTING: Final = "blobit/test_counting.py"
_CLOSED_WITH_A_PUT: Final = (
    "test_a_bucket_that_is_closed_in_one_transaction_with_a_put_is_closed_afterwards"
)
_LOST: Final = "blobit/test_lost_commits.py"
_READING: Final = "blobit/snapshot/test_reading.py"

BLOB_MOVING_MUTANTS: Final = (
    Mutant(
        "rows-that-are-not-counted-confirm-a-deletion-after-they-were-cleaned-away",
        "rows of a bucket that has left tell nothing about a change of unknown outcome",
        "blobit/committing.py",
        "Counting(change.keys, BASE, (), change.buckets)",
        "Counting(change.keys, BASE, ())",
        by_test(
            _LOST,
            "test_rows_removed_by_a_move_do_not_confirm_a_deletion_of_an_unnamed_object",
        ),
    ),
    Mutant(
        "the-move-of-another-process-counts-as-the-own",
        "a move whose start was lost is confirmed by its own row alone",
        "blobit/moving.py",
        "            return True if found[move_key] == move else None\n",
        "            return True if is_under_way(found[move_key]) else None\n",
        by_test(
            _LOST,
            "test_the_move_of_another_process_does_not_confirm_one_whose_start_was_lost",
        ),
    ),
    Mutant(
        "what-wrote-nothing-in-a-lost-commit-is-confirmed",
        "a change that wrote nothing in a lost commit is decided again",
        "blobit/committing.py",
        "            pending.writes = bool(effect.writes)\n",
        "            pending.writes = True\n",
        by_test(
            "blobit/test_committing.py",
            "test_a_change_that_wrote_nothing_in_a_lost_commit_is_decided_again",
        ),
    ),
    Mutant(
        "what-was-refused-in-a-lost-commit-is-confirmed",
        "a change that was refused in a lost commit is decided again",
        "blobit/committing.py",
        "            pending.writes = False\n",
        "            pending.writes = True\n",
        by_test(
            "blobit/test_committing.py",
            "test_a_change_that_wrote_nothing_in_a_lost_commit_is_decided_again",
        ),
    ),
    Mutant(
        "somebody-elses-deletion-confirms-one-with-a-condition",
        "a deletion with a condition is not confirmed by the absence of the object",
        "blobit/bucket.py",
        "            return True if if_match is None and found[key] is None else None\n",
        "            return True if found[key] is None else None\n",
        by_test(
            _LOST, "test_the_deletion_of_another_process_does_not_confirm_one_with_a_condition"
        ),
    ),
    Mutant(
        "a-bucket-that-is-gone-counts-as-deleted-by-this-process",
        "the deletion of a bucket is confirmed by its own row alone",
        "blobit/registry.py",
        "            return True if kept and found[gone_key] == kept else None\n",
        "            return True if found[key] is None else None\n",
        by_test(_LOST, "test_two_processes_do_not_both_delete_a_bucket"),
    ),
    Mutant(
        "a-completed-upload-counts-as-aborted",
        "an abort is not confirmed by the absence of the upload",
        "blobit/multipart.py",
        "        return Change((key,), decide, lambda found: None)\n",
        "        return Change((key,), decide, lambda found: None if found[key] else True)\n",
        by_test(_LOST, "test_an_upload_that_was_completed_is_not_reported_as_aborted"),
    ),
    Mutant(
        "a-new-bucket-confirms-the-state-of-the-deleted-one",
        "a state is confirmed only by the row of the same bucket",
        "blobit/registry.py",
        '            if present is None or present["bucket_id"] != info.bucket_id:\n'
        "                return None\n",
        "            if present is None:\n                return None\n",
        by_test(
            _LOST,
            "test_a_new_bucket_of_the_same_name_does_not_confirm_the_state_of_the_deleted_one",
        ),
    ),
    Mutant(
        "what-is-read-of-a-bucket-that-left-counts",
        "what is read counts if the bucket lived there after it was read",
        "blobit/rows.py",
        "            return row, lives_here(place)\n",
        "            return row, place is not True\n",
        by_test(
            _MOVING,
            "test_who_has_not_looked_since_reads_changes_and_lists_what_is_there_now",
        ),
    ),
    Mutant(
        "the-last-rows-are-copied-while-others-change-them",
        "a bucket takes changes in one tablespace at most",
        "blobit/moving.py",
        "            await self._freeze()\n",
        "",
        by_test(_MOVING, "test_what_is_put_while_the_last_rows_are_copied_waits_and_is_there"),
    ),
    Mutant(
        "whoever-moved-a-bucket-once-moves-it-for-ever",
        "a mover writes nothing after somebody else has claimed the move",
        "blobit/moving.py",
        '            if row is None or row["claim"] != self._claim:\n'
        "                raise MoveTaken(f\"somebody else moves bucket {self._move['name']}\")\n"
        "            return Effect(writes(found), True)\n",
        "            return Effect(writes(found), True)\n",
        by_test(_MOVING, "test_a_mover_that_wakes_up_late_changes_nothing"),
    ),
    Mutant(
        "a-ledger-dies-where-its-bucket-was",
        "a ledger does not die where its bucket is about to leave",
        "blobit/dying.py",
        "    return Change((key,), decide, confirm, buckets=(scope.bucket_id,))\n",
        "    return Change((key,), decide, confirm)\n",
        by_test(_MOVING, "test_a_round_that_looked_before_the_move_lets_no_ledger_die"),
    ),
    Mutant(
        "a-row-that-moved-while-it-was-looked-for-is-missing",
        "no ledger of a bucket that moved meanwhile is an orphan",
        "blobit/garbage.py",
        "for ledger_id, bucket_id in found.items() if stayed(bucket_id)]",
        "for ledger_id in found]",
        by_test(
            _MOVING,
            "test_a_ledger_whose_bucket_moved_while_its_row_was_looked_for_is_no_orphan",
        ),
    ),
    Mutant(
        "rows-that-were-cleaned-away-confirm-a-deletion",
        "rows of a bucket that has left tell nothing of a commit of unknown outcome",
        "blobit/committing.py",
        "            known = found and all(lives_here(found[moving_key(each)]) for each in own)\n",
        "            known = found\n",
        by_test(
            _LOST,
            "test_rows_removed_by_a_move_do_not_confirm_a_deletion",
        ),
    ),
    Mutant(
        "pins-of-before-the-move-hold-nothing",
        "pins of all tablespaces where a bucket has lived are looked at",
        "blobit/dying.py",
        "    places = dict.fromkeys([scope.core.info.tablespace, *scope.former])\n",
        "    places = dict.fromkeys([scope.core.info.tablespace])\n",
        by_test(_MOVING, "test_pins_of_the_tablespaces_where_a_bucket_was_keep_its_ledgers"),
    ),
    Mutant(
        "half-a-bucket-is-read-from-a-checkpoint",
        "a bucket that was on its way when a checkpoint was taken is not read there",
        "blobit/snapshot/finding.py",
        "    return lives_here(rows[0]) if rows else not was_moved\n",
        "    return True\n",
        by_test(_READING, "test_a_bucket_that_was_on_its_way_at_a_checkpoint_is_not_read_there"),
    ),
    Mutant(
        "a-put-opens-a-bucket-that-is-closed-with-it",
        "counts that are frozen are never divided anew",
        "blobit/counting.py",
        "            closed = is_shut(row) or is_frozen(row)\n",
        "            closed = is_shut(row)\n",
        by_test(_COUNTING, _CLOSED_WITH_A_PUT),
    ),
    Mutant(
        "a-put-after-the-closing-in-one-transaction-is-accepted",
        "a change of a batch sees that an earlier one has closed the bucket",
        "blobit/committing.py",
        "                counting.look()\n",
        "                pass\n",
        by_test(_COUNTING, _CLOSED_WITH_A_PUT),
    ),
    Mutant(
        "a-late-mover-leaves-a-row",
        "a mover that wakes up after the bucket was deleted leaves no row",
        "blobit/moving.py",
        "                if found[home] is None and (lives or not copying):\n",
        "                if False:\n",
        by_test(
            "blobit/test_moving.py",
            "test_a_mover_that_wakes_up_after_the_bucket_is_gone_leaves_nothing",
        ),
    ),
    Mutant(
        "the-row-of-an-upload-goes-before-its-parts",
        "an interrupted mover leaves no parts without their upload's row",
        "blobit/moving.py",
        'count = await self._level("uploads", uploads(source), uploads(target), adding=True)',
        'count = await self._level("uploads", uploads(source), uploads(target))',
        by_test(
            "blobit/test_moving.py",
            "test_an_upload_that_ends_while_its_bucket_moves_leaves_no_parts_anywhere",
        ),
    ),
)
