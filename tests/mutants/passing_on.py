"""Mutants of the metadata store that bookies' servers pass on, and of tasks that ask there."""

from typing import Final

from tests.mutants.mutant import Mutant, by_test

_PASSED_ON: Final = "engine/metadata/passed_on.py"
_PASSED_ON_TESTS: Final = "engine/test_passed_on.py"
_THROUGH_TESTS: Final = "engine/test_through.py"
_PERMITTED: Final = "engine/metadata/permitted.py"
_RIGHTS: Final = "herdbook/access/metadata_rights.py"
_RIGHTS_TESTS: Final = "herdbook/access/test_metadata_rights.py"
_NODES_TESTS: Final = "herd/wire/test_metadata.py"
_CONNECTIONS: Final = "spark/test_connections.py"

PASSING_ON_MUTANTS: Final = (
    Mutant(
        "each-task-has-a-session",
        "tasks have no session of ZooKeeper",
        "engine/place.py",
        'if not place.is_cluster or place.wire != "framed":',
        "if True:",
        by_test(_THROUGH_TESTS, "test_tasks_are_told_where_bookies_are_but_not_of_those_over_grpc"),
    ),
    Mutant(
        "another-clusters-store-is-asked",
        "a server of another cluster is not asked",
        "engine/connecting.py",
        "return await servers.open(shown, settings, clock, through.cluster_id)",
        "return await servers.open(shown, settings, clock)",
        by_test(_THROUGH_TESTS, "test_where_no_server_passes_the_store_on_zookeeper_is_reached"),
    ),
    Mutant(
        "an-ephemeral-key-is-passed-on",
        "nothing rests on a session that is passed on",
        _PASSED_ON,
        "        if ephemeral:\n            raise InvalidRequest(_EPHEMERAL)\n",
        "",
        by_test(_PASSED_ON_TESTS, "test_nothing_that_rests_on_a_session_is_made_through_a_server"),
    ),
    Mutant(
        "a-clients-end-ends-the-servers-session",
        "the store goes on when a client's session ends",
        _PASSED_ON,
        "        for end in ends:\n",
        "        await self._store.close()\n        for end in ends:\n",
        by_test(
            _PASSED_ON_TESTS, "test_the_end_of_one_client_is_none_of_the_server_and_of_no_other"
        ),
    ),
    Mutant(
        "each-pin-asks-a-store-that-is-away",
        "a store that is away is asked once when an application ends",
        "herdbook/spark.py",
        "                silent.add(pin.place)\n",
        "                pass\n",
        by_test(
            _CONNECTIONS,
            "test_a_store_that_is_away_is_not_asked_for_each_pin_of_an_application",
        ),
    ),
    Mutant(
        "a-cause-loses-its-hint",
        "the store's error in one of Spark's says the same",
        "herdbook/causes.py",
        "        return kind(message, hint=hint)\n",
        "        return kind(message)\n",
        by_test("herdbook/test_causes.py", "test_an_error_of_tables_is_found_as_it_was"),
    ),
    Mutant(
        "a-session-may-be-behind",
        "a session sees every write that had returned before it began",
        _PASSED_ON,
        "        if not self._current:\n            await self.sync()\n",
        "        return\n",
        by_test(_PASSED_ON_TESTS, "test_a_session_sees_what_had_been_written_before_it_began"),
    ),
    Mutant(
        "whose-a-ledger-is-does-not-count",
        "a user sees the metadata of ledgers that it may read",
        _PERMITTED,
        "    if not may_read(principal, metadata.custom):\n        return None\n",
        "",
        by_test(_RIGHTS_TESTS, "test_a_user_may_do_with_each_key_what_the_table_says"),
    ),
    Mutant(
        "users-see-the-hashes-of-passwords",
        "a user does not see the hash of a ledger's password",
        _PERMITTED,
        "msgspec.structs.replace(metadata, key_hash=HIDDEN_HASH)",
        "metadata",
        by_test(_RIGHTS_TESTS, "test_a_value_that_a_user_sees_contains_nothing_of_others"),
    ),
    Mutant(
        "a-session-gains-rights",
        "who becomes an administrator is one in the next session",
        _PERMITTED,
        "        if principal.admin and not self._is_admin:\n"
        "            return dataclasses.replace(principal, admin=False)\n",
        "",
        by_test(_RIGHTS_TESTS, "test_a_new_administrator_has_the_old_rights_in_this_session"),
    ),
    Mutant(
        "a-watch-of-any-key-is-kept",
        "a user's watch holds for a key that exists",
        _PERMITTED,
        "if key in self._lists or await self.get(key) is not None:",
        "if await self.get(key) or True:",
        by_test(_RIGHTS_TESTS, "test_a_watch_on_a_missing_key_is_not_kept"),
    ),
    Mutant(
        "a-users-write-is-for-any-version",
        "a user changes the value that was compared",
        _PERMITTED,
        "            if found is None or found.version != version:\n"
        '                raise VersionConflict(f"{key} has changed")\n',
        "            version = 0 if found is None else found.version\n",
        by_test(_RIGHTS_TESTS, "test_a_reader_resumes_a_tablespace_and_changes_nothing_else_of_it"),
    ),
    Mutant(
        "a-reader-changes-a-tablespace",
        "a reader resumes a tablespace, and changes nothing else of it",
        _RIGHTS,
        "if not old.suspended or new != resumed:",
        "if not old.suspended:",
        by_test(_RIGHTS_TESTS, "test_a_reader_resumes_a_tablespace_and_changes_nothing_else_of_it"),
    ),
    Mutant(
        "a-user-ends-the-pins-of-others",
        "a user ends its own pins alone",
        _RIGHTS,
        "pins=(*others, *own)",
        "pins=own",
        by_test(_RIGHTS_TESTS, "test_a_reader_pins_a_checkpoint_and_ends_only_its_own_pins"),
    ),
    Mutant(
        "pins-of-users-have-no-bounds",
        "a user's pins are bounded",
        _RIGHTS,
        "    if not _may_have(wanted, wall_ms() + PIN_MS_MAX):\n        return None\n",
        "",
        by_test(_RIGHTS_TESTS, "test_pins_of_users_are_limited"),
    ),
    Mutant(
        "pins-fill-the-list",
        "the list of checkpoints keeps room for the leader",
        _RIGHTS,
        "return value if len(value) <= max(LIST_BYTES_MAX, len(before)) else None",
        "return value",
        by_test(_RIGHTS_TESTS, "test_many_users_leave_room_for_the_leader"),
    ),
    Mutant(
        "a-session-keeps-its-first-read-token",
        "each connection shows the read token of its moment",
        "engine/metadata/remote.py",
        "self._security.at_bookies() if self._by_read_token else self._security,",
        "self._security,",
        by_test(_NODES_TESTS, "test_each_connection_shows_the_current_read_token"),
    ),
    Mutant(
        "one-wrong-node-ends-the-search",
        "a client goes on at a node that serves",
        "engine/connecting.py",
        "                gives_up=False,\n",
        "",
        by_test(_NODES_TESTS, "test_the_next_node_is_tried_if_one_does_not_serve_the_client"),
    ),
    Mutant(
        "a-read-token-opens-sessions-of-tablespaces",
        "a read token opens metadata sessions alone",
        "herd/wire/framed_server.py",
        "        if self.caller.only_reads:\n"
        "            raise AccessRefused("
        '"a read token cannot open a session for tables: log in")\n',
        "",
        by_test(_NODES_TESTS, "test_a_read_token_opens_no_session_of_tablespaces"),
    ),
    Mutant(
        "a-node-that-hangs-keeps-its-clients",
        "a client leaves a server that does not answer a ping after a call without an answer",
        "engine/metadata/remote.py",
        "            self._check(connection)\n",
        "",
        by_test(_NODES_TESTS, "test_a_client_continues_at_another_node_when_its_own_hangs"),
    ),
    Mutant(
        "a-server-of-an-earlier-version-is-asked-for-the-time",
        "a call that a server does not know ends the session: its version is checked first",
        "engine/metadata/remote.py",
        "connection.welcome.minor < CLOCK_MINOR",
        "connection.welcome.minor < 0",
        by_test(
            "engine/test_passed_on.py", "test_a_client_of_a_server_learns_the_time_of_the_store"
        ),
    ),
    Mutant(
        "clients-of-a-server-know-only-their-own-clock",
        "a pin by a client with a slow clock lasts as long as it asked",
        "engine/metadata/passed_on.py",
        "return None if self._time is None else await self._time.server_ms()",
        "return None",
        by_test(
            "engine/ledger/test_cluster_time.py",
            "test_clients_of_a_server_share_its_requests_to_the_store",
        ),
    ),
    Mutant(
        "a-question-that-was-cancelled-counts-for-a-minute",
        "a client that goes in the middle takes the time from nobody",
        "engine/ledger/cluster_time.py",
        "self._silent, self._due_s = True, before_s + _AGAIN_S",
        "self._silent, self._due_s = True, before_s + ASK_S",
        by_test(
            "engine/ledger/test_cluster_time.py",
            "test_a_client_that_goes_in_the_middle_takes_the_time_from_nobody",
        ),
    ),
    Mutant(
        "an-unknown-time-replaces-a-known-one",
        "a known time is only replaced by a newer one",
        "engine/ledger/cluster_time.py",
        "            if server_ms is not None:\n"
        "                after_s = self.clock.monotonic()\n"
        "                self._server_ms = server_ms - (before_s + after_s) * 500\n",
        "            after_s = self.clock.monotonic()\n"
        "            self._server_ms = server_ms and server_ms - (before_s + after_s) * 500\n",
        by_test(
            "engine/ledger/test_cluster_time.py",
            "test_a_server_that_does_not_know_the_stores_time_replaces_no_known_time",
        ),
    ),
)
