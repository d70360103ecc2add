"""Mutants of what acknowledged entries survive, and of giving entries back."""

from typing import Final

from tests.mutants.mutant import Mutant, by_test

_QUORUM: Final = "engine/ledger/quorum.py"
_PLACEMENT: Final = "engine/ledger/placement.py"
_SURPLUS: Final = "engine/repair/surplus.py"
_TESTS: Final = "engine/ledger/test_survives.py"
_QUORUM_TESTS: Final = "engine/ledger/test_quorum.py"
_PLACEMENT_TESTS: Final = "engine/ledger/test_placement.py"
_SURPLUS_TESTS: Final = "engine/repair/test_surplus.py"
_RELEASE_TESTS: Final = "engine/bookie/test_release.py"

SURVIVES_MUTANTS: Final = (
    Mutant(
        "one-host-acknowledges",
        "bookies of one host acknowledge nothing that has to survive its loss",
        _QUORUM,
        "_spanned(quorums.domains, marks, range(quorums.ensemble)))\n",
        "pushed)\n",
        by_test(_TESTS, "test_two_bookies_of_one_host_acknowledge_nothing"),
    ),
    Mutant(
        "an-unknown-host-is-another-host",
        "a bookie whose host nobody knows may be on any",
        _QUORUM,
        "{domains[index] for index in indexes} - {UNKNOWN}",
        "{domains[index] for index in indexes}",
        by_test(
            _QUORUM_TESTS, "test_a_ledger_is_writable_when_every_write_set_keeps_an_ack_quorum"
        ),
    ),
    Mutant(
        "a-new-bookie-that-fails-ends-the-deadline",
        "waiting appends fail when their time is up, whichever bookie failed last",
        "engine/ledger/replication.py",
        "                self._patience.begin(waiting=True)\n",
        "",
        by_test(_TESTS, "test_an_append_fails_too_if_the_only_substitute_cannot_be_connected_to"),
    ),
    Mutant(
        "a-new-fragment-goes-on-by-the-old-hosts",
        "entries are confirmed by the hosts of the fragment that the metadata name",
        "engine/ledger/replication.py",
        "        self.quorums = self.quorums.with_domains(fragment.domains)\n",
        "",
        by_test(_TESTS, "test_hosts_that_came_later_count_for_what_is_written_then"),
    ),
    Mutant(
        "bookies-that-stay-are-judged-anew",
        "whoever reads the new fragment finds what was acknowledged by the old one",
        _PLACEMENT,
        "                numbers = self._domains(tried.bookies, survives, staying)\n",
        "                numbers = self._domains(tried.bookies, survives)\n",
        by_test(_TESTS, "test_bookies_that_stay_count_for_the_hosts_that_they_were_on"),
    ),
    Mutant(
        "a-substitute-leaves-one-host",
        "no ensemble is chosen that could not acknowledge an entry",
        _PLACEMENT,
        "        return None if strict else found\n",
        "        return found\n",
        by_test(
            _PLACEMENT_TESTS,
            "test_a_substitute_is_refused_if_all_bookies_were_on_one_host_then",
        ),
    ),
    Mutant(
        "hosts-that-are-away-do-not-count",
        "a cluster has as many hosts while some are away",
        _PLACEMENT,
        "                hosts |= {places[name].host for name in away if name in places}\n",
        "",
        by_test(
            _PLACEMENT_TESTS,
            "test_in_a_cluster_of_more_than_two_hosts_entries_survive_the_loss_of_one",
        ),
    ),
    Mutant(
        "recovery-waits-for-a-host-that-cannot-have-acknowledged",
        "the loss of one host does not stop a ledger",
        "engine/ledger/context.py",
        "        return sizes.with_domains(metadata.fragments[-1].domains)\n",
        "        return sizes\n",
        by_test(_TESTS, "test_what_was_acknowledged_survives_a_host_with_two_of_three_replicas"),
    ),
    Mutant(
        "entries-are-given-back-at-the-first-look",
        "the metadata say twice, an interval apart, that entries belong elsewhere",
        _SURPLUS,
        "        if seen is None or seen.since_s < bookie.written_s(ledger_id):\n",
        "        seen = seen or _Seen(0.0, metadata)\n        if False:\n",
        by_test(
            _SURPLUS_TESTS,
            "test_what_a_moved_replica_has_left_behind_is_given_back_after_two_looks",
        ),
    ),
    Mutant(
        "metadata-are-taken-at-their-word",
        "entries are given back only if those that they belong to have them",
        _SURPLUS,
        "        if await self._are_elsewhere(bookie, metadata, surplus):\n",
        "        if True:\n",
        by_test(
            _SURPLUS_TESTS,
            "test_entries_stay_while_a_bookie_that_should_have_them_does_not_show_them",
        ),
    ),
    Mutant(
        "entries-are-given-back-whatever-changed",
        "a change of the metadata at the last moment keeps the entries",
        _SURPLUS,
        "    if current != seen:\n        raise _Changed\n",
        "",
        by_test(
            _SURPLUS_TESTS, "test_a_change_of_the_metadata_at_the_last_moment_keeps_the_entries"
        ),
    ),
    Mutant(
        "repair-names-a-bookie-that-has-given-entries-back",
        "whoever read entries before they were given back does not name the bookie",
        "engine/repair/ledger_repair.py",
        "            given_back = current.released != held.metadata.released\n",
        "            given_back = False\n",
        by_test(
            _SURPLUS_TESTS,
            "test_repair_that_found_the_entries_before_does_not_name_the_bookie",
        ),
    ),
    Mutant(
        "what-is-being-given-back-is-read",
        "while entries are given back, reads find nobody",
        "engine/bookie/service.py",
        "        if self._gate.stopped or state.withheld:\n",
        "        if self._gate.stopped:\n",
        by_test(
            _RELEASE_TESTS,
            "test_while_entries_are_given_back_reads_find_nobody_and_appends_wait",
        ),
    ),
    Mutant(
        "what-is-being-given-back-is-taken-for-held",
        "while entries are given back, appends wait",
        "engine/bookie/service.py",
        "        self._appender.hold_back(state)\n",
        "",
        by_test(
            _RELEASE_TESTS,
            "test_while_entries_are_given_back_reads_find_nobody_and_appends_wait",
        ),
    ),
    Mutant(
        "what-is-in-use-is-given-back",
        "a ledger that is read or written gives nothing back",
        "engine/bookie/service.py",
        "        if used or fresh or state.deleted",
        "        if state.deleted",
        by_test(_RELEASE_TESTS, "test_nothing_is_given_back_of_a_ledger_that_is_in_use"),
    ),
    Mutant(
        "what-was-given-back-seems-lost",
        "a check of a folder knows what was given back",
        "engine/bookie/indexing.py",
        "    index.apply(Changes((), (), [(fact_key(RELEASED, ledger_id), value)], position))\n",
        "",
        by_test(
            "engine/bookie/test_tools.py",
            "test_entries_that_were_given_back_are_not_lacking_unless_they_were_written_since",
        ),
    ),
    Mutant(
        "a-check-misses-entries-written-since",
        "what the journal holds of released entries behind that moment is in the index",
        "engine/bookie/tools_check.py",
        "        if found.position < one.until:\n",
        "        if True:\n",
        by_test(
            "engine/bookie/test_tools.py",
            "test_entries_that_were_given_back_are_not_lacking_unless_they_were_written_since",
        ),
    ),
    Mutant(
        "an-earlier-program-lowers-the-promise",
        "what entries survive is what the ledger was created with",
        "engine/ledger/writer.py",
        "            domains=self._fragment.domains,\n",
        "            domains=self.metadata.fragments[-1].domains,\n",
        by_test(_TESTS, "test_an_earlier_program_that_writes_the_metadata_lowers_no_promise"),
    ),
    Mutant(
        "one-host-left-acknowledges-nothing",
        "what is usual, and was not asked for, gives way where one host is left",
        "engine/ledger/writer.py",
        "        if wanted is None and not made.strict and replication.enough_but_together:\n",
        "        if False:\n",
        by_test(_TESTS, "test_it_gives_way_to_the_bookies_that_are_left_too"),
    ),
    Mutant(
        "hosts-come-back-into-a-ledger",
        "domains do not come back in a ledger that had none for a while",
        _PLACEMENT,
        '        if found is None or survives == "bookie" or not domains:\n',
        '        if found is None or survives == "bookie":\n',
        by_test(
            _PLACEMENT_TESTS,
            "test_a_substitute_is_refused_if_all_bookies_were_on_one_host_then",
        ),
    ),
    Mutant(
        "what-the-bookie-remembers-does-not-count",
        "a bookie that remembers another ledger, fragment or end gives nothing back",
        _SURPLUS,
        "    return same and begins and ends\n",
        "    return True\n",
        by_test(_SURPLUS_TESTS, "test_a_bookie_that_remembers_something_else_gives_nothing_back"),
    ),
    Mutant(
        "entries-are-given-back-under-a-repair",
        "nothing is given back of a ledger that waits for repair",
        _SURPLUS,
        "            if await self._workshop.queue.read(seen.metadata.ledger_id) is not None:\n",
        "            if False:\n",
        by_test(_SURPLUS_TESTS, "test_nothing_is_given_back_of_a_ledger_that_waits_for_repair"),
    ),
    Mutant(
        "a-damaged-entry-is-kept-for-ever",
        "an entry that is damaged here is of no use, if the others have it",
        _SURPLUS,
        "            del runs[0]\n",
        "            pass\n",
        by_test(
            _SURPLUS_TESTS, "test_an_entry_that_is_damaged_here_is_given_back_if_the_others_have_it"
        ),
    ),
    Mutant(
        "a-substitute-on-another-host-may-be-leaving",
        "a bookie that is being decommissioned is chosen for nothing",
        _PLACEMENT,
        "        usable = list(dict.fromkeys([*self._present(registered, leaving), *full]))\n",
        "        usable = list(dict.fromkeys([*self._present(registered, ()), *full]))\n",
        by_test(
            _PLACEMENT_TESTS,
            "test_a_substitute_on_another_host_is_not_being_decommissioned",
        ),
    ),
    Mutant(
        "other-bytes-count-as-the-entries",
        "those that the entries belong to show the same bytes",
        _SURPLUS,
        "        return len({each[0].cut(entry_id, entry_id).table for each in runs}) == 1\n",
        "        return True\n",
        by_test(_SURPLUS_TESTS, "test_other_bytes_elsewhere_are_not_the_same_entries"),
    ),
    Mutant(
        "a-moved-fragment-is-not-remembered",
        "bookies remember older fragments that moved to them, for rebuilding metadata",
        "engine/bookie/service.py",
        "        if not (state.outdated_by(facts) or state.older(facts)):\n",
        "        if not state.outdated_by(facts):\n",
        by_test(
            _RELEASE_TESTS,
            "test_facts_of_a_fragment_that_moved_here_are_kept_for_rebuilding_metadata",
        ),
    ),
)
