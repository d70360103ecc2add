"""Mutants of backups of whole stores, quotas of tenants, and the log of slow operations."""

from typing import Final

from tests.mutants.mutant import Mutant, by_test

_ARCHIVE: Final = "herdbook/test_archive.py"
_BESIDE: Final = "herdbook/test_archive_beside.py"
_QUOTAS: Final = "broker/service/test_quotas.py"
_KILLED_RESTORE: Final = "test_a_restoration_that_was_killed_shows_nothing_and_the_next_one_goes_on"
_SPOILT: Final = "test_a_byte_that_changed_is_found_and_nothing_is_made_of_such_a_backup"

OPERATIONS_MUTANTS: Final = (
    Mutant(
        "a-restoration-begins-with-what-is-damaged",
        "all of a backup is checked before the first byte is written",
        "herdbook/archive/restore.py",
        "    if not check.whole:",
        "    if False:",
        by_test(_ARCHIVE, _SPOILT),
    ),
    Mutant(
        "a-frame-s-checksum-is-not-looked-at",
        "every byte of a backup is checked",
        "herdbook/archive/framing.py",
        "    if google_crc32c.extend(google_crc32c.value(kind), blob) != checksum:",
        "    if False:",
        by_test(_ARCHIVE, _SPOILT),
    ),
    Mutant(
        "a-folder-has-its-name-before-it-is-whole",
        "a restored folder has its name when it is whole",
        "herdbook/archive/restore.py",
        "    part = target.with_name(target.name + FOLDER_SUFFIX)",
        "    part = target",
        by_test(_ARCHIVE, _KILLED_RESTORE),
    ),
    Mutant(
        "a-restoration-is-gone-on-with-by-another-backup",
        "what was cut short is gone on with by the same backup alone",
        "herdbook/archive/restore.py",
        "        if found.value != mark:",
        "        if False:",
        by_test(_ARCHIVE, _KILLED_RESTORE),
    ),
    Mutant(
        "a-restored-store-gives-old-ids-again",
        "an id of a ledger that the old store gave is never given by the new one",
        "herdbook/archive/restore.py",
        "    while drawn < next_id:",
        "    while False:",
        by_test(
            _ARCHIVE,
            "test_the_new_store_takes_writes_and_gives_no_ledger_an_id_that_was_given_before",
        ),
    ),
    Mutant(
        "a-backup-s-next-id-is-of-before-its-ledgers",
        "a manifest's next id is above those of all ledgers that it names",
        "herdbook/archive/backup.py",
        "            next_id=await workshop.ledgers.new_id(),",
        "            next_id=1,",
        by_test(_BESIDE, "test_ids_of_ledgers_that_came_after_the_cut_are_not_given_again"),
    ),
    Mutant(
        "a-ledger-that-went-ends-a-backup",
        "a ledger that is deleted before it was copied begins another cut",
        "herdbook/archive/backup.py",
        "            raise Moved from error",
        "            raise",
        by_test(_ARCHIVE, "test_a_ledger_that_went_while_it_was_copied_begins_another_cut"),
    ),
    Mutant(
        "what-goes-before-a-cut-ends-a-backup",
        "a ledger that goes before the cut is left out",
        "herdbook/archive/backup.py",
        "                    if ends is not None:",
        "                    if True:",
        by_test(_BESIDE, "test_ledgers_that_are_collected_before_the_cut_are_left_out"),
    ),
    Mutant(
        "a-file-that-was-cut-short-is-named-again",
        "a file of an earlier backup is named again only if it ends as it should",
        "herdbook/archive/ledger_file.py",
        "    if read_last(path, _END.size) != _END.pack(last, length):",
        "    if not path.exists():",
        by_test(_BESIDE, "test_a_file_of_an_earlier_backup_that_was_cut_short_is_copied_again"),
    ),
    Mutant(
        "what-a-check-found-damaged-stays",
        "a file that a check found damaged is read by the next backup",
        "herdbook/archive/backup.py",
        "        doubted = self._folder.doubt(ledger_id, last).exists()",
        "        doubted = False",
        by_test(_BESIDE, "test_what_a_check_found_damaged_the_next_backup_copies_again"),
    ),
    Mutant(
        "buckets-end-before-what-names-their-objects",
        "logs end in the order in which they name each other",
        "herdbook/archive/cut.py",
        "    return [*others, *map(log_of, tablespaces)]",
        "    return [*map(log_of, reversed(tablespaces)), *others]",
        by_test(_BESIDE, "test_what_rows_and_tasks_of_a_backup_name_is_in_it"),
    ),
    Mutant(
        "one-bookie-tells-where-a-log-ends",
        "an open ledger ends where no ack quorum can have more",
        "engine/ledger/reader.py",
        "        negatives = self._context.quorums(self.metadata).negatives if ack",
        "        negatives = 1 if ack",
        by_test(
            _BESIDE,
            "test_a_backup_fails_where_too_few_bookies_tell_the_end_of_an_open_ledger",
        ),
    ),
    Mutant(
        "backups-of-two-stores-share-a-folder",
        "a folder of backups is of one store",
        "herdbook/archive/manifest.py",
        "            if of and of != cluster_id:",
        "            if False:",
        by_test(_ARCHIVE, "test_a_folder_of_backups_is_of_one_store_and_one_writer"),
    ),
    Mutant(
        "a-quota-forgets-what-is-on-its-way",
        "what is on its way to the log counts against a quota",
        "broker/leading/quotas.py",
        "    tasks = room.tasks + room.taken",
        "    tasks = room.tasks",
        by_test(_QUOTAS, "test_submits_at_the_same_moment_do_not_pass_the_quota_together"),
    ),
    Mutant(
        "a-batch-that-is-one-is-taken-in-part",
        "of an atomic batch nothing is taken if one task has no room",
        "broker/leading/quotas.py",
        "        if as_one:",
        "        if False:",
        by_test(_QUOTAS, "test_of_an_atomic_batch_none_is_taken_where_one_has_no_room"),
    ),
    Mutant(
        "a-shape-shows-values",
        "a line of the log of slow operations holds no value",
        "herd/sql/shape.py",
        "        literal = any(kind in token.token_type.name for kind in _LITERALS)",
        "        literal = False",
        by_test("engine/test_slow.py", "test_a_shape_has_no_value_in_it"),
    ),
    Mutant(
        "slow-operations-flood-the-log",
        "more lines than were asked for are not written",
        "engine/slow.py",
        "        if self._left < 1:",
        "        if False:",
        by_test(
            "engine/test_slow.py",
            "test_more_lines_than_a_second_takes_are_counted_and_told_with_the_next",
        ),
    ),
    Mutant(
        "a-scrub-reads-what-an-empty-ledger-has-not",
        "a ledger that was closed empty lacks nothing",
        "engine/repair/replicas.py",
        "        self._left = [ids] if ids[0] <= ids[1] else []",
        "        self._left = [ids]",
        by_test(
            "engine/repair/test_told.py",
            "test_a_scrub_finds_nothing_wrong_with_a_ledger_that_was_closed_empty",
        ),
    ),
)
