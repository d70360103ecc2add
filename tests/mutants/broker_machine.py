"""Mutants of the broker's state machine."""

from typing import Final

from tests.mutants.mutant import Mutant, by_test

_RUNNING: Final = "broker/machine/test_running.py"
_RETRYING: Final = "broker/machine/test_retrying.py"
_TRANSACTIONS: Final = "broker/machine/test_transactions.py"
_ALIKE: Final = "broker/machine/test_alike.py"
_GRAPHS: Final = "broker/machine/test_graphs.py"
_OPERATING: Final = "broker/machine/test_operating.py"
_INTERVENTIONS: Final = "broker/machine/test_interventions.py"

ATTEMPT_MUTANTS: Final = (
    Mutant(
        "a-stale-session-ends-a-task",
        "word counts only from the session that has the task",
        "broker/finishing.py",
        "    if task.session != session:\n        return Answer.STALE\n",
        "",
        by_test(_RETRYING, "test_a_reconnected_worker_keeps_what_it_lists_and_nothing_else"),
    ),
    Mutant(
        "a-stale-attempt-ends-a-task",
        "word counts only of the newest attempt",
        "broker/finishing.py",
        "task.attempt != item.attempt or ",
        "",
        by_test(_RUNNING, "test_the_same_completion_again_is_known_and_a_stale_one_is_refused"),
    ),
    Mutant(
        "late-word-of-a-dead-attempt-is-taken-as-known",
        "word of an attempt whose worker was given up is stale",
        "broker/retrying.py",
        "it is stale from now on.\n    task.session = 0\n",
        "it is stale from now on.\n",
        by_test(
            _RETRYING, "test_tasks_of_a_lost_worker_go_on_elsewhere_and_its_late_word_is_stale"
        ),
    ),
    Mutant(
        "at-most-once-goes-on-after-a-death",
        "a task that may begin once is lost with its worker",
        "broker/retrying.py",
        "    elif task.mode is Mode.AT_MOST_ONCE:\n        task.attempts_spent += 1\n        end(",
        "    elif task.mode is None:\n        task.attempts_spent += 1\n        end(",
        by_test(
            _RETRYING, "test_tasks_of_a_lost_worker_go_on_elsewhere_and_its_late_word_is_stale"
        ),
    ),
    Mutant(
        "at-most-once-goes-back-when-interrupted",
        "a task that may begin once never goes back after its code may have run",
        "broker/retrying.py",
        "    elif task.mode is Mode.AT_MOST_ONCE:\n        task.error = text\n",
        "    elif task.mode is None:\n        task.error = text\n",
        by_test(_RETRYING, "test_what_follows_an_end_without_a_result"),
    ),
    Mutant(
        "a-prepared-task-is-given-away",
        "only a waiting task is given to a worker",
        "broker/assigning.py",
        "    if task.status is not _WAITING:\n",
        "    if task.status is _RUNNING:\n",
        by_test(
            _TRANSACTIONS, "test_tasks_of_a_transaction_are_given_to_nobody_until_it_is_committed"
        ),
    ),
    Mutant(
        "an-overdue-task-is-run",
        "a task whose deadline has passed is never given to a worker",
        "broker/assigning.py",
        "    if 0 < task.deadline_ms <= now_ms:\n",
        "    if 0 < task.deadline_ms < 0:\n",
        by_test(_RUNNING, "test_a_task_past_its_deadline_ends_when_it_would_be_given"),
    ),
    Mutant(
        "a-lost-session-is-given-tasks",
        "tasks are given only to a session that is connected",
        "broker/assigning.py",
        " and found.state is SessionState.CONNECTED else None",
        " else None",
        by_test(_RUNNING, "test_nothing_is_given_twice_or_to_a_session_that_is_not_connected"),
    ),
    Mutant(
        "another-process-keeps-what-it-never-had",
        "a new process of a worker has nothing of what the one before it ran",
        "broker/sessions.py",
        "    if before is not None and before.process_id == wanted.process_id:\n",
        "    if before is not None:\n",
        by_test(_RETRYING, "test_a_new_process_of_a_worker_has_nothing_of_the_old_ones"),
    ),
    Mutant(
        "a-reconnect-burns-an-attempt",
        "a process that comes back without a task costs it no attempt",
        "broker/sessions.py",
        "        end, text = retrying.unlisted, f",
        "        end, text = retrying.die, f",
        by_test(_RETRYING, "test_a_process_that_comes_back_without_a_task_costs_it_no_attempt"),
    ),
    Mutant(
        "a-transaction-is-anybodys",
        "a transaction is committed only for its owner",
        "broker/submitting.py",
        '    if owner not in ("", found.owner):\n        return foreign(found)\n',
        "",
        by_test(_TRANSACTIONS, "test_a_transaction_is_its_owners"),
    ),
    Mutant(
        "a-cleared-state-shows-what-it-had",
        "what was written lately is forgotten when the state is cleared",
        "engine/state/stored.py",
        "            self._recent.clear()\n",
        "            pass\n",
        by_test(
            "engine/state/test_recent.py",
            "test_what_was_written_before_a_state_was_cleared_is_forgotten",
        ),
    ),
    Mutant(
        "a-large-commit-forgets-most-of-its-tasks",
        "one command decides, and all tasks of the transaction follow",
        "broker/transactions.py",
        "        step.put(key, encode(transaction))\n        step.pending = True\n",
        "        step.delete(key)\n",
        by_test(_TRANSACTIONS, "test_a_large_commit_is_one_decision_and_its_tasks_follow"),
    ),
    Mutant(
        "a-schedule-is-put-off-by-each-start",
        "a schedule that is declared again keeps its next due time",
        "broker/schedules_rows.py",
        "            schedule.next_due_ms = before.next_due_ms\n",
        "            pass\n",
        by_test(_OPERATING, "test_a_schedule_that_is_declared_again_and_again_is_not_put_off"),
    ),
    Mutant(
        "an-older-attempt-is-kept",
        "a reconnect keeps an attempt only if it is the newest",
        "broker/sessions.py",
        " or task.attempt != running.attempt:\n",
        ":\n",
        by_test(_RETRYING, "test_an_attempt_of_another_number_is_not_kept"),
    ),
    Mutant(
        "a-retry-waits-to-miss-its-deadline",
        "a retry that comes after the deadline is not waited for",
        "broker/retrying.py",
        "    if 0 < task.deadline_ms <= due_ms:\n",
        "    if 0 < task.deadline_ms < 0:\n",
        by_test(_RETRYING, "test_a_retry_that_would_miss_the_deadline_is_not_waited_for"),
    ),
)

HOLDING_MUTANTS: Final = (
    Mutant(
        "a-slot-leaks",
        "a slot is free when its task has ended, whichever way",
        "broker/ending.py",
        "        step.delete(named(SLOT, task.slot))\n",
        "        pass\n",
        by_test(_RUNNING, "test_a_slot_is_held_over_retries_and_free_after_the_end"),
    ),
    Mutant(
        "a-slot-has-two-holders-in-a-batch",
        "a slot has one holder, also within one batch",
        "broker/submitting.py",
        "            self._slots[spec.slot] = task_id\n",
        "            pass\n",
        by_test(_RUNNING, "test_a_busy_slot_refuses_and_names_who_has_it"),
    ),
    Mutant(
        "a-task-as-the-one-before-it-is-another",
        "a task that is sent short is as the one before it in all but its payload",
        "broker/batching.py",
        "                if one == head + short + tail:\n",
        "                if one.startswith(head + short):\n",
        by_test(_ALIKE, "test_a_batch_in_short_is_the_same_batch"),
    ),
    Mutant(
        "a-cut-batch-begins-with-a-payload",
        "a part of a batch begins with a whole task",
        "broker/batching.py",
        "            if short:\n",
        "            if not short:\n",
        by_test(_ALIKE, "test_a_part_of_a_batch_begins_with_a_whole_task"),
    ),
    Mutant(
        "who-listens-hears-of-alike-tasks-late",
        "who listens hears of tasks in their order",
        "broker/submitting.py",
        "            alike.tell(step)\n            alike = None\n",
        "            alike = None\n",
        by_test(_ALIKE, "test_who_listens_hears_of_alike_tasks_at_once_and_in_their_place"),
    ),
    Mutant(
        "half-of-an-atomic-batch",
        "an atomic batch is taken whole or not at all",
        "broker/submitting.py",
        "    if atomic and taken < len(answers):\n",
        "    if atomic and not taken:\n",
        by_test(_RUNNING, "test_an_atomic_batch_is_taken_whole_or_not_at_all"),
    ),
    Mutant(
        "a-transaction-outlives-its-time",
        "a transaction that has passed its time is never committed",
        "broker/submitting.py",
        "    if found.expires_ms <= step.now_ms:\n",
        "    if found.expires_ms < 0:\n",
        by_test(_TRANSACTIONS, "test_a_transaction_past_its_time_cannot_be_committed"),
    ),
    Mutant(
        "a-rollback-keeps-the-slots",
        "what is rolled back leaves nothing",
        "broker/following.py",
        "        free(step, task)\n",
        "",
        by_test(_TRANSACTIONS, "test_a_rollback_leaves_nothing"),
    ),
    Mutant(
        "the-brokers-time-goes-back",
        "a command that tells an older time happens at the newest told",
        "broker/applying.py",
        "max(now_ms, self.counters.now_ms)",
        "now_ms",
        by_test(_RUNNING, "test_time_never_goes_back"),
    ),
    Mutant(
        "a-parent-forgets-most-of-its-children",
        "a parent is settled when all its children are told, in whatever many commands",
        "broker/graphs.py",
        "        if len(edges) < left:\n",
        "        if edges is not None:\n",
        by_test(_GRAPHS, "test_a_parent_of_very_many_children_is_settled_by_parts"),
    ),
    Mutant(
        "children-of-two-ends-are-mixed",
        "a task whose children are not all told of its end is not begun anew",
        "broker/interventions.py",
        " or step.get(numbered(UNSETTLED, task_id)) is not None:\n",
        ":\n",
        by_test(_GRAPHS, "test_settling_goes_on_whatever_became_of_the_parent_meanwhile"),
    ),
    Mutant(
        "a-result-is-kept-from-the-creation-on",
        "how long a result is kept counts from the end of the task",
        "broker/applying.py",
        "    return task.finished_ms + (",
        "    return task.created_ms + (",
        by_test(_OPERATING, "test_how_long_a_result_is_kept_counts_from_the_end"),
    ),
    Mutant(
        "the-result-of-a-success-is-kept-from-the-creation-on",
        "how long a result is kept counts from the end of the task",
        "broker/finishing.py",
        "    step.purge_later(task.id, now_ms + task.retention_ms)",
        "    step.purge_later(task.id, task.created_ms + task.retention_ms)",
        by_test(_OPERATING, "test_how_long_a_result_is_kept_counts_from_the_end"),
    ),
    Mutant(
        "a-second-end-is-purged-with-the-first",
        "a task that ended again is kept from its second end on",
        "broker/purging.py",
        "    if task is not None and purge_ms(task) <= step.now_ms:\n",
        "    if task is not None:\n",
        by_test(_OPERATING, "test_a_task_that_ended_again_is_kept_from_its_second_end_on"),
    ),
    Mutant(
        "a-due-time-fires-twice",
        "a due time of a schedule fires once",
        "broker/schedules_rows.py",
        "    if schedule.paused or schedule.next_due_ms != wanted.due_ms:\n",
        "    if schedule.paused:\n",
        by_test(_OPERATING, "test_a_due_time_fires_once_whoever_sends_it"),
    ),
    Mutant(
        "a-code-pool-goes-while-it-is-needed",
        "a code pool that a task names stays until that task has ended",
        "broker/pools.py",
        "    if pool.tasks:\n",
        "    if pool.tasks < 0:\n",
        by_test(
            _INTERVENTIONS,
            "test_a_code_pool_is_known_when_it_is_whole_and_stays_while_it_is_needed",
        ),
    ),
)

BROKER_MACHINE_MUTANTS: Final = (*ATTEMPT_MUTANTS, *HOLDING_MUTANTS)
