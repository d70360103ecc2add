"""Mutants of the bookie's storage: journal, index, replay, compaction, garbage."""

from typing import Final

from tests.mutants.mutant import Mutant, by_test

_JOURNAL: Final = "engine/bookie/journal.py"
_WRITER: Final = "engine/bookie/segment_writer.py"
_COMPACTION: Final = "engine/bookie/compaction.py"
_GARBAGE: Final = "engine/bookie/garbage.py"
_BEGUN_TESTS: Final = "engine/bookie/test_begun.py"
_SCATTERED_TESTS: Final = "engine/bookie/test_scattered.py"
_DISK_TESTS: Final = "engine/bookie/test_rules_storage.py"
_DAMAGE_TESTS: Final = "engine/bookie/test_service_damage.py"
_COMPACTION_TESTS: Final = "engine/bookie/test_compaction.py"
_GARBAGE_TESTS: Final = "engine/bookie/test_garbage.py"
_RESERVE_TESTS: Final = "engine/bookie/test_reserve.py"
_LOGS_TEST: Final = "test_a_full_disk_takes_entries_of_logs_and_none_of_other_ledgers"

JOURNAL_MUTANTS: Final = (
    Mutant(
        "a-full-disk-refuses-logs",
        "a full disk takes the entries of logs, without which nothing can be deleted",
        "engine/bookie/appending.py",
        "        if not self._gate.full or state.from_reserve:",
        "        if not self._gate.full:",
        by_test(_RESERVE_TESTS, _LOGS_TEST),
    ),
    Mutant(
        "a-full-disk-takes-everything",
        "the reserve of a full disk is for deletions: data of other ledgers is refused",
        "engine/bookie/appending.py",
        "        return None if from_reserve else Status.READ_ONLY",
        "        return None",
        by_test(_RESERVE_TESTS, _LOGS_TEST),
    ),
    Mutant(
        "acknowledged-without-a-sync",
        "NATS 2.12.1, design 4.3: nothing is acknowledged before its sync",
        _WRITER,
        "        self._file.sync()\n        if begun.rolled:",
        "        if begun.rolled:",
        by_test(_DISK_TESTS, "test_an_acknowledged_entry_survives_a_power_loss"),
    ),
    Mutant(
        "a-new-segments-name-is-not-durable",
        "design 4.3: a new segment's folder entry is synced before its first acknowledgement",
        _WRITER,
        "        if begun.rolled:\n            self._disk.sync_folder(FOLDER)\n"
        "        self._syncs_s",
        "        self._syncs_s",
        by_test(_DISK_TESTS, "test_an_acknowledged_entry_survives_a_power_loss"),
    ),
    Mutant(
        "a-failed-sync-is-retried",
        "fsyncgate: a failed sync is never tried again",
        _WRITER,
        "        self._file.sync()\n        if begun.rolled:",
        "        try:\n            self._file.sync()\n        except OSError:\n"
        "            self._file.sync()\n        if begun.rolled:",
        by_test(_DISK_TESTS, "test_a_failed_sync_is_never_tried_again"),
    ),
    Mutant(
        "what-was-begun-is-not-synced",
        "what was begun is synced by the work that follows",
        _WRITER,
        "                self._sync(begun)\n                jobs = jobs[begun.jobs :]",
        "                self._batch, self._offset = begun.number, begun.end\n"
        "                jobs = jobs[begun.jobs :]",
        by_test(
            _BEGUN_TESTS, "test_a_batch_that_was_begun_is_written_once_and_counts_after_its_sync"
        ),
    ),
    Mutant(
        "a-failed-write-is-tried-again",
        "a write that failed when it was begun is not tried again",
        _WRITER,
        "            self._give_back(before)\n        except BaseException as error:\n"
        "            self._failure = error\n",
        "            self._give_back(before)\n        except OSError:\n            pass\n",
        by_test(
            _BEGUN_TESTS,
            "test_a_write_that_fails_when_it_is_begun_is_told_by_the_work_and_not_tried_again",
        ),
    ),
    Mutant(
        "a-full-disk-keeps-what-was-begun",
        "a batch that meets a full disk is cut off",
        _WRITER,
        "            self._give_back(before)\n",
        "            pass\n",
        by_test(
            _BEGUN_TESTS,
            "test_a_batch_that_meets_a_full_disk_when_it_is_begun_is_cut_off_and_refused",
        ),
    ),
    Mutant(
        "what-came-behind-a-begun-batch-is-dropped",
        "a job that came behind a begun batch is written too",
        _WRITER,
        "            jobs = jobs[begun.jobs :]\n",
        "            jobs = []\n",
        by_test(_BEGUN_TESTS, "test_a_job_that_came_behind_a_begun_batch_is_written_too"),
    ),
    Mutant(
        "zeros-ahead-hide-a-torn-batch",
        "the last batch is the one behind which there is nothing but zeros, and is looked at whole",
        "engine/bookie/batches.py",
        "batch_end >= max(written, proven_bytes + 1)",
        "batch_end >= max(end, proven_bytes + 1)",
        by_test("engine/bookie/test_ahead.py", "test_a_last_batch_that_is_torn_amid_zeros_is_cut"),
    ),
    Mutant(
        "a-full-disk-cuts-what-is-to-be-written-again",
        "a batch that is to be written again stays where it is until it is durable elsewhere",
        _WRITER,
        "        elif before.segment and not must_roll:\n",
        "        elif before.segment:\n",
        by_test(
            "engine/bookie/test_start_power.py",
            "test_what_is_to_be_written_again_stays_while_no_segment_can_be_made",
        ),
    ),
    Mutant(
        "zeros-end-any-segment",
        "only behind the newest segment's last batch do zeros say nothing",
        "engine/bookie/scan.py",
        "starts and self._newest and self._is_blank(offset)",
        "starts and self._is_blank(offset)",
        by_test(
            "engine/bookie/test_ahead.py", "test_zeros_at_the_end_of_a_sealed_segment_are_damage"
        ),
    ),
    Mutant(
        "zeros-stay-behind-a-seal",
        "a segment that is sealed or closed ends where its last batch does",
        _WRITER,
        "            self._trim(self._file)\n",
        "            pass\n",
        by_test(
            "engine/bookie/test_ahead.py",
            "test_a_roll_that_cannot_cut_the_zeros_off_goes_back_to_the_very_end",
        ),
    ),
    Mutant(
        "two-write-a-segment-at-once",
        "a batch is written on the loop only while the journal's thread has nothing",
        "engine/ports/system_workers.py",
        "        if self._in_thread or not self._lone_s:\n",
        "        if self._alone < 0 or not self._lone_s:\n",
        by_test(
            "engine/ports/test_system_workers.py",
            "test_what_comes_while_the_thread_works_is_never_worked_beside_it",
        ),
    ),
    Mutant(
        "index-position-runs-ahead",
        "2.6-11 (#3329, #4740): the position covers what the index holds and nothing more",
        "engine/bookie/index_writer.py",
        "            apply_items(self._index, job.items, job.position)\n",
        "            apply_items(self._index, [], job.position)\n"
        "            self._index.flush()\n"
        "            apply_items(self._index, job.items, job.position)\n",
        by_test(_DISK_TESTS, "test_the_indexs_position_never_runs_ahead_of_what_it_holds"),
    ),
    Mutant(
        "an-index-write-follows-a-lost-one",
        "design 4.3: the position covers what the index holds, also after a write that failed",
        "engine/bookie/index_writer.py",
        "        if self._thread_failure is not None:\n",
        "        if self._thread_failure is self._index:\n",
        by_test(
            "engine/bookie/test_index_failure.py",
            "test_what_was_queued_behind_a_failed_index_write_is_not_written",
        ),
    ),
    Mutant(
        "a-full-disk-is-written-to",
        "design 4.3: a full disk makes a bookie read-only, and it comes back by itself",
        "engine/bookie/index_writer.py",
        "            if not self._has_room_on_disk():\n",
        "            if self._index is None:\n",
        by_test(
            "engine/bookie/test_index_failure.py",
            "test_an_index_without_room_on_its_disk_waits_and_comes_back",
        ),
    ),
    Mutant(
        "replay-trusts-an-unproven-tail",
        "design 4.3: a tail that may not be synced is made durable before the bookie serves it",
        "engine/bookie/replay.py",
        "if not batch.proven:",
        "if batch.number < 0:",
        by_test(_DISK_TESTS, "test_bytes_under_a_failed_sync_are_not_trusted_after_a_restart"),
    ),
    Mutant(
        "a-torn-tail-is-damage",
        "#3949: a torn last batch is cut, not feared",
        "engine/bookie/batches.py",
        "if newest and not self._is_intact(at, batch_end):",
        "if newest and batch_end < at:",
        by_test(_DISK_TESTS, "test_a_torn_last_batch_is_cut_and_is_no_damage"),
    ),
    Mutant(
        "damage-is-a-torn-tail",
        "#2908: only the last batch past the last sync may be cut",
        "engine/bookie/batches.py",
        "damaged_before, at = True, following",
        "damaged_before, at = False, following",
        by_test(_DISK_TESTS, "test_an_unreadable_batch_header_makes_negatives_unknown"),
    ),
    Mutant(
        "a-missing-segment-goes-unnoticed",
        "#4740: a journal file that is gone is damage, unless it was dropped on purpose",
        "engine/bookie/replay.py",
        "                self._unreadable |= dropped is None\n",
        "                assert dropped is None or not dropped\n",
        by_test(_DAMAGE_TESTS, "test_a_missing_or_short_segment_is_damage"),
    ),
    Mutant(
        "a-short-segment-goes-unnoticed",
        "design 4.3: a segment's header states its predecessor's sealed length",
        "engine/bookie/replay.py",
        "if following.predecessor_bytes > max(size_bytes, SEGMENT_HEADER_BYTES):",
        "if following.predecessor_bytes < 0:",
        by_test(_DISK_TESTS, "test_a_segment_cut_between_two_batches_is_damage"),
    ),
    Mutant(
        "what-stood-on-a-refused-job-is-written",
        "design 4.3: with a job turned down goes all that was queued behind it",
        _WRITER,
        "self._refused_epoch = max(job.epoch for job in batch)",
        "self._refused_epoch = -1",
        by_test(_DISK_TESTS, "test_what_was_queued_behind_a_refused_append_is_refused_too"),
    ),
    Mutant(
        "a-damaged-table-is-believed",
        "design 4.3: a record's head has a CRC of its own",
        "engine/bookie/segment.py",
        "return head if len(head) == header.head_bytes and _crc(head) == header.head_crc else None",
        "return head if len(head) == header.head_bytes else None",
        by_test(
            "engine/bookie/test_segment.py", "test_a_damaged_table_is_told_from_a_damaged_body"
        ),
    ),
    Mutant(
        "replay-forgets-fences",
        "2.5: fences survive a restart",
        "engine/bookie/replay.py",
        "            self._items.append(Fact(fact_key(FENCE, ledger_id), head))\n",
        "            pass\n",
        by_test(
            "engine/bookie/test_rules_service.py",
            "test_a_fence_survives_a_crash_and_a_clean_restart",
        ),
    ),
    Mutant(
        "headers-of-any-place-pass",
        "design 4.3: a header's CRC covers its segment and offset",
        "engine/bookie/segment.py",
        "if _extend(seed, _pack_offset(offset) + fields) != _CRC.unpack_from(data, at)[0]:",
        "if len(fields) < 0:",
        by_test(_DISK_TESTS, "test_an_unreadable_header_makes_negatives_unknown"),
    ),
    Mutant(
        "joined-records-are-believed",
        "design 4.3: a record is served only from its own place, whatever is read beside it",
        "engine/bookie/segment.py",
        "if crc != _extend(seed, _pack_offset(offset) + fields) or version > RECORD_VERSION:",
        "if version > RECORD_VERSION:",
        by_test(
            _SCATTERED_TESTS, "test_the_first_damaged_one_is_unknown_and_those_before_it_are_read"
        ),
    ),
    Mutant(
        "a-cut-place-gives-its-whole-record",
        "design 4.3: a ledger's index is a set of disjoint id ranges, and only those are read",
        "engine/bookie/segment.py",
        "if kind != _RUN or ledger != ledger_id or at != following or at + count - 1 != last:",
        "if kind != _RUN or ledger != ledger_id or at != following:",
        by_test(
            _SCATTERED_TESTS,
            "test_a_record_of_which_a_part_was_written_again_gives_only_what_is_still_its_own",
        ),
    ),
    Mutant(
        "the-window-hides-a-gap",
        "design 4.3: a negative is true of all that is durable",
        "engine/bookie/storage.py",
        "            places = [place for place in places if place.first <= older[-1].last]\n",
        "            pass\n",
        by_test(
            _SCATTERED_TESTS,
            "test_what_is_not_in_the_index_yet_makes_no_gap_before_it_missing",
        ),
    ),
    Mutant(
        "joined-runs-cross-stripes",
        "design 4.2-1: runs never cross a stripe",
        "engine/bookie/reading.py",
        "end = min(last, stripe_end, following + RUN_ENTRIES_MAX - 1)",
        "end = min(last, following + RUN_ENTRIES_MAX - 1)",
        by_test(_SCATTERED_TESTS, "test_no_joined_run_crosses_a_stripe"),
    ),
    Mutant(
        "a-mark-seals-off-what-was-not-written-again",
        "design 4.3: only what was never acknowledged may be cut",
        _WRITER,
        "if not size_bytes and (self._must_roll or not any(job.mark for job in batch)):",
        "if not size_bytes and not any(job.mark for job in batch):",
        by_test(
            "engine/bookie/test_start_power.py",
            "test_what_could_not_be_written_again_on_a_full_disk_is_not_sealed_off",
        ),
    ),
    Mutant(
        "the-start-of-a-segment-is-claimed",
        "design 4.3: the index's position covers only what is on the disk",
        "engine/bookie/index_writer.py",
        "if position.offset > SEGMENT_HEADER_BYTES:",
        "if position.offset >= 0:",
        by_test(
            "engine/bookie/test_index_failure.py",
            "test_an_index_claims_nothing_of_a_segment_whose_header_may_be_on_no_disk",
        ),
    ),
    Mutant(
        "a-row-of-places-hides-what-is-between",
        "design 4.3: a ledger's index is a set of disjoint id ranges",
        "engine/bookie/index_rocks.py",
        "held[end].first == held[end - 1].last + 1",
        "held[end].ledger_id == held[end - 1].ledger_id",
        by_test(
            "engine/bookie/test_index.py",
            "TestRocksIndex::test_places_with_ids_left_out_between_them_keep_the_gap_open",
        ),
    ),
)

UPKEEP_MUTANTS: Final = (
    Mutant(
        "upkeep-ends-at-a-defect",
        "#4596: a collection that has died in silence gives nothing back",
        "engine/bookie/upkeep.py",
        '        except Exception as error:\n            self._tell("garbage collection", error)\n',
        '        except OSError as error:\n            self._tell("garbage collection", error)\n',
        by_test(
            "engine/bookie/test_upkeep.py",
            "test_upkeep_goes_on_after_an_error_that_nobody_thought_of",
        ),
    ),
    Mutant(
        "segment-goes-before-the-index-is-durable",
        "2.6-14 (#1534): a segment is removed only when the index is durable past its moves",
        _COMPACTION,
        "        await self._yard.checkpoint()\n"
        "        await self._in_thread(lambda: _remove(self._yard.disk, segment))\n",
        "        await self._in_thread(lambda: _remove(self._yard.disk, segment))\n",
        by_test(
            _COMPACTION_TESTS,
            "test_a_segment_is_removed_only_after_the_index_is_durable_past_its_moves",
        ),
    ),
    Mutant(
        "a-move-wins-over-what-is-newer",
        "design 4.3: a MOVE counts only if the index still points at the old place",
        "engine/bookie/indexing.py",
        "if origin is not None and (old.segment, old.offset) != origin:",
        "if origin is not None and old.segment < -9:",
        by_test(_DISK_TESTS, "test_a_move_takes_only_what_still_lies_at_its_origin"),
    ),
    Mutant(
        "corrupt-bytes-are-copied",
        "design 4.3: bytes that do not match their digests are never copied",
        _COMPACTION,
        "if not pieces or first_flaw(found) is not None:",
        "if not pieces:",
        by_test(
            _COMPACTION_TESTS, "test_bytes_that_are_corrupt_are_not_copied_and_their_segment_stays"
        ),
    ),
    Mutant(
        "a-segment-still-pointed-at-goes",
        "2.6-13 (#4607): a segment that the index points at is never removed",
        _COMPACTION,
        "if copier.unreadable or await self._in_thread(copier.is_pointed_at):",
        "if copier.unreadable:",
        by_test(
            _COMPACTION_TESTS, "test_bytes_that_are_corrupt_are_not_copied_and_their_segment_stays"
        ),
    ),
    Mutant(
        "a-fence-goes-with-its-segment",
        "design 4.3: live fences and tombstones are copied, too",
        _COMPACTION,
        "elif header.kind in (Kind.FACTS, Kind.FENCE):",
        "elif header.kind == Kind.FACTS:",
        by_test(
            _COMPACTION_TESTS, "test_what_was_moved_is_found_after_a_restart_and_without_an_index"
        ),
    ),
    Mutant(
        "one-denial-buries-a-ledger",
        "2.6-13 (#870): a ledger goes after two positive denials an interval apart",
        _GARBAGE,
        "return (now_s - since_s) * 1000 >= self._settings.interval_ms",
        "return (now_s - since_s) * 1000 >= 0",
        by_test(_GARBAGE_TESTS, "test_a_ledger_goes_after_two_denials_an_interval_apart"),
    ),
    Mutant(
        "another-clusters-store-buries",
        "design 4.3: only the right cluster's store is asked",
        _GARBAGE,
        "if self._store.cluster_id != self._holdings.cluster_id:",
        "if not self._store.cluster_id:",
        by_test(_GARBAGE_TESTS, "test_another_clusters_store_forgets_nothing"),
    ),
    Mutant(
        "everything-goes-unasked",
        "design 4.3: above a fifth of all ledgers at once it stops and asks",
        _GARBAGE,
        "too_many = bool(doomed) and",
        "too_many = not doomed and",
        by_test(_GARBAGE_TESTS, "test_above_a_fifth_of_all_ledgers_it_stops_and_asks"),
    ),
    Mutant(
        "a-write-no-longer-remembered-is-old",
        "design 4.3: none for a ledger written in the last hour, remembered or not",
        "engine/bookie/ledger_state.py",
        "self._forgotten_written_s = max(self._forgotten_written_s, forgotten_s)",
        "assert forgotten_s",
        by_test(
            "engine/bookie/test_quiet_ledgers.py",
            "test_a_ledger_just_written_is_known_as_such_after_it_left_the_memory",
        ),
    ),
    Mutant(
        "a-confirmation-is-for-everything",
        "design 4.3: it stops and asks, and what was asked for may go, no more",
        _GARBAGE,
        "await self._bury(doomed[:confirmed] if too_many else doomed)",
        "await self._bury(doomed if confirmed or not too_many else [])",
        by_test(_GARBAGE_TESTS, "test_no_more_ledgers_go_than_were_confirmed"),
    ),
    Mutant(
        "a-ledger-just-written-goes",
        "design 4.3: none for a ledger written in the last hour",
        _GARBAGE,
        "return age_s * 1000 >= self._settings.quiet_ms",
        "return age_s * 1000 >= 0",
        by_test(_GARBAGE_TESTS, "test_a_ledger_written_in_the_last_hour_is_not_asked_about"),
    ),
)
