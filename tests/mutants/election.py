"""Mutants of who leads a log: the leases of processes, elections by the list, resignations."""

from typing import Final

from tests.mutants.mutant import Mutant, by_seeds, by_test

_ELECTION: Final = "engine/replica/election.py"
_LIST: Final = "engine/log/log_list.py"
_LIVENESS: Final = "engine/metadata/liveness.py"
_LOG: Final = "engine/log/log.py"
_REPLICA: Final = "engine/replica/replica.py"
_ELECTION_TESTS: Final = "engine/replica/test_election.py"
_LEADERSHIP_TESTS: Final = "engine/replica/test_leadership.py"
_LEADING_TESTS: Final = "engine/log/test_leading.py"
_LIVENESS_TESTS: Final = "engine/metadata/test_liveness.py"

_LEASES: Final = (
    Mutant(
        "a-lease-runs-from-the-answer",
        "a lease is counted from before its renewal was sent",
        _LIVENESS,
        "            self._prolong(sent)\n        except",
        "            self._prolong(_now(self._clock))\n        except",
        by_test(
            _LIVENESS_TESTS,
            "test_a_lease_runs_from_before_its_renewal_was_sent_not_from_the_answer",
        ),
    ),
    Mutant(
        "the-first-lease-runs-from-the-answer",
        "a lease is counted from before its record was sent",
        _LIVENESS,
        "self._clock, process_id, record, version, sent)",
        "self._clock, process_id, record, version, _now(self._clock))",
        by_test(_LIVENESS_TESTS, "test_the_first_lease_runs_from_before_its_record_was_sent"),
    ),
    Mutant(
        "a-resignation-is-cancelled-with-its-caller",
        "a leader resigns even if the task that closes it is cancelled",
        _ELECTION,
        "        except asyncio.CancelledError:\n            self._liveness.see_to(self._resign)\n",
        "        except asyncio.CancelledError:\n",
        by_test(_ELECTION_TESTS, "test_a_resignation_is_still_sent_if_its_caller_is_cancelled"),
    ),
    Mutant(
        "a-leader-answers-after-its-lease-in-the-simulation",
        "a leader of many tablespaces answers reads under its lease or after the log confirms them",
        _ELECTION,
        "return not self.lost.is_set() and self._incarnation.holds()",
        "return not self.lost.is_set()",
        by_seeds(21, 1, "--groups"),
    ),
    Mutant(
        "a-lease-goes-by-one-clock",
        "a machine that was paused and whose wall clock was then corrected has no lease left",
        _LIVENESS,
        "            and self._clock.wall_ms() < self._lease_end_wall_ms\n",
        "",
        by_test(
            _LIVENESS_TESTS,
            "test_a_lease_ends_when_the_wall_clock_is_ahead_of_the_monotonic_clock",
        ),
    ),
    Mutant(
        "only-the-own-lease-is-waited-for",
        "whoever ends a record waits for the longer of both leases",
        _LIVENESS,
        "max(self.lease_ms, other.lease_ms)",
        "self.lease_ms",
        by_test(_LIVENESS_TESTS, "test_the_longer_of_both_leases_is_waited_for"),
    ),
    Mutant(
        "the-drift-of-clocks-is-not-waited-for",
        "whoever ends a record waits for the clocks' drift, too",
        _LIVENESS,
        "lease_ms / 1000 * (1 + self._drift)",
        "lease_ms / 1000",
        by_test(
            _LIVENESS_TESTS,
            "test_a_lease_has_ended_by_its_holder_s_clock_before_another_process_ends_it",
        ),
    ),
    Mutant(
        "a-record-is-ended-from-whatever-version-it-has",
        "a record is ended by compare-and-set from the version that was seen for a whole lease",
        _LIVENESS,
        "await self._store.set(key, value, version)\n                        self._remove_later",
        "again = await self._store.get(key)\n"
        "                        await self._store.set(key, value, again.version)\n"
        "                        self._remove_later",
        by_test(
            _LIVENESS_TESTS, "test_a_process_that_renews_its_lease_in_the_last_moment_keeps_it"
        ),
    ),
    Mutant(
        "a-missing-record-is-not-waited-for",
        "a record that is missing may have been removed while its lease ran",
        _LIVENESS,
        "elif now_s >= self._expiry_s(other):",
        "elif record is None or now_s >= self._expiry_s(other):",
        by_test(
            _LIVENESS_TESTS,
            "test_a_record_that_is_missing_is_waited_for_as_long_as_its_lease_may_run",
        ),
    ),
    Mutant(
        "the-lease-of-a-missing-record-is-not-known",
        "a record that is missing is waited for as long as the list says",
        _LIVENESS,
        "Other(process_id, self._clock.monotonic(), lease_ms)",
        "Other(process_id, self._clock.monotonic(), self.lease_ms)",
        by_test(
            _LIVENESS_TESTS,
            "test_a_record_that_is_missing_is_waited_for_as_long_as_its_lease_may_run",
        ),
    ),
    Mutant(
        "who-could-not-look-does-not-wait-anew",
        "after an outage of the store each process has a whole lease to renew its record",
        _LIVENESS,
        "if other.unseen or version != other.version:",
        "if version != other.version:",
        by_test(_LIVENESS_TESTS, "test_an_outage_of_the_store_ends_no_process"),
    ),
    Mutant(
        "a-lost-reply-costs-the-lease",
        "a renewal whose answer was lost is no other process's write",
        _LIVENESS,
        "        self._version = found.version\n",
        "        self._stop()\n",
        by_test(_LIVENESS_TESTS, "test_a_renewal_whose_answer_was_lost_costs_no_incarnation"),
    ),
    Mutant(
        "a-record-that-was-ended-is-renewed",
        "an incarnation that has ended never comes back",
        _LIVENESS,
        "        if found is None or decode_record(found.value).ended:",
        "        if found is None:",
        by_test(_LIVENESS_TESTS, "test_a_process_whose_record_was_ended_begins_a_new_incarnation"),
    ),
    Mutant(
        "a-log-that-cannot-be-checked-stops-the-renewals",
        "nothing that a log does keeps the process from renewing its lease",
        _LIVENESS,
        "            try:\n                told()\n            except Exception:\n",
        "            try:\n                told()\n            except EngineError:\n",
        by_test(_LIVENESS_TESTS, "test_a_log_that_fails_keeps_no_other_one_from_being_renewed"),
    ),
    Mutant(
        "a-chore-that-hangs-stops-the-renewals",
        "nothing that is left to be done keeps the process from renewing its lease",
        _LIVENESS,
        "                    await current.renew()\n",
        "                    await current.renew()\n"
        "                if self._unfinished:\n"
        "                    await self._unfinished[0]()\n",
        by_test(_LIVENESS_TESTS, "test_a_chore_that_hangs_costs_no_lease"),
    ),
    Mutant(
        "two-processes-share-a-record",
        "each incarnation creates a record of its own",
        _LIVENESS,
        "version = await self._store.create(key_of(process_id), _encode(record))",
        "key = key_of(process_id)\n"
        "                    found = await self._store.get(key)\n"
        "                    version = found.version if found else 0\n"
        "                    if found is None:\n"
        "                        version = await self._store.create(key, _encode(record))",
        by_test(_LIVENESS_TESTS, "test_two_processes_with_the_same_random_numbers_are_two"),
    ),
    Mutant(
        "a-process-that-closes-holds-on-until-it-is-written",
        "a lease that is given back has ended before that is sent",
        _LIVENESS,
        "        self._stop()\n"
        "        self._record = msgspec.structs.replace(self._record, ended=True)",
        "        asyncio.get_running_loop().call_later(0.1, self._stop)\n"
        "        self._record = msgspec.structs.replace(self._record, ended=True)",
        by_test(_LIVENESS_TESTS, "test_a_process_that_closes_is_over_before_that_is_sent"),
    ),
    Mutant(
        "a-renewal-under-way-keeps-a-process-that-closes-alive",
        "what a process led that closes may be taken over at once",
        _LIVENESS,
        "found is not None and not decode_record(found.value).ended:",
        "found is None:",
        by_test(
            _LIVENESS_TESTS,
            "test_a_process_that_closes_while_a_renewal_is_under_way_is_over_at_once",
        ),
    ),
    Mutant(
        "a-process-that-closes-tells-nobody",
        "what a process led that closes may be taken over at once",
        _LIVENESS,
        "            await self._current.end()\n",
        "            self._current._stop()\n",
        by_test(_LIVENESS_TESTS, "test_a_process_that_closes_is_over_at_once"),
    ),
    Mutant(
        "a-newer-record-is-read",
        "a newer major version is refused",
        _LIVENESS,
        'check_major(value, "the record of a process", FORMAT_MAJOR)',
        'check_major(value, "the record of a process", FORMAT_MAJOR + 1)',
        by_test(_LIVENESS_TESTS, "test_a_record_that_is_damaged_or_of_a_newer_format_is_an_error"),
    ),
)

_ELECTIONS: Final = (
    Mutant(
        "a-leader-goes-on-under-the-next-incarnation",
        "a leader answers under the incarnation that the list names, and under no other one",
        _LIVENESS,
        "            self._stop()\n            return\n",
        '            self.process_id += "0"\n'
        "            key, value = key_of(self.process_id), _encode(self._record)\n"
        "            self._version = await self._store.create(key, value)\n"
        "            return\n",
        by_test(_ELECTION_TESTS, "test_a_leader_that_was_silent_for_long_learns_of_its_successor"),
    ),
    Mutant(
        "a-leader-whose-process-was-ended-goes-on",
        "a leader whose incarnation was ended stops",
        _ELECTION,
        "        over = self._incarnation.over.is_set()\n",
        "        over = False\n",
        by_test(
            _LEADERSHIP_TESTS,
            "test_a_leader_whose_process_record_is_deleted_stops_even_if_its_epoch_is_current",
        ),
    ),
    Mutant(
        "a-term-does-not-end-with-the-lead",
        "a leader that lost the lead stops, even if its epoch is current",
        _REPLICA,
        "            asyncio.create_task(holding.lost.wait()),\n",
        "",
        by_test(
            _LEADERSHIP_TESTS,
            "test_a_leader_whose_process_record_is_deleted_stops_even_if_its_epoch_is_current",
        ),
    ),
    Mutant(
        "who-is-elected-when-its-process-is-over-leads",
        "an incarnation may be over by the time that it is elected",
        _ELECTION,
        "        incarnation.on_renewal[self] = self._on_renewal\n        self._on_renewal()\n",
        "        incarnation.on_renewal[self] = self._on_renewal\n",
        by_test(_ELECTION_TESTS, "test_who_is_elected_when_its_process_is_over_has_lost_the_lead"),
    ),
    Mutant(
        "a-replica-that-comes-back-does-not-wait-for-itself",
        "a replica that comes back in another process waits for the lease of the former one",
        _ELECTION,
        "own = (leader.process, leader.replica) == (incarnation.process_id, self._replica)",
        "own = leader.replica == self._replica",
        by_test(
            _ELECTION_TESTS,
            "test_a_replica_that_comes_back_in_another_process_waits_for_the_former_one",
        ),
    ),
    Mutant(
        "a-replica-deposes-its-neighbour-in-the-process",
        "two replicas of one process do not share the lead of a log",
        _ELECTION,
        "own = (leader.process, leader.replica) == (incarnation.process_id, self._replica)",
        "own = leader.process == incarnation.process_id",
        by_test(_ELECTION_TESTS, "test_two_replicas_of_one_process_follow_each_other"),
    ),
    Mutant(
        "a-replica-that-is-not-able-is-elected",
        "a replica is elected only when it is able to lead",
        _ELECTION,
        "                elif not able():\n",
        "                elif not able() and False:\n",
        by_test(_ELECTION_TESTS, "test_whoever_could_have_led_before_waits_for_who_leads_since"),
    ),
    Mutant(
        "what-was-free-once-is-free",
        "whoever waits waits anew for each leader",
        _ELECTION,
        "            self._free_s = None\n",
        "            pass\n",
        by_test(_ELECTION_TESTS, "test_whoever_could_have_led_before_waits_for_who_leads_since"),
    ),
    Mutant(
        "a-takeover-goes-on-from-a-newer-list",
        "the epoch is raised from the list by which its leader was elected alone",
        _LOG,
        "        held = after if after is not None else await self._lists.read_fresh()\n",
        "        held = await self._lists.read_fresh()\n",
        by_test(
            _LEADING_TESTS,
            "test_a_takeover_goes_on_from_the_list_by_which_its_leader_was_elected_alone",
        ),
    ),
    Mutant(
        "whoever-lost-the-lead-while-it-waited-takes-over",
        "a replica that lost the right to lead does not raise the epoch",
        _REPLICA,
        "self.log.lead(holding.leader, holding.after, check)",
        "self.log.lead(holding.leader, holding.after)",
        by_test(
            _LEADERSHIP_TESTS,
            "test_a_replica_that_lost_the_lead_before_it_raised_the_epoch_does_not_raise_it",
        ),
    ),
    Mutant(
        "a-replica-forgets-by-which-list-it-was-elected",
        "the epoch is raised from the list by which its leader was elected alone",
        _REPLICA,
        "self.log.lead(holding.leader, holding.after, check)",
        "self.log.lead(holding.leader, None, check)",
        by_test(
            _LEADERSHIP_TESTS,
            "test_a_candidate_that_is_slow_after_its_election_deposes_no_leader",
        ),
    ),
    Mutant(
        "the-old-key-is-not-waited-for",
        "whoever was elected by the key of older programs has its whole lease",
        _ELECTION,
        "            return now.epoch == 0 or await self._old.free()\n",
        "            return True\n",
        by_test(_ELECTION_TESTS, "test_the_key_by_which_older_programs_elect_is_waited_for"),
    ),
    Mutant(
        "the-lease-of-the-old-key-is-not-read",
        "the key of older programs is waited for as long as its own lease",
        _ELECTION,
        "                lease_ms = max(lease_ms, beat.lease_ms)\n",
        "                lease_ms = max(lease_ms, 0)\n",
        by_test(_ELECTION_TESTS, "test_the_key_by_which_older_programs_elect_is_waited_for"),
    ),
    Mutant(
        "every-epoch-is-for-newer-programs-alone",
        "a list is of format 2 only when it names a leader",
        _LIST,
        "        if leader is None:\n            return raised\n",
        "        if leader is None:\n"
        "            return msgspec.structs.replace(raised, format_major=FORMAT_MAJOR)\n",
        by_test(
            _ELECTION_TESTS,
            "test_a_log_that_was_led_without_an_election_is_taken_over_after_a_lease",
        ),
    ),
    Mutant(
        "a-list-with-a-leader-is-for-older-programs-too",
        "older programs refuse a list that names a leader: they do not know its lease",
        _LIST,
        "leader=named, format_major=FORMAT_MAJOR)",
        "leader=named)",
        by_test(
            _ELECTION_TESTS,
            "test_the_first_leader_ever_waits_for_nobody_and_is_named_in_the_list",
        ),
    ),
    Mutant(
        "a-removal-forgets-who-led",
        "the leader of a log that was removed may still have its lease",
        _LIST,
        "LogList(current.epoch, leader=current.leader, format_major=current.format_major)",
        "LogList(current.epoch)",
        by_test(
            "engine/replica/test_removed.py",
            "test_the_leader_of_a_new_log_waits_for_the_lease_of_the_log_before_it",
        ),
    ),
)

_RESIGNATIONS: Final = (
    Mutant(
        "a-leader-that-resigns-holds-on-until-it-is-written",
        "a leader that resigns answers nothing from the moment before that is sent",
        _ELECTION,
        "        self._lose()\n"
        "        if self._incarnation.over.is_set():\n"
        "            return\n"
        "        try:\n"
        "            await self._resign()\n",
        "        if self._incarnation.over.is_set():\n"
        "            return\n"
        "        try:\n"
        "            await self._resign()\n"
        "            self._lose()\n",
        by_test(
            _ELECTION_TESTS, "test_a_leader_that_resigns_answers_nothing_while_that_is_on_its_way"
        ),
    ),
    Mutant(
        "a-resignation-is-not-heard",
        "a leader that resigns is followed at once, though its process lives",
        _ELECTION,
        "        if leader.resigned or own:",
        "        if own:",
        by_test(
            _ELECTION_TESTS,
            "test_a_leader_that_resigns_is_followed_at_once_though_its_process_lives",
        ),
    ),
    Mutant(
        "a-resignation-is-sent-once",
        "a leader resigns until that is written, or its process has ended",
        _ELECTION,
        "        except MetadataUnavailable:\n            self._liveness.see_to(self._resign)\n",
        "        except MetadataUnavailable:\n            pass\n",
        by_test(_ELECTION_TESTS, "test_a_resignation_that_the_store_did_not_take_is_sent_again"),
    ),
    Mutant(
        "nobody-does-what-was-left-unfinished",
        "what a leader left unfinished is tried until the store has taken it",
        _LIVENESS,
        "        self._unfinished.append(work)\n        self._start_chores()\n",
        "        self._unfinished.append(work)\n",
        by_test(_LIVENESS_TESTS, "test_what_could_not_be_written_is_tried_until_it_is"),
    ),
    Mutant(
        "a-damaged-record-keeps-what-is-left-from-being-done",
        "a damaged record of another process keeps no leader from resigning",
        _LIVENESS,
        "suppress(VersionConflict, CannotRead, FormatTooNew)",
        "suppress(VersionConflict)",
        by_test(_LIVENESS_TESTS, "test_a_damaged_record_keeps_nothing_else_from_being_done"),
    ),
    Mutant(
        "what-could-not-be-written-is-tried-once-more",
        "what a leader left unfinished is tried until the store has taken it",
        _LIVENESS,
        "                        await self._unfinished[0]()\n"
        "                        self._unfinished.pop(0)\n",
        "                        await self._unfinished.pop(0)()\n",
        by_test(_LIVENESS_TESTS, "test_what_could_not_be_written_is_tried_until_it_is"),
    ),
    Mutant(
        "a-late-takeover-arrives-after-its-resignation",
        "a resignation rules out the takeover that is still on its way",
        _LIST,
        "            # Any write does: the late one expects the version before it.\n"
        "            return current\n",
        "            return None\n",
        by_test(
            _ELECTION_TESTS,
            "test_a_takeover_that_is_still_on_its_way_when_its_leader_resigns_never_arrives",
        ),
    ),
    Mutant(
        "a-late-resignation-ends-the-next-leader",
        "a leader resigns for itself alone",
        _LIST,
        "        if current.leader != leader:\n",
        "        if current.leader is None:\n",
        by_test(
            _LEADING_TESTS, "test_a_resignation_that_is_late_changes_nothing_of_the_next_leader"
        ),
    ),
    Mutant(
        "a-resignation-ends-the-next-attempt-of-its-replica",
        "a resignation ends one attempt to lead, also if it is written late",
        _ELECTION,
        "            attempt=election._rng.getrandbits(63),\n",
        "",
        by_test(
            _ELECTION_TESTS,
            "test_a_resignation_that_is_written_late_does_not_end_the_next_attempt_of_its_replica",
        ),
    ),
    Mutant(
        "an-ill-leader-resigns-when-it-is-well",
        "a leader that is not healthy for a whole lease resigns at once: it may hang for long",
        _ELECTION,
        "        if self.ill and not over:\n",
        "        if self.ill and over:\n",
        by_test(_ELECTION_TESTS, "test_an_unhealthy_leader_lets_another_lead_after_a_lease"),
    ),
    Mutant(
        "who-resigned-for-illness-is-elected-at-once",
        "whoever was ill leaves others time to be elected first",
        _REPLICA,
        " and self._client.clock.monotonic() >= self._resting_until_s",
        "",
        by_test(
            _LEADERSHIP_TESTS,
            "test_a_leader_that_was_ill_lets_others_be_elected_before_it_comes_back",
        ),
    ),
    Mutant(
        "a-resigned-leader-is-named",
        "whoever has resigned leads no more",
        _LIST,
        "leader.epoch == self.epoch and not leader.resigned",
        "leader.epoch == self.epoch",
        by_test(
            _ELECTION_TESTS,
            "test_a_leader_that_resigns_is_followed_at_once_though_its_process_lives",
        ),
    ),
    Mutant(
        "the-leader-of-an-older-epoch-is-named",
        "whoever led before an epoch that was raised without an election leads no more",
        _LIST,
        "leads = leader is not None and leader.epoch == self.epoch and",
        "leads = leader is not None and",
        by_test("engine/log/test_removing.py", "test_a_removal_keeps_who_led_and_nobody_leads"),
    ),
)

ELECTION_MUTANTS: Final = (*_LEASES, *_ELECTIONS, *_RESIGNATIONS)
