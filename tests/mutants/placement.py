"""Mutants of placement, of finding a cluster, and of what is told about both."""

from typing import Final

from tests.mutants.mutant import Mutant, by_test

_SPREADING: Final = "engine/ledger/spreading.py"
_PLACEMENT: Final = "engine/ledger/placement.py"
_SPREADING_TESTS: Final = "engine/ledger/test_spreading.py"
_PLACEMENT_TESTS: Final = "engine/ledger/test_placement.py"
_RESPREADING_TESTS: Final = "engine/ledger/test_respreading.py"

PLACEMENT_MUTANTS: Final = (
    Mutant(
        "a-bookie-that-went-is-a-stranger",
        "issue 3 B: a bookie that restarted is taken back at once, spare or not",
        _PLACEMENT,
        "self._seen.update(registered)",
        "self._seen = registered",
        by_test(
            _PLACEMENT_TESTS,
            "test_a_restart_ends_the_quarantine_of_a_bookie_that_was_seen_to_be_away",
        ),
    ),
    Mutant(
        "who-comes-back-renews-the-patience",
        "design 4.2-8: bookies that come and fail again keep no append waiting for ever",
        "engine/ledger/patience.py",
        "        if not self._failed.issuperset(substitutes):\n",
        "        if substitutes:\n",
        by_test(
            "engine/ledger/test_coming_back.py",
            "test_a_bookie_that_comes_back_and_fails_again_keeps_no_append_waiting_for_ever",
        ),
    ),
    Mutant(
        "patience-ends-before-it-begins",
        "design 4.2-8: a deadline counts from when somebody began to wait",
        "engine/ledger/replication.py",
        "has just begun to.\n            self._patience.begin(waiting=False)\n",
        "has just begun to.\n",
        by_test(
            "engine/ledger/test_coming_back.py",
            "test_an_append_after_a_long_idle_outage_waits_for_bookies_as_long_as_any_other",
        ),
    ),
    Mutant(
        "nobody-looks-when-a-quarantine-ends",
        "design 4.2-4: an open ledger gets its replicas back as soon as bookies can be taken",
        "engine/ledger/replication.py",
        "        slot.mark = self.lac\n        self._look_again()\n",
        "        slot.mark = self.lac\n",
        by_test(
            "engine/ledger/test_coming_back.py",
            "test_a_bookie_that_did_not_restart_is_taken_back_when_its_quarantine_is_over",
        ),
    ),
    Mutant(
        "a-reader-asks-for-a-known-lac-only-once",
        "what one bookie knows to be confirmed can be read",
        "engine/ledger/following.py",
        "        if self.lac < at_least:\n",
        "        if False:\n",
        by_test(
            "engine/ledger/test_reading.py",
            "test_a_reader_waits_for_the_one_bookie_that_knows_what_was_confirmed",
        ),
    ),
    Mutant(
        "restarted-bookies-are-not-sent-the-lac",
        "bookies that restart learn the LAC of an idle ledger again",
        "engine/ledger/writer.py",
        "            await self._replication.announce_again()\n",
        "            pass\n",
        by_test(
            "engine/ledger/test_coming_back.py",
            "test_bookies_that_all_restart_learn_the_lac_of_an_idle_ledger_again",
        ),
    ),
    Mutant(
        "hosts-do-not-matter",
        "issue 3 D: never two replicas of a write set on one host while another is available",
        _SPREADING,
        "hosts = sum(each.host == mine.host for each in others) if mine.host else 0",
        "hosts = 0",
        by_test(_SPREADING_TESTS, "test_no_write_set_shares_a_host_more_than_it_must"),
    ),
    Mutant(
        "racks-do-not-matter",
        "issue 3 D: racks are spread over each write quorum where known",
        _SPREADING,
        "racks = sum(each.rack == mine.rack for each in others) if mine.rack else 0",
        "racks = 0",
        by_test(_SPREADING_TESTS, "test_where_every_rack_is_known_nothing_spreads_better"),
    ),
    Mutant(
        "neighbours-in-the-ring-are-forgotten",
        "an ensemble is a ring: its last and its first bookies share write sets",
        _SPREADING,
        "min(other - index, size - other + index) < write_quorum",
        "other - index < write_quorum",
        by_test(_SPREADING_TESTS, "test_striped_ensembles_share_no_host_where_they_need_not"),
    ),
    Mutant(
        "the-near-bookie-is-no-better",
        "issue 3 D: local bookie preferred",
        _SPREADING,
        "wanted = local if index == 0 and local else left",
        "wanted = left",
        by_test(_PLACEMENT_TESTS, "test_a_bookie_of_the_clients_own_machine_holds_a_replica"),
    ),
    Mutant(
        "leaving-bookies-are-chosen",
        "issue 3 E: no new ledger is placed on a bookie that is to go",
        _PLACEMENT,
        "if found.writable and name not in leaving and not self._quarantined(found)",
        "if found.writable and not self._quarantined(found)",
        by_test(_PLACEMENT_TESTS, "test_full_and_leaving_bookies_are_avoided"),
    ),
    Mutant(
        "full-bookies-are-chosen",
        "issue 3 D: full and read-only bookies avoided",
        _PLACEMENT,
        "if found.writable and name not in leaving and not self._quarantined(found)",
        "if name not in leaving and not self._quarantined(found)",
        by_test(_PLACEMENT_TESTS, "test_full_and_leaving_bookies_are_avoided"),
    ),
    Mutant(
        "leaving-bookies-count-as-away",
        "a bookie that is to go is not taken as one that may come back",
        _PLACEMENT,
        "away = [name for name in known if name not in present and name not in leaving]",
        "away = [name for name in known if name not in present]",
        by_test(_PLACEMENT_TESTS, "test_a_leaving_bookie_is_not_even_taken_as_one_that_is_away"),
    ),
    Mutant(
        "a-bookie-that-was-given-up-is-as-good-as-one-just-away",
        "a new ledger names a bookie that was given up only where no other is away",
        _PLACEMENT,
        "        picked.sort(key=given_up.__contains__)\n",
        "",
        by_test(
            _PLACEMENT_TESTS,
            "test_a_bookie_that_was_given_up_is_taken_after_those_that_are_just_away",
        ),
    ),
    Mutant(
        "the-host-of-a-bookie-that-is-away-is-not-looked-up",
        "a bookie that is away counts for its host",
        "engine/ledger/placement.py",
        "        await self._learn_hosts(ensemble)\n",
        "",
        by_test(
            _PLACEMENT_TESTS,
            "test_a_substitute_counts_as_elsewhere_only_if_it_surely_is[host-domains0]",
        ),
    ),
    Mutant(
        "an-unknown-domain-counts-as-another-one",
        "a substitute has a known domain only if the domains of all bookies that stay are known",
        "engine/ledger/placement.py",
        'new = UNKNOWN if "" in known else max(numbers) + 1',
        "new = max(numbers) + 1",
        by_test(
            _PLACEMENT_TESTS,
            "test_a_substitute_counts_as_elsewhere_only_if_it_surely_is[rack-domains1]",
        ),
    ),
    Mutant(
        "a-replica-moves-though-an-append-needs-its-bookie",
        "a replica moves only if appends go on without its bookie",
        "engine/ledger/respreading.py",
        "            and writable(replication.quorums, alive - {slot.index})\n",
        "",
        by_test(
            "engine/ledger/test_respreading.py",
            "test_nothing_moves_where_an_append_needs_every_bookie",
        ),
    ),
    Mutant(
        "a-replica-moves-to-a-bookie-that-does-not-answer",
        "a replica moves only to a bookie that answers",
        "engine/ledger/respreading.py",
        "        except (BookieUnavailable, TimeoutError):\n"
        "            context.placement.note_failure(found.bookie_id)\n"
        "        else:\n",
        "        except (BookieUnavailable, TimeoutError):\n"
        "            context.placement.note_failure(found.bookie_id)\n"
        "        if True:\n",
        by_test(
            "engine/ledger/test_respreading.py",
            "test_no_replica_moves_to_a_bookie_that_does_not_answer",
        ),
    ),
    Mutant(
        "a-ledger-closed-by-repair-fails-its-creation",
        "a creation that finds its own ledger closed takes a new id",
        "engine/ledger/client.py",
        "        except KeyExists:\n",
        "        except LedgerClosed:\n",
        by_test(
            "engine/ledger/test_writing.py",
            "test_a_ledger_that_repair_closes_before_its_creator_has_the_reply_is_replaced",
        ),
    ),
    Mutant(
        "a-refused-client-leaves-a-ledger",
        "a ledger that its client may not write is taken back",
        "engine/ledger/client.py",
        "        await self._ledgers.delete(writer.ledger_id)\n",
        "",
        by_test(
            "engine/ledger/test_refused.py",
            "test_a_client_that_nobody_lets_in_is_told_so_and_leaves_no_ledger",
        ),
    ),
    Mutant(
        "a-bookie-is-forgotten-with-its-ledgers",
        "a bookie that a ledger names is not forgotten",
        "engine/repair/forgetting.py",
        "    if naming:\n",
        "    if False and naming:\n",
        by_test(
            "engine/repair/test_forgetting.py",
            "test_a_bookie_that_a_ledger_names_is_not_forgotten_nor_left",
        ),
    ),
    Mutant(
        "replicas-that-came-together-stay",
        "issue 3 D: a machine that comes back takes its replica again",
        "engine/ledger/writer.py",
        "        self._replication.revive()\n        self._respreading.news()\n",
        "        self._replication.revive()\n",
        by_test(_RESPREADING_TESTS, "test_all_three_part_one_after_the_other_when_machines_come"),
    ),
    Mutant(
        "nobody-looks-after-a-change",
        "a replica that was replaced on a machine that has one is moved when another has room",
        "engine/ledger/writer.py",
        "        self._respreading.news()\n        return adopted",
        "        return adopted",
        by_test(
            _RESPREADING_TESTS,
            "test_a_machine_that_was_only_cut_off_takes_its_replica_after_its_quarantine",
        ),
    ),
    Mutant(
        "a-writer-that-closes-moves-replicas",
        "a ledger with nothing missing is not closed as if something were",
        "engine/ledger/writer.py",
        "        self._respreading.stop()\n        if self._error",
        "        if self._error",
        by_test(_RESPREADING_TESTS, "test_a_writer_that_closes_moves_no_replica"),
    ),
    Mutant(
        "good-moves-are-held-against-the-next",
        "only replicas that move and do not stay are waited for longer",
        "engine/ledger/respreading.py",
        "            self._moves = 0\n",
        "            pass\n",
        by_test(_RESPREADING_TESTS, "test_moves_that_stood_let_nobody_wait_longer"),
    ),
    Mutant(
        "replicas-move-for-nothing",
        "a replica moves only where the ensemble is spread better for it",
        _PLACEMENT,
        "                if cost < found.cost:\n",
        "                if cost <= found.cost:\n",
        by_test(_RESPREADING_TESTS, "test_replicas_rest_where_no_move_spreads_them_better"),
    ),
    Mutant(
        "replicas-move-to-whoever-registered",
        "a replica moves only to a bookie that answers",
        "engine/ledger/respreading.py",
        "                await context.connect(found.bookie_id)\n",
        "                pass\n",
        by_test(_RESPREADING_TESTS, "test_no_replica_moves_to_a_bookie_that_does_not_answer"),
    ),
    Mutant(
        "who-lacks-entries-is-left",
        "only a replica moves that lacks nothing that is confirmed",
        "engine/ledger/respreading.py",
        "            if (slot.mark >= replication.lac or self._has_all(slot))\n",
        "            if True\n",
        by_test(_RESPREADING_TESTS, "test_the_replica_that_lags_behind_is_not_the_one_that_moves"),
    ),
    Mutant(
        "who-was-cut-off-is-forgotten",
        "a machine that was only cut off takes its replica when its quarantine is over",
        "engine/ledger/respreading.py",
        "                self._rest(delay_s)\n",
        "                pass\n",
        by_test(
            _RESPREADING_TESTS,
            "test_a_machine_that_was_only_cut_off_takes_its_replica_after_its_quarantine",
        ),
    ),
    Mutant(
        "a-client-makes-a-cluster",
        "a path without a cluster is an error for a client, and stays without one",
        "engine/connecting.py",
        "settings=settings, rng=rng, make=False",
        "settings=settings, rng=rng, make=True",
        by_test(
            "engine/test_connecting_cluster.py",
            "test_a_path_without_a_cluster_is_one_clear_error_and_makes_nothing",
        ),
    ),
    Mutant(
        "bookies-that-came-are-not-noticed",
        "bookies for a new ledger are asked for again when some have come or gone",
        _PLACEMENT,
        "        self._changes += 1\n        self._kept = None\n",
        "        self._changes += 1\n",
        by_test(_PLACEMENT_TESTS, "test_the_bookies_are_not_asked_for_again_until_they_change"),
    ),
    Mutant(
        "a-look-keeps-what-has-changed-meanwhile",
        "what was found while bookies came or went is not kept",
        _PLACEMENT,
        "if self._unwatch is not None and changes == self._changes:",
        "if self._unwatch is not None:",
        by_test(_PLACEMENT_TESTS, "test_what_was_found_while_bookies_came_is_not_kept"),
    ),
)
