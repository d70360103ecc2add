"""Mutants of roll-outs: what counts against the limit, what is tried again, who drives."""

from typing import Final

from tests.mutants.mutant import Mutant, by_test

_HISTORIES: Final = "broker/rollouts/test_histories.py"
_TOUCHED: Final = "test_no_more_nodes_than_the_limit_are_ever_touched[0]"
_PLANNED: Final = "broker/rollouts/test_plan.py"
_ROWS: Final = "broker/machine/test_rollouts.py"
_DOCUMENT: Final = "broker/rollouts/test_document.py"
_RECORD: Final = "broker/rollouts/record.py"
_PLAN: Final = "broker/rollouts/plan.py"
_HEARING: Final = "broker/rollouts/hearing.py"

BROKER_ROLLOUT_MUTANTS: Final[tuple[Mutant, ...]] = (
    Mutant(
        "an-unknown-node-counts-no-more",
        "a node of which nobody has word counts until it is cleared",
        _RECORD,
        "BUSY | {Phase.FAILED, Phase.UNKNOWN,",
        "BUSY | {Phase.FAILED,",
        by_test(_HISTORIES, _TOUCHED),
    ),
    Mutant(
        "a-dead-letter-counts-no-more",
        "a node that failed for good is not proven healthy",
        _RECORD,
        "Phase.DEAD, Phase.GONE}",
        "Phase.GONE}",
        by_test(_HISTORIES, _TOUCHED),
    ),
    Mutant(
        "a-node-that-is-gone-counts-no-more",
        "a node that discovery does not name is not proven healthy",
        _RECORD,
        "Phase.DEAD, Phase.GONE}",
        "Phase.DEAD}",
        by_test(_HISTORIES, _TOUCHED),
    ),
    Mutant(
        "one-more-than-the-limit",
        "a step begins only while fewer nodes than the limit count",
        _PLAN,
        "if rollout.counted >= self._limit or",
        "if rollout.counted > self._limit or",
        by_test(_HISTORIES, _TOUCHED),
    ),
    Mutant(
        "a-lost-action-is-begun-again",
        "an action of which no word came makes its node unknown",
        _HEARING,
        'self.move(name, node, Phase.UNKNOWN, f"is unknown: {end.why}")\n'
        '            self.alarm(alarms.UNKNOWN, name, "nobody',
        'self.move(name, node, Phase.PENDING, f"is unknown: {end.why}")\n'
        '            self.alarm(alarms.UNKNOWN, name, "nobody',
        by_test(_HISTORIES, _TOUCHED),
    ),
    Mutant(
        "a-try-that-did-not-begin-heals",
        "a node that failed before counts although its next try did not begin",
        _HEARING,
        "phase = Phase.FAILED if node.tries else Phase.PENDING",
        "phase = Phase.PENDING",
        by_test(_PLANNED, "test_a_try_that_did_not_begin_leaves_its_node_as_healthy_as_it_was"),
    ),
    Mutant(
        "an-open-breaker-lets-all-through",
        "nothing begins while the breaker is open",
        _PLAN,
        "        return breaker.gate is Gate.CLOSED\n",
        "        return True\n",
        by_test(
            _PLANNED,
            "test_an_open_breaker_lets_nothing_begin_and_a_half_open_one_a_single_probe",
        ),
    ),
    Mutant(
        "a-record-is-set-uncompared",
        "a record changes only from the version that was seen",
        "broker/rollout_rows.py",
        "    if wanted.version != (0 if before is None else before.version):",
        "    if wanted.version < 0:",
        by_test(_ROWS, "test_a_record_goes_from_the_version_that_was_seen_and_from_no_other"),
    ),
    Mutant(
        "a-cluster-has-two-roll-outs",
        "a cluster is held by one roll-out",
        "broker/rollout_rows.py",
        "    if holder is not None and holder != wanted.name.encode():",
        "    if holder is not None and not holder:",
        by_test(_ROWS, "test_a_cluster_has_one_roll_out_until_that_has_ended"),
    ),
    Mutant(
        "anybody-submits-steps",
        "types of roll-outs are submitted by roll-outs alone",
        "broker/submitting.py",
        "        if not self._reserved and spec.type.startswith(RESERVED):",
        "        if not spec.type:",
        by_test(_ROWS, "test_nobody_else_submits_steps_or_begins_them_anew"),
    ),
    Mutant(
        "another-version-is-done",
        "an agent refuses a document of another version",
        "broker/rollouts/actions.py",
        "    if asked != version:",
        "    if not asked:",
        by_test(_DOCUMENT, "test_a_part_comes_to_a_verdict"),
    ),
    Mutant(
        "a-death-is-taken-for-a-word",
        "only an agent's own word says how far an action came",
        "broker/rollouts/facts.py",
        "task.status is Status.ERROR and task.session and",
        "task.status is Status.ERROR and",
        by_test(_DOCUMENT, "test_only_an_agents_own_word_says_how_far_an_action_came"),
    ),
)
