"""Mutants of the order in which tasks begin: turns, limits, rates, mappings, queues."""

from typing import Final

from tests.mutants.mutant import Mutant, by_test

_ORDER: Final = "broker/scheduling/test_order.py"
_LIMITS: Final = "broker/scheduling/test_limits.py"
_LIVE: Final = "broker/scheduling/test_live.py"
_COST: Final = "broker/scheduling/test_cost.py"
_QUEUES: Final = "broker/scheduling/test_queues.py"
_MODEL: Final = "broker/scheduling/test_model.py"

BROKER_SCHEDULING_MUTANTS: Final[tuple[Mutant, ...]] = (
    Mutant(
        "a-held-up-tenant-saves-up-turns",
        "nobody begins earlier than the virtual time",
        "broker/scheduling/fair.py",
        "        begin = max(self.start, turnstile.virtual)\n        if self.tenant",
        "        begin = self.start\n        if self.tenant",
        by_test(_ORDER, "test_a_tenant_that_was_held_up_saved_up_no_turns"),
    ),
    Mutant(
        "a-newcomer-waits-for-its-equals",
        "among equal tags, who was not served since it came goes first",
        "broker/scheduling/fair.py",
        "        self.served = False\n        self.number = self.turnstile",
        "        self.served = True\n        self.number = self.turnstile",
        by_test(_ORDER, "test_the_next_place_is_a_new_tenants_own_however_many_flood"),
    ),
    Mutant(
        "a-tenants-types-go-by-chance",
        "what a tenant has in several lanes goes by aged priority",
        "broker/scheduling/fair.py",
        "account.served, account.number, rank)",
        "account.served, account.number, 0)",
        by_test(_ORDER, "test_the_highest_priority_of_a_tenant_goes_first_over_all_its_types"),
    ),
    Mutant(
        "a-minimum-is-a-wish",
        "a tenant below its minimum comes before all that are not",
        "broker/scheduling/fair.py",
        "minimum = tenant.gate.used >= tenant.reserved",
        "minimum = True",
        by_test(_ORDER, "test_a_minimum_is_filled_before_anybody_else_is_served"),
    ),
    Mutant(
        "a-limit-lets-one-more-pass",
        "nothing passes a gate that is full",
        "broker/scheduling/gates.py",
        "if self.paused or (self.limit is not None and self.used >= self.limit):",
        "if self.paused or (self.limit is not None and self.used > self.limit):",
        by_test(_LIMITS, "test_a_full_resource_holds_up_nobody_who_does_not_need_it"),
    ),
    Mutant(
        "a-share-lets-one-more-pass",
        "a tenant has no more than its share of a worker",
        "broker/scheduling/workers.py",
        "self._by_share.get((tenant, type_), 0) < share",
        "self._by_share.get((tenant, type_), 0) <= share",
        by_test(_MODEL, "test_whatever_happens_limits_hold_and_nothing_idles_that_may_run"),
    ),
    Mutant(
        "a-freed-unit-wakes-nobody",
        "what met a closed gate takes part again when it opens",
        "broker/scheduling/take.py",
        "            gate.release(count)\n            self._may_open(gate)",
        "            gate.release(count)",
        by_test(_LIMITS, "test_each_freed_unit_lets_one_more_begin"),
    ),
    Mutant(
        "an-old-alarm-holds-a-new-rate-up",
        "what waits for an old rate is looked at anew",
        "broker/scheduling/gates.py",
        "        self.alarm_ms = None\n        if rate is None:",
        "        if rate is None:",
        by_test(_LIVE, "test_another_rate_counts_from_the_next_assignment_on"),
    ),
    Mutant(
        "a-fixed-task-is-mapped",
        "what was fixed at submit is all that counts for it",
        "broker/scheduling/mapping.py",
        "        if key.group:\n",
        "        if key.group and key.resources:\n",
        by_test(_LIMITS, "test_what_was_fixed_at_submit_is_not_mapped"),
    ),
    Mutant(
        "removed-ids-lie-for-ever",
        "each removal sweeps a part of the ring",
        "broker/scheduling/queues.py",
        "            self._removals = 0\n            self._sweep()",
        "            self._removals = 0",
        by_test(_QUEUES, "test_removals_in_any_order_leave_few_removed_ids_lying"),
    ),
    Mutant(
        "all-is-moved-at-one-moment",
        "new groups and mappings are brought about in portions",
        "broker/scheduling/take.py",
        "self._portion -= index.catch_up(self._portion)",
        "self._portion -= index.catch_up(10**9)",
        by_test(_COST, "test_a_new_group_and_a_new_mapping_are_brought_about_in_portions"),
    ),
)
