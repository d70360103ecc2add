"""Mutants of nodes and of moving leaders."""

from typing import Final

from tests.mutants.mutant import Mutant, by_test

_AUDITOR: Final = "herd/nodes/auditor.py"
_DIRECTORY: Final = "herd/nodes/directory.py"
_ELECTION: Final = "engine/replica/election.py"
_HOSTING: Final = "herd/nodes/hosting.py"
_LEADING: Final = "engine/replica/leading.py"
_PLACING: Final = "herd/nodes/placing.py"
_NODE: Final = "herd/nodes/node.py"
_SUSPENDING: Final = "herd/nodes/test_suspending.py"
_TABLESPACE: Final = "herd/tablespace.py"
_TAKEOVERS: Final = "engine/metadata/takeovers.py"
_DIRECTORY_TESTS: Final = "herd/nodes/test_directory.py"
_NODE_TESTS: Final = "herd/nodes/test_node.py"
_PLACING_TESTS: Final = "herd/nodes/test_placing.py"
_RESTORING_TESTS: Final = "herd/nodes/test_restoring.py"
_LEADERSHIP: Final = "engine/replica/test_leadership.py"
_TURNS: Final = "engine/metadata/test_takeovers.py"
_ONE_AT_A_TIME: Final = (
    "test_a_tablespace_gets_one_more_replica_at_a_time_on_the_node_with_the_fewest"
)
_RESTORED: Final = "test_nodes_run_what_was_filled_and_it_outlives_its_leader"

NODE_MUTANTS: Final = (
    Mutant(
        "a-leader-that-suspends-does-not-wait-for-the-others",
        "the leader of a suspended tablespace ends last",
        _NODE,
        "elif fact.suspended and not (hosted.in_use or self._awaits_others(name, hosted)):",
        "elif fact.suspended and not hosted.in_use:",
        by_test(
            _SUSPENDING, "test_the_leader_of_a_suspended_tablespace_ends_after_the_other_replicas"
        ),
    ),
    Mutant(
        "what-is-used-while-it-is-being-suspended-ends",
        "a suspended tablespace that is used is resumed",
        _NODE,
        "if fact is not None and fact.suspended and hosted.in_use:",
        "if fact is None:",
        by_test(
            _SUSPENDING, "test_a_node_that_begins_to_use_a_suspended_tablespace_has_it_run_again"
        ),
    ),
    Mutant(
        "a-leader-suspends-what-others-use",
        "a tablespace is suspended only if no replica is in use",
        _NODE,
        "return all(report is None or (report.ready and report.idle) for report in reports)",
        "return True",
        by_test(
            _SUSPENDING, "test_a_statement_that_runs_at_any_replica_keeps_a_tablespace_running"
        ),
    ),
    Mutant(
        "a-dropped-suspended-tablespace-leaves-its-states",
        "states of a suspended tablespace that is dropped are removed",
        _NODE,
        "            if not mine:\n",
        "            if not uuid:\n",
        by_test(_SUSPENDING, "test_a_suspended_tablespace_can_be_dropped"),
    ),
    Mutant(
        "the-users-tablespace-is-suspended",
        "tablespaces that are never to be suspended are not",
        _NODE,
        "if name in self.settings.never_suspended or not hosted.idle:",
        "if not hosted.idle:",
        by_test(_SUSPENDING, "test_tablespaces_that_are_never_to_be_suspended_are_not"),
    ),
    Mutant(
        "a-replica-is-replaced-at-once",
        "a replica that is away counts until it is given up",
        _PLACING,
        "sum(node not in given_up for node in fact.replicas)",
        "sum(node in loads for node in fact.replicas)",
        by_test(_PLACING_TESTS, "test_a_replica_that_is_away_for_a_moment_is_not_replaced"),
    ),
    Mutant(
        "two-replicas-are-added-at-once",
        "a tablespace gets one more replica at a time",
        _PLACING,
        "    return fact.replicas if chosen is None else (*fact.replicas, chosen)",
        "    return (*fact.replicas, *(node for _, node in free[:missing]))",
        by_test(_PLACING_TESTS, _ONE_AT_A_TIME),
    ),
    Mutant(
        "a-replica-is-added-while-another-is-made",
        "while a replica is being made, no other is begun",
        _PLACING,
        "    if not all(map(_is_ready, map(reports, there))):",
        "    if not there and not fact.replicas:",
        by_test(_PLACING_TESTS, _ONE_AT_A_TIME),
    ),
    Mutant(
        "the-clusters-number-is-everybodys",
        "a tablespace with a number of replicas of its own keeps that",
        _PLACING,
        "    if fact.by_default:",
        "    if default_replicas:",
        by_test(
            _PLACING_TESTS,
            "test_a_tablespace_without_a_number_of_its_own_has_as_many_as_the_cluster_says",
        ),
    ),
    Mutant(
        "surplus-goes-before-others-are-ready",
        "no replica goes before as many as there should be are there and ready",
        _PLACING,
        "    if surplus <= 0 or len(ready) < fact.expected:",
        "    if surplus <= 0:",
        by_test(
            _PLACING_TESTS,
            "test_what_is_away_leaves_when_enough_others_are_ready_and_not_before",
        ),
    ),
    Mutant(
        "whoever-leads-may-be-surplus",
        "what leads, and who should lead, goes last",
        _PLACING,
        "        return 2 + leads + 2 * (node == fact.leader), -loads[node], node",
        "        return 2, -loads[node], node",
        by_test(
            _PLACING_TESTS,
            "test_surplus_goes_from_the_fullest_node_and_never_from_who_leads_or_should",
        ),
    ),
    Mutant(
        "an-auditors-pause-counts-as-absence",
        "only time in which the auditor looked counts as absence",
        _AUDITOR,
        "        return min(now_s - before_s, 1.5 * self._settings.look_ms / 1000)",
        "        return now_s - before_s",
        by_test(_NODE_TESTS, "test_a_pause_of_the_auditor_is_no_absence_of_a_node"),
    ),
    Mutant(
        "a-restoration-is-there-before-it-is-whole",
        "nobody lists, runs or reaches what is not whole",
        "herd/nodes/restoring.py",
        "count, dropped=True, restoring=True)",
        "count, restoring=True)",
        by_test(_RESTORING_TESTS, _RESTORED),
    ),
    Mutant(
        "a-restoration-is-swept-under-its-maker",
        "a restoration is swept only when its maker is gone, and it was given up",
        _AUDITOR,
        "            if fact.restoring:\n",
        "            if fact.restoring and fact.hosted:\n",
        by_test(_RESTORING_TESTS, _RESTORED),
    ),
    Mutant(
        "a-restoration-ends-twice",
        "whoever ends a restoration first decides",
        _DIRECTORY,
        "            if not found.restoring:\n",
        "            if found.restoring is None:\n",
        by_test(_DIRECTORY_TESTS, "test_whoever_ends_a_restoration_first_decides"),
    ),
    Mutant(
        "a-lost-reply-changes-twice",
        "a change whose reply was lost is found by its token",
        _DIRECTORY,
        "            if found is not None and found.token == token:",
        "            if found is not None and found.token == -1:",
        by_test(_DIRECTORY_TESTS, "test_a_change_whose_reply_was_lost_is_made_once"),
    ),
    Mutant(
        "who-fell-silent-is-waited-for",
        "the lead is not left to a designated leader that just fell silent",
        _HOSTING,
        " and outlook.address_of(node) not in predecessors:",
        ":",
        by_test(
            _NODE_TESTS,
            "test_a_designated_leader_that_was_away_leads_again_when_it_has_caught_up",
        ),
    ),
    Mutant(
        "survivors-compete",
        "each replica waits a little longer than the one before it",
        _HOSTING,
        "        return place * self._settings.succession_ms / 1000\n",
        "        return 0.0\n",
        by_test(
            _NODE_TESTS, "test_survivors_share_the_tablespaces_of_a_lost_node_and_try_each_once"
        ),
    ),
    Mutant(
        "one-survivor-leads-everything",
        "the survivors of a lost node share its tablespaces",
        _HOSTING,
        "        ready.sort(key=partial(_rank, self.fact.uuid))\n",
        "        ready.sort()\n",
        by_test(
            _NODE_TESTS, "test_survivors_share_the_tablespaces_of_a_lost_node_and_try_each_once"
        ),
    ),
    Mutant(
        "takeovers-go-in-the-order-in-which-they-came",
        "the log that was written last is taken over first",
        _TAKEOVERS,
        "not first, -written_s)",
        "not first, 0.0)",
        by_test(_TURNS, "test_the_log_that_was_written_last_is_taken_over_first"),
    ),
    Mutant(
        "logs-of-others-do-not-wait-behind-its-own",
        "a process first takes over the logs that it should lead",
        _TAKEOVERS,
        "not first, -written_s)",
        "False, -written_s)",
        by_test(_TURNS, "test_logs_that_another_process_should_lead_wait_behind_its_own"),
    ),
    Mutant(
        "work-that-can-wait-goes-first",
        "work that can wait leaves half of the turns to takeovers",
        _TAKEOVERS,
        "self.free > self._at_once // 2",
        "self.free > 0",
        by_test(_TURNS, "test_work_that_can_wait_holds_at_most_half_of_the_turns_and_never_waits"),
    ),
    Mutant(
        "own-logs-that-fail-come-before-those-of-others",
        "a log whose takeover failed waits behind all others",
        _TAKEOVERS,
        "_Rank(math.isinf(written_s),",
        "_Rank(False,",
        by_test(_TURNS, "test_a_log_whose_takeover_failed_goes_behind_those_of_others"),
    ),
    Mutant(
        "an-election-does-not-say-who-should-lead",
        "a replica that defers to another one waits behind those that do not",
        _ELECTION,
        "first=not self._deference_s",
        "first=True",
        by_test(_LEADERSHIP, "test_a_replica_that_defers_waits_behind_those_that_do_not"),
    ),
    Mutant(
        "a-replica-that-may-not-lead-keeps-its-turn",
        "a replica that is not able to lead any more leaves the queue",
        _ELECTION,
        "elif not able():\n                    self.turn.leave()\n",
        "elif not able():\n",
        by_test(
            _LEADERSHIP,
            "test_a_replica_that_cannot_lead_or_reach_the_store_when_its_turn_comes_passes_it_on"
            "[ill]",
        ),
    ),
    Mutant(
        "a-replica-without-the-store-keeps-its-turn",
        "a replica that does not reach the store leaves the queue",
        _ELECTION,
        "except MetadataUnavailable:\n                self.turn.leave()\n",
        "except MetadataUnavailable:\n                pass\n",
        by_test(
            _LEADERSHIP,
            "test_a_replica_that_cannot_lead_or_reach_the_store_when_its_turn_comes_passes_it_on"
            "[cut off]",
        ),
    ),
    Mutant(
        "a-new-leader-sweeps-while-takeovers-wait",
        "a new leader removes garbage only when no takeover waits",
        "engine/replica/duties.py",
        "            if not spare:\n",
        "            if False:\n",
        by_test(_LEADERSHIP, "test_a_new_leader_removes_garbage_only_when_no_takeover_waits"),
    ),
    Mutant(
        "a-replica-elected-and-closed-keeps-its-turn",
        "a replica that is closed before its takeover gives its turn to the next one",
        "engine/replica/replica.py",
        "            finally:\n                self._election.turn.leave()\n            if",
        "            if",
        by_test(_LEADERSHIP, "test_a_replica_closed_between_election_and_takeover_keeps_no_turn"),
    ),
    Mutant(
        "a-takeover-that-is-over-keeps-its-turn",
        "a takeover gives its turn to the next one when it ends",
        "engine/replica/replica.py",
        "            finally:\n"
        "                self._election.turn.leave()\n"
        "            self._takeover",
        "            finally:\n                pass\n            self._takeover",
        by_test(
            _LEADERSHIP,
            "test_a_log_whose_takeover_failed_goes_behind_all_others_until_one_succeeds",
        ),
    ),
    Mutant(
        "a-waiting-replica-does-not-hear-who-leads",
        "a replica that waits for its turn leaves the queue when another one leads",
        _ELECTION,
        "pause_s is None or pause_s > 0:\n                    self.turn.leave()\n",
        "pause_s is None or pause_s > 0:\n                    pass\n",
        by_test(
            _LEADERSHIP,
            "test_a_replica_that_waits_for_its_turn_leaves_the_queue_when_another_one_leads",
        ),
    ),
    Mutant(
        "a-follower-does-not-note-when-it-applied",
        "the tablespaces written last are taken over first",
        "engine/replica/following.py",
        "            self._commands = self._applier.commands\n            self.written_s",
        "            self._commands = self._applier.commands\n            _",
        by_test(_NODE_TESTS, "test_the_tablespaces_written_last_are_taken_over_before_the_others"),
    ),
    Mutant(
        "a-leader-does-not-note-when-it-wrote",
        "a leader knows when the log was written last",
        "engine/replica/replica.py",
        "        self._following.note_written()\n",
        "",
        by_test(_LEADERSHIP, "test_leaders_and_followers_know_when_the_log_was_written_last"),
    ),
    Mutant(
        "replicas-own-entries-count-as-writes",
        "entries that replicas write for themselves are no writes of users",
        "engine/replica/applier.py",
        "        self.commands -= 1\n",
        "",
        by_test(_LEADERSHIP, "test_leaders_and_followers_know_when_the_log_was_written_last"),
    ),
    Mutant(
        "logs-that-cannot-be-taken-over-come-first",
        "every fourth turn goes to the log that has waited longest",
        _TAKEOVERS,
        "self._passed_on % _LONGEST_EVERY == 0",
        "self._passed_on < 0",
        by_test(_TURNS, "test_logs_that_come_again_and_again_keep_no_other_one_waiting"),
    ),
    Mutant(
        "a-log-that-cannot-be-taken-over-comes-first",
        "a log whose takeover failed waits behind all others",
        "engine/replica/replica.py",
        "            self._takeover_failed = True\n",
        "",
        by_test(
            _LEADERSHIP,
            "test_a_log_whose_takeover_failed_goes_behind_all_others_until_one_succeeds",
        ),
    ),
    Mutant(
        "a-node-opens-all-replicas-at-once",
        "a node that starts opens few replicas at a time",
        _NODE,
        "asyncio.Semaphore(_OPENED_AT_ONCE)",
        "asyncio.Semaphore(1_000)",
        by_test(
            "herd/nodes/test_booting.py",
            "test_a_node_opens_few_replicas_at_once_but_waits_for_no_slow_one[0.1-8]",
        ),
    ),
    Mutant(
        "a-replica-that-opens-slowly-keeps-its-turn",
        "a replica that opens slowly passes its turn on",
        _NODE,
        "call_later(_OPENING_S, turn.close)",
        "call_later(1_000.0, turn.close)",
        by_test(
            "herd/nodes/test_booting.py",
            "test_a_node_opens_few_replicas_at_once_but_waits_for_no_slow_one[60.0-40]",
        ),
    ),
    Mutant(
        "a-node-names-a-leader-that-is-gone",
        "a node sends nobody to a leader whose lease has ended",
        _NODE,
        "replica.predecessors if replica.vacant else lost",
        "lost",
        by_test(_NODE_TESTS, "test_a_node_sends_nobody_to_a_leader_whose_lease_has_ended"),
    ),
    Mutant(
        "a-leader-that-resigned-comes-first-again",
        "the last leader is not waited for, even if it has resigned",
        _HOSTING,
        "predecessors, ready = space.replica.predecessors,",
        "predecessors, ready = {space.replica.leader},",
        by_test(
            _NODE_TESTS,
            "test_a_first_successor_whose_takeovers_fail_stops_nobody[a ledger-undesignated]",
        ),
    ),
    Mutant(
        "a-leader-takes-its-predecessor-for-the-last-leader",
        "a leader knows that it is the last leader itself",
        "engine/replica/replica.py",
        "            self._election.elected(writer.epoch)\n",
        "",
        by_test(
            _NODE_TESTS,
            "test_a_leader_gives_way_once_to_a_designated_leader_that_returns",
        ),
    ),
    Mutant(
        "who-was-elected-and-wrote-nothing-is-the-only-predecessor",
        "the last leader is not waited for after an election that came to nothing",
        _ELECTION,
        "for own, address in self._elections if own >= epoch}",
        "for own, address in [*self._elections][-1:]}",
        by_test(
            _NODE_TESTS,
            "test_a_first_successor_whose_takeovers_fail_stops_nobody[nothing-designated]",
        ),
    ),
    Mutant(
        "only-designated-leaders-have-successors",
        "a hash orders the replicas where no designated leader is ready",
        _HOSTING,
        "        if self._node_id == self.fact.leader:\n",
        '        if self.fact.leader in ("", self._node_id):\n',
        by_test(
            _NODE_TESTS, "test_survivors_share_the_tablespaces_of_a_lost_node_and_try_each_once"
        ),
    ),
    Mutant(
        "a-leader-gives-way-to-one-that-lags",
        "a leader gives way only when the designated one follows closely",
        _HOSTING,
        "        return bool(older) and report.position >= older[-1]",
        "        return True",
        by_test(_NODE_TESTS, "test_a_designated_leader_that_lags_behind_is_not_waited_for"),
    ),
    Mutant(
        "a-leader-gives-way-to-a-node-that-was-killed",
        "a leader gives way only to a node that has followed its own term",
        _HOSTING,
        "        looks = [look for look in self._trail if look[1] == term]\n",
        "        looks = list(self._trail)\n",
        by_test(_NODE_TESTS, "test_a_leader_gives_way_once_to_a_designated_leader_that_returns"),
    ),
    Mutant(
        "a-leader-gives-way-again-and-again",
        "a leader that gave way in vain tries again less and less often",
        _HOSTING,
        "        if now_s - self._gave_s < self._pause_s:",
        "        if now_s - self._gave_s < 0.0:",
        by_test(_NODE_TESTS, "test_a_designated_leader_that_does_not_take_the_lead_stops_nobody"),
    ),
    Mutant(
        "open-transactions-are-not-waited-for",
        "who gives way lets open transactions end",
        _TABLESPACE,
        "            for _ in range(patience_ms // pause_ms):",
        "            for _ in range(0):",
        by_test(
            _NODE_TESTS,
            "test_a_transaction_that_is_open_when_its_leader_is_moved_may_end_well",
        ),
    ),
    Mutant(
        "transactions-begin-while-a-leader-gives-way",
        "no transaction begins while its leader gives way",
        _TABLESPACE,
        "        if not self.term or self._successor is not None:",
        "        if not self.term:",
        by_test(
            _NODE_TESTS,
            "test_a_transaction_that_is_open_when_its_leader_is_moved_may_end_well",
        ),
    ),
    Mutant(
        "who-gives-way-takes-proposals",
        "a leader that gives way leaves no outcome unknown",
        _LEADING,
        "        self._draining = True",
        "        self._draining = False",
        by_test(
            "engine/replica/test_giving_way.py",
            "test_who_gives_way_leaves_no_outcome_unknown_and_no_proposal_lost",
        ),
    ),
    Mutant(
        "nobody-defers-to-anybody",
        "who defers to others is elected after them",
        _ELECTION,
        "            return self._free_s + self._deference_s - now_s",
        "            return self._free_s - now_s",
        by_test(
            "engine/replica/test_election.py",
            "test_who_defers_to_others_is_elected_after_them_and_without_them_none_the_less",
        ),
    ),
    Mutant(
        "a-snapshot-is-read-from-older-pages",
        "a snapshot has what changed between the kept pages and itself",
        "herd/columns.py",
        "                before[key] = value",
        "                continue",
        by_test(
            "herd/test_columns.py",
            "test_a_snapshot_has_what_changed_between_the_pages_and_itself",
        ),
    ),
    Mutant(
        "columns-outlive-a-restored-state",
        "what was kept beside a state is not answered after a snapshot took its place",
        "herd/columns.py",
        "        if self._space.replica.replaced != self._replaced:",
        "        if self._space.replica.replaced < self._replaced:",
        by_test(
            "herd/test_columns.py",
            "test_what_a_restored_snapshot_replaced_is_not_answered_any_more",
        ),
    ),
)
