"""Mutants of replicas: what is applied, what a leader answers, what a snapshot is worth."""

from typing import Final

from tests.mutants.mutant import Mutant, by_test

_APPLIER: Final = "engine/replica/applier.py"
_FOLLOWING: Final = "engine/replica/following.py"
_READING: Final = "engine/replica/reading.py"
_CONFIRMED: Final = "engine/replica/confirmed_reads.py"
_CONFIRMED_TESTS: Final = "engine/replica/test_confirmed_reads.py"
_LEADING: Final = "engine/replica/leading.py"
_REPLICA: Final = "engine/replica/replica.py"
_SESSIONS: Final = "engine/replica/sessions.py"
_SNAPSHOTS: Final = "engine/replica/snapshots.py"
_APPLIER_TESTS: Final = "engine/replica/test_applier.py"
_LEADERSHIP_TESTS: Final = "engine/replica/test_leadership.py"
_REPLICA_TESTS: Final = "engine/replica/test_replica.py"
_SNAPSHOT_TESTS: Final = "engine/replica/test_snapshots.py"
_TROUBLE_TESTS: Final = "engine/replica/test_trouble.py"
_SESSION_TESTS: Final = "engine/replica/test_sessions.py"
_MACHINE_TESTS: Final = "engine/replica/test_machines.py"

REPLICA_MUTANTS: Final = (
    Mutant(
        "a-cancelled-request-to-give-way-stays",
        "a leader accepts proposals again if the request to step down is cancelled",
        "engine/replica/leading.py",
        "            self._draining = False\n            raise\n",
        "            raise\n",
        by_test(
            "engine/replica/test_giving_way.py",
            "test_a_leader_accepts_proposals_again_if_the_request_to_step_down_is_cancelled",
        ),
    ),
    Mutant(
        "a-gap-in-the-log-is-passed-over",
        "defect 2 of HerdDB: a follower checks that entries follow each other",
        _APPLIER,
        "            follows = span.ledger > cursor.ledger and span.first == 0",
        "            follows = span.ledger > cursor.ledger",
        by_test(_APPLIER_TESTS, "test_entries_that_do_not_follow_stop_the_replica"),
    ),
    Mutant(
        "the-position-passes-an-open-command",
        "design 4.4: the stored position never passes the first part of an open batch",
        _APPLIER,
        "            position, self._committable = self._committable, None",
        "            position, self._committable = self.cursor, None",
        by_test(_APPLIER_TESTS, "test_the_position_never_passes_the_first_part_of_an_open_command"),
    ),
    Mutant(
        "parts-outlive-their-leader",
        "design 4.4: parts without a commit die at an epoch change",
        _APPLIER,
        "        parts, self._parts = self._parts, []",
        "        parts, self._parts = self._parts, self._parts if kind == kinds.TERM else []",
        by_test(_APPLIER_TESTS, "test_parts_without_an_end_die_when_a_term_begins"),
    ),
    Mutant(
        "hashes-are-not-compared",
        "design 4.4: a replica whose state hash differs stops",
        _APPLIER,
        "        if own is not None and own != told.value:",
        "        if own is not None and own < 0:",
        by_test(_APPLIER_TESTS, "test_a_replica_whose_state_is_another_stops_at_the_next_hash"),
    ),
    Mutant(
        "the-hash-knows-the-batches",
        "the hash depends on the entries alone, not on how they came",
        _APPLIER,
        "        if effects:\n            self.summary.hash",
        "        effects.append(b'.')\n        if effects:\n            self.summary.hash",
        by_test(_APPLIER_TESTS, "test_the_hash_depends_on_the_entries_and_not_on_the_batches"),
    ),
    Mutant(
        "what-a-failed-machine-did-is-committed",
        "a commit holds whole entries; after a failure nothing is committed",
        _APPLIER,
        "        except Exception as error:\n            self.failed = True\n",
        "        except Exception as error:\n            self.failed = True\n"
        "            self.cursor = position\n            self._commit()\n",
        by_test(
            _APPLIER_TESTS, "test_a_machine_that_fails_stops_the_replica_with_nothing_committed"
        ),
    ),
    Mutant(
        "unknown-commands-are-tried",
        "design 4.4: new kinds of command wait for a level that every replica knows",
        _APPLIER,
        "        if level > self._machine.level:",
        "        if level > 255:",
        by_test(_APPLIER_TESTS, "test_a_command_of_an_unknown_level_stops_the_replica"),
    ),
    Mutant(
        "a-retry-is-done-again",
        "design 4.4: a retry after an unknown outcome is answered, not applied again",
        _SESSIONS,
        "    if known is not None:",
        "    if known == b'':",
        by_test(_SESSION_TESTS, "test_a_repeated_request_is_answered_and_not_done_again"),
    ),
    Mutant(
        "a-late-repeat-is-done-again",
        "RIFL: what is under the floor was answered, so it is refused",
        _SESSIONS,
        "    if request.sequence < session.floor or session.results >= RESULTS_MAX:",
        "    if session.results >= RESULTS_MAX:",
        by_test(
            _SESSION_TESTS,
            "test_what_was_answered_for_certain_is_dropped_and_a_late_repeat_is_refused",
        ),
    ),
    Mutant(
        "a-leader-may-answer-without-its-lease",
        "a leader grants anything only while its lease holds",
        _READING,
        "            and leading.holding.holds()\n",
        "",
        by_test(_LEADERSHIP_TESTS, "test_only_a_leader_whose_lease_holds_may_answer"),
    ),
    Mutant(
        "an-idle-leader-does-not-ask-the-log",
        "a leader that lost only the metadata store ends its term in bounded time",
        _REPLICA,
        "            duties.append(asyncio.create_task(leading.ask_the_log()))\n",
        "",
        by_test(
            _LEADERSHIP_TESTS,
            "test_an_idle_leader_that_lost_the_store_alone_ends_its_term_when_another_leads",
        ),
    ),
    Mutant(
        "a-term-goes-on-in-a-ledger-that-was-taken-over",
        "a ledger that is fenced after the lease has expired was taken over by the successor",
        _LEADING,
        "            if self.writer.fenced:",
        "            if self.writer.fenced and self.holding.holds():",
        by_test(
            _LEADERSHIP_TESTS,
            "test_an_idle_leader_that_lost_the_store_alone_ends_its_term_when_another_leads",
        ),
    ),
    Mutant(
        "a-term-ends-with-its-lease",
        "writes continue while the metadata store is unavailable",
        _LEADING,
        "            if self.writer.fenced:",
        "            if self.writer.fenced or not self.holding.holds():",
        by_test(
            _LEADERSHIP_TESTS,
            "test_writes_continue_in_the_same_term_while_nobody_reaches_the_store",
        ),
    ),
    Mutant(
        "reads-without-a-lease",
        "a leader without a lease answers a read only if the log confirms it",
        _CONFIRMED,
        "            if term.taken_batch < batch:\n",
        "            if False:\n",
        by_test(
            _CONFIRMED_TESTS,
            "test_a_deposed_leader_answers_no_read_though_it_has_lost_only_the_store",
        ),
    ),
    Mutant(
        "an-entry-sent-before-the-read-confirms-it",
        "only an entry that is sent after a read confirms it",
        _CONFIRMED,
        "            self._read[term] = term.next_batch\n",
        "            self._read[term] = term.next_batch - 1\n",
        by_test(_CONFIRMED_TESTS, "test_a_read_waits_for_an_entry_that_is_sent_after_it"),
    ),
    Mutant(
        "a-confirmation-shares-an-entry-that-is-under-way",
        "only an entry that is sent after a read confirms it",
        _LEADING,
        "        self._confirmation = None\n        bodies",
        "        bodies",
        by_test(_CONFIRMED_TESTS, "test_two_reads_one_after_the_other_take_two_entries"),
    ),
    Mutant(
        "a-task-reads-on-after-its-block",
        "what was started in a block reads nothing without a lease after its end",
        _CONFIRMED,
        "        self._ended = True\n        assert",
        "        assert",
        by_test(
            _CONFIRMED_TESTS, "test_a_task_that_outlives_its_block_reads_nothing_without_a_lease"
        ),
    ),
    Mutant(
        "a-cancelled-call-waits-for-the-log",
        "a cancelled call ends at once, and as cancelled",
        _CONFIRMED,
        "        if kind is not None and not issubclass(kind, Exception):\n",
        "        if False:\n",
        by_test(_CONFIRMED_TESTS, "test_a_block_that_is_cancelled_waits_for_no_confirmation"),
    ),
    Mutant(
        "a-block-that-has-written-is-said-to-have-done-nothing",
        "a call that may have changed something is never told that it did not",
        _LEADING,
        "        note_write()\n",
        "",
        by_test(
            _CONFIRMED_TESTS,
            "test_a_block_that_has_written_is_never_said_to_have_done_nothing",
        ),
    ),
    Mutant(
        "half-a-history-is-good-enough",
        "a replica refuses to start when neither snapshot nor full history is there",
        _FOLLOWING,
        "                if not kept:\n                    raise self._missing",
        "                if kept is None:\n                    raise self._missing",
        by_test(
            _REPLICA_TESTS, "test_without_snapshot_and_without_history_a_replica_refuses_to_start"
        ),
    ),
    Mutant(
        "snapshots-of-old-epochs-are-named",
        "design 4.4: what a sweeper deletes is never named afterwards",
        _SNAPSHOTS,
        "        if current.epoch > epoch:",
        "        if current.epoch > epoch + 1_000:",
        by_test(_REPLICA_TESTS, "test_a_snapshot_of_an_older_epoch_is_not_named"),
    ),
    Mutant(
        "old-snapshots-stay",
        "a snapshot that was overtaken is deleted",
        "engine/replica/duties.py",
        "            self._retired.update({each.ledger_id: each for each in replaced})\n",
        "",
        by_test(_REPLICA_TESTS, "test_snapshots_never_stop_proposals_and_older_ones_are_deleted"),
    ),
    Mutant(
        "a-snapshot-goes-under-its-reader",
        "a snapshot that a replica has pinned stays until it was read",
        "engine/replica/duties.py",
        "                if record.at not in pinned:",
        "                if pinned is not None:",
        by_test(
            _TROUBLE_TESTS, "test_while_a_snapshot_is_restored_nothing_of_it_is_seen_and_it_is_kept"
        ),
    ),
    Mutant(
        "the-state-is-cleared-before-the-snapshot-is-opened",
        "what cannot even be begun costs the state nothing",
        _FOLLOWING,
        "        renewing = asyncio.create_task(self._renew(record.at))",
        "        await self._state.clear()\n"
        "        renewing = asyncio.create_task(self._renew(record.at))",
        by_test(_TROUBLE_TESTS, "test_a_snapshot_that_cannot_be_read_costs_no_state"),
    ),
    Mutant(
        "a-failed-disk-is-waited-for",
        "who waits for room asks whether there will ever be any",
        _LEADING,
        "                self._state.check()",
        "                pass",
        by_test(
            _TROUBLE_TESTS, "test_a_state_whose_disk_fails_while_there_is_no_room_ends_the_term"
        ),
    ),
    Mutant(
        "reads-see-what-a-failed-machine-did",
        "nothing of a failed batch is seen",
        "engine/replica/reading.py",
        " and not self._applier.failed:\n            found = look(self._rows)\n"
        "            # Check the lease only now, after the answer: this proves that nobody led "
        "meanwhile.\n            same = self._leading is leading and not self._applier.failed\n",
        ":\n            found, same = look(self._rows), True\n",
        by_test(_TROUBLE_TESTS, "test_a_read_sees_nothing_of_what_a_failed_machine_left_behind"),
    ),
    Mutant(
        "the-log-is-dropped-past-the-leaders-own-disk",
        "design 4.4: truncation goes by the durable checkpoint, past which local state is flushed",
        "engine/replica/duties.py",
        "at if durable == START else min(at, durable)",
        "at",
        by_test(
            _TROUBLE_TESTS, "test_a_log_is_dropped_only_as_far_as_the_leaders_own_state_is_on_disk"
        ),
    ),
    Mutant(
        "a-snapshots-position-goes-back",
        "the position that the key names never goes back",
        _SNAPSHOTS,
        "current.epoch > wanted.epoch or current.at >= wanted.at):",
        "current.epoch > wanted.epoch or current.at == wanted.at):",
        by_test(_TROUBLE_TESTS, "test_a_snapshot_of_an_earlier_position_takes_no_later_ones_place"),
    ),
    Mutant(
        "a-leader-before-its-term",
        "a leader is one when its term is in the log",
        _REPLICA,
        "            await asyncio.wait([said, *ending], return_when=asyncio.FIRST_COMPLETED)\n"
        "            if not said.done():\n                return\n            said.result()",
        "            await asyncio.sleep(0)",
        by_test(_TROUBLE_TESTS, "test_a_leader_is_one_only_when_its_term_is_in_the_log"),
    ),
    Mutant(
        "an-unknown-outcome-is-told-as-not-stored",
        "what was sent when the term ended may be in the log",
        _LEADING,
        "        _fail(waiters, error)\n        self.end(error)",
        "        _fail(waiters, NotLeader(str(error)))\n        self.end(error)",
        by_test(_TROUBLE_TESTS, "test_what_was_sent_when_the_term_ended_has_an_unknown_outcome"),
    ),
    Mutant(
        "a-diverged-state-is-good-after-a-restart",
        "the last hash is kept with the state",
        _APPLIER,
        "        self._hashes = {self.summary.boundary: self.summary.boundary_hash}",
        "        self._hashes = {}",
        by_test(_APPLIER_TESTS, "test_a_restart_does_not_make_a_diverged_state_a_good_one"),
    ),
    Mutant(
        "proposals-without-a-bound",
        "design 4.2.8: every queue is bounded in bytes and pushes back",
        _LEADING,
        "        if bounded and self._pending_bytes and",
        "        if bounded and not size_bytes and",
        by_test(_REPLICA_TESTS, "test_what_is_under_way_is_bounded"),
    ),
    Mutant(
        "a-machine-gets-the-replicas-own-rows",
        "what depends on where batches were cut is not shown to a machine",
        _APPLIER,
        "        self.get = state.get_row\n        self.scan = state.scan_rows\n",
        "",
        by_test(_MACHINE_TESTS, "test_a_follower_of_a_machine_that_looks_at_every_row_stays_equal"),
    ),
    Mutant(
        "a-look-can-change-rows",
        "a state changes by entries of the log alone",
        _REPLICA,
        "        self._rows = ShownRows(state)",
        "        self._rows = state",
        by_test(_MACHINE_TESTS, "test_a_look_sees_no_row_of_the_replica_and_can_change_none"),
    ),
    Mutant(
        "a-result-may-be-anything",
        "a result is bytes: it is hashed, kept and sent",
        _APPLIER,
        "            _check_types(outcomes, span)\n",
        "",
        by_test(_MACHINE_TESTS, "test_what_is_no_bytes_stops_the_replica_with_nothing_committed"),
    ),
    Mutant(
        "a-buffer-is-kept-as-it-is",
        "what is stored cannot change afterwards",
        _APPLIER,
        "        if type(value) is not bytes:",
        "        if not hasattr(value, 'hex'):",
        by_test(_MACHINE_TESTS, "test_what_is_no_bytes_stops_the_replica_with_nothing_committed"),
    ),
    Mutant(
        "a-defect-leaves-who-waits-waiting",
        "every proposal is answered, whatever fails",
        _LEADING,
        "                except Exception as error:",
        "                except EngineError as error:",
        by_test(_MACHINE_TESTS, "test_a_defect_behind_the_applier_ends_the_term_too"),
    ),
    Mutant(
        "an-older-program-runs-on-newer-rows",
        "rows of newer commands are not for a program that does not know those",
        _APPLIER,
        '        self._check_level(self.summary.level, "the state")\n',
        "",
        by_test(_MACHINE_TESTS, "test_an_older_program_refuses_rows_that_newer_commands_made"),
    ),
    Mutant(
        "an-older-program-goes-on-at-a-newer-level",
        "a program that does not know the log's level stops where that begins",
        _APPLIER,
        '            self._check_level(body[1], f"the log from {position} on")\n',
        "",
        by_test(_MACHINE_TESTS, "test_an_older_program_stops_where_newer_commands_may_begin"),
    ),
    Mutant(
        "an-older-program-clears-its-state-for-a-newer-snapshot",
        "what cannot be begun costs the state nothing",
        _FOLLOWING,
        "                self._applier.check_rows(rows)\n",
        "",
        by_test(
            _MACHINE_TESTS,
            "test_an_older_program_restores_no_newer_snapshot_and_keeps_its_state",
        ),
    ),
    Mutant(
        "a-leader-whose-disk-hangs-leads-on",
        "who can neither go on nor fails lets another lead",
        _REPLICA,
        "self._room.stalled() or (",
        "(",
        by_test(_TROUBLE_TESTS, "test_a_leader_whose_disk_hangs_is_replaced_though_nothing_fails"),
    ),
    Mutant(
        "one-that-cannot-write-its-term-leads-on",
        "who can neither go on nor fails lets another lead",
        _REPLICA,
        "        self._leading = leading\n        try:\n",
        "        try:\n            self._leading = None if writer.epoch else leading\n",
        by_test(_TROUBLE_TESTS, "test_one_that_cannot_write_its_term_is_not_healthy"),
    ),
    Mutant(
        "a-replica-that-cannot-start-keeps-its-state",
        "a state belongs to its replica from the first moment on",
        _REPLICA,
        "                await state.close()\n            raise",
        "                pass\n            raise",
        by_test(
            "engine/replica/test_lifetime.py",
            "test_a_replica_that_cannot_start_lets_go_of_all_it_was_given",
        ),
    ),
    Mutant(
        "a-full-session-says-that-it-forgot",
        "what was not done for certain is told so",
        _SESSIONS,
        "        return FORGOTTEN if request.sequence < session.floor else FULL",
        "        return FORGOTTEN",
        by_test(_SESSION_TESTS, "test_too_many_open_answers_are_refused_not_forgotten"),
    ),
    Mutant(
        "a-snapshot-whose-naming-was-cancelled-is-deleted",
        "a snapshot that may be named later is deleted only after that is ruled out",
        _SNAPSHOTS,
        "            record = await self._update(change)\n        finally:",
        "            record = await self._update(change)\n        except BaseException:\n"
        "            await self.delete(wanted.ledger_id)\n            raise\n        finally:",
        by_test(
            "engine/replica/test_cancelled_snapshots.py",
            "test_a_snapshot_that_was_named_late_outlives_the_term_that_took_it",
        ),
    ),
    Mutant(
        "a-snapshot-is-named-before-its-ledger-is-closed",
        "a ledger that the key names is closed and whole",
        _SNAPSHOTS,
        "            await writer.close()\n",
        "            asyncio.ensure_future(writer.close())\n",
        by_test(_SNAPSHOT_TESTS, "test_a_snapshot_is_named_only_after_all_of_it_is_durable"),
    ),
    Mutant(
        "a-failed-append-of-an-image-is-not-noticed",
        "all of an image is appended when it is written",
        "engine/state/image.py",
        "        while self._appends:\n            await self._appends.popleft()\n"
        "        return footer",
        "        return footer",
        by_test(
            "engine/state/test_image.py", "test_an_image_whose_last_append_failed_is_not_whole"
        ),
    ),
    Mutant(
        "a-lost-reply-to-a-name-ends-the-snapshot",
        "if the reply to naming is lost, the name is looked up by its token and written again",
        _SNAPSHOTS,
        "except (KeyExists, VersionConflict, MetadataUnavailable):",
        "except (KeyExists, VersionConflict):",
        by_test(_SNAPSHOT_TESTS, "test_a_name_whose_write_was_lost_is_settled"),
    ),
    Mutant(
        "a-sweep-begins-before-the-claim",
        "a sweeper claims the key first, so what it deletes is never named afterwards",
        "engine/replica/duties.py",
        "            kept = await self._snapshots.claim(epoch)\n"
        "            await self._log.sweep(kept, epoch)",
        "            found = await self._snapshots.newest()\n"
        "            await self._log.sweep({found.ledger_id} if found else set(), epoch)\n"
        "            await self._snapshots.claim(epoch)",
        by_test(_SNAPSHOT_TESTS, "test_a_swept_ledger_is_never_named_afterwards"),
    ),
    Mutant(
        "a-follower-looks-at-the-snapshot-before-the-list",
        "a snapshot is named before the log is dropped: a reader must look at the list first",
        _FOLLOWING,
        "            listed = await self._log.list()\n"
        "            position = self._state.position\n"
        "            kept = listed.keeps_after(position)\n"
        "            if kept and position != START:\n"
        "                return\n"
        "            # In this order: a snapshot is named before the log is truncated up to it.\n"
        "            record = await self._snapshots.newest()\n",
        "            record = await self._snapshots.newest()\n"
        "            listed = await self._log.list()\n"
        "            position = self._state.position\n"
        "            kept = listed.keeps_after(position)\n"
        "            if kept and position != START:\n"
        "                return\n",
        by_test(_SNAPSHOT_TESTS, "test_a_follower_looks_at_the_list_before_the_snapshot"),
    ),
)
