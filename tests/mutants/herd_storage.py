"""Mutants of tables: the machine, checkpoints, restorations, outcomes and checks."""

from typing import Final

from tests.mutants.mutant import Mutant, by_seeds, by_test

HERD_STORAGE_MUTANTS: Final = (
    Mutant(
        "rows-lose-their-position",
        "every row carries the position of its last change",
        "herd/machine.py",
        "            put(key, stamped + row)",
        "            put(key, bytes(16) + row)",
        by_test(
            "herd/test_machine.py",
            "test_rows_carry_where_they_were_changed_and_plain_keys_do_not",
        ),
    ),
    Mutant(
        "a-mark-goes-before-its-rows",
        "a store's mark stays as long as there may be rows",
        "herd/machine.py",
        "    if len(found) < wanted.limit:",
        "    if len(found) <= wanted.limit:",
        by_test(
            "herd/test_machine.py",
            "test_a_mark_stays_as_long_as_there_may_be_rows",
        ),
    ),
    Mutant(
        "a-neighbours-rows-are-erased",
        "only the marked store is erased",
        "herd/machine.py",
        "    first = store_prefix(wanted.store)[:5]",
        "    first = store_prefix(wanted.store)[:1]",
        by_test(
            "herd/test_machine.py",
            "test_a_store_is_erased_in_steps_and_its_neighbours_stay",
        ),
    ),
    Mutant(
        "what-is-no-command-stops-the-replica",
        "apply is total",
        "herd/machine.py",
        "        except msgspec.MsgspecError:\n            return UNKNOWN",
        "        except msgspec.MsgspecError:\n            raise",
        by_test(
            "herd/test_machine.py",
            "test_bytes_that_are_no_command_change_nothing",
        ),
    ),
    Mutant(
        "a-check-is-of-a-later-position",
        "a digest is of exactly the check's position",
        "herd/machine.py",
        "        if self._undos:\n            rows = _Noting(rows, self._undos)\n",
        "",
        by_test(
            "herd/test_checking.py",
            "test_what_changed_after_the_position_is_taken_back",
        ),
    ),
    Mutant(
        "a-check-passes-over-what-is-too-much",
        "what a replica has and the leader has not is a difference",
        "herd/checking.py",
        "sorted(wanted.keys() | found.keys())",
        "sorted(wanted.keys() & found.keys())",
        by_test(
            "herd/test_checking.py",
            "test_a_row_that_only_one_replica_has_is_found",
        ),
    ),
    Mutant(
        "a-replaced-leader-names-what-is-swept",
        "a leader claims the list before it sweeps",
        "herd/checkpoint/record.py",
        "            self._check_epoch(held, record.epoch)\n",
        "",
        by_test(
            "herd/checkpoint/test_record.py",
            "test_a_leader_that_was_replaced_names_nothing_that_the_next_one_swept",
        ),
    ),
    Mutant(
        "a-pinned-checkpoint-goes-in-the-simulation",
        "a pinned checkpoint stays",
        "herd/checkpoint/record.py",
        "                if one.number in pinned or place >= len(older) - (keep - 1)",
        "                if place >= len(older) - (keep - 1)",
        by_seeds(8014, 1, "--herd"),
    ),
    Mutant(
        "a-pinned-checkpoint-goes",
        "a pinned checkpoint stays",
        "herd/checkpoint/record.py",
        "                if one.number in pinned or place >= len(older) - (keep - 1)",
        "                if place >= len(older) - (keep - 1)",
        by_test(
            "herd/checkpoint/test_building.py",
            "test_a_pinned_checkpoint_stays_until_it_is_let_go",
        ),
    ),
    Mutant(
        "a-changed-page-is-named-again",
        "a page is named again only if its rows are the same",
        "herd/checkpoint/building.py",
        "(old.rows, old.last_key, old.checksum) == (len(rows), rows[-1][0], checksum)",
        "(old.rows, old.last_key) == (len(rows), rows[-1][0])",
        by_test(
            "herd/checkpoint/test_building.py",
            "test_pages_that_did_not_change_are_named_again",
        ),
    ),
    Mutant(
        "a-damaged-blob-is-served",
        "a blob is handed out only if its checksum is right",
        "herd/checkpoint/blobs.py",
        "len(blob) != locator.size_bytes or google_crc32c.value(blob) != locator.checksum",
        "len(blob) != locator.size_bytes",
        by_test(
            "herd/checkpoint/test_building.py",
            "test_a_page_that_was_damaged_is_not_served",
        ),
    ),
    Mutant(
        "a-sweep-takes-strangers-ledgers",
        "a sweep deletes ledgers of its owner alone",
        "herd/checkpoint/taking.py",
        "await self._client.owners.ledgers_of(self._owner)",
        "await self._client.list_ledgers()",
        by_test(
            "herd/checkpoint/test_building.py",
            "test_a_checkpoint_that_is_cut_short_leaves_nothing_but_what_the_sweep_finds",
        ),
    ),
    Mutant(
        "ledgers-go-that-are-still-named",
        "a ledger goes only when no manifest that is kept names it",
        "herd/checkpoint/taking.py",
        "            for ledger_id in sorted(ledgers - named):",
        "            for ledger_id in sorted(ledgers):",
        by_test(
            "herd/checkpoint/test_record.py",
            "test_pages_of_a_checkpoint_that_went_stay_for_those_that_name_them",
        ),
    ),
    Mutant(
        "two-checkpoints-are-built-in-one-folder",
        "the child of a killed leader writes into no other checkpoint",
        "herd/checkpoint/taking.py",
        '            work = self._folder / f"{self._client.rng.getrandbits(64):016x}"',
        '            work = self._folder / "work"',
        by_test(
            "herd/checkpoint/test_record.py",
            "test_a_child_that_outlived_its_leader_writes_into_no_other_checkpoint",
        ),
    ),
    Mutant(
        "a-lost-manifest-ends-all-checkpoints",
        "after a checkpoint was lost the next one is written whole",
        "herd/checkpoint/taking.py",
        "        except (NotFound, CannotRead, FormatTooNew) as error:\n            name",
        "        except ZeroDivisionError as error:\n            name",
        by_test(
            "herd/checkpoint/test_record.py",
            "test_after_a_checkpoint_was_lost_the_next_one_is_written_whole",
        ),
    ),
    Mutant(
        "a-damaged-backup-is-restored",
        "only what was checked is restored",
        "herd/backup.py",
        "        if google_crc32c.value(kind + blob) != checksum:",
        "        if len(blob) > size_bytes:",
        by_test(
            "herd/test_backup.py",
            "test_a_backup_that_was_changed_or_cut_anywhere_restores_nothing",
        ),
    ),
    Mutant(
        "what-a-restoration-left-belongs-to-tables",
        "what is written is marked to be erased before it has an owner",
        "herd/restoring.py",
        "        stores = {store_of(key)[0] for key, _ in (*write.rows, *write.plain)} "
        "- self._marked",
        "        stores = set[int]()",
        by_test(
            "herd/test_restoring.py",
            "test_what_a_cut_restoration_left_is_erased_and_belongs_to_no_table",
        ),
    ),
    Mutant(
        "rows-are-erased-while-they-are-restored",
        "nothing is erased while a restoration goes on",
        "herd/tablespace.py",
        "        self._filling = True\n        try:",
        "        self._filling = False\n        try:",
        by_test(
            "herd/test_restoring.py",
            "test_two_restorations_into_one_tablespace_do_not_mix",
        ),
    ),
    Mutant(
        "a-restoration-goes-past-its-position",
        "a restoration has no transaction after its position",
        "herd/restoring.py",
        "                if position > until:\n                    break\n",
        "",
        by_test(
            "herd/test_restoring.py",
            "test_a_position_between_two_transactions_has_the_first_and_not_the_second",
        ),
    ),
    Mutant(
        "a-restoration-forgets-what-was-dropped",
        "a restoration has the definitions of its position",
        "herd/restoring.py",
        "                    self._definitions.pop(key, None)",
        "                    continue",
        by_test(
            "herd/test_restoring.py",
            "test_each_moment_of_a_history_comes_back_as_it_was[True]",
        ),
    ),
    Mutant(
        "who-was-told-no-is-wrong-later",
        "an outcome that was denied is marked in the log",
        "herd/outcomes.py",
        "            await self._space.propose(encode_command(command), self.term)",
        "            assert command is not None",
        by_test(
            "herd/test_outcomes.py",
            "test_whoever_was_told_no_is_right_for_ever",
        ),
    ),
    Mutant(
        "a-commit-that-is-repeated-is-done-again",
        "one that is sent again is answered and not done again",
        "herd/outcomes.py",
        "        if mark is None:\n"
        "            for key, value in self._marked(identity, _COMMITTED):",
        "        if mark is None or mark.committed:\n"
        "            for key, value in self._marked(identity, _COMMITTED):",
        by_test(
            "herd/test_outcomes.py",
            "test_one_that_is_sent_again_is_answered_and_not_done_again",
        ),
    ),
    Mutant(
        "an-outcome-is-told-while-it-is-under-way",
        "who asks while it is under way waits for its end",
        "herd/outcomes.py",
        "        Raises `CommitUnknown` if that cannot be known any more.\n"
        '        """\n'
        "        while (earlier := self._under_way.get(identity)) is not None:",
        "        Raises `CommitUnknown` if that cannot be known any more.\n"
        '        """\n'
        '        while (earlier := self._under_way.get(b"")) is not None:',
        by_test(
            "herd/test_outcomes.py",
            "test_who_asks_while_it_is_under_way_waits_for_its_end",
        ),
    ),
    Mutant(
        "negative-keys-follow-positive-ones",
        "encode(a) < encode(b) if and only if a < b",
        "herd/keys.py",
        "    return _pack(value + _SIGN)",
        "    return _pack(value & _ALL)",
        by_test(
            "herd/test_keys.py",
            "test_keys_of_several_columns_are_ordered_as_their_rows",
        ),
    ),
    Mutant(
        "half-a-command-is-a-change",
        "parts that were never finished are no command",
        "herd/reading_log.py",
        "        parts, self._parts = self._parts, []\n        if kind == kinds.LAST_PART:",
        "        parts = self._parts\n        if kind == kinds.LAST_PART:",
        by_test(
            "herd/test_changes.py",
            "test_parts_that_a_lost_leader_left_are_no_command",
        ),
    ),
    Mutant(
        "a-batch-takes-a-row-that-somebody-has",
        "where somebody is in the way a procedure lets go of everything",
        "herd/locks.py",
        "            elif not self.try_lock(holder, key):\n                return False\n",
        "",
        by_test(
            "herd/test_procedures.py",
            "test_where_somebody_holds_a_row_it_lets_go_of_everything",
        ),
    ),
    Mutant(
        "a-batch-names-a-parent-that-is-not-there",
        "a parent is locked, shared, before it is looked at",
        "herd/procedures.py",
        " or get(key) is None:\n",
        ":\n",
        by_test(
            "herd/test_procedures.py",
            "test_a_row_whose_parent_is_missing_takes_the_long_way",
        ),
    ),
    Mutant(
        "a-batch-lets-go-of-its-locks-before-it-is-applied",
        "what is locked is locked until the command is applied",
        "herd/procedures.py",
        "        if not self._proposed:\n",
        "        if self._locks:\n",
        by_test(
            "herd/test_procedures.py",
            "test_what_it_has_locked_others_wait_for_until_it_is_applied",
        ),
    ),
    Mutant(
        "a-batch-looks-without-a-lease",
        "the first look of a procedure needs the lease",
        "herd/procedures.py",
        "            values.append(self._space.rows_get(keys[0]))\n",
        "            values.append(get(keys[0]))\n",
        by_test(
            "herd/test_procedures.py",
            "test_what_it_sees_counts_only_while_the_lease_holds",
        ),
    ),
)
