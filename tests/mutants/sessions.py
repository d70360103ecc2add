"""Mutants of sessions: what is lost with one, who hears of it, and the store in ZooKeeper."""

from typing import Final

from tests.mutants.mutant import Mutant, by_seeds, by_test

_PUBLISHING: Final = "engine/bookie/publishing.py"
_PUBLISHING_TESTS: Final = "engine/bookie/test_publishing.py"
_STORE: Final = "engine/metadata/zookeeper.py"
_CLIENT: Final = "engine/metadata/zookeeper_client.py"
_NUMBERS: Final = "engine/metadata/zookeeper_numbers.py"
_WATCHES: Final = "engine/metadata/zookeeper_watches.py"
_PATHS: Final = "engine/metadata/zookeeper_paths.py"
_UPGRADE_TESTS: Final = "engine/metadata/test_zookeeper_upgrade.py"
_FAULT_TESTS: Final = "engine/metadata/test_zookeeper_faults.py"
_REAL: Final = "engine/metadata/test_zookeeper.py::TestZooKeeperStore"

SESSION_MUTANTS: Final = (
    Mutant(
        "a-lost-session-is-not-told",
        "issue 3-A: a lost session stops what depended on it",
        "engine/metadata/session.py",
        "            self._losses.tell(asyncio.get_running_loop())\n",
        "",
        by_test(
            "engine/metadata/test_memory.py::TestMemoryStore",
            "test_a_lost_session_is_told_and_its_ephemeral_keys_go_and_no_others",
        ),
    ),
    Mutant(
        "an-old-sessions-registration-is-taken-for-ones-own",
        "issue 3-A: a registration goes with the session that made it",
        _PUBLISHING,
        "missing = self._session_lost or found is None",
        "missing = found is None",
        by_test(
            _PUBLISHING_TESTS,
            "test_a_registration_moves_to_the_next_session_before_the_old_one_is_forgotten",
        ),
    ),
    Mutant(
        "a-registration-that-failed-is-forgotten",
        "issue 3-A: a bookie re-registers until it stands",
        _PUBLISHING,
        "                    self._session_lost = True\n                    await asyncio",
        "                    await asyncio",
        by_test(
            _PUBLISHING_TESTS,
            "test_a_registration_that_failed_in_the_next_session_is_tried_until_it_stands",
        ),
    ),
    Mutant(
        "a-lost-registration-is-never-made-again",
        "issue 3-A: bookies register again after their session's end",
        _PUBLISHING,
        "        if self._task is None and not self._closed:\n",
        "        if self._task is None and self._closed:\n",
        by_seeds(0, 3),
    ),
    Mutant(
        "a-write-is-sent-twice",
        "design 4.2-7: after a lost reply the outcome is unknown, and not the store's to guess",
        _STORE,
        "        async with _Deadline(self._settings.request_timeout_ms):\n"
        "            await self._linked()\n"
        "            return await ask()\n",
        "        return await self._read(ask)\n",
        by_test(_FAULT_TESTS, "test_a_write_whose_reply_was_lost_is_done_and_says_that_it_may_be"),
    ),
    Mutant(
        "a-lost-connection-leaves-callers-waiting",
        "design 4.2-8: every call has a deadline, and a lost connection is known at once",
        _CLIENT,
        '            self._fail_sent("the connection to ZooKeeper was lost")\n',
        "            pass\n",
        by_test(_FAULT_TESTS, "test_a_connection_that_goes_fails_what_was_on_its_way"),
    ),
    Mutant(
        "any-cluster-will-do",
        "design 4.3: a store never reaches two clusters",
        _STORE,
        'if self._cluster_id not in ("", node.cluster_id):',
        'if node.cluster_id == "":',
        by_test(_FAULT_TESTS, "test_a_server_that_forgot_everything_is_not_taken_for_the_cluster"),
    ),
    Mutant(
        "a-key-is-made-by-a-layout-that-is-over",
        "no key appears in a place where others have stopped to look",
        _STORE,
        "                steps = [Check(self._layout.cluster, version)]\n",
        "                steps = [Check(self._layout.cluster, -1)]\n",
        by_test(
            _UPGRADE_TESTS,
            "test_a_session_from_before_the_upgrade_makes_keys_where_all_find_them",
        ),
    ),
    Mutant(
        "a-key-that-was-not-moved-is-made-again",
        "a key is in one place",
        _STORE,
        "                    steps += [Create(flat), Delete(flat)]\n",
        "                    pass\n",
        by_test(_UPGRADE_TESTS, "test_a_key_that_was_not_moved_yet_is_not_made_twice"),
    ),
    Mutant(
        "a-moved-key-begins-a-new-version",
        "a compare-and-set by a version from before the move fails",
        _STORE,
        "            counted += [Set(inside)] * (version - 1)\n",
        "",
        by_test(_UPGRADE_TESTS, "test_a_compare_and_set_by_an_old_version_fails_after_the_move"),
    ),
    Mutant(
        "a-key-is-moved-as-it-was-read",
        "what others write while a key is moved is not lost",
        _STORE,
        "                await self._commit([Delete(flat, found.version), *counted])\n",
        "                await self._commit([Delete(flat), *counted])\n",
        by_test(_UPGRADE_TESTS, "test_a_key_that_is_changed_while_it_is_moved_keeps_the_change"),
    ),
    Mutant(
        "an-upgrade-does-not-wait-for-earlier-programs",
        "nothing is moved while a program of an earlier version is running",
        "engine/metadata/upgrade.py",
        "        if earlier := await self._earlier():\n",
        "        if (earlier := await self._earlier()) and not earlier:\n",
        by_test(_UPGRADE_TESTS, "test_nothing_is_moved_while_a_bookie_of_an_earlier_version_runs"),
    ),
    Mutant(
        "earlier-programs-are-looked-for-only-at-first",
        "a bookie of an earlier version may register while keys are moved",
        _STORE,
        "                    await ready()\n",
        "",
        by_test(
            _UPGRADE_TESTS,
            "test_an_upgrade_stops_when_a_bookie_of_an_earlier_version_registers_meanwhile",
        ),
    ),
    Mutant(
        "keys-of-earlier-programs-are-not-looked-for",
        "what a program of an earlier version makes afterwards is found",
        _PATHS,
        "return (inside, flat, inside) if self.spread",
        "return (inside,) if self.spread",
        by_test(
            _UPGRADE_TESTS,
            "test_what_a_program_of_an_earlier_version_makes_afterwards_is_found_and_moved",
        ),
    ),
    Mutant(
        "a-page-begins-behind-its-folder",
        "pages have all numbers above one",
        _STORE,
        "            if folder >= above // FOLDER_NUMBERS:\n",
        "            if folder > above // FOLDER_NUMBERS:\n",
        by_test(_REAL, "test_pages_have_all_numbers_under_a_key_in_order"),
    ),
    Mutant(
        "the-newest-place-is-looked-at-first",
        "a key that is moved while it is looked for is found",
        _PATHS,
        "is Spread.FOLDERS else (flat, inside)",
        "is Spread.FOLDERS else (inside, flat)",
        by_test(_UPGRADE_TESTS, "test_a_key_that_is_moved_while_it_is_looked_for_is_found"),
    ),
    Mutant(
        "a-folder-that-comes-is-not-watched",
        "a watch of numbered keys fires whichever comes or goes",
        _WATCHES,
        "                if key in NUMBERED and folder == self._layout.folder(key):\n",
        "                if not key:\n",
        by_test(_REAL, "test_a_watch_of_numbered_keys_fires_whichever_comes_or_goes"),
    ),
    Mutant(
        "callers-who-share-a-write-share-a-number",
        "contract: a number is given once",
        _NUMBERS,
        "                    if not number.done():\n"
        "                        number.set_result(first + place)\n",
        "                    if not number.done():\n"
        "                        number.set_result(max(1, first - place))\n",
        by_test(_REAL, "test_numbers_of_a_counter_are_never_given_twice"),
    ),
    Mutant(
        "watches-die-with-their-connection",
        "issue 3-A: watches, over a reconnect too",
        _WATCHES,
        "        for key in self._watchers:\n            self._arm_soon(key)\n",
        "",
        by_test(_FAULT_TESTS, "test_a_watch_fires_for_what_changed_while_there_was_no_connection"),
    ),
    Mutant(
        "a-watch-fires-once",
        "contract: a watch fires after every change",
        _WATCHES,
        "        if key is not None:\n            self._arm_soon(key, path)\n",
        "        for changed in list(self._watchers.get(key or '', {}).values()):\n"
        "            self._loop.call_soon(changed)\n",
        by_test(_REAL, "test_a_watch_tells_of_each_kind_of_change"),
    ),
    Mutant(
        "a-key-may-pass-for-a-folder",
        "contract: a key and the names under it know nothing of each other",
        "engine/metadata/zookeeper_paths.py",
        "escaped = name.endswith(_ENDINGS) or name == _RESERVED",
        "escaped = False",
        by_test(_REAL, "test_a_name_may_be_any_word"),
    ),
    Mutant(
        "nothing-bounds-what-is-on-its-way",
        "house rule: every queue has a limit and pushes back",
        _CLIENT,
        "len(self._sent) < self._settings.requests_in_flight_max",
        "len(self._sent) < 10_000",
        by_test(_FAULT_TESTS, "test_what_is_on_its_way_is_bounded_and_the_rest_waits_its_turn"),
    ),
    Mutant(
        "the-password-is-logged",
        "issue 3-A: digest ACLs",
        _CLIENT,
        'kazoo", logging.WARNING)\n    logger.parent = _LOG\n    logger.addFilter(words)\n',
        'kazoo", logging.DEBUG)\n    logger.parent = _LOG\n',
        by_test(_FAULT_TESTS, "test_a_password_is_in_no_log"),
    ),
    Mutant(
        "a-silent-server-costs-the-session",
        "a server that accepts and never greets costs a part of the session only",
        "engine/metadata/zookeeper_client.py",
        '    times = max(1, attempts // (hosts.count(",") + 1))\n',
        "    times = max(1, min(1, attempts))\n",
        by_test(
            "engine/metadata/test_zookeeper_faults.py",
            "test_a_server_that_accepts_and_says_nothing_costs_a_part_of_the_session_only",
        ),
    ),
)
