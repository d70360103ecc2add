"""Mutants of repair: what is copied, what is moved, what is called whole, who is fenced."""

from typing import Final

from tests.mutants.mutant import Mutant, by_test

_LEDGER: Final = "engine/repair/ledger_repair.py"
_REPLICAS: Final = "engine/repair/replicas.py"
_AUDITOR: Final = "engine/repair/auditor.py"
_OPEN: Final = "engine/repair/open_ledger.py"
_REPAIRER: Final = "engine/repair/repairer.py"
_WORKER_TESTS: Final = "engine/repair/test_repairer.py"
_OPEN_TESTS: Final = "engine/repair/test_open_ledgers.py"
_AGAIN_TESTS: Final = "engine/repair/test_going_on.py"
_BAD_TESTS: Final = "engine/repair/test_bad_values.py"
_AUDITOR_TESTS: Final = "engine/repair/test_auditor.py"
_APART_TESTS: Final = "engine/repair/test_respreading.py"

REPAIR_MUTANTS: Final = (
    Mutant(
        "a-fragment-moves-before-its-copies-are-stored",
        "theme 2: the ensemble changes only after the new bookie has every entry",
        _REPLICAS,
        "            if not self._left and not broken and not self._hidden(index):",
        "            if True:",
        by_test(
            _WORKER_TESTS, "test_a_bookie_that_takes_no_copies_is_not_named_and_another_is_tried"
        ),
    ),
    Mutant(
        "the-only-copy-is-given-up",
        "a replica is never given up while an entry of it can be read from nobody",
        _REPLICAS,
        "        return any(index in self._quorums.write_set(first) for",
        "        return any(False and first for",
        by_test(
            "engine/repair/test_decommission.py",
            "test_a_damaged_copy_that_is_the_only_one_keeps_its_bookie_in_the_ensemble",
        ),
    ),
    Mutant(
        "silence-counts-as-whole",
        "a replica is whole only if it was read or written to the end",
        _REPLICAS,
        "            broken = index in finding.silent or index in finding.refused\n",
        "            broken = index in finding.refused\n",
        by_test(
            "engine/repair/test_repairer.py",
            "test_a_silent_replica_is_asked_again_though_all_others_were_found_whole",
        ),
    ),
    Mutant(
        "troubles-are-forgotten",
        "a ledger leaves the queue only when nothing is left to mend",
        _LEDGER,
        "        self._troubles += finding.troubles\n",
        "",
        by_test(
            _WORKER_TESTS,
            "test_a_ledger_is_whole_only_when_every_replica_was_read_or_written_to_the_end",
        ),
    ),
    Mutant(
        "a-request-made-meanwhile-is-lost",
        "who removes an item names the version that was read",
        "engine/metadata/repairs.py",
        "await self.store.delete(_key(held.ledger_id), held.version)",
        "await self.store.delete(_key(held.ledger_id))",
        by_test(_WORKER_TESTS, "test_what_was_asked_for_during_a_repair_is_not_lost_with_its_end"),
    ),
    Mutant(
        "a-live-writer-is-fenced",
        "a writer that is well is not disturbed: only where a replacement waits unused",
        _OPEN,
        "        if metadata.state is State.OPEN and not await self._helps(metadata, bad):",
        "        if False:",
        by_test(_OPEN_TESTS, "test_a_writer_that_goes_on_without_a_replacement_is_not_fenced"),
    ),
    Mutant(
        "an-open-ledger-is-fenced-at-once",
        "the last fragment of an open ledger is fenced only after the grace time",
        _OPEN,
        "        if left_s > 0:",
        "        if False:",
        by_test(_OPEN_TESTS, "test_an_abandoned_ledger_is_fenced_only_after_the_grace_time"),
    ),
    Mutant(
        "what-is-not-confirmed-is-copied",
        "nothing past the last fragment's start of an open ledger is copied",
        _LEDGER,
        "    if metadata.state is State.CLOSED:\n        assert metadata.last_entry is not None\n",
        "    if metadata.state is not State.CLOSED:\n"
        "        found.append(Extent(metadata.fragments[-1], 4))\n"
        "    else:\n        assert metadata.last_entry is not None\n",
        by_test(
            _OPEN_TESTS,
            "test_what_is_past_the_last_fragments_start_of_an_open_ledger_is_never_copied",
        ),
    ),
    Mutant(
        "a-blocked-ledger-is-tried-without-end",
        "#4872: tries of a ledger that cannot be mended lie further and further apart",
        _REPAIRER,
        "        memory.failures = min(memory.failures + 1, 32)\n",
        "",
        by_test(
            _WORKER_TESTS, "test_a_lost_bookie_that_alone_has_an_entry_is_never_given_up_for_it"
        ),
    ),
    Mutant(
        "an-absent-store-ends-the-worker",
        "#2302: losing the metadata store ends a round, never the worker",
        _REPAIRER,
        "            except EngineError:\n                # The store is away, or the like",
        "            except KeyError:\n                # The store is away, or the like",
        by_test("engine/repair/test_node.py", "test_a_node_outlives_an_absent_metadata_store"),
    ),
    Mutant(
        "a-bookie-that-is-back-is-repaired-nevertheless",
        "#2766: a bookie that returns takes back what was asked only for it",
        _AUDITOR,
        "            await self._welcome(returned)\n",
        "",
        by_test(
            _AUDITOR_TESTS,
            "test_a_bookie_that_comes_back_takes_its_requests_with_it_and_no_others",
        ),
    ),
    Mutant(
        "the-auditors-own-pause-counts-as-absence",
        "only time in which registrations were looked at counts",
        _AUDITOR,
        "return min(now_s - before_s, 1.5 * self._workshop.settings.look_interval_ms / 1000)",
        "return now_s - before_s",
        by_test(_AUDITOR_TESTS, "test_a_pause_of_the_auditor_is_no_absence_of_a_bookie"),
    ),
    Mutant(
        "every-candidate-is-the-auditor",
        "one elected auditor; a lost session ends its term",
        "engine/repair/claim.py",
        "            return found.value == self._node\n        try",
        "            return True\n        try",
        by_test(_AUDITOR_TESTS, "test_there_is_one_auditor_and_its_lost_session_ends_its_term"),
    ),
    Mutant(
        "a-doubt-is-cleared-unlooked",
        "a doubt is cleared only when every ledger of the bookie was looked at",
        "engine/repair/doubt.py",
        "            if held is not None and name in held.item.doubtful:\n                return\n",
        "",
        by_test(
            _AUDITOR_TESTS,
            "test_a_doubt_is_cleared_when_every_ledger_of_the_bookie_was_looked_at",
        ),
    ),
    Mutant(
        "a-lost-fence-is-taken-for-none",
        "ledgers in a cleared doubt take no normal append: their fences may be lost",
        "engine/bookie/appending.py",
        "if state.ledger_id <= self._storage.fences_unsure_to:",
        "if self._storage.is_doubtful(state.ledger_id):",
        by_test(
            "engine/bookie/test_service_damage.py",
            "test_a_ledger_whose_fence_may_be_lost_takes_no_normal_append_after_its_repair",
        ),
    ),
    Mutant(
        "a-gap-ends-before-it-begins",
        "what the window holds further on makes no gap in an older place",
        "engine/bookie/indexing.py",
        "        if place.first > last:\n            break\n",
        "",
        by_test(
            "engine/bookie/test_window.py",
            "test_a_hole_of_the_window_far_behind_an_older_place_makes_no_place_of_its_own",
        ),
    ),
    Mutant(
        "what-lies-before-a-read-is-read",
        "a place that ends before the read begins is passed over",
        "engine/bookie/reading.py",
        "            if place.last < following:",
        "            if False:",
        by_test(
            "engine/bookie/test_window.py",
            "test_what_newer_places_left_of_an_older_one_before_the_read_is_passed_over",
        ),
    ),
    Mutant(
        "repairs-key-writes-new-entries",
        "repair's key is for fences and recovery alone",
        "engine/bookie/appending.py",
        "        if not usual and is_repair_key(key):\n            return Status.UNAUTHORIZED\n",
        "",
        by_test(
            "engine/bookie/test_service_fencing.py",
            "test_repairs_key_fences_and_writes_back_and_appends_nothing_new",
        ),
    ),
    Mutant(
        "a-writer-stays-on-a-bookie-that-is-to-go",
        "theme 3: writers leave a bookie that is being decommissioned",
        "engine/ledger/writer.py",
        "registered = await self._context.bookies.staying()",
        "registered = await self._context.bookies.available()",
        by_test(
            "engine/repair/test_decommission.py",
            "test_a_writer_leaves_a_bookie_that_is_to_go_and_is_not_fenced",
        ),
    ),
    Mutant(
        "a-scrub-begins-anew-each-time",
        "an interrupted scrub goes on behind its mark",
        "engine/repair/scrub.py",
        "survey(self._workshop, above=mark.last_ledger)",
        "survey(self._workshop)",
        by_test(
            "engine/repair/test_decommission.py", "test_a_scrub_goes_on_where_it_was_interrupted"
        ),
    ),
    Mutant(
        "replicas-that-share-a-machine-are-not-looked-for",
        "issue 3 D: racks and hosts are spread over each write quorum, also of what was written",
        _AUDITOR,
        "                await sharing.look_at(metadata)\n",
        "                pass\n",
        by_test(_APART_TESTS, "test_replicas_on_one_machine_part_when_another_one_comes"),
    ),
    Mutant(
        "all-that-can-part-is-asked-for-at-once",
        "what is lost never waits for replicas that only share a machine",
        _AUDITOR,
        "        if not self._parting.isdisjoint(queued):\n            return\n",
        "",
        by_test(_APART_TESTS, "test_few_are_asked_for_at_a_time_and_more_when_those_are_done"),
    ),
    Mutant(
        "replicas-part-whatever-was-asked-for",
        "a bookie that was away for a moment costs no copies",
        _LEDGER,
        "            if self._item.item.only(TOGETHER):\n",
        "            if True:\n",
        by_test(_APART_TESTS, "test_replicas_part_only_where_that_was_asked_for"),
    ),
    Mutant(
        "replicas-part-while-a-bookie-is-to-go",
        "a bookie that is away or to go: its replica comes first",
        "engine/repair/outlook.py",
        "name in self.registered and name not in self.leaving for",
        "name in self.registered for",
        by_test(_APART_TESTS, "test_nothing_parts_while_a_bookie_of_the_ensemble_is_to_go"),
    ),
    Mutant(
        "replicas-part-to-a-bookie-that-is-to-go",
        "no replica is moved to where it must leave again",
        "engine/repair/respreading.py",
        "name not in outlook.leaving and found.host",
        "found.host",
        by_test(_APART_TESTS, "test_no_replica_parts_to_a_bookie_that_is_to_go_or_takes_nothing"),
    ),
    Mutant(
        "replicas-part-to-unknown-ground",
        "a bookie that does not say where it stands may stand on the same machine",
        "engine/repair/respreading.py",
        "name not in outlook.leaving and found.host and",
        "name not in outlook.leaving and",
        by_test(
            _APART_TESTS, "test_no_replica_parts_to_a_bookie_that_does_not_say_where_it_stands"
        ),
    ),
    Mutant(
        "each-try-parts-to-another-bookie",
        "a copy that was cut short is gone on with, by whomever",
        "engine/repair/respreading.py",
        'random.Random(f"{ledger_id} {fragment.first}")',
        "random.Random()",
        by_test(
            _APART_TESTS,
            "test_whoever_goes_on_with_a_copy_that_was_cut_short_copies_to_the_same_bookie",
        ),
    ),
    Mutant(
        "what-is-lost-waits-for-all-that-waits",
        "what is asked for while much waits is seen to after the page under way",
        _REPAIRER,
        "due = self._due(news) + due",
        "due = due + self._due(news)",
        by_test(_WORKER_TESTS, "test_what_is_lost_while_much_waits_comes_next"),
    ),
    Mutant(
        "a-lost-bookies-ledgers-wait-for-the-survey",
        "the ledgers of a lost bookie are queued before all others are read",
        _AUDITOR,
        "finished = await self._queue_known(outlook) and await self._survey_all(outlook)",
        "finished = await self._survey_all(outlook)",
        by_test(
            _AUDITOR_TESTS, "test_the_ledgers_of_a_lost_bookie_are_queued_before_the_next_survey"
        ),
    ),
    Mutant(
        "open-ledgers-are-not-looked-at-again",
        "the bookies of a ledger that is not closed may change at any time",
        "engine/repair/bookie_index.py",
        "            if number == _OPEN or not names.isdisjoint(bookie_ids)\n",
        "            if not names.isdisjoint(bookie_ids)\n",
        by_test(
            _AUDITOR_TESTS, "test_the_ledgers_of_a_lost_bookie_are_queued_before_the_next_survey"
        ),
    ),
    Mutant(
        "a-survey-pays-for-what-happened-meanwhile",
        "if a bookie is given up during a survey, another one is owed",
        _AUDITOR,
        "            self._survey_owed |= not finished\n",
        "            self._survey_owed = not finished\n",
        by_test(
            _AUDITOR_TESTS,
            "test_a_bookie_that_is_given_up_during_the_first_survey_is_not_forgotten",
        ),
    ),
    Mutant(
        "a-survey-counts-for-bookies-that-are-to-go-since",
        "if a bookie is to go during a survey, another one is owed",
        _AUDITOR,
        "        self._leaving = begun.leaving\n",
        "        self._leaving = (outlook or begun).leaving\n",
        by_test(
            _AUDITOR_TESTS,
            "test_a_bookie_that_is_decommissioned_during_a_survey_is_not_forgotten",
        ),
    ),
    Mutant(
        "nobody-looks-at-bookies-during-a-survey",
        "a survey takes nothing from the time in which bookies are looked at",
        _AUDITOR,
        "        if since_s < self._workshop.settings.look_interval_ms / 1000:\n",
        "        if since_s >= 0:\n",
        by_test(_AUDITOR_TESTS, "test_bookies_are_looked_at_while_a_long_survey_runs"),
    ),
    Mutant(
        "a-listing-denies-a-ledger",
        "2.6-13 (#876): absence from a listing is never an answer",
        "engine/bookie/garbage.py",
        'if not there and await self._store.get(f"{LEDGERS}/{ledger_id}") is None:',
        "if not there:",
        by_test(
            "engine/bookie/test_garbage.py",
            "test_many_ledgers_are_looked_for_in_listings_which_prove_no_absence",
        ),
    ),
    Mutant(
        "a-survey-cut-short-is-forgotten",
        "a survey that was begun is owed until one was finished",
        _AUDITOR,
        "if self._survey_owed or self._survey_is_due()",
        "if self._survey_is_due()",
        by_test(_BAD_TESTS, "test_a_survey_that_was_cut_short_is_owed_at_the_next_look"),
    ),
    Mutant(
        "an-unreadable-ledger-ends-every-survey",
        "a ledger whose metadata cannot be read is passed over, and counted",
        "engine/repair/survey.py",
        "    except (CannotRead, FormatTooNew) as error:\n",
        "    except FormatTooNew as error:\n",
        by_test(_BAD_TESTS, "test_a_ledger_whose_metadata_cannot_be_read_ends_no_survey"),
    ),
    Mutant(
        "a-doubt-is-cleared-beside-an-unreadable-ledger",
        "a ledger whose metadata cannot be read may lie on the doubtful bookie",
        "engine/repair/doubt.py",
        "            if self._workshop.unreadable:\n                return\n",
        "",
        by_test(_BAD_TESTS, "test_a_doubt_is_not_cleared_while_a_ledger_cannot_be_read"),
    ),
    Mutant(
        "each-try-copies-to-another-bookie",
        "a bookie that was chosen for a replica stays chosen while it can take it",
        _LEDGER,
        "            other = self._memory.targets.get(key)\n",
        "            other = None\n",
        by_test(_AGAIN_TESTS, "test_an_entry_that_nobody_can_read_costs_one_copy_and_then_a_look"),
    ),
    Mutant(
        "a-walk-begins-again",
        "what was copied is not copied again in the next try",
        _LEDGER,
        "        walk = walks.get(key)\n",
        "        walk = None\n",
        by_test(_AGAIN_TESTS, "test_an_entry_that_nobody_can_read_costs_one_copy_and_then_a_look"),
    ),
    Mutant(
        "what-was-silent-is-not-looked-at-again",
        "a replica is whole only if each entry was read from it or written to it",
        _REPLICAS,
        "            self._leave_open(source[0].first, end)\n",
        "            pass\n",
        by_test(_AGAIN_TESTS, "test_a_replica_that_was_silent_for_a_while_is_seen_to_only_there"),
    ),
    Mutant(
        "an-event-beside-the-switch-stops-repair",
        "trap #2302: a new session's first event stops nothing",
        _REPAIRER,
        "        self._switch.news()\n",
        "        self._disabled = True\n        self._switch.news()\n",
        by_test(_AGAIN_TESTS, "test_an_event_beside_the_switch_stops_nothing"),
    ),
    Mutant(
        "news-during-a-look-are-lost",
        "news that comes while a writer looks at bookies makes it look again",
        "engine/ledger/lookout.py",
        "        self._news = True\n        if self._task",
        "        self._news = self._task is None\n        if self._task",
        by_test(
            "engine/ledger/test_lookout.py",
            "test_a_bookie_that_goes_while_the_writer_looks_is_noticed_too",
        ),
    ),
)
