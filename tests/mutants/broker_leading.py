"""Mutants of the broker that leads: its time, its timers, its workers' sessions, its schedules.

And of what it tells over HTTP.
"""

from typing import Final

from tests.mutants.mutant import Mutant, by_test

_TIME: Final = "broker/service/test_time.py"
_CRON: Final = "broker/service/test_cron.py"
_SESSIONS: Final = "broker/service/test_sessions.py"
_TERMS: Final = "broker/service/test_terms.py"
_GATHERING: Final = "broker/service/test_gathering.py"
_SERVING: Final = "broker/service/test_serving.py"
_BRAKES: Final = "broker/service/test_brakes.py"
_REMOTE: Final = "broker/wire/test_remote.py"
_ASKS: Final = "broker/wire/test_ask_stream.py"
_LEASES: Final = "broker/service/test_leases.py"
_MENDING: Final = "broker/service/test_mending.py"
_INTERLEAVINGS: Final = "broker/service/test_interleavings.py"
_PARTS: Final = "broker/service/test_parts.py"

BROKER_LEADING_MUTANTS: Final[tuple[Mutant, ...]] = (
    Mutant(
        "each-tenant-has-numbers-of-its-own",
        "at most so many tenants have numbers of their own",
        "broker/leading/measures.py",
        "        if len(known) >= LABELS_MAX:\n",
        "        if not name:\n",
        by_test(
            "broker/service/test_measures.py",
            "test_however_many_tenants_there_are_few_have_numbers_of_their_own",
        ),
    ),
    Mutant(
        "a-lost-answer-is-asked-for-anew",
        "what may have been done is never asked again",
        "broker/wire/channels.py",
        "    if reads or code is StatusCode.UNIMPLEMENTED or never_sent(error):\n",
        "    if code is not StatusCode.UNAVAILABLE or reads or never_sent(error):\n",
        by_test(_REMOTE, "test_what_may_have_been_taken_is_never_sent_again"),
    ),
    Mutant(
        "a-lost-stream-is-asked-for-anew",
        "what was sent over a stream that is lost has an unknown outcome",
        "broker/wire/ask_client.py",
        "elif number > heard or name in READS:",
        "elif number >= heard or name in READS:",
        by_test(_ASKS, "test_what_a_lost_server_may_have_taken_has_an_unknown_outcome"),
    ),
    Mutant(
        "an-ending-server-says-nothing-of-what-it-took",
        "what an ending server never took is asked elsewhere",
        "broker/wire/ask_client.py",
        "if self._taken is None else self._taken",
        "if True else self._taken",
        by_test(_ASKS, "test_what_an_ending_server_never_took_is_asked_of_another_one"),
    ),
    Mutant(
        "each-turns-ends-are-a-command",
        "ends that are told while a command of ends is on its way are one command",
        "broker/leading/completing.py",
        "        if not (self._gathered or self._acks or self._under_way):\n",
        "        if not (self._gathered or self._acks):\n",
        by_test(_GATHERING, "test_ends_that_come_while_others_are_on_their_way_are_one_command"),
    ),
    Mutant(
        "each-turns-assignments-are-a-command",
        "tasks that come while a command of assignments is on its way are one command",
        "broker/leading/dispatching.py",
        "        if not (self._scheduled or self._logging or self._stopped):\n",
        "        if not (self._scheduled or self._stopped):\n",
        by_test(_GATHERING, "test_tasks_that_come_while_others_are_assigned_are_one_command"),
    ),
    Mutant(
        "a-new-leaders-time-goes-back",
        "the broker's time begins no earlier than what was logged",
        "broker/leading/clock.py",
        "max(last_logged_ms, wall_ms)",
        "wall_ms",
        by_test(_TIME, "test_the_brokers_time_goes_on_from_the_last_that_was_logged"),
    ),
    Mutant(
        "a-moved-moment-rings-twice",
        "a key has one moment of a kind",
        "broker/leading/timers.py",
        "if moments.get(key) == at_ms:",
        "if moments.get(key) is not None:",
        by_test(_TIME, "test_a_moment_that_was_moved_or_removed_does_not_ring"),
    ),
    Mutant(
        "removed-moments-are-never-tidied",
        "entries that ring no more are few",
        "broker/leading/timers.py",
        "        heapq.heappush(self._heap, (at_ms, kind, key))\n        self._tidy()\n",
        "        heapq.heappush(self._heap, (at_ms, kind, key))\n",
        by_test(_TIME, "test_deadlines_of_tasks_that_end_soon_take_no_memory_until_then"),
    ),
    Mutant(
        "a-busy-loop-blames-workers",
        "a look that comes late prolongs all leases",
        "broker/leading/leases.py",
        "        if late_s > 0:\n",
        "        if late_s > 1_000:\n",
        by_test(_TIME, "test_a_look_that_comes_late_blames_no_worker"),
    ),
    Mutant(
        "a-heartbeat-alone-keeps-a-worker",
        "a worker lives as long as it takes in what is sent to it",
        "broker/leading/crew.py",
        "taken_in = beat.taken_total >= member.beaten_total",
        "taken_in = beat.taken_total >= 0",
        by_test(
            _SESSIONS, "test_heartbeats_of_a_worker_that_takes_nothing_in_do_not_keep_it_alive"
        ),
    ),
    Mutant(
        "two-processes-share-a-workers-name",
        "a second process under the name of a living worker is refused",
        "broker/leading/crew.py",
        "if known is not None and known.process_id != hello.process_id:",
        "if known is not None and not known.process_id:",
        by_test(_SESSIONS, "test_a_second_process_under_the_name_of_a_living_one_is_refused"),
    ),
    Mutant(
        "a-draining-worker-gets-tasks",
        "who leaves gets nothing more",
        "broker/leading/crew.py",
        "return self.link is not None and not self.leaving and not self.resting",
        "return self.link is not None and not self.resting",
        by_test(
            _SESSIONS,
            "test_a_worker_that_drains_gets_nothing_more_and_finishes_what_it_has",
        ),
    ),
    Mutant(
        "a-new-leader-forgets-the-leases-of-workers",
        "a new leader grants each worker a whole lease, and counts it",
        "broker/leading/crew.py",
        "        self._leases.grant(row.worker_id, member.known.lease_ms)\n",
        "",
        by_test(
            _TERMS,
            "test_a_worker_that_did_not_come_back_is_lost_after_a_whole_lease_of_the_new_leader",
        ),
    ),
    Mutant(
        "each-caller-has-a-command-of-its-own",
        "the submits of a turn are one command",
        "broker/leading/proposing.py",
        "        if not self._gathered:\n            self._loop.call_soon(self.flush)\n",
        "        self.flush()\n        self._loop.call_soon(self.flush)\n",
        by_test(_SERVING, "test_tasks_of_one_turn_share_their_commands"),
    ),
    Mutant(
        "the-second-of-two-equal-hours-fires-in-the-past",
        "the next due time is later than the moment asked about",
        "broker/leading/cron.py",
        "            if at_ms > after_ms:\n                yield at_ms\n",
        "            yield at_ms\n",
        by_test(_CRON, "test_asked_in_the_second_of_two_equal_hours_the_first_is_over"),
    ),
    Mutant(
        "what-was-missed-fires-against-its-schedule",
        "a schedule that catches up with nothing fires nothing that was missed",
        "broker/leading/firing.py",
        "if not schedule.catch_up and now_ms - due_ms > MISSED_AFTER_MS:",
        "if not schedule.catch_up and now_ms < due_ms:",
        by_test(_TERMS, "test_what_a_schedule_missed_is_made_up_for_once_or_not_at_all"),
    ),
    Mutant(
        "schedules-fill-a-full-disk",
        "a schedule adds no task while new data finds no room",
        "broker/leading/firing.py",
        "if lack := self._lack():",
        'if lack := "":',
        by_test(
            "broker/service/test_schedules.py",
            "test_a_schedule_waits_for_room_on_a_full_disk_and_fires_once_for_all_missed_times",
        ),
    ),
    Mutant(
        "missed-schedules-beyond-a-turns-share-are-forgotten",
        "every schedule that is due is fired, if not in the same turn",
        "broker/leading/firing.py",
        "if len(names) > FIRED_A_TURN:",
        "if len(names) < 0:",
        by_test(_TERMS, "test_many_schedules_that_were_missed_are_fired_a_few_in_a_turn"),
    ),
    Mutant(
        "waits-begin-anew-under-each-leader",
        "a task has waited since its last event, whoever led then",
        "broker/leading/term.py",
        "since_ms = min(task.events[-1][0] if task.events else task.created_ms, now_ms)",
        "since_ms = self.time.now_ms()",
        by_test(_TERMS, "test_a_task_has_waited_as_long_under_the_next_leader"),
    ),
    Mutant(
        "a-second-process-begins-beside-the-first",
        "what a worker that fell silent runs is given to no other process for a whole lease",
        "broker/leading/crew.py",
        "if known is not None and known.process_id != hello.process_id:",
        "if known is not None and known.link and known.process_id != hello.process_id:",
        by_test(_BRAKES, "test_a_second_process_waits_until_the_lease_of_the_first_is_over"),
    ),
    Mutant(
        "hand-backs-have-no-brake",
        "who hands back all that it is given rests",
        "broker/leading/crew.py",
        "if member.backs >= BACKS_MAX and",
        "if member.backs < 0 and",
        by_test(_BRAKES, "test_a_worker_that_hands_everything_back_rests_for_a_growing_while"),
    ),
    Mutant(
        "a-heartbeat-that-renews-nothing-is-acknowledged",
        "a worker renews its lease by what has renewed it at the broker",
        "broker/leading/crew.py",
        "        if taken_in and self._may_grant():\n",
        "        link.say(Acked(beat.sequence))\n        if taken_in and self._may_grant():\n",
        by_test(_BRAKES, "test_a_heartbeat_that_renews_no_lease_is_not_acknowledged"),
    ),
    Mutant(
        "words-for-a-worker-that-does-not-read-pile-up",
        "what waits for a worker is bounded",
        "broker/leading/link.py",
        "if len(self._said) > SAID_MAX:",
        "if len(self._said) < 0:",
        by_test(_BRAKES, "test_a_link_that_nobody_reads_comes_to_an_end"),
    ),
    Mutant(
        "parts-that-were-taken-are-told-as-refused",
        "of a batch that was taken in part nobody is told that nothing was",
        "broker/leading/proposing.py",
        "if len(failed) == len(parts):",
        "if failed:",
        by_test(_PARTS, "test_when_some_parts_were_taken_the_outcome_is_unknown"),
    ),
    Mutant(
        "a-broken-log-is-told-as-nothing-done",
        "what was given to the log is unknown, whatever failed",
        "broker/translating.py",
        "    return broker.OutcomeUnknown(str(error))\n",
        "    return translated(error)\n",
        by_test(
            "broker/service/test_translating.py",
            "test_what_was_given_to_the_log_is_unknown_unless_it_was_never_sent",
        ),
    ),
    Mutant(
        "a-slot-tells-of-another-tenants-task",
        "who holds a slot is told only to who may see the task",
        "broker/access.py",
        "if not await _sees(calls, who, answer.task_id):",
        "if not answer.task_id:",
        by_test(
            "broker/http/test_rest.py",
            "test_of_a_busy_slot_other_tenants_are_not_told_which_task_holds_it",
        ),
    ),
    Mutant(
        "a-tenant-goes-round-its-mapping",
        "where tasks run is for administrators to say",
        "broker/access.py",
        "    if spec.fixed:\n",
        "    if spec.fixed and not spec.group:\n",
        by_test(
            "broker/http/test_rest.py",
            "test_where_tasks_run_and_whose_children_they_are_is_not_for_tenants_to_say",
        ),
    ),
    Mutant(
        "a-request-is-passed-on-as-it-was-read",
        "a request is passed on as it came",
        "broker/http/front.py",
        'request.scope.get("raw_path") or quote(request.url.path).encode()',
        "request.url.path.encode()",
        by_test("broker/http/test_front.py", "test_a_request_is_passed_on_as_it_came"),
    ),
    Mutant(
        "a-deposed-leader-acknowledges-heartbeats",
        "only a leader that nobody can have replaced acknowledges heartbeats",
        "broker/leading/crew.py",
        "if taken_in and self._may_grant():",
        "if taken_in:",
        by_test(
            _LEASES,
            "test_heartbeats_without_the_lease_are_acknowledged_once_a_later_append_is",
        ),
    ),
    Mutant(
        "an-outage-of-the-metadata-store-ends-tasks",
        "heartbeats are acknowledged without the lease if the log accepts a later append",
        "broker/leading/crew.py",
        "        elif taken_in:\n",
        "        elif False:\n",
        by_test(
            _LEASES,
            "test_heartbeats_without_the_lease_are_acknowledged_once_a_later_append_is",
        ),
    ),
    Mutant(
        "a-heartbeat-shares-an-earlier-append",
        "an append confirms only the heartbeats that came before it was sent",
        "broker/leading/crew.py",
        "        beats, self._unconfirmed = self._unconfirmed, []\n",
        "        beats = self._unconfirmed\n",
        by_test(
            _LEASES,
            "test_heartbeats_without_the_lease_are_acknowledged_once_a_later_append_is",
        ),
    ),
    Mutant(
        "a-refused-append-confirms-heartbeats",
        "a heartbeat is not acknowledged if the log refuses the append",
        "broker/leading/crew.py",
        "            if not isinstance(told, BrokerError):\n                for member",
        "            if True:\n                for member",
        by_test(
            _LEASES,
            "test_a_heartbeat_is_not_acknowledged_if_the_log_refuses_the_append",
        ),
    ),
    Mutant(
        "a-welcome-needs-the-lease",
        "a worker is welcomed if the log accepts its session",
        "broker/service.py",
        "await self.term_without_lease.crew.connect(hello)",
        "await self.term.crew.connect(hello)",
        by_test(_LEASES, "test_a_worker_is_welcomed_if_the_log_accepts_its_session"),
    ),
    Mutant(
        "commands-need-the-lease",
        "commands are accepted while the metadata store is away",
        "broker/service.py",
        "await self.term_without_lease.proposing.ask_encoded(encoded, level)",
        "await self.term.proposing.ask_encoded(encoded, level)",
        by_test(_LEASES, "test_commands_are_accepted_while_the_lease_has_expired"),
    ),
    Mutant(
        "a-watcher-that-falls-behind-is-given-up",
        "a busy watcher gets its messages later",
        "broker/worker/watching.py",
        "        except BlockingIOError:\n            pass\n        except OSError as error:",
        "        except OSError as error:",
        by_test(
            "broker/worker/test_killed.py",
            "test_a_watcher_that_falls_behind_ends_nothing_of_a_living_worker",
        ),
    ),
    Mutant(
        "a-submission-that-another-caller-sent-is-said-to-have-done-nothing",
        "a call that may have changed something is never told that it did not",
        "broker/leading/proposing.py",
        "        # The flush may run for another caller.\n        note_write()\n",
        "",
        by_test(
            _LEASES,
            "test_a_submission_that_another_caller_sent_is_never_said_to_have_done_nothing",
        ),
    ),
    Mutant(
        "a-wait-ends-without-another-look",
        "a wait whose time is over says so only at a leader",
        "broker/service.py",
        "            task = self.get(task_id)\n            if",
        "            if",
        by_test(_LEASES, "test_a_wait_that_is_over_in_time_looks_again_before_it_says_so"),
    ),
    Mutant(
        "a-leader-without-a-lease-answers",
        "what is in memory is answered only with a lease, or if the log confirms it",
        "broker/service.py",
        "        self.read(lambda rows: None)\n        return term\n",
        "        return term\n",
        by_test(
            _LEASES,
            "test_a_leader_whose_lease_has_expired_answers_from_memory_only_what_is_confirmed",
        ),
    ),
    Mutant(
        "a-lowered-lease-counts-at-once",
        "the broker waits for a worker as long as the longest lease that the worker may be using",
        "broker/leading/leases.py",
        "lease_s = max(self.lease_ms, lease_ms) / 1000",
        "lease_s = self.lease_ms / 1000",
        by_test(
            _LEASES,
            "test_the_longer_lease_applies_if_two_leaders_have_different_ones",
        ),
    ),
    Mutant(
        "a-session-forgets-the-lease-of-the-one-before",
        "until its first heartbeat in a session a worker may use the previous session's lease",
        "broker/leading/crew.py",
        "                lease_ms = max(lease_ms, before.known.lease_ms)\n",
        "                pass\n",
        by_test(
            _LEASES,
            "test_the_longer_lease_applies_if_two_leaders_have_different_ones",
        ),
    ),
    Mutant(
        "a-shorter-lease-is-noticed-late",
        "a worker uses the lease of its welcome from then on",
        "broker/worker/worker.py",
        "        self._renewed_s = sent_s\n        self._welcomed.set()\n",
        "        self._renewed_s = sent_s\n",
        by_test(
            _LEASES,
            "test_a_worker_uses_a_shorter_lease_as_soon_as_it_knows_it",
        ),
    ),
    Mutant(
        "what-is-under-way-is-queued-too",
        "a task whose assignment is under way is in no queue",
        "broker/leading/place.py",
        "    if under_way or status is _RUNNING:",
        "    if status is _RUNNING:",
        by_test(
            _MENDING,
            "test_a_task_that_is_cancelled_and_retried_under_way_is_queued_once",
        ),
    ),
    Mutant(
        "what-was-refused-is-forgotten",
        "a task whose assignment was refused waits where it was before",
        "broker/leading/term.py",
        "        self.scheduler.restore(untold)\n",
        "        self.dispatching.freed(untold)\n",
        by_test(
            _MENDING,
            "test_a_task_that_has_a_child_while_its_assignment_is_refused_waits_where_it_did",
        ),
    ),
    Mutant(
        "what-went-another-way-under-way-stays-taken",
        "when an assignment is answered, its task moves to the place that its row says",
        "broker/leading/term.py",
        "            self._settle(task, Place.TAKEN, place_of(task.status, False))\n",
        "            pass\n",
        by_test(
            _INTERLEAVINGS,
            "test_every_short_history_of_late_commands_leaves_memory_as_the_rows_are",
        ),
    ),
    Mutant(
        "a-listener-fails-the-state-machine",
        "a listener for changes cannot fail a replica",
        "broker/machine.py",
        "        except Exception:\n            # The rows",
        "        except ValueError:\n            # The rows",
        by_test(
            _MENDING,
            "test_a_listener_that_raises_does_not_fail_the_state_machine",
        ),
    ),
    Mutant(
        "a-failed-answer-silences-the-others",
        "a callback that raises does not stop the other callbacks",
        "broker/leading/proposing.py",
        "        except Exception:\n            _logger",
        "        except ValueError:\n            _logger",
        by_test(
            _MENDING,
            "test_a_callback_that_raises_does_not_stop_the_other_callbacks",
        ),
    ),
    Mutant(
        "a-failed-duty-is-never-taken-up-again",
        "a leader's duty that raises runs again",
        "broker/leading/term.py",
        '                wrong("a duty of the leader failed")\n',
        "                pass\n",
        by_test(
            _MENDING,
            "test_a_duty_that_raises_once_runs_again",
        ),
    ),
    Mutant(
        "memory-is-built-while-rows-change",
        "memory is rebuilt only when nothing is under way",
        "broker/service.py",
        "they are read.\n                await term.proposing.quiet()\n",
        "they are read.\n                pass\n",
        by_test(
            _MENDING,
            "test_memory_is_rebuilt_only_when_nothing_is_under_way",
        ),
    ),
    Mutant(
        "totals-are-not-compared",
        "a leader compares its queues with its rows from time to time",
        "broker/leading/checking.py",
        "    if queued + taken != waiting:",
        "    if queued + taken < 0:",
        by_test(
            _MENDING,
            "test_each_look_compares_the_numbers_of_all_that_wait",
        ),
    ),
    Mutant(
        "single-rows-are-not-compared",
        "all rows are compared with the queues, some in each round",
        "broker/leading/checking.py",
        "    if times is not None and times != expected:",
        "    if False:",
        by_test(
            _MENDING,
            "test_a_difference_in_a_single_row_is_found_in_its_turn",
        ),
    ),
    Mutant(
        "a-follower-builds-its-memory-anew",
        "what was wrong in a leader's memory ends with its term",
        "broker/service.py",
        "        self._wrong.clear()\n",
        "",
        by_test(
            _MENDING,
            "test_what_was_wrong_ends_with_the_term_and_a_follower_builds_nothing",
        ),
    ),
    Mutant(
        "a-defect-keeps-the-event-loop-for-itself",
        "a leader that cannot serve leaves the event loop to others",
        "broker/service.py",
        "                await self.replica.give_way(0)\n"
        "                # What fails at once, again and again, must not keep the event loop from "
        "the rest.\n"
        "                await asyncio.sleep(_RETRY_PAUSE_S)\n",
        "                await self.replica.give_way(0)\n",
        by_test(
            _MENDING,
            "test_what_fails_at_once_again_and_again_leaves_the_event_loop_to_others",
        ),
    ),
    Mutant(
        "a-term-that-is-over-blames-the-next",
        "what a term that is over hears says nothing of the one that stands",
        "broker/service.py",
        "            if self._term is term:\n",
        "            if self._term is not None:\n",
        by_test(
            _MENDING,
            "test_what_was_wrong_ends_with_the_term_and_a_follower_builds_nothing",
        ),
    ),
    Mutant(
        "a-look-searches-100-queues",
        "one look of the checker searches a bounded number of ids",
        "broker/leading/checking.py",
        "            room -= length\n",
        "",
        by_test(
            _MENDING,
            "test_one_look_searches_a_bounded_number_of_ids_in_all_queues_together",
        ),
    ),
)
