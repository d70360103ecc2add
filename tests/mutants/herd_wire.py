"""Mutants of sessions over a wire."""

from typing import Final

from tests.mutants.mutant import Mutant, by_test

_CALLING: Final = "herd/wire/calling.py"
_FOLDER: Final = "herd/wire/folder.py"
_GUEST: Final = "herd/wire/guest.py"
_SERVER: Final = "herd/wire/framed_server.py"
_SERVICE: Final = "herd/wire/service.py"
_SESSION: Final = "herd/wire/session.py"
_LOST_TESTS: Final = "herd/wire/test_lost_answers.py"
_HOSTILE_TESTS: Final = "herd/wire/test_hostile.py"
_ROUTE_TESTS: Final = "herd/wire/test_route.py"
_GUEST_TESTS: Final = "herd/wire/test_guest.py"

HERD_WIRE_MUTANTS: Final = (
    Mutant(
        "a-transaction-keeps-what-an-unconfirmed-call-changed",
        "what a call changed in a transaction is not committed if the call is told to have failed",
        _GUEST,
        "            if transaction is not None:\n                # What",
        "            if False:\n                # What",
        by_test(
            _GUEST_TESTS,
            "test_a_transaction_ends_if_what_one_of_its_statements_read_is_not_confirmed",
        ),
    ),
    Mutant(
        "a-deposed-leader-says-that-there-is-no-table",
        "what follows from definitions is told only by a leader",
        _GUEST,
        "        space.replica.read_now(lambda rows: None)\n",
        "        pass\n",
        by_test(
            _GUEST_TESTS,
            "test_a_deposed_leader_says_nothing_of_tables_that_it_does_not_know",
        ),
    ),
    Mutant(
        "a-type-name-is-sent-that-earlier-clients-do-not-know",
        "clients of earlier versions can read every result",
        "herd/arrow.py",
        "with_metadata({KIND: _HUGE, UNSIGNED",
        "with_metadata({KIND: name.encode(), UNSIGNED",
        by_test(
            "herd/test_arrow.py",
            "test_clients_of_earlier_versions_know_every_type_name_that_is_sent",
        ),
    ),
    Mutant(
        "a-restoration-goes-past-the-owner-of-a-folder",
        "only its owner opens a folder's tablespaces",
        "herd/store.py",
        """        if not await self._route.own_or_reach():
            await self._remote.restore_until(""",
        """        if self._closed:
            await self._remote.restore_until(""",
        by_test(
            "herd/test_restoring.py",
            "test_a_restoration_may_be_the_first_thing_that_a_folder_is_opened_for",
        ),
    ),
    Mutant(
        "a-lost-change-is-made-again",
        "a statement outside a transaction that may have changed something is never run twice",
        _SESSION,
        "                if self.autocommit and not again:",
        "                if self.autocommit and again:",
        by_test(_LOST_TESTS, "test_a_change_outside_a_transaction_is_not_made_twice"),
    ),
    Mutant(
        "a-lost-row-is-written-again",
        "a call that may have been done is asked again only where twice is once",
        _CALLING,
        "                if not again:",
        "                if again:",
        by_test(_LOST_TESTS, "test_a_change_outside_a_transaction_is_not_made_twice"),
    ),
    Mutant(
        "a-lost-commit-counts-as-done",
        "a commit that was not done, and never will be, raises TransactionEnded",
        _SESSION,
        "        if committed is not True:",
        "        if committed is None:",
        by_test(_LOST_TESTS, "test_a_commit_that_got_lost_is_known_not_to_be_done"),
    ),
    Mutant(
        "commits-have-no-names",
        "a commit whose answer got lost is asked about, by its client and sequence",
        _GUEST,
        "            transaction.identity = identity_of(hosted.client, call.sequence)",
        "            pass",
        by_test(_LOST_TESTS, "test_a_commit_whose_answer_got_lost_is_known_to_be_done"),
    ),
    Mutant(
        "a-transaction-moves-to-another-server",
        "inside a transaction a session says that it is gone, and does not move",
        _SESSION,
        "            raise self._lose(within, None)",
        "            self.transaction = None",
        by_test(_ROUTE_TESTS, "test_a_transaction_ends_with_its_server_and_can_be_done_again"),
    ),
    Mutant(
        "a-lost-statement-begins-its-transaction-again",
        "a statement that got lost in a transaction ends it: what came before is gone",
        _SESSION,
        "                    raise self._lose(within, error) from error",
        "                    self.transaction = None",
        by_test(_LOST_TESTS, "test_a_statement_that_got_lost_ends_its_transaction"),
    ),
    Mutant(
        "sessions-pile-up",
        "there are at most sessions_max sessions; one that is idle makes room",
        _SERVICE,
        "        elif count < sessions_max:",
        "        elif count >= 0:",
        by_test(_ROUTE_TESTS, "test_idle_sessions_make_room_and_come_back"),
    ),
    Mutant(
        "one-user-has-all-sessions",
        "no user has more than a share of the sessions",
        _SERVICE,
        "        if user and own and own >= part_of(sessions_max, others, _SESSIONS_PARTS):",
        "        if False:",
        by_test(_GUEST_TESTS, "test_a_user_has_a_share_of_the_sessions_and_nodes_keep_some"),
    ),
    Mutant(
        "calls-arrive-without-bounds",
        "a call has at most call_bytes_max bytes",
        _SERVER,
        "        if arriving.size_bytes > limit or full:",
        "        if full:",
        by_test(_HOSTILE_TESTS, "test_a_call_that_is_too_large_is_refused_and_the_next_one_served"),
    ),
    Mutant(
        "a-deaf-client-is-read-from",
        "nothing is read from who does not take answers",
        _SERVER,
        "            if self.wire.queued_bytes > self._settings.queued_bytes_max:",
        "            if self.wire.queued_bytes < 0:",
        by_test(_HOSTILE_TESTS, "test_who_takes_no_answers_is_not_read_from"),
    ),
    Mutant(
        "a-socket-serves-any-folder",
        "a socket serves those who came for its own folder",
        _FOLDER,
        '            if options.get("nonce") != nonce:',
        '            if options.get("nonce") == "":',
        by_test(_HOSTILE_TESTS, "test_a_folders_socket_serves_those_who_come_for_that_folder"),
    ),
)
