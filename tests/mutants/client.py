"""Mutants of the writer, of replication and of readers."""

from typing import Final

from tests.mutants.mutant import Mutant, by_test

_WRITER: Final = "engine/ledger/writer.py"
_REPLICATION: Final = "engine/ledger/replication.py"
_READER: Final = "engine/ledger/reader.py"
_READING: Final = "engine/ledger/reading.py"
_QUORUM: Final = "engine/ledger/quorum.py"
_WRITING_TESTS: Final = "engine/ledger/test_writing.py"
_CHANGE_TESTS: Final = "engine/ledger/test_ensemble_change.py"
_SPARING: Final = "engine/ledger/sparing.py"
_SPARING_TESTS: Final = "engine/ledger/test_sparing.py"
_PENDING: Final = "test_a_pending_entry_moves_to_the_new_bookie_from_the_lac_on"
_READING_TESTS: Final = "engine/ledger/test_reading.py"

WRITER_MUTANTS: Final = (
    Mutant(
        "one-acknowledgement-confirms",
        "2.1-5: an entry is complete at the ack quorum",
        _QUORUM,
        "reached = sorted(marks, reverse=True)[quorums.ack - 1]\n        if quorums.domains",
        "reached = max(marks)\n        if quorums.domains",
        by_test(_WRITING_TESTS, "test_an_append_resolves_only_when_an_ack_quorum_has_it"),
    ),
    Mutant(
        "runs-claim-unconfirmed-entries",
        "2.1-2: a run's LAC is what was confirmed to the caller, not what was sent",
        _WRITER,
        "        lac = self._replication.lac\n        first = self._replication.pushed + 1\n",
        "        first = self._replication.pushed + 1\n        lac = first - 1\n",
        by_test("engine/ledger/test_rules_writer.py", "test_a_run_claims_only_what_was_confirmed"),
    ),
    Mutant(
        "confirmed-out-of-order",
        "2.1-5: an entry is confirmed only behind all that is before it",
        "engine/ledger/slot.py",
        "        reached = request.first\n",
        "        reached = sorted(self.early)[0][0]\n",
        by_test(
            "engine/ledger/test_rules_writer.py",
            "test_a_later_acknowledgement_does_not_stand_for_a_lost_earlier_one",
        ),
    ),
    Mutant(
        "fenced-is-a-bookie-failure",
        "2.1-6: a fenced reply ends the writer, its outcome unknown",
        _REPLICATION,
        'self._fail(LedgerFenced(f"ledger {self.ledger_id} was taken over by another client"))',
        "self._fail_slot(slot)",
        by_test(
            _WRITING_TESTS,
            "test_a_fenced_append_fails_as_outcome_unknown_and_so_does_all_that_follows",
        ),
    ),
    Mutant(
        "another-bookies-reply-counts",
        "2.1-4: only the ensemble's own bookie acknowledges",
        _REPLICATION,
        "if reply.bookie_id != slot.bookie_id:",
        "if not reply.bookie_id:",
        by_test(
            "engine/ledger/test_rules_writer.py", "test_another_bookies_reply_counts_for_nothing"
        ),
    ),
    Mutant(
        "runs-cross-stripes",
        "design 4.2-1: a run never crosses a stripe",
        _WRITER,
        "room = min(stripe_entries - first % stripe_entries, limits.RUN_ENTRIES_MAX)",
        "room = min(stripe_entries, limits.RUN_ENTRIES_MAX)",
        by_test(
            "engine/ledger/test_rules_writer.py", "test_no_run_crosses_a_stripe_wherever_it_starts"
        ),
    ),
    Mutant(
        "close-at-what-was-sent",
        "HerdDB #100: a writer closes its ledger at the LAC",
        _WRITER,
        "last, length = self._replication.lac, self._confirmed_length",
        "last, length = self._replication.pushed, self._length",
        by_test(_WRITING_TESTS, "test_close_ends_the_ledger_at_the_lac_not_at_what_was_sent"),
    ),
    Mutant(
        "close-overrides-a-recovery",
        "2.4-11: a close that meets IN_RECOVERY finishes the recovery",
        "engine/ledger/closing.py",
        "own = current.state is State.OPEN",
        "own = current.state is not State.CLOSED",
        by_test(
            "engine/ledger/test_rules_recovery.py",
            "test_a_close_that_meets_a_recovery_ends_where_the_recovery_does",
        ),
    ),
    Mutant(
        "parked-bytes-without-bound",
        "design 4.2-8: every queue is bounded in bytes",
        _WRITER,
        "if self._parked_bytes + size_bytes > self._context.settings.writer_parked_bytes_max:",
        "if size_bytes < 0:",
        by_test(_WRITING_TESTS, "test_appends_over_the_byte_limit_wait_and_then_are_refused"),
    ),
    Mutant(
        "straggler-bytes-without-bound",
        "design 4.2-4: bytes held only for a straggler are bounded",
        _REPLICATION,
        "if self._stragglers.size_bytes > self._settings.straggler_bytes_max:",
        "if self._stragglers.size_bytes < 0:",
        by_test(_CHANGE_TESTS, "test_bytes_held_for_a_straggler_are_bounded"),
    ),
    Mutant(
        "force-waits-for-nothing",
        "2.6-16: what deferred sync acknowledged is durable only after force()",
        _WRITER,
        "        if last <= self._replication.lac:\n            return\n",
        "        if last >= self._replication.lac:\n            return\n",
        by_test(
            _WRITING_TESTS, "test_deferred_sync_resolves_before_durability_and_force_waits_for_it"
        ),
    ),
    Mutant(
        "idle-lac-is-not-announced",
        "design 4.2-3: the LAC goes out at once when nothing is left to send",
        _REPLICATION,
        "slot.bookie.confirm(self.ledger_id, self.lac)",
        "assert slot.bookie_id",
        by_test(_WRITING_TESTS, "test_the_lac_is_announced_at_once_when_nothing_is_left_to_send"),
    ),
)

ENSEMBLE_MUTANTS: Final = (
    Mutant(
        "confirmations-during-a-change",
        "2.3-1, 2.6-7: confirmations stand still while the ensemble changes",
        _REPLICATION,
        "        if self.changing is not None or self.error is not None:\n            return\n"
        "        lac = confirmed",
        "        if self.error is not None:\n            return\n        lac = confirmed",
        by_test(_CHANGE_TESTS, "test_confirmations_stand_still_while_the_ensemble_changes"),
    ),
    Mutant(
        "sent-before-the-metadata-names-it",
        "2.3-3, 2.6-5 (#1591): no entry for a new bookie before the metadata name it",
        _WRITER,
        "            self._held = await self._context.ledgers.update(self._held, change)\n"
        "        except NoSuchLedger",
        "            if wanted is not None:\n"
        "                later = self._context.ledgers.update(self._held, change)\n"
        "                self._later = asyncio.ensure_future(later)\n"
        "                return wanted\n"
        "            self._held = await self._context.ledgers.update(self._held, change)\n"
        "        except NoSuchLedger",
        by_test(_CHANGE_TESTS, "test_nothing_is_sent_to_a_new_bookie_before_the_metadata_names_it"),
    ),
    Mutant(
        "replaced-bookies-acknowledgements-stay",
        "2.3-4, 2.6-6 (#3005, #4097): a replaced bookie's acknowledgements are unset first",
        _REPLICATION,
        "self.slots[index] = Slot(index, bookie_id, self.lac)",
        "self.slots[index] = Slot(index, bookie_id, self.slots[index].mark)",
        by_test(_CHANGE_TESTS, "test_an_acknowledgement_of_a_replaced_bookie_no_longer_counts"),
    ),
    Mutant(
        "fragment-starts-behind-what-was-sent",
        "2.3-2: a new fragment starts at LAC + 1",
        _REPLICATION,
        "self._owner.replace(self.lac + 1, self.ensemble, failed)",
        "self._owner.replace(self.pushed + 1, self.ensemble, failed)",
        by_test("engine/ledger/test_rules_writer.py", _PENDING),
    ),
    Mutant(
        "change-passes-over-a-recovery",
        "2.3-3, 2.4-10: an ensemble change that meets IN_RECOVERY is fenced",
        _WRITER,
        'raise LedgerFenced(f"ledger {self.ledger_id} is being recovered by another client")',
        "pass",
        by_test(_CHANGE_TESTS, "test_an_ensemble_change_that_meets_a_recovery_is_fenced"),
    ),
    Mutant(
        "pending-entries-are-not-sent-again",
        "2.3-4: pending entries are sent to the new bookie",
        _REPLICATION,
        "        self.changing = None\n        for slot in self.slots:\n"
        "            if not slot.failed:\n                self._catch_up(slot)\n",
        "        self.changing = None\n",
        by_test("engine/ledger/test_rules_writer.py", _PENDING),
    ),
    Mutant(
        "mute-bookie-is-waited-for",
        "design 4.2-8: every call has a deadline",
        _REPLICATION,
        "if punctual and now - slot.outstanding[0].sent_at > timeout_s:",
        "if punctual and now - slot.outstanding[0].sent_at > 1000 * timeout_s:",
        by_test(
            "engine/ledger/test_rules_writer.py",
            "test_a_bookie_that_answers_nothing_is_given_up_within_two_timeouts",
        ),
    ),
)

READER_MUTANTS: Final = (
    Mutant(
        "a-tail-outlives-its-client",
        "design 4.2-8: no call waits for ever",
        "engine/ledger/following.py",
        "                if self._context.closed.is_set():\n",
        "                if self._context.closed is None:\n",
        by_test(_READING_TESTS, "test_a_tail_ends_with_a_word_when_its_client_is_closed"),
    ),
    Mutant(
        "followers-read-the-metadata-all-the-time",
        "an unreachable bookie puts little load on the metadata store",
        "engine/ledger/following.py",
        "another or self._context.clock.monotonic() - self._read_s >= READ_AGAIN_S\n",
        "True\n",
        by_test(
            "engine/ledger/test_coming_back.py",
            "test_a_follower_of_unreachable_bookies_reads_the_metadata_every_few_seconds",
        ),
    ),
    Mutant(
        "a-lost-notice-blinds-a-follower",
        "a lost notice delays a follower, but never blinds it",
        "engine/ledger/following.py",
        "another or self._context.clock.monotonic() - self._read_s >= READ_AGAIN_S\n",
        "another\n",
        by_test(
            "engine/ledger/test_coming_back.py",
            "test_a_follower_of_unreachable_bookies_reads_the_metadata_every_few_seconds",
        ),
    ),
    Mutant(
        "a-notice-during-a-read-is-dropped",
        "a follower reads the metadata again if it changed during a read",
        "engine/ledger/following.py",
        "            self._changed_again = True\n\n",
        "            pass\n\n",
        by_test(
            "engine/ledger/test_coming_back.py",
            "test_a_follower_hears_of_a_change_that_comes_while_it_reads_the_metadata",
        ),
    ),
    Mutant(
        "a-follower-sleeps-through-what-it-read",
        "a follower wakes up for what it read, although the next read fails",
        "engine/ledger/following.py",
        "polls of a closed ledger end.\n                self._changed.set()\n",
        "polls of a closed ledger end.\n                pass\n",
        by_test(
            "engine/ledger/test_coming_back.py",
            "test_a_follower_wakes_up_for_what_it_read_although_the_next_read_fails",
        ),
    ),
    Mutant(
        "read-past-the-lac",
        "2.2: a reader gets nothing past the LAC unless it asks for it",
        _READER,
        "if last > self.last_add_confirmed:",
        "if last < 0:",
        by_test(_READING_TESTS, "test_a_read_past_the_end_is_refused_at_once"),
    ),
    Mutant(
        "digest-is-not-checked",
        "NATS 2.12.1: a corrupt copy is never served",
        "engine/run.py",
        "if _digests(ledger_id, first, bodies) != rows[1::2] or ends[-1] != len(body):",
        "if ends[-1] != len(body):",
        by_test(_READING_TESTS, "test_a_corrupt_copy_is_never_served_and_another_replica_is"),
    ),
    Mutant(
        "one-denial-is-no-such-entry",
        "design 4.1-5: only every replica's own word makes an entry absent",
        _READING,
        "        if absent >= enough:",
        "        if absent:",
        by_test(_READING_TESTS, "test_no_such_entry_needs_every_replica_to_say_so"),
    ),
    Mutant(
        "stale-metadata-decides",
        "design 4.2: a negative answer is final only for metadata read after it",
        _READER,
        "            await self._follower.refresh()\n",
        "",
        by_test(
            _READING_TESTS,
            "test_a_lac_that_comes_before_the_metadata_of_its_fragment_misleads_no_reader",
        ),
    ),
    Mutant(
        "readers-lac-goes-back",
        "2.2: a reader's LAC only grows",
        "engine/ledger/following.py",
        "if reply.lac > self.lac and not self.metadata.closed:",
        "if reply.lac != self.lac and not self.metadata.closed:",
        by_test("engine/ledger/test_rules_writer.py", "test_a_readers_lac_never_goes_back"),
    ),
    Mutant(
        "a-read-leaves-its-questions-running",
        "design 4.2-8: every call has a deadline, and nothing outlives it",
        _READING,
        "            answers.cancel()\n",
        "            pass\n",
        by_test(
            _READING_TESTS,
            "test_silence_of_every_replica_ends_at_the_deadline_and_leaves_nothing_running",
        ),
    ),
    Mutant(
        "slow-replica-is-waited-for",
        "1a: a slow replica costs a speculative read, not the deadline",
        _READING,
        "answers.next(settings.speculative_read_ms if replicas else None)",
        "answers.next(None)",
        by_test(
            _READING_TESTS, "test_a_slow_replica_costs_a_speculative_read_and_not_the_deadline"
        ),
    ),
)

SPARING_MUTANTS: Final = (
    Mutant(
        "passed-over-on-machines-apart",
        "bookies are passed over only where all run on the client's machine",
        _SPARING,
        "not self._placement.beside(slot.bookie_id for slot in self._slots)",
        "False",
        by_test(
            _SPARING_TESTS,
            "test_nobody_is_passed_over_where_a_bookie_is_reached_from_other_machines",
        ),
    ),
    Mutant(
        "passed-over-are-the-quick-ones",
        "passed over are those without whom adds are quickest",
        _SPARING,
        "            slots.sort(key=self._add_s_of)\n",
        "            slots.sort(key=self._add_s_of, reverse=True)\n",
        by_test(
            _SPARING_TESTS,
            "test_passed_over_are_those_without_whom_adds_are_quickest",
        ),
    ),
    Mutant(
        "announced-though-a-run-carries-it",
        "a LAC that a run carries is not told by itself",
        _REPLICATION,
        "        self._announced = runs[-1].lac\n",
        "",
        by_test(
            "engine/ledger/test_writing.py",
            "test_of_a_striped_ledger_entries_that_follow_one_another_are_announced_once",
        ),
    ),
    Mutant(
        "passed-over-for-ever",
        "who was passed over gets what it lacks after a while",
        _SPARING,
        "        self._note_add_s()\n        self._even_out()\n",
        "        self._note_add_s()\n",
        by_test(
            _SPARING_TESTS,
            "test_a_bookie_that_stands_still_keeps_an_add_waiting_for_a_moment_only",
        ),
    ),
    Mutant(
        "what-is-stored-everywhere-is-still-held",
        "a run is held until every bookie of its write set has it, and no longer",
        _REPLICATION,
        "        if lagged or self._stragglers.size_bytes",
        "        if self._stragglers.size_bytes",
        by_test(
            "engine/ledger/test_rules_writer.py",
            "test_what_a_slow_bookie_has_stored_by_now_is_held_no_longer",
        ),
    ),
    Mutant(
        "passed-over-until-the-next-add",
        "who was passed over gets what it lacks at once when nothing follows",
        _REPLICATION,
        "            self.even_out()\n            for slot",
        "            for slot",
        by_test(_SPARING_TESTS, "test_it_gets_all_at_once_when_nothing_follows"),
    ),
    Mutant(
        "an-add-now-and-then-passes-over",
        "passing over begins only when lone requests follow one another",
        _REPLICATION,
        "            self.even_out()\n            for slot",
        "            self._even_out()\n            for slot",
        by_test(_SPARING_TESTS, "test_one_add_now_and_then_goes_to_all_at_once"),
    ),
    Mutant(
        "fewer-than-an-ack-quorum-are-asked",
        "an ack quorum is never passed over",
        _SPARING,
        "slots[self._asked :]",
        "slots[self._asked - 1 :]",
        by_test(
            _SPARING_TESTS,
            "test_adds_that_follow_one_another_pass_one_bookie_over_and_no_more_than_that",
        ),
    ),
    Mutant(
        "passed-over-after-a-failure",
        "nobody is passed over once a bookie has failed",
        _REPLICATION,
        "        for slot in self._sparing.end():\n",
        "        for slot in self._sparing._spared:\n",
        by_test(_SPARING_TESTS, "test_when_a_bookie_fails_the_others_get_everything"),
    ),
    Mutant(
        "passed-over-without-bound",
        "what a bookie that was passed over may lack is bounded",
        _SPARING,
        "if size_bytes > _REQUEST_BYTES_MAX or lacking_bytes > self._bytes_max:",
        "if size_bytes > _REQUEST_BYTES_MAX:",
        by_test(_SPARING_TESTS, "test_what_a_bookie_may_lack_is_bounded_in_bytes"),
    ),
    Mutant(
        "what-is-confirmed-waits-for-a-change",
        "a bookie that was passed over gets what is confirmed before an ensemble changes",
        _REPLICATION,
        "            self._catch_up(slot, confirmed_only=True)\n",
        "            pass\n",
        by_test(
            _SPARING_TESTS,
            "test_when_a_bookie_fails_what_is_acknowledged_goes_to_the_others_before_the_change",
        ),
    ),
    Mutant(
        "a-lac-above-what-was-sent",
        "no bookie is told of a last add that it was not sent",
        _REPLICATION,
        "if slot.bookie is not None and slot.sent >= self.lac:",
        "if slot.bookie is not None:",
        by_test(_SPARING_TESTS, "test_no_bookie_is_told_of_a_last_add_that_it_was_not_sent"),
    ),
    Mutant(
        "passed-over-without-count",
        "a bookie that was passed over lacks a bounded number of entries",
        _SPARING,
        "        if len(stragglers.runs) >= _LACKING_MAX:\n            return ()\n",
        "",
        by_test(_SPARING_TESTS, "test_a_bookie_may_lack_no_more_than_some_entries"),
    ),
)
