"""Mutants of recovery, step by step of bookkeeper.md 2.4."""

from typing import Final

from tests.mutants.mutant import Mutant, by_test

_RECOVERY: Final = "engine/ledger/recovery.py"
_TESTS: Final = "engine/ledger/test_recovery.py"
_RULES: Final = "engine/ledger/test_rules_recovery.py"
_NOT_DECIDED: Final = "test_recovery_is_not_decided_without_enough_explicit_negatives"

RECOVERY_MUTANTS: Final = (
    Mutant(
        "recovery-is-not-announced",
        "2.4-1: recovery begins with a compare-and-set to IN_RECOVERY",
        _RECOVERY,
        "return msgspec.structs.replace(current, state=State.IN_RECOVERY)",
        "return None",
        by_test(_RULES, "test_a_recovery_announces_itself_before_it_asks_any_bookie"),
    ),
    Mutant(
        "recovery-reads-bookies-added-meanwhile",
        "2.4-2: recovery reads the last fragment as it stood when it began",
        _RECOVERY,
        "asked = [ask(self._context, self._frozen.ensemble[i], request) for i in write_set]",
        "asked = [ask(self._context, self._fragments[-1].ensemble[i], request) for i in write_set]",
        by_test(
            _RULES,
            "test_recovery_asks_no_bookie_that_it_added_itself",
        ),
    ),
    Mutant(
        "recovery-waits-for-every-fence",
        "2.4-4, 2.6-3 (#1067): fencing ends when no ack quorum avoids a fenced bookie",
        _RECOVERY,
        "if covered(self._quorums, fenced):",
        "if len(fenced) == self._quorums.ensemble:",
        by_test(_TESTS, "test_recovery_ends_with_enough_negatives_though_one_bookie_hangs"),
    ),
    Mutant(
        "silence-counts-as-fenced",
        "2.4-4: errors and time-outs never count as fenced",
        _RECOVERY,
        "if reply.status is Status.OK:\n                fenced.add(index)",
        "if reply.status is not Status.UNAUTHORIZED:\n                fenced.add(index)",
        by_test(_TESTS, "test_too_few_fenced_bookies_leave_the_ledger_in_recovery"),
    ),
    Mutant(
        "recovery-starts-before-its-fragment",
        "2.4-5, 2.6-2 (#2615): recovery starts at the last fragment's first entry at the earliest",
        _RECOVERY,
        "lac = max(await self.fence(), self._frozen.first - 1)",
        "lac = await self.fence()",
        by_test(_TESTS, "test_recovery_of_an_empty_new_fragment_starts_at_that_fragment"),
    ),
    Mutant(
        "recovery-reads-do-not-fence",
        "2.4-6, 2.6-1 (#2614, PR #2616): every recovery read fences",
        _RECOVERY,
        "            fence_key=self._context.key,\n",
        "",
        by_test(_TESTS, "test_every_recovery_read_fences"),
    ),
    Mutant(
        "one-negative-ends-the-ledger",
        "2.4-6: the end needs write - ack + 1 explicit negatives",
        _RECOVERY,
        "if absent(self._quorums, first, lacking):",
        "if lacking:",
        by_test(_TESTS, _NOT_DECIDED),
    ),
    Mutant(
        "too-few-negatives-suffice",
        "2.4-4, 2.4-6: write - ack + 1 of each write set, not fewer",
        "engine/ledger/quorum.py",
        "        if len(indexes) < self.ack:\n",
        "        if len(indexes) <= self.ack:\n",
        by_test(_TESTS, _NOT_DECIDED),
    ),
    Mutant(
        "every-negative-is-waited-for",
        "2.6-3 (#1067): recovery ends though one bookie hangs",
        "engine/ledger/quorum.py",
        "return self.write - self.ack + 1",
        "return self.write",
        by_test(_TESTS, "test_recovery_ends_with_enough_negatives_though_one_bookie_hangs"),
    ),
    Mutant(
        "damage-counts-as-no-such-entry",
        "#2908: a damaged copy is unknown, never missing",
        "engine/ledger/reading.py",
        "    if reply.status is not Status.OK or reply.missing is None:\n        return False\n",
        "    if reply.missing is None:\n        return not reply.runs\n",
        by_test(_TESTS, "test_a_damaged_copy_is_never_counted_as_no_such_entry"),
    ),
    Mutant(
        "corrupt-copies-are-written-back",
        "design 4.1-5: recovery takes an entry only with its digest",
        "engine/ledger/reading.py",
        "        corrupt = run.first_corrupt()\n        if corrupt is not None:",
        "        corrupt = None\n        if corrupt is not None:",
        by_test(_RULES, "test_recovery_writes_back_no_corrupt_copy"),
    ),
    Mutant(
        "recovery-does-not-wait-for-its-copies",
        "2.4-7, 2.4-9: recovered entries have the full quorum before the close",
        _RECOVERY,
        "            await self._until_confirmed()\n",
        "",
        by_test(
            _RULES,
            "test_recovery_closes_only_when_its_copies_are_on_a_quorum",
        ),
    ),
    Mutant(
        "write-backs-carry-a-moving-lac",
        "2.6-8: write-backs carry the LAC found when fencing",
        _RECOVERY,
        "copies = [msgspec.structs.replace(run, lac=frozen_lac) for run in runs]",
        "copies = [msgspec.structs.replace(run, lac=run.first - 1) for run in runs]",
        by_test(_TESTS, "test_write_backs_carry_the_lac_found_when_fencing"),
    ),
    Mutant(
        "recoverys-ensemble-is-published-early",
        "2.4-8: ensembles change in memory only until the close",
        _RECOVERY,
        "        self._fragments.append(fragment)\n        return fragment",
        "        self._fragments.append(fragment)\n"
        "        held = await self._context.ledgers.read(self._metadata.ledger_id)\n"
        "        await self._context.ledgers.update(\n"
        "            held,\n"
        "            lambda now: None\n"
        "            if now.fragments[-1].ensemble == wanted.bookies\n"
        "            else now.with_fragment(first, wanted.bookies),\n"
        "        )\n"
        "        return fragment",
        by_test(_RULES, "test_a_recoverys_own_ensemble_is_published_only_with_the_close"),
    ),
    Mutant(
        "recoverys-ensemble-is-forgotten",
        "2.4-9: the close names the fragments that recovery made",
        _RECOVERY,
        "fragments=(*older, *self._fragments),",
        "fragments=(*older, self._frozen),",
        by_test(
            _TESTS, "test_a_bookie_that_fails_during_recovery_is_replaced_in_memory_until_the_close"
        ),
    ),
    Mutant(
        "a-winners-close-is-overwritten",
        "2.4-9: a close that another wrote first is adopted",
        _RECOVERY,
        "        if current.closed:\n            return None\n        older",
        "        older",
        by_test(_RULES, "test_a_recoverer_that_found_more_adopts_the_end_written_first"),
    ),
    Mutant(
        "recovery-undoes-a-repair",
        "a close changes only the last fragment: repair moves older ones while recovery runs",
        _RECOVERY,
        "older = [found for found in current.fragments",
        "older = [found for found in self._metadata.fragments",
        by_test(_RULES, "test_recovery_keeps_what_repair_did_to_older_fragments_meanwhile"),
    ),
    Mutant(
        "a-change-of-ensemble-undoes-a-repair",
        "a writer changes the current metadata, not its own copy of them",
        "engine/ledger/writer.py",
        "changed = current.with_fragment(first, wanted.bookies, wanted.domains)",
        "changed = self._held.metadata.with_fragment(first, wanted.bookies, wanted.domains)",
        by_test(_RULES, "test_a_writer_keeps_what_repair_did_to_older_fragments_meanwhile"),
    ),
    Mutant(
        "a-writers-close-undoes-a-repair",
        "a close changes only the end: repair moves fragments while a writer writes",
        "engine/ledger/closing.py",
        "            current, state=State.CLOSED",
        "            held.metadata, state=State.CLOSED",
        by_test(_RULES, "test_a_writer_keeps_what_repair_did_to_older_fragments_meanwhile"),
    ),
)
