"""Mutants of the bookie's service: appends, fences, reads (bookkeeper.md 2.1-3 and 2.5)."""

from typing import Final

from tests.mutants.mutant import Mutant, by_test

_APPENDING: Final = "engine/bookie/appending.py"
_SERVICE: Final = "engine/bookie/service.py"
_TESTS: Final = "engine/bookie/test_rules_service.py"
_DISK_TESTS: Final = "engine/bookie/test_rules_storage.py"
_UNSOUND_TESTS: Final = "engine/bookie/test_unsound.py"

APPEND_MUTANTS: Final = (
    Mutant(
        "a-late-refusal-takes-a-newer-appends-place",
        "ids that are queued behind a refusal, and will be written, stay known",
        _APPENDING,
        "            if state.highest_epoch <= job.epoch:",
        "            if job.refused:",
        by_test(
            "engine/bookie/test_reserve.py",
            "test_an_append_that_is_refused_late_does_not_replace_a_newer_one",
        ),
    ),
    Mutant(
        "what-an-answer-brings-passes-a-refusal",
        "an append that was requested before a refusal was reported depends on unwritten data",
        "engine/bookie/journal.py",
        "        try:\n            for job in jobs:\n                if job.records and",
        "        self._epoch += result is not None and result.refused\n"
        "        try:\n            for job in jobs:\n                if job.records and",
        by_test(
            "engine/bookie/test_reserve.py",
            "test_appends_caused_by_an_answer_during_a_refusal_are_refused_too",
        ),
    ),
    Mutant(
        "facts-that-cannot-be-are-stored",
        "issue 3: bad input never stops a bookie, neither now nor when it is read again",
        _APPENDING,
        "(facts.ledger_id != ledger_id or not are_sound(facts))",
        "facts.ledger_id != ledger_id",
        by_test(_UNSOUND_TESTS, "test_facts_that_cannot_be_are_neither_stored_nor_acknowledged"),
    ),
    Mutant(
        "facts-of-another-ledger-are-stored",
        "2.5: a key opens its own ledger only",
        _APPENDING,
        "(facts.ledger_id != ledger_id or not are_sound(facts))",
        "not are_sound(facts)",
        by_test(_UNSOUND_TESTS, "test_facts_that_cannot_be_are_neither_stored_nor_acknowledged"),
    ),
    Mutant(
        "a-fenced-ledger-takes-appends",
        "2.1-3, 2.5: a fenced ledger refuses normal appends",
        _APPENDING,
        "        if state.fenced:\n            return Status.FENCED\n",
        "",
        by_test(_TESTS, "test_a_fenced_ledger_refuses_appends_and_takes_recovery_writes"),
    ),
    Mutant(
        "a-fenced-ledger-refuses-recovery",
        "2.4-7: recovery writes are accepted though fenced",
        _APPENDING,
        "        if recovery:\n            return None\n",
        "        if recovery and not state.fenced:\n            return None\n",
        by_test(_TESTS, "test_a_fenced_ledger_refuses_appends_and_takes_recovery_writes"),
    ),
    Mutant(
        "a-full-disk-refuses-recovery",
        "2.5 (#208): recovery writes work on a read-only bookie while space remains",
        _APPENDING,
        "        if recovery:\n            return None\n",
        "        if recovery and not self._gate.full:\n            return None\n",
        by_test(_TESTS, "test_a_full_disk_still_takes_fences_and_recovery_writes"),
    ),
    Mutant(
        "append-is-answered-when-queued",
        "2.1-3, NATS 2.12.1: an append is answered only after its sync",
        _APPENDING,
        "        journal.put(job)\n",
        "        journal.put(job)\n"
        "        self._loop.call_soon(reply, self._reply(state, Status.OK, first, last))\n",
        by_test(_TESTS, "test_an_append_is_answered_after_its_sync_and_not_before"),
    ),
    Mutant(
        "other-bytes-for-a-held-id",
        "design 4.3: other bytes for a held id are an error",
        "engine/bookie/overlap.py",
        "                raise Conflict\n",
        "                pass\n",
        by_test(
            _TESTS, "test_other_bytes_for_a_held_id_are_a_conflict_and_the_same_bytes_are_none"
        ),
    ),
    Mutant(
        "a-corrupt-copy-counts-as-held",
        "design 4.3: damaged ids count as not held",
        "engine/bookie/overlap.py",
        "ENTRY_BYTES_MAX, verify=True)",
        "ENTRY_BYTES_MAX)",
        by_test(_DISK_TESTS, "test_corrupt_bytes_are_no_copy_and_may_be_written_again"),
    ),
    Mutant(
        "any-key-is-accepted",
        "1a: the first key is the ledger's, later ones must match",
        "engine/bookie/ledger_state.py",
        "        if not hmac.compare_digest(key_hash_of(key), self.key_hash):\n"
        "            return False\n",
        "",
        by_test(_TESTS, "test_another_key_neither_appends_nor_fences"),
    ),
    Mutant(
        "a-deleted-ledger-comes-back",
        "2.6-12 (#4462): tombstones are durable",
        "engine/bookie/ledger_state.py",
        "if index.fact(fact_key(TOMBSTONE, ledger_id)) is not None:",
        "if index.fact(fact_key(TOMBSTONE, -1 % 2**64)) is not None:",
        by_test(_TESTS, "test_a_deleted_ledger_stays_deleted_over_a_restart"),
    ),
)

FENCE_MUTANTS: Final = (
    Mutant(
        "a-fence-of-no-ledger-is-looked-up",
        "issue 3: bad input never stops a bookie",
        _SERVICE,
        "        if not is_ledger_id(ledger_id):\n"
        "            return self._lac_reply(Status.INVALID, NO_ENTRY)\n"
        "        state = self._state(ledger_id)\n",
        "        state = self._state(ledger_id)\n",
        by_test(_UNSOUND_TESTS, "test_what_is_no_ledgers_id_is_refused_and_stops_nothing"),
    ),
    Mutant(
        "fence-is-answered-before-it-is-durable",
        "2.4-3, 2.5: a fence is persisted before any reply",
        _SERVICE,
        "if await asyncio.shield(state.fencing):",
        "if state.fencing is not None:",
        by_test(_TESTS, "test_a_fence_is_answered_only_when_it_is_durable"),
    ),
    Mutant(
        "negatives-do-not-wait-for-the-fence",
        "2.6-9: a negative fenced reply waits for the fence's sync, too",
        _SERVICE,
        "            if request.fence_key is not None:\n",
        "            if request.fence_key is not None and not state.known:\n"
        "                self._early = asyncio.ensure_future(\n"
        "                    self._fence(state, request.fence_key)\n"
        "                )\n"
        "                return self._read_reply(Status.NO_SUCH_LEDGER)\n"
        "            if request.fence_key is not None:\n",
        by_test(_TESTS, "test_a_fencing_read_of_an_unknown_ledger_waits_for_its_fence"),
    ),
    Mutant(
        "fencing-read-overtakes-the-queue",
        "design 4.2-5: a fenced read answers after all that was queued before it",
        _SERVICE,
        "if state.in_flight or state.backlog is not None:",
        "if state.in_flight < 0:",
        by_test(_TESTS, "test_a_fencing_read_knows_what_was_queued_before_it"),
    ),
    Mutant(
        "a-fence-during-a-look-up-is-passed-over",
        "2.5: an append is refused for a fence that came while its ids were looked up",
        _APPENDING,
        "                status = self._refusal(state, key, facts, recovery)\n            except",
        "                status = None\n            except",
        by_test(
            "engine/bookie/test_service_appending.py",
            "test_a_fence_that_comes_during_a_look_up_refuses_the_append",
        ),
    ),
    Mutant(
        "a-wrong-bookie-id-is-taken-over",
        "design 4.3: a segment names its bookie; another bookie's is refused",
        "engine/bookie/replay.py",
        "if header.bookie_id != self._bookie_id or header.salt != self._salt:",
        "if header.salt != self._salt and not header.bookie_id:",
        by_test(
            "engine/bookie/test_service_identity.py", "test_a_segment_of_another_bookie_is_refused"
        ),
    ),
    Mutant(
        "refusal-overtakes-the-fence",
        "2.5: FENCED is a claim and waits until the fence is durable",
        _APPENDING,
        "if status is Status.FENCED and state.fencing is not None:",
        "if status is Status.FENCED and state.fencing is state:",
        by_test(_TESTS, "test_a_refusal_for_a_fence_is_answered_only_when_the_fence_is_durable"),
    ),
    Mutant(
        "fence-is-not-in-the-index",
        "2.6-10 (PR #4843): a checkpoint never passes a fence that is not in it",
        "engine/bookie/indexing.py",
        "        return Fact(fact_key(FENCE, ledger_id), record.head)\n",
        "        return None\n",
        by_test(_TESTS, "test_a_fence_survives_a_crash_and_a_clean_restart"),
    ),
    Mutant(
        "two-states-of-one-ledger",
        "2.5 (#4701): one state per ledger, add and fence meet in it",
        "engine/bookie/ledger_state.py",
        "return not busy and not fresh and state.backlog is None",
        "return busy is not None or fresh",
        by_test(_TESTS, "test_a_ledger_in_use_keeps_its_one_state"),
    ),
)

READ_MUTANTS: Final = (
    Mutant(
        "damage-is-called-missing",
        "2.5 (#2908): what damage hides is UNKNOWN, never missing",
        _SERVICE,
        "            missing, unknown = None, missing\n",
        "            pass\n",
        by_test(_DISK_TESTS, "test_an_unreadable_header_makes_negatives_unknown"),
    ),
    Mutant(
        "unknown-ledger-though-damaged",
        "2.5 (#2908): no ledger is unknown for certain while a header is unreadable",
        _SERVICE,
        "return self._read_reply(Status.UNKNOWN if doubtful else Status.NO_SUCH_LEDGER)",
        "return self._read_reply(Status.NO_SUCH_LEDGER)",
        by_test(_DISK_TESTS, "test_an_unreadable_header_makes_negatives_unknown"),
    ),
)
