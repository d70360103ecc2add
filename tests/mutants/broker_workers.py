"""Mutants of workers and of the broker's wire: leases, processes, what is told twice and never."""

from typing import Final

from tests.mutants.mutant import Mutant, by_test

_WORKER: Final = "broker/worker/test_worker.py"
_LEAVING: Final = "broker/service/test_leaving.py"
_POOL: Final = "broker/worker/test_pool.py"
_GRPC: Final = "broker/wire/test_grpc.py"
_FOLDER: Final = "broker/wire/test_folder.py"
_PAYLOADS: Final = "broker/service/test_payloads.py"
_SERVING: Final = "broker/worker/test_serving.py"
_KILLED: Final = "broker/worker/test_killed.py"

BROKER_WORKER_MUTANTS: Final[tuple[Mutant, ...]] = (
    Mutant(
        "a-hidden-reason-is-not-asked-for-again",
        "a worker that the broker refuses while it greets hears the reason",
        "broker/wire/grpc_port.py",
        "_GREETING_TRIES = 3\n",
        "_GREETING_TRIES = 1\n",
        by_test(_GRPC, "test_a_worker_greets_again_if_the_call_ends_during_the_write[1]"),
    ),
    Mutant(
        "what-does-not-end-keeps-other-tasks-away",
        "an attempt that does not end costs a worker one seat",
        "broker/worker/worker.py",
        "await asyncio.wait((ending, back), return_when=asyncio.FIRST_COMPLETED)",
        "await asyncio.wait((ending,), return_when=asyncio.FIRST_COMPLETED)",
        by_test(
            "broker/worker/test_worker.py",
            "test_what_does_not_end_keeps_no_other_tasks_away_once_the_lease_is_renewed",
        ),
    ),
    Mutant(
        "a-worker-begins-what-comes-too-late",
        "a worker begins nothing once half a lease has passed without an answer",
        "broker/worker/worker.py",
        " or self._ending or late:",
        " or self._ending:",
        by_test(
            _WORKER, "test_what_comes_when_half_a_lease_has_passed_is_handed_back_and_never_begun"
        ),
    ),
    Mutant(
        "a-worker-outlives-its-lease",
        "a worker ends its processes half a lease after its last acknowledged heartbeat was sent",
        "broker/worker/worker.py",
        "self._lease_ms / 2000 - self._clock",
        "self._lease_ms / 500 - self._clock",
        by_test(
            _WORKER, "test_half_a_lease_after_the_last_acknowledged_heartbeat_was_sent_all_is_ended"
        ),
    ),
    Mutant(
        "an-unheard-result-is-forgotten",
        "what ended is told until it is acknowledged",
        "broker/worker/worker.py",
        "        link.tell(list(self._ended.values()))\n",
        "        self._ended.clear()\n",
        by_test(
            _WORKER,
            "test_a_broken_link_stops_nothing_and_what_ended_meanwhile_is_told_over_the_next",
        ),
    ),
    Mutant(
        "a-worker-obeys-another-session",
        "what belongs to another session is dropped",
        "broker/worker/worker.py",
        "            if message.session == link.session:\n                self._taken_total",
        "            if message.session >= 0:\n                self._taken_total",
        by_test(_WORKER, "test_what_another_session_says_is_dropped"),
    ),
    Mutant(
        "a-deaf-broker-is-waited-for",
        "a link without answers is given up for another one",
        "broker/worker/worker.py",
        "_SILENCE_MAX: Final = 3 / 8",
        "_SILENCE_MAX: Final = 9",
        by_test(
            _WORKER,
            "test_a_link_that_does_not_answer_is_given_up_for_another_before_the_lease_ends",
        ),
    ),
    Mutant(
        "a-draining-worker-begins-more",
        "after a drain began nothing is begun",
        "broker/worker/worker.py",
        "if self._draining.is_set() or self._ending or late:",
        "if self._ending or late:",
        by_test(_WORKER, "test_a_drain_finishes_what_runs_hands_back_what_comes_and_leaves"),
    ),
    Mutant(
        "a-worker-leaves-before-that-is-heard",
        "what is on its way to a worker that leaves never began",
        "broker/worker/worker.py",
        "while self._ended or (self.session and not (self._link and self._link.left)):",
        "while self._ended:",
        by_test(
            _LEAVING,
            "test_what_is_on_its_way_to_an_idle_worker_that_leaves_waits_for_another_one",
        ),
    ),
    Mutant(
        "a-worker-leaves-over-no-link",
        "a worker whose link is broken says farewell over the next one",
        "broker/worker/worker.py",
        "(self.session and not (self._link and self._link.left))",
        "(self._link and not self._link.left)",
        by_test(
            _WORKER, "test_an_idle_worker_whose_link_is_broken_says_farewell_over_the_next_one"
        ),
    ),
    Mutant(
        "given-away-tasks-run-on",
        "what another worker has by now is ended",
        "broker/worker/worker.py",
        "        if welcome.drop:\n",
        "        if not welcome.drop:\n",
        by_test(
            _WORKER, "test_what_the_next_leader_gave_to_others_is_ended_and_its_result_forgotten"
        ),
    ),
    Mutant(
        "bystanders-are-blamed",
        "the others in a process that is ended go back uncounted",
        "broker/worker/pool.py",
        "                if not child.killed:\n",
        "                if True:\n",
        by_test(_POOL, "test_a_time_limit_ends_the_process_and_the_others_in_it_go_back_uncounted"),
    ),
    Mutant(
        "what-never-began-has-failed",
        "what never began is handed back, however its process ended",
        "broker/worker/pool.py",
        "                if not child.has_begun(mark):\n                    ended.append",
        "                if mark == -2:\n                    ended.append",
        by_test(_POOL, "test_what_waits_in_a_process_never_began_however_that_ends"),
    ),
    Mutant(
        "tasks-wait-for-a-process-that-never-comes",
        "nothing waits for a process that does not start",
        "broker/worker/pool.py",
        "                    self._stand(seat, down=True)\n",
        "                    self._stand(seat, down=False)\n",
        by_test(_POOL, "test_nothing_waits_for_a_process_that_does_not_start"),
    ),
    Mutant(
        "one-slow-function-holds-up-all",
        "plain functions that wait run side by side",
        "broker/worker/running.py",
        "            if self._taken == seen:\n",
        "            if self._taken < seen:\n",
        by_test(_POOL, "test_plain_functions_that_wait_run_side_by_side"),
    ),
    Mutant(
        "threads-count-when-they-run",
        "never more plain functions run at once than there are places",
        "broker/worker/running.py",
        "        self._places.append(place)\n",
        "",
        by_test(
            "broker/worker/test_running.py",
            "test_threads_that_are_slow_to_start_are_no_reason_for_more_of_them_than_places",
        ),
    ),
    Mutant(
        "calls-go-to-and-fro",
        "a call is passed on once at most",
        "broker/wire/grpc_service.py",
        "if error.leader and not forwarded:",
        "if error.leader:",
        by_test(_GRPC, "test_a_follower_asks_the_leader_and_never_passes_a_call_on_twice"),
    ),
    Mutant(
        "a-guest-asks-twice",
        "what a folder's owner may have done before it ended is never asked again",
        "broker/wire/folder.py",
        "                if name not in READS:\n",
        "                if not name:\n",
        by_test(_FOLDER, "test_what_may_have_been_taken_is_never_sent_again"),
    ),
    Mutant(
        "anybody-is-a-guest",
        "only who knows the nonce of a folder is heard",
        "broker/wire/framed_server.py",
        "if options.get(NONCE) != self._server.nonce:",
        "if not options:",
        by_test(_FOLDER, "test_only_who_knows_the_folder_is_heard"),
    ),
    Mutant(
        "a-schedule-loses-its-payload",
        "what a schedule names is never forgotten",
        "broker/sweeping.py",
        "        unnamed.discard(schedule.spec.payload_object)\n",
        "        unnamed.discard(schedule.name)\n",
        by_test(_PAYLOADS, "test_payloads_go_with_the_last_that_names_them"),
    ),
    Mutant(
        "a-result-on-its-way-is-not-held",
        "an attempt is among those that run until its end was told",
        "broker/worker/stored.py",
        "        return [*self._fetching, *self._inner.running, *self._storing]\n",
        "        return [*self._fetching, *self._inner.running]\n",
        by_test(_PAYLOADS, "test_an_attempt_runs_from_its_assignment_until_its_end_is_told"),
    ),
    Mutant(
        "a-worker-without-functions-takes-all",
        "a worker that could run nothing takes nothing",
        "broker/worker/serving.py",
        "        if not types:\n",
        "        if types == ('',):\n",
        by_test(_SERVING, "test_workers_without_a_function_take_nothing"),
    ),
    Mutant(
        "a-child-outlives-its-worker",
        "a child process ends with its worker, even in a call that holds the interpreter",
        "broker/worker/child.py",
        "        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)\n",
        "        pass\n",
        by_test(
            _KILLED,
            "test_children_of_a_killed_worker_end_without_its_watcher_too",
        ),
    ),
    Mutant(
        "a-child-does-not-look-for-its-worker",
        "a child whose worker has already ended ends at once",
        "broker/worker/child.py",
        "    if os.getppid() != parent:\n",
        "    if os.getppid() < 0:\n",
        by_test(
            _KILLED,
            "test_a_child_whose_worker_has_already_ended_ends_at_once",
        ),
    ),
    Mutant(
        "what-tasks-started-outlives-a-killed-worker",
        "processes that tasks started end with the worker, in any session",
        "broker/worker/watcher.py",
        "        self._end_all()\n",
        "        pass\n",
        by_test(
            _KILLED,
            "test_when_a_worker_is_killed_everything_that_its_tasks_started_ends",
        ),
    ),
    Mutant(
        "only-process-groups-end",
        "processes in other sessions end with the child, before its end is reported",
        "broker/worker/child_process.py",
        "        if not self.idle:\n",
        "        if False:\n",
        by_test(
            _KILLED,
            "test_a_process_that_a_task_started_in_its_own_session_ends_with_the_child",
        ),
    ),
    Mutant(
        "an-end-is-told-after-one-pass",
        "an attempt has not ended while a process that it started runs",
        "broker/worker/watching.py",
        "            if left.gone:\n                return\n",
        "            return\n",
        by_test(
            _KILLED,
            "test_an_attempt_has_not_ended_while_a_process_that_it_started_runs",
        ),
    ),
    Mutant(
        "only-marked-processes-are-waited-for",
        "a process group is waited for, too",
        "broker/worker/watcher.py",
        "int(fields[2]) in self._groups:\n",
        "int(fields[2]) < 0:\n",
        by_test(
            _KILLED,
            "test_processes_without_a_mark_are_waited_for_by_their_group",
        ),
    ),
    Mutant(
        "a-closed-pool-completes-what-runs",
        "what still runs when a pool is closed is not completed",
        "broker/worker/pool.py",
        "            if seat.child is not None and not seat.child.over.is_set():\n",
        "            if False:\n",
        by_test(
            _KILLED,
            "test_a_pool_that_is_closed_does_not_complete_what_still_runs",
        ),
    ),
    Mutant(
        "a-process-that-has-exited-is-killed",
        "the group of a process that has exited gets no signal: its number may be another's by now",
        "broker/worker/child_process.py",
        "        if self.exited.is_set():\n            return\n",
        "",
        by_test(
            _KILLED,
            "test_a_process_that_has_exited_gets_no_signal_and_no_tasks",
        ),
    ),
    Mutant(
        "what-never-began-waits-for-leftovers",
        "what had not begun when its process exited does not wait for what the others left",
        "broker/worker/pool.py",
        "            self._end_unbegun(seat, child)\n",
        "",
        by_test(
            _KILLED,
            "test_a_process_that_has_exited_gets_no_signal_and_no_tasks",
        ),
    ),
    Mutant(
        "a-worker-leaves-what-still-runs",
        "a worker does not leave its session while something does not end",
        "broker/worker/worker.py",
        '                _log.error("%d tasks did not end in time", len(self._places))\n'
        "                return False\n",
        "                pass\n",
        by_test(
            "broker/worker/test_worker.py",
            "test_a_worker_does_not_leave_its_session_while_something_does_not_end",
        ),
    ),
)
