"""Mutants of backups of whole stores: of the folder, of the cut, of what is made of them again."""

from typing import Final

from tests.mutants.mutant import Mutant, by_test

_ARCHIVE: Final = "herdbook/test_archive.py"
_BESIDE: Final = "herdbook/test_archive_beside.py"
_CUT: Final = "herdbook/test_archive_cut.py"
_MOMENT: Final = "herdbook/test_archive_moment.py"
_RESTORING: Final = "herdbook/test_archive_restoring.py"
_FOLDER: Final = "herdbook/test_archive_folder.py"
_KILLED_RESTORE: Final = "test_a_restoration_that_was_killed_shows_nothing_and_the_next_one_goes_on"
_SPOILT: Final = "test_a_byte_that_changed_is_found_and_nothing_is_made_of_such_a_backup"

ARCHIVE_MUTANTS: Final = (
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
        "        if not found.of_same_backup(wanted):",
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
        "        next_id=await workshop.ledgers.new_id(),",
        "        next_id=1,",
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
        "a-manifest-comes-before-the-names-of-its-files",
        "a manifest is written when all that it names is durable",
        "herdbook/archive/manifest.py",
        "        sync_folder(self.path / _LEDGERS)\n",
        "",
        by_test(_FOLDER, "test_a_backup_has_its_manifest_when_its_files_have_their_names_for_ever"),
    ),
    Mutant(
        "a-backup-is-finished-before-its-manifest-is",
        "a backup is unfinished until its manifest is durable",
        "herdbook/archive/manifest.py",
        "        sync_folder(self.path)\n        (self.path / UNFINISHED).unlink()\n",
        "        (self.path / UNFINISHED).unlink()\n        sync_folder(self.path)\n",
        by_test(_FOLDER, "test_a_backup_is_unfinished_until_its_manifest_is_there_for_ever"),
    ),
    Mutant(
        "a-file-has-its-name-before-its-bytes",
        "a file is known by its name only when all of it is durable",
        "herdbook/archive/framing.py",
        "                os.fsync(self._file.fileno())",
        "                pass",
        by_test(_FOLDER, "test_a_file_has_its_name_when_its_bytes_are_there_for_ever"),
    ),
    Mutant(
        "old-backups-go-though-a-kept-one-cannot-be-read",
        "nothing is removed where a backup that is kept cannot be read",
        "herdbook/archive/manifest.py",
        "        if unreadable:\n            return unreadable",
        "        if False:\n            return unreadable",
        by_test(_FOLDER, "test_nothing_is_removed_where_a_backup_that_is_kept_cannot_be_read"),
    ),
    Mutant(
        "files-go-before-what-named-them",
        "a manifest has gone for ever before what it names goes",
        "herdbook/archive/manifest.py",
        "        # No manifest comes back after a power cut that names files which have gone.\n"
        "        sync_folder(self.path)\n",
        "",
        by_test(_FOLDER, "test_files_go_when_the_manifests_that_named_them_have_gone_for_ever"),
    ),
    Mutant(
        "files-of-kept-backups-go",
        "what a backup that is kept names stays",
        "herdbook/archive/manifest.py",
        "        for number in numbers[-keep:]:",
        "        for number in numbers[-1:]:",
        by_test(_FOLDER, "test_what_no_backup_that_is_kept_names_goes_with_the_old_ones"),
    ),
    Mutant(
        "a-manifest-s-end-counts-nothing",
        "a manifest names as many ledgers as it says",
        "herdbook/archive/manifest.py",
        "            elif kind != END or msgspec.msgpack.decode(blob) != len(ledgers):",
        "            elif kind != END:",
        by_test(_FOLDER, "test_a_manifest_that_names_fewer_ledgers_than_it_says_is_damaged"),
    ),
    Mutant(
        "a-file-of-another-ledger-is-taken",
        "a file is of the ledger that its name says",
        "herdbook/archive/ledger_file.py",
        "            if blob != _ID.pack(ledger_id):",
        "            if False:",
        by_test(_FOLDER, "test_a_file_of_another_ledger_or_of_fewer_entries_is_no_whole_one"),
    ),
    Mutant(
        "a-file-s-end-is-not-compared",
        "a ledger's file has all entries that the manifest tells of",
        "herdbook/archive/ledger_file.py",
        "(seen, seen_bytes) or (seen, seen_bytes) != wanted:",
        "(seen, seen_bytes):",
        by_test(_FOLDER, "test_a_file_of_another_ledger_or_of_fewer_entries_is_no_whole_one"),
    ),
    Mutant(
        "a-block-may-be-told-twice",
        "entries in a file have no gap and stand once",
        "herdbook/archive/ledger_file.py",
        "    if found != first or count == 0",
        "    if count == 0",
        by_test(_FOLDER, "test_a_block_that_is_told_twice_is_found"),
    ),
    Mutant(
        "a-backup-lies-in-its-store",
        "a store and its backups lie in folders apart",
        "herdbook/archive/backup.py",
        "    if isinstance(client, Engine):",
        "    if False:",
        by_test(
            _FOLDER, "test_a_store_is_not_backed_up_into_its_own_folder_nor_into_one_around_it"
        ),
    ),
    Mutant(
        "a-store-lies-in-its-backup",
        "a restored store and the backups lie in folders apart",
        "herdbook/archive/restore.py",
        "    check_apart(backup, target)\n",
        "",
        by_test(_FOLDER, "test_a_backup_is_not_restored_into_its_own_folder"),
    ),
    Mutant(
        "a-link-hides-where-a-backup-lies",
        "folders are compared behind all links",
        "herdbook/archive/apart.py",
        "Path(os.path.realpath(backups)), Path(os.path.realpath(store))",
        "backups, store",
        by_test(
            _FOLDER, "test_a_store_is_not_backed_up_into_its_own_folder_nor_into_one_around_it"
        ),
    ),
    Mutant(
        "a-restoration-trusts-a-manifest-s-next-id",
        "a new store's ids are above those of all ledgers that are restored",
        "herdbook/archive/restore.py",
        "    return max([manifest.next_id, *(kept.ledger_id + 1 for kept in manifest.ledgers)])",
        "    return manifest.next_id",
        by_test(
            _BESIDE, "test_a_manifest_that_drew_its_next_id_at_the_cut_does_not_give_ids_again"
        ),
    ),
    Mutant(
        "names-come-before-ledgers",
        "nothing is named before all ledgers are there",
        "herdbook/archive/restore.py",
        "    await _raise_ids(workshop, _next_id(manifest))\n",
        "    await _raise_ids(workshop, _next_id(manifest))\n"
        "    for key, value in _in_order(manifest, replicas):\n"
        "        await _name(client.store, key, value)\n",
        by_test(_CUT, "test_names_come_last_and_tablespaces_behind_their_logs"),
    ),
    Mutant(
        "tablespaces-come-before-their-logs",
        "a tablespace is named when its log is",
        "herdbook/archive/restore.py",
        "    facts = {key for key in manifest.keys if _is_fact(key)}",
        "    facts = {key for key in manifest.keys if not _is_fact(key)}",
        by_test(_CUT, "test_names_come_last_and_tablespaces_behind_their_logs"),
    ),
    Mutant(
        "a-restored-ledger-has-its-old-copies-alone",
        "a restored ledger has as many copies as the new store gives its own",
        "herdbook/archive/writing_back.py",
        "    write = min(max(kept.write_quorum, settings.write_quorum), ensemble)",
        "    write = min(kept.write_quorum, ensemble)",
        by_test(_CUT, "test_a_restored_ledger_has_as_many_copies_as_the_new_store_gives_its_own"),
    ),
    Mutant(
        "a-cut-misses-a-tablespace",
        "two reads are equal only if the tablespaces are equal",
        "herdbook/archive/cut.py",
        "        if before.keys.get(key) != cut.keys.get(key)\n",
        "        if False\n",
        by_test(_CUT, "test_a_tablespace_that_comes_while_the_others_end_begins_another_cut"),
    ),
    Mutant(
        "a-log-s-snapshot-is-read-before-its-list",
        "a log that is truncated during a backup does not end the backup",
        "herdbook/archive/cut.py",
        """    found = await store.get(f"{name}/{_LIST}")
    snapshot = await store.get(f"{name}/{_SNAPSHOT}")
""",
        """    snapshot = await store.get(f"{name}/{_SNAPSHOT}")
    found = await store.get(f"{name}/{_LIST}")
""",
        by_test(_CUT, "test_a_log_that_is_truncated_while_it_is_looked_at_begins_another_look"),
    ),
    Mutant(
        "a-cut-is-kept-though-its-log-went",
        "all ledgers of a cut's logs are there when they are copied",
        "herdbook/archive/backup.py",
        "    if len(logs) != len(cut.logs):",
        "    if False:",
        by_test(_CUT, "test_a_log_whose_first_entries_went_since_the_cut_begins_another_cut"),
    ),
    Mutant(
        "a-cut-names-checkpoints-that-went",
        "the checkpoints of a cut are kept when its ledgers are looked at",
        "herdbook/archive/backup.py",
        "                await check_checkpoints(self._workshop.store, cut)\n",
        "",
        by_test(_BESIDE, "test_a_checkpoint_that_is_dropped_while_the_cut_is_taken_is_not_named"),
    ),
    Mutant(
        "staged-rows-are-backed-up",
        "rows on their way into a table are of no backup",
        "herdbook/archive/backup.py",
        "    there = [one for one in found if not _staged(one)]",
        "    there = list(found)",
        by_test(_CUT, "test_rows_on_their_way_into_a_table_are_not_backed_up"),
    ),
    Mutant(
        "what-cannot-be-looked-at-is-left-out",
        "a ledger whose metadata cannot be read ends a backup",
        "herdbook/archive/backup.py",
        "    if workshop.unreadable:",
        "    if False:",
        by_test(_CUT, "test_a_ledger_whose_metadata_cannot_be_read_ends_a_backup_by_its_name"),
    ),
    Mutant(
        "an-end-is-what-was-announced",
        "what was acknowledged is in a log's end, announced or not",
        "herdbook/archive/cut.py",
        "            last = entry.entry_id\n",
        "            pass\n",
        by_test(_BESIDE, "test_an_open_ledger_s_entries_that_nobody_has_announced_are_in_a_backup"),
    ),
    Mutant(
        "an-open-ledger-s-rest-is-left-out",
        "an open ledger is copied as far as it was acknowledged",
        "herdbook/archive/backup.py",
        "    if done == last or reader.closed:",
        "    if True:",
        by_test(_BESIDE, "test_an_open_ledger_s_entries_that_nobody_has_announced_are_in_a_backup"),
    ),
    Mutant(
        "a-copy-ends-where-its-ledger-was-then",
        "a ledger that is closed while it is copied is copied to its end",
        "herdbook/archive/backup.py",
        "    while done < (known :=",
        "    if done < (known :=",
        by_test(_BESIDE, "test_a_ledger_that_is_closed_while_it_is_copied_is_copied_to_its_end"),
    ),
    Mutant(
        "a-lost-entry-is-a-ledger-that-went",
        "an entry that is lost ends a backup by its ledger's name",
        "herdbook/archive/backup.py",
        "            raise CannotRead(str(error)) from error",
        "            raise Moved from None",
        by_test(_BESIDE, "test_an_entry_that_no_bookie_holds_ends_a_backup_by_its_ledger_s_name"),
    ),
    Mutant(
        "a-backup-goes-after-a-writer",
        "an end is found beside a writer that never pauses",
        "herdbook/archive/cut.py",
        "    return wanted\n",
        "    return ENTRY_ID_MAX\n",
        by_test(_BESIDE, "test_a_writer_that_never_pauses_is_not_followed_for_ever"),
    ),
    Mutant(
        "a-lost-log-is-left-out",
        "a backup is of all logs, or fails",
        "herdbook/archive/cut.py",
        "    for name in sorted(await lost_logs(workshop.store)):",
        "    for name in list[str]():",
        by_test(_CUT, "test_a_log_whose_list_was_lost_ends_a_backup_by_its_name"),
    ),
    Mutant(
        "a-restored-folder-has-a-name-for-now",
        "a restored folder has its name for ever when that is told",
        "herdbook/archive/restore.py",
        "    sync_folder(target.parent)\n",
        "",
        by_test(_FOLDER, "test_a_restored_folder_is_told_of_when_its_name_is_there_for_ever"),
    ),
    Mutant(
        "a-folder-forgets-its-backup-before-it-has-its-name",
        "what was cut short is gone on with until a folder has its name",
        "herdbook/archive/restore.py",
        "        await _name(client.store, key, value)\n    return Restored(\n",
        "        await _name(client.store, key, value)\n"
        "    await client.store.delete(MARK)\n"
        "    return Restored(\n",
        by_test(
            _FOLDER, "test_a_restoration_that_ends_before_the_folder_has_its_name_is_gone_on_with"
        ),
    ),
    Mutant(
        "a-new-folder-of-backups-is-there-for-now",
        "a new folder of backups is durable before anything is in it",
        "herdbook/archive/manifest.py",
        "            sync_folder(each.parent)\n",
        "            pass\n",
        by_test(_FOLDER, "test_a_new_folder_of_backups_is_there_for_ever_before_anything_is_in_it"),
    ),
    Mutant(
        "a-ledger-that-is-being-restored-is-recovered",
        "nobody recovers a ledger that is being restored",
        "engine/ledger/recovery.py",
        "    check_not_restoring(current)\n    if current.state",
        "    if current.state",
        by_test(_RESTORING, "test_nobody_opens_or_recovers_a_ledger_that_is_being_restored"),
    ),
    Mutant(
        "a-ledger-that-is-being-restored-is-read",
        "nobody reads a ledger that is being restored",
        "engine/ledger/reader.py",
        "        check_not_restoring(held.metadata)\n",
        "",
        by_test(_RESTORING, "test_nobody_opens_or_recovers_a_ledger_that_is_being_restored"),
    ),
    Mutant(
        "a-restored-ledger-ends-anywhere",
        "a restored ledger's end is compared with the backup's",
        "herdbook/archive/writing_back.py",
        "    if not found.closed or (found.last_entry, found.length) != (kept.last, kept.length):",
        "    if not found.closed:",
        by_test(
            _RESTORING, "test_a_restore_fails_if_a_ledger_does_not_end_where_it_does_in_the_backup"
        ),
    ),
    Mutant(
        "a-restoration-does-not-compare-all-ends",
        "all ends are compared before anything is named",
        "herdbook/archive/restore.py",
        "    await _compare_all(workshop, manifest)\n",
        "",
        by_test(
            _RESTORING,
            "test_a_restore_fails_if_a_ledger_is_truncated_while_others_are_restored",
        ),
    ),
    Mutant(
        "earlier-programs-read-what-is-being-restored",
        "an earlier program leaves a ledger that is being restored alone",
        "engine/metadata/ledgers.py",
        "        length=length,\n        format_major=FORMAT_MAJOR,\n    )",
        "        length=length,\n        format_major=FIRST_MAJOR,\n    )",
        by_test(_RESTORING, "test_an_earlier_program_leaves_a_ledger_that_is_being_restored_alone"),
    ),
    Mutant(
        "an-earlier-try-stays-in-recovery",
        "a restore attempt of an earlier program is no longer recovered",
        "herdbook/archive/writing_back.py",
        "        return restoring_at(current, kept.last, kept.length)\n",
        "        return None\n",
        by_test(
            _RESTORING,
            "test_an_earlier_programs_restore_is_continued_and_no_longer_recovered",
        ),
    ),
    Mutant(
        "a-log-is-led-in-a-store-that-is-being-restored",
        "nobody leads a log in a store that is being restored",
        "engine/log/log.py",
        "        await check_not_under_way(self._client.store)\n",
        "",
        by_test(
            _RESTORING, "test_a_restore_interrupted_at_any_step_can_be_continued_and_completes"
        ),
    ),
    Mutant(
        "a-sweeper-takes-restored-ledgers",
        "nobody sweeps ledgers in a store that is being restored",
        "engine/log/sweeping.py",
        "    if await restoration_under_way(client.store):\n",
        "    if False:\n",
        by_test(
            _RESTORING, "test_a_restore_interrupted_at_any_step_can_be_continued_and_completes"
        ),
    ),
    Mutant(
        "a-tablespace-is-made-in-a-store-that-is-being-restored",
        "nobody makes a tablespace in a store that is being restored",
        "herd/nodes/directory.py",
        "        await check_not_under_way(self.store)\n",
        "",
        by_test(
            _RESTORING, "test_a_restore_interrupted_at_any_step_can_be_continued_and_completes"
        ),
    ),
    Mutant(
        "a-store-that-is-being-restored-is-backed-up",
        "a store that is being restored is not backed up",
        "herdbook/archive/backup.py",
        "    await check_not_under_way(client.store)\n",
        "",
        by_test(_RESTORING, "test_a_store_that_is_being_restored_is_not_backed_up"),
    ),
    Mutant(
        "two-looks-need-not-be-alike",
        "all logs of a cut end at one moment",
        "herdbook/archive/cut.py",
        "                if not self.moved:\n",
        "                if True:\n",
        by_test(_MOMENT, "test_a_move_between_two_logs_during_a_read_starts_another_read"),
    ),
    Mutant(
        "a-backup-fails-while-another-one-holds-the-logs",
        "a backup rests on two equal reads, not on the hold",
        "herdbook/archive/cut.py",
        "Nothing rests on a hold.\n            return await self._two_alike(hold_s)\n",
        "Nothing rests on a hold.\n            return None\n",
        by_test(
            _MOMENT,
            "test_a_hold_of_another_backup_does_not_keep_a_quiet_store_from_being_backed_up",
        ),
    ),
    Mutant(
        "one-look-is-a-cut",
        "all logs of a cut end at one moment",
        "herdbook/archive/cut.py",
        "            if cut is not None and before is not None:\n",
        "            before = before or cut\n            if cut is not None:\n",
        by_test(
            _MOMENT, "test_a_task_that_runs_while_a_backup_looks_neither_runs_again_nor_is_lost"
        ),
    ),
    Mutant(
        "ends-are-not-compared",
        "two reads are equal only if all ends are equal",
        "herdbook/archive/cut.py",
        "    moved = keys + [\n",
        "    moved = keys\n    _ = [\n",
        by_test(_MOMENT, "test_a_move_between_two_logs_during_a_read_starts_another_read"),
    ),
    Mutant(
        "a-cut-has-the-logs-of-before",
        "a log that begins before the moment is in the cut",
        "herdbook/archive/cut.py",
        "        if cut is not None and not await cutting.learn_logs():\n",
        "        if cut is not None:\n",
        by_test(_MOMENT, "test_a_log_that_begins_while_the_cut_is_taken_is_in_it"),
    ),
    Mutant(
        "ledgers-are-listed-while-the-logs-are-held",
        "what takes long in a store of many ledgers is done while nobody waits",
        "herdbook/archive/cut.py",
        "        keys = await _spaces(store)\n",
        "        keys = await _spaces(store)\n        await self.learn_logs()\n",
        by_test(_MOMENT, "test_ledgers_are_not_listed_while_the_logs_are_held"),
    ),
    Mutant(
        "garbage-is-collected-while-a-store-is-filled",
        "nothing is collected while the store is being filled",
        "engine/bookie/garbage.py",
        "        await check_not_under_way(self._store)\n",
        "",
        by_test(
            "engine/bookie/test_garbage.py",
            "test_nothing_is_collected_while_the_store_is_being_filled",
        ),
    ),
    Mutant(
        "a-restore-that-fails-leaves-files-open",
        "a restore closes each file that it reads, on every path",
        "herdbook/archive/restore.py",
        "            async with aclosing(_batches(workers, folder, kept)) as batches:\n",
        "            if batches := _batches(workers, folder, kept):\n",
        by_test(
            "herdbook/test_archive_restoring.py",
            "test_a_restore_that_fails_closes_the_files_that_it_reads",
        ),
    ),
    Mutant(
        "a-cancelled-restore-leaves-a-file-open",
        "a file that a thread reads is closed when the thread has read",
        "herdbook/archive/restore.py",
        "            reading.add_done_callback(has_read)\n",
        "            _KEPT.append(blocks)\n\n\n_KEPT: list[object] = []\n",
        by_test(
            "herdbook/test_archive_restoring.py",
            "test_a_restore_cancelled_while_a_thread_reads_closes_the_file_afterwards",
        ),
    ),
    Mutant(
        "a-rebuild-drops-the-mark-of-a-restore",
        "a rebuild puts back the mark that it finds",
        "engine/metadata/restoring.py",
        "    if before:\n",
        "    if not wanted:\n",
        by_test(
            "engine/bookie/test_rebuild.py",
            "test_a_rebuild_keeps_the_mark_of_a_restore_by_an_earlier_program",
        ),
    ),
    Mutant(
        "a-part-of-the-metadata-looks-whole",
        "an interrupted rebuild is marked",
        "engine/metadata/restoring.py",
        "    await mark_restoration(store, wanted)\n    yield\n",
        "    yield\n",
        by_test(
            "engine/bookie/test_rebuild.py",
            "test_an_interrupted_rebuild_is_marked_and_can_be_continued",
        ),
    ),
)
