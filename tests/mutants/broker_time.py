"""Mutants of the broker's time, and of schedules, commits, and limits of roll-outs."""

from typing import Final

from tests.mutants.mutant import Mutant, by_test

_CLOCKS: Final = "broker/service/test_wrong_clocks.py"
_ONE_LEADER: Final = (
    "test_a_leader_whose_clock_is_briefly_a_day_ahead_ends_no_task_and_leaves_no_trace"
)
_TIME: Final = "broker/service/test_time.py"
_KEEPING: Final = "broker/machine/test_timekeeping.py"
_LEVELS: Final = "broker/machine/test_levels.py"
_SCHEDULES: Final = "broker/service/test_schedules.py"
_TRANSACTIONS: Final = "broker/machine/test_transactions.py"
_COORDINATOR: Final = "broker/rollouts/test_coordinator.py"

BROKER_TIME_MUTANTS: Final[tuple[Mutant, ...]] = (
    Mutant(
        "a-time-in-doubt-purges-tasks",
        "a doubtful time removes no ended task",
        "broker/leading/housekeeping.py",
        "        if self._term.time.doubtful:\n            self._after(PURGE_LOOK_S",
        "        if False:\n            self._after(PURGE_LOOK_S",
        by_test(_CLOCKS, "test_a_leader_whose_clock_is_briefly_a_day_ahead_purges_no_task"),
    ),
    Mutant(
        "a-lone-clock-is-believed-at-once",
        "a jump that no other clock confirms ends nothing for a minute",
        "broker/leading/clock.py",
        "doubtful=jumped and not agreed,",
        "doubtful=False,",
        by_test(_CLOCKS, _ONE_LEADER),
    ),
    Mutant(
        "a-time-that-was-ahead-stays",
        "a time that later leaders' clocks refute is set back",
        "broker/leading/clock.py",
        "    back = behind_ms <= BACK_MAX_MS and sure\n",
        "    back = False\n",
        by_test(_CLOCKS, _ONE_LEADER),
    ),
    Mutant(
        "a-reset-clock-is-followed",
        "a clock that was reset to the beginning of time is never followed",
        "broker/leading/clock.py",
        "    back = behind_ms <= BACK_MAX_MS and sure\n",
        "    back = sure\n",
        by_test(_TIME, "test_a_term_begins_where_most_clocks_agree"),
    ),
    Mutant(
        "an-overdue-task-is-assigned-in-doubt",
        "a task that is overdue only by a doubtful time is not assigned",
        "broker/leading/term.py",
        "                if task.status is _WAITING and not self._held(task):\n",
        "                if task.status is _WAITING:\n",
        by_test(_CLOCKS, _ONE_LEADER),
    ),
    Mutant(
        "the-servers-clock-is-not-asked",
        "a leader asks another clock before it believes its own",
        "broker/service.py",
        "        if asked and self._server_ms is not None:\n",
        "        if asked and self._server_ms is None:\n",
        by_test(
            _CLOCKS,
            "test_a_leader_asks_the_metadata_stores_server_before_it_believes_its_own_clock",
        ),
    ),
    Mutant(
        "a-clock-that-still-moves-is-followed",
        "only a clock that has settled is followed",
        "broker/leading/clock.py",
        "        elif self._away is None or abs(ahead_ms - self._away[0]) > JUMP_ALARM_MS:\n",
        "        elif self._away is None:\n",
        by_test(_TIME, "test_a_clock_has_settled_after_ten_minutes_in_which_it_did_not_move"),
    ),
    Mutant(
        "a-settled-clock-is-not-followed",
        "a clock that has settled is followed",
        "broker/leading/housekeeping.py",
        "            term.retime()\n",
        "            pass\n",
        by_test(
            _CLOCKS, "test_a_store_that_an_older_version_left_ahead_is_set_back_after_ten_minutes"
        ),
    ),
    Mutant(
        "purges-go-on-from-the-time-that-was-ahead",
        "tasks that end after the time was set back are purged on time",
        "broker/timekeeping.py",
        "        counters.purged_ms = min(counters.purged_ms, wanted.now_ms)\n",
        "",
        by_test(_KEEPING, "test_tasks_that_end_after_the_time_was_set_back_are_purged_on_time"),
    ),
    Mutant(
        "the-date-of-a-task-moves",
        "a task that waits for a date keeps it when the time is set back",
        "broker/task.py",
        "    if not task.events or task.events[-1][1] in _DATED:\n",
        "    if not task.events:\n",
        by_test(
            _KEEPING,
            "test_the_date_of_a_task_does_not_move_if_its_commit_was_at_a_time_that_is_set_back",
        ),
    ),
    Mutant(
        "a-retry-waits-for-the-wrong-time",
        "a wait that began in a time that was set back starts again",
        "broker/leading/term.py",
        "                self.waits_to_restart[0].append(task.id)\n",
        "                pass\n",
        by_test(
            _CLOCKS,
            "test_a_retry_and_a_schedule_that_began_in_a_wrong_time_go_on_in_the_right_one",
        ),
    ),
    Mutant(
        "a-schedule-waits-for-the-wrong-time",
        "a schedule that was computed from a time that was set back is corrected",
        "broker/leading/firing.py",
        "            if expected_ms < due_ms:\n",
        "            if expected_ms > due_ms:\n",
        by_test(
            _CLOCKS,
            "test_a_retry_and_a_schedule_that_began_in_a_wrong_time_go_on_in_the_right_one",
        ),
    ),
    Mutant(
        "a-command-of-level-2-is-written-too-soon",
        "commands that older replicas would apply differently wait for the level",
        "broker/commands.py",
        "        return LEVEL if command.whole else 1\n",
        "        return 1\n",
        by_test(
            _LEVELS, "test_commands_that_older_replicas_would_apply_differently_wait_for_the_level"
        ),
    ),
    Mutant(
        "a-schedule-that-is-not-understood-is-over",
        "a schedule that a leader cannot evaluate stays due",
        "broker/leading/firing.py",
        "            self._set_aside(name, error.message)\n            return\n",
        "            following_ms, skipped = NEVER_MS, len(error.message) * 0\n",
        by_test(
            _SCHEDULES,
            "test_a_schedule_with_a_missing_time_zone_stays_due_until_a_leader_knows_the_zone",
        ),
    ),
    Mutant(
        "a-resume-changes-what-is-not-paused",
        "resuming a schedule that is not paused changes nothing",
        "broker/schedules_rows.py",
        "        if schedule.paused is wanted.paused:\n            return encode(1)\n",
        "",
        by_test(_SCHEDULES, "test_resuming_a_due_schedule_drops_nothing"),
    ),
    Mutant(
        "the-code-of-a-schedule-expires",
        "a code pool that a schedule names is kept after it expires",
        "broker/pools.py",
        "            if pool.name in scheduled:\n",
        "            if not pool.name:\n",
        by_test(_SCHEDULES, "test_a_code_pool_that_a_schedule_names_is_kept_after_it_expires"),
    ),
    Mutant(
        "each-purge-reads-all-schedules",
        "a purge looks only at the schedule that named an expired pool before",
        "broker/pools.py",
        "            if _is_named(step, pool):\n",
        "            if False:\n",
        by_test(
            "broker/machine/test_operating.py",
            "test_a_purge_reads_all_schedules_only_once_for_a_pool_that_one_of_them_names",
        ),
    ),
    Mutant(
        "a-commit-is-seen-in-parts",
        "a commit of many tasks becomes visible as a whole at one position",
        "broker/transactions.py",
        "    if whole and transaction.tasks > most:\n",
        "    if whole and transaction.tasks < 0:\n",
        by_test(_TRANSACTIONS, "test_a_large_commit_is_seen_whole_by_everybody_at_one_position"),
    ),
    Mutant(
        "what-was-rolled-back-still-holds-its-slot",
        "a rollback of many tasks becomes visible as a whole at one position",
        "broker/submitting.py",
        "    followed(step, holder)\n",
        "",
        by_test(_TRANSACTIONS, "test_a_large_rollback_is_seen_whole_by_everybody_at_one_position"),
    ),
    Mutant(
        "a-roll-outs-limit-outlives-it",
        "the limit of a roll-out ends with it",
        "broker/leading/cluster_limits.py",
        "            if holder == row.name:\n",
        "            if not holder:\n",
        by_test(
            _COORDINATOR,
            "test_the_limit_of_a_roll_out_ends_with_it_even_if_an_operator_changes_it_at_any_time",
        ),
    ),
    Mutant(
        "an-operators-limit-is-removed",
        "only the limit that an older version stored is removed",
        "broker/rollouts/coordinator.py",
        "            if limits.get(resource) == rollout.document.limit:\n",
        "            if resource in limits:\n",
        by_test(
            _COORDINATOR,
            "test_only_the_limit_that_an_older_version_stored_is_removed_and_no_operators_limit",
        ),
    ),
    Mutant(
        "a-new-leader-forgets-the-limit-of-a-roll-out",
        "the next leader keeps to the limit of a roll-out",
        "broker/leading/term.py",
        "                self.cluster_limits.holds(rollout)\n",
        "                pass\n",
        by_test(_COORDINATOR, "test_the_next_leader_keeps_to_the_limit_of_a_roll_out"),
    ),
    Mutant(
        "a-reader-too-far-behind-is-told-of-a-broken-disk",
        "a reader of changes that is too far behind is asked to start again",
        "herd/changes.py",
        "    with translating(), _explaining(tablespace, after):\n",
        "    with translating():\n",
        by_test(
            "herd/test_changes.py",
            "test_a_reader_that_is_too_far_behind_is_asked_to_start_again",
        ),
    ),
    Mutant(
        "a-retry-waits-for-a-wrong-clock",
        "a wait that began in this term is measured by its monotonic clock",
        "broker/leading/clock.py",
        " or since_ms >= self._start_ms:\n",
        ":\n",
        by_test(
            _CLOCKS, "test_a_leader_whose_clock_is_an_hour_behind_retries_as_soon_as_any_other"
        ),
    ),
    Mutant(
        "moments-in-doubt-are-taken-for-wrong",
        "a leader's moments are compared with what its rows and its time say together",
        "broker/leading/checking.py",
        "        task.id: ring_ms(task.due_ms, waits_since_ms(task))\n",
        "        task.id: task.due_ms\n",
        by_test(
            _CLOCKS, "test_a_leader_whose_clock_is_an_hour_behind_retries_as_soon_as_any_other"
        ),
    ),
    Mutant(
        "a-deadline-in-doubt-ends-what-is-queued",
        "a task that comes to its deadline in a queue waits until the doubt is over",
        "broker/leading/term.py",
        "            self._hold_at(task.id, deadline_ms)\n",
        "            pass\n",
        by_test(
            _CLOCKS,
            "test_a_task_that_comes_to_its_deadline_in_a_queue_is_not_ended_while_that_is_in_doubt",
        ),
    ),
)
