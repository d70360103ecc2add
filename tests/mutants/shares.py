"""Mutants of the shares of users."""

from typing import Final

from tests.mutants.mutant import Mutant, by_test

_SHARES: Final = "engine/access/shares.py"
_GRPC: Final = "engine/transport/grpc_security.py"
_FRAMED: Final = "herd/wire/framed_server.py"
_SERVICE: Final = "herd/wire/service.py"
_ASKS: Final = "broker/wire/ask_server.py"
_ACCESS: Final = "broker/access.py"
_SHARES_TESTS: Final = "engine/access/test_shares.py"
_GRPC_TESTS: Final = "engine/transport/test_grpc_security.py"
_READERS_TESTS: Final = "engine/transport/test_readers.py"
_HOSTILE_TESTS: Final = "herd/wire/test_hostile.py"
_GUEST_TESTS: Final = "herd/wire/test_guest.py"
_ASK_TESTS: Final = "broker/wire/test_ask_stream.py"
_BROKER_TESTS: Final = "broker/wire/test_access.py"
_NEXT: Final = (
    "test_users_who_take_all_that_they_may_leave_room_for_the_next_one_and_for_the_cluster"
)
_TOO_MUCH: Final = "test_a_call_that_asks_for_too_much_is_refused_before_anything_is_looked_at"
_UNKNOWN: Final = "test_answers_that_nobody_takes_count_before_they_are_known"

_LONG_TESTS: Final = "herd/sql/test_long_statements.py"

SHARES_MUTANTS: Final = (
    Mutant(
        "a-plan-of-a-long-text-takes-the-place-of-all-others",
        "no plan is dropped for one of a long text",
        "herd/sql/planning.py",
        "if size_bytes > _LARGE_BYTES:",
        "if False:",
        by_test("herd/sql/test_plans.py", "test_the_plan_of_a_long_text_evicts_no_other_plan"),
    ),
    Mutant(
        "a-plan-of-any-size-is-kept",
        "a plan that is larger than the whole cache is not kept",
        "herd/sql/planning.py",
        "if size_bytes > CACHE_BYTES_MAX:",
        "if False:",
        by_test("herd/sql/test_plans.py", "test_a_plan_larger_than_the_whole_cache_is_not_kept"),
    ),
    Mutant(
        "the-plan-of-a-denied-statement-is-kept",
        "the plan of a denied statement is not kept",
        "herd/sql/session.py",
        "        self._check(planned)\n        self._plans.keep(planned)\n",
        "        self._plans.keep(planned)\n        self._check(planned)\n",
        by_test("herd/sql/test_plans.py", "test_the_plan_of_a_denied_statement_is_not_kept"),
    ),
    Mutant(
        "long-statements-are-planned-on-the-event-loop",
        "a long statement is parsed and planned in a worker thread",
        "herd/sql/session.py",
        "        if len(text) > LONG_CHARACTERS:\n            user =",
        "        if not text:\n            user =",
        by_test(_LONG_TESTS, "test_a_follower_parses_and_plans_a_long_statement_once_in_a_worker"),
    ),
    Mutant(
        "a-statement-that-waited-is-parsed-again",
        "a statement that waited during a schema change is planned again, not parsed again",
        "herd/sql/session.py",
        "            if not planned.is_of(self.space.catalog):\n"
        "                planned = await self.planned(planned.parsed.text, planned.parsed)\n",
        "            if not planned.is_of(self.space.catalog):\n"
        "                planned = await self.planned(planned.parsed.text)\n",
        by_test(
            _LONG_TESTS,
            "test_a_long_statement_that_waited_during_a_schema_change_is_not_parsed_again",
        ),
    ),
    Mutant(
        "control-statements-have-no-length-limit",
        "a long control statement is refused before it is split into words",
        "herd/sql/parsing.py",
        'if len(text) > _CONTROL_CHARACTERS_MAX and word != "EXPLAIN":',
        "if False:",
        by_test(
            _LONG_TESTS, "test_a_long_control_statement_is_refused_before_it_is_split_into_words"
        ),
    ),
    Mutant(
        "quoted-names-are-taken-for-keywords",
        "the quick count refuses no valid statement",
        "herd/sql/long_lists.py",
        r'"|\"[^\"]*\"|`[^`]*`|;',
        r'"|;',
        by_test(_LONG_TESTS, "test_the_quick_count_refuses_no_valid_statement"),
    ),
    Mutant(
        "text-between-constants-is-kept",
        "a long list keeps only its constants",
        "herd/sql/long_lists.py",
        'text = "".join([self._find_sql(token, token) for token in constants])',
        "text = self._find_sql(constants[0], constants[-1])",
        by_test(
            _LONG_TESTS,
            "test_text_between_constants_means_the_same_in_short_and_long_lists",
        ),
    ),
    Mutant(
        "a-proof-counts-for-any-user-of-the-same-name",
        "a password is checked against the row of the user who logs in",
        "herdbook/access/authenticator.py",
        "if found is None or (proved is not None and str(proved) != found.verifier):",
        "if found is None:",
        by_test(
            "herdbook/access/test_users.py",
            "test_a_password_is_refused_if_the_user_changes_while_it_is_checked",
        ),
    ),
    Mutant(
        "a-search-goes-through-a-long-text",
        "no single search keeps the interpreter for a long text",
        "herd/sql/long_lists.py",
        r"(?P<rest>(?:[\s,.)?\d]{1,64}|-(?!-)|(?<=\d)_|(?<=[\d.])e[+-]?\d+){1,64}|\w[\w$.]*|.)",
        r"(?P<rest>;;)",
        by_test(
            "herd/sql/test_long_statements.py", "test_no_single_search_goes_through_a_long_text"
        ),
    ),
    Mutant(
        "a-long-name-is-not-found-between-two-pieces",
        "a name that is too long is found wherever it stands",
        "herd/sql/parsing.py",
        "end = start + _SEARCHED_AT_ONCE + NAME_CHARACTERS_MAX",
        "end = start + _SEARCHED_AT_ONCE",
        by_test(
            "herd/sql/test_long_statements.py",
            "test_a_name_that_is_too_long_is_found_wherever_it_stands",
        ),
    ),
    Mutant(
        "a-password-that-was-right-stays-right",
        "a password is hashed again when the user has another one",
        "herdbook/access/authenticator.py",
        "if kept is None or kept.verifier != verifier:",
        "if kept is None:",
        by_test(
            "herdbook/access/test_users.py",
            "test_a_right_password_is_hashed_once_and_again_when_the_user_has_another",
        ),
    ),
    Mutant(
        "one-user-takes-all-that-there-is",
        "a user has a quarter of what other users leave",
        _SHARES,
        "    return max(left // parts, min((left + 1) // 2, least))\n",
        "    return left\n",
        by_test(_SHARES_TESTS, "test_a_user_holds_a_quarter_and_all_no_more_than_there_is"),
    ),
    Mutant(
        "a-share-is-a-part-of-all",
        "a share is a part of what others leave, so a user who comes finds room",
        _SHARES,
        "left = max(0, left_to_users(most) - others)",
        "left = left_to_users(most)",
        by_test(_SHARES_TESTS, _NEXT),
    ),
    Mutant(
        "users-leave-nothing-to-the-cluster",
        "users leave a sixteenth to the cluster and administrators",
        _SHARES,
        "    return most - most // LEFT_TO_PARTS\n",
        "    return most\n",
        by_test(_SHARES_TESTS, _NEXT),
    ),
    Mutant(
        "who-waits-longest-is-let-in",
        "of those who wait, who holds least is let in first",
        _SHARES,
        "sorted(self._waiting, key=self._held.__getitem__)",
        "list(self._waiting)",
        by_test(_SHARES_TESTS, "test_who_waits_is_let_in_before_those_who_hold_more"),
    ),
    Mutant(
        "messages-arrive-without-number",
        "no more messages of a user are asked for than may be on their way",
        _GRPC,
        "                await self._calls.arriving.acquire(self._user)\n",
        "                self._calls.arriving.count(self._user, 1)\n",
        by_test(
            _GRPC_TESTS,
            "test_no_more_messages_of_one_user_are_asked_for_than_may_be_on_their_way",
        ),
    ),
    Mutant(
        "requests-are-kept-without-bound",
        "the requests of a user's calls have a share of the room, with all their messages",
        _GRPC,
        "if not self._calls.requests.take(self._user, size_bytes):",
        "if self._calls.requests.count(self._user, size_bytes):",
        by_test(
            _GRPC_TESTS, "test_messages_that_a_call_keeps_have_a_share_of_the_room_for_requests"
        ),
    ),
    Mutant(
        "streams-last-without-number",
        "a user has a share of the streams whose next message may always come",
        _GRPC,
        "if lasting and not self._streams.take(user):",
        "if lasting and self._streams.count(user, 1):",
        by_test(_GRPC_TESTS, "test_streams_of_one_user_that_last_have_a_share_of_all"),
    ),
    Mutant(
        "windows-grow-with-the-network",
        "gRPC takes in no more of a stream than is asked for",
        "engine/transport/grpc_settings.py",
        '("grpc.http2.bdp_probe", 0)',
        '("grpc.http2.bdp_probe", 1)',
        by_test(_GRPC_TESTS, "test_a_server_takes_in_no_more_of_a_fast_stream_than_it_asks_for"),
    ),
    Mutant(
        "calls-over-grpc-have-no-share",
        "a user has a share of the calls over gRPC",
        _GRPC,
        "            if not self._shares.take(user):\n",
        "            if self._shares.count(user, 1):\n",
        by_test(
            _GRPC_TESTS,
            "test_calls_of_one_user_keep_out_neither_other_users_nor_the_cluster",
        ),
    ),
    Mutant(
        "replies-over-grpc-have-no-share",
        "a user has a share of the room for replies that wait to be taken",
        _GRPC,
        "if not self._replies.take(user, size_bytes):",
        "if self._replies.count(user, size_bytes):",
        by_test(_GRPC_TESTS, "test_replies_that_one_user_does_not_take_have_a_quarter_of_the_room"),
    ),
    Mutant(
        "everybodys-streams-are-like-workers",
        "only who may take tasks has as many streams of a worker's as calls",
        _GRPC,
        "lasting = may_last is None or not may_last(caller.principal)",
        "lasting = may_last is None",
        by_test(_BROKER_TESTS, "test_streams_of_workers_have_no_share_and_those_of_others_do"),
    ),
    Mutant(
        "readers-of-a-bookie-have-no-share",
        "what the reads of one reader hold is a share of what all may",
        "engine/transport/framed_server.py",
        "return Share(self._reads_of_readers, user)",
        "return Share(Shares(2**60), user)",
        by_test(
            _READERS_TESTS,
            "test_replies_that_one_reader_does_not_take_keep_nobody_elses_reads_out",
        ),
    ),
    Mutant(
        "calls-that-wait-have-no-share",
        "the calls of a user that wait have a bound over all connections",
        _FRAMED,
        "if user and not self._server.running.has_room(user):",
        "if user and self._server.running.held < 0:",
        by_test(_HOSTILE_TESTS, "test_calls_of_a_user_that_wait_count_over_all_connections"),
    ),
    Mutant(
        "answers-over-frames-have-no-share",
        "the answers that a user does not take have a bound over all connections",
        _FRAMED,
        "or self.answers.take(user, size_bytes)",
        "or self.answers.count(user, size_bytes) is None",
        by_test(
            _HOSTILE_TESTS, "test_answers_that_a_user_does_not_take_count_over_all_connections"
        ),
    ),
    Mutant(
        "two-pieces-of-a-result-at-once",
        "the pieces of a result are made one after the other",
        "herd/wire/guest.py",
        "        if pieces.cutting:\n",
        "        if pieces.cutting is None:\n",
        by_test(_GUEST_TESTS, "test_pieces_of_one_result_are_made_one_after_the_other"),
    ),
    Mutant(
        "results-have-no-share",
        "a user has a share of the results that wait",
        _SERVICE,
        "if not self._results.take(user, size_bytes):",
        "if self._results.count(user, size_bytes):",
        by_test(_GUEST_TESTS, "test_a_user_has_a_share_of_the_results_that_wait"),
    ),
    Mutant(
        "an-answer-counts-when-it-is-known",
        "an answer that may be long counts before it is known",
        _ASKS,
        "len(asked.arguments) + _EXPECTED_BYTES.get(asked.name, 0)",
        "len(asked.arguments)",
        by_test(_ASK_TESTS, f"{_UNKNOWN}[1]"),
    ),
    Mutant(
        "each-stream-has-a-share",
        "all streams of questions of one user have one share together",
        _ASKS,
        "            or self._held.full(self._user)\n",
        "",
        by_test(_ASK_TESTS, f"{_UNKNOWN}[3]"),
    ),
    Mutant(
        "waits-for-tasks-have-no-share",
        "a user has a share of the waits for tasks",
        "broker/waits.py",
        "if not self._waits.take(user, count):",
        "if self._waits.count(user, count):",
        by_test("broker/test_waits.py", "test_one_user_has_a_quarter_and_keeps_nobody_else_out"),
    ),
    Mutant(
        "open-transactions-have-no-share",
        "a user has a share of the open transactions",
        "broker/service.py",
        "if open_count >= part_of(TRANSACTIONS_MAX, others, OWNER_PARTS):",
        "if open_count < 0:",
        by_test("broker/http/test_front.py", "test_one_user_has_only_so_many_open_transactions"),
    ),
    Mutant(
        "a-million-parents",
        "what a call asks for is counted before any of it is looked at",
        _ACCESS,
        "if sum(len(spec.parents) for spec in specs) > EDGES_MAX:",
        "if len(specs) < 0:",
        by_test(_BROKER_TESTS, _TOO_MUCH),
    ),
    Mutant(
        "a-million-tasks-in-a-call",
        "what a call asks for is counted before any of it is looked at",
        _ACCESS,
        "if len(specs) > TRANSACTION_TASKS_MAX:",
        "if len(specs) < 0:",
        by_test(_BROKER_TESTS, _TOO_MUCH),
    ),
    Mutant(
        "a-million-tasks-to-cancel",
        "what a call asks for is counted before any of it is looked at",
        "broker/tenant_calls.py",
        "if len(task_ids) > ITEMS_MAX:",
        "if len(task_ids) < 0:",
        by_test(_BROKER_TESTS, _TOO_MUCH),
    ),
    Mutant(
        "a-payload-by-the-name-of-its-object",
        "which object a payload is, administrators say",
        _ACCESS,
        "if spec.payload_object and not who.admin:",
        "if spec.payload_object and not who.name:",
        by_test(
            _BROKER_TESTS,
            "test_nobody_reads_another_tenants_payload_by_the_name_of_its_object",
        ),
    ),
    Mutant(
        "transactions-of-users-stay-open",
        "how long more than a day a transaction stays open, administrators say",
        _ACCESS,
        "if ttl_ms is not None and ttl_ms > DAY_MS and not who.admin:",
        "if ttl_ms is not None and ttl_ms < 0:",
        by_test(
            _BROKER_TESTS,
            "test_where_tasks_run_and_how_long_they_are_kept_administrators_say",
        ),
    ),
    Mutant(
        "failed-tasks-of-users-stay",
        "how long more than a month failed tasks are kept, administrators say",
        _ACCESS,
        "max(spec.retention_ms, spec.dead_retention_ms)",
        "spec.retention_ms",
        by_test(
            _BROKER_TESTS,
            "test_where_tasks_run_and_how_long_they_are_kept_administrators_say",
        ),
    ),
)
