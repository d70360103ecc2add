"""Mutants of the node's HTTP: who is let in, what a browser may be made to do, bytes of objects."""

from typing import Final

from tests.mutants.mutant import Mutant, by_test

_APP: Final = "herdbook/http/app.py"
_GATE: Final = "herdbook/http/gate.py"
_SESSIONS: Final = "herdbook/http/sessions.py"
_OBJECTS: Final = "herdbook/http/objects.py"
_RANGES: Final = "herdbook/http/ranges.py"
_RATES: Final = "herdbook/http/rates.py"
_ASKING: Final = "herd/sql/asking.py"
_GATE_TESTS: Final = "herdbook/http/test_gate.py"
_BROWSER_TESTS: Final = "herdbook/http/test_browsers.py"
_OBJECT_TESTS: Final = "herdbook/http/test_objects.py"
_STORE_TESTS: Final = "herdbook/http/test_store.py"

HTTP_MUTANTS: Final = (
    Mutant(
        "any-host-is-ours",
        "a name that we are not served by is refused",
        "broker/http/hosts.py",
        'return host == "localhost" or host in self._names or _is_address(host)',
        "return bool(host)",
        by_test(_BROWSER_TESTS, "test_a_host_that_is_not_ours_is_refused_whatever_is_asked"),
    ),
    Mutant(
        "a-folder-knows-nobody",
        "a folder with users asks for them where its tasks are served",
        "herdbook/task_server.py",
        "    if door is None:\n        return Logins()",
        "    if owner is not None:\n        return Logins()",
        by_test(
            "herdbook/access/test_web_logins.py",
            "test_a_folder_with_users_asks_for_them_wherever_its_tasks_are_served",
        ),
    ),
    Mutant(
        "passwords-wait-in-line",
        "passwords have threads of their own",
        "herdbook/access/opening.py",
        "clock, PasswordThreads())",
        "clock, herd.workers)",
        by_test(
            "herdbook/access/test_web_logins.py",
            "test_a_password_is_looked_at_in_no_thread_of_the_tablespaces",
        ),
    ),
    Mutant(
        "a-head-may-take-for-ever",
        "who never says what they want is hung up on",
        "herdbook/http_connection.py",
        "self._late = self.loop.call_later(self._head_s, self.transport.abort)",
        "pass",
        by_test(
            "herdbook/http/test_listening.py",
            "test_who_has_asked_may_wait_for_the_answer",
        ),
    ),
    Mutant(
        "one-address-has-all",
        "no address has more than its share of the connections",
        "engine/transport/listening.py",
        "self._taken[address] < self._of_address_max",
        "self._of_address_max > 0",
        by_test(
            "herdbook/http/test_listening.py",
            "test_connections_that_begin_no_handshake_count_in_the_share_of_their_address",
        ),
    ),
    Mutant(
        "any-site-may-ask",
        "a page of another site can do nothing through a browser",
        _GATE,
        "if from_elsewhere(request) or site not in _OUR_SITES:",
        "if from_elsewhere(request):",
        by_test(_BROWSER_TESTS, "test_a_page_of_another_site_can_do_nothing"),
    ),
    Mutant(
        "any-token-will-do",
        "a session's changes carry a token that only our own page knows",
        _GATE,
        "if not hmac.compare_digest(shown.encode(), caller.session.csrf.encode()):",
        "if not shown:",
        by_test(_BROWSER_TESTS, "test_a_change_in_a_session_needs_its_token_and_a_look_does_not"),
    ),
    Mutant(
        "once-in-is-in",
        "what is revoked ends",
        _GATE,
        "found = await authenticator.principal(session.principal.name)",
        "found = session.principal",
        by_test(_BROWSER_TESTS, "test_a_session_ends_with_its_user"),
    ),
    Mutant(
        "a-ticket-for-ever",
        "a ticket logs in once",
        _SESSIONS,
        '            self._once = b""\n',
        "            pass\n",
        by_test(_BROWSER_TESTS, "test_a_ticket_logs_in_once"),
    ),
    Mutant(
        "guesses-are-forgotten",
        "who guesses waits ever longer",
        "engine/access/guesses.py",
        "self._tries[key] = _Tries(tries.times + 1, now_s, counted_s)",
        "self._tries[key] = _Tries(1, now_s, counted_s)",
        by_test(
            "engine/access/test_guesses.py",
            "test_who_guesses_waits_ever_longer_and_others_do_not",
        ),
    ),
    Mutant(
        "each-try-at-a-user-counts-at-its-address",
        "tries at one user make nobody else wait",
        "engine/access/guesses.py",
        "return now_s - tries.counted_s >= _FORGOTTEN_S and not",
        "return not",
        by_test(
            "engine/access/test_guesses.py",
            "test_wrong_passwords_for_one_user_lock_out_no_other_user_of_the_address",
        ),
    ),
    Mutant(
        "an-address-regains-nothing",
        "whoever tries slowly keeps nobody out of an address",
        "engine/access/guesses.py",
        "return max(0.0, count - (now_s - at_s) / _REGAINED_S)",
        "return count",
        by_test(
            "engine/access/test_guesses.py",
            "test_one_wrong_password_a_minute_locks_out_nobody_at_an_address",
        ),
    ),
    Mutant(
        "known-users-wait-with-strangers",
        "who was let in from there lately waits for no password of strangers",
        _GATE,
        "turns = self._turns_of_known if known else self._turns_of_strangers",
        "turns = self._turns_of_strangers",
        by_test(_BROWSER_TESTS, "test_a_known_user_does_not_wait_for_unknown_users"),
    ),
    Mutant(
        "a-restart-forgets-who-was-let-in",
        "who logged in before a restart is delayed by nobody at their address",
        _GATE,
        "if shown and self._is_known_by(shown, user):",
        "if not shown and self._is_known_by(shown, user):",
        by_test(
            _BROWSER_TESTS,
            "test_who_logged_in_before_a_restart_is_delayed_by_nobody_at_their_address",
        ),
    ),
    Mutant(
        "a-cookie-speaks-of-everybody",
        "a browser is recognized as the user who logged in there alone",
        _GATE,
        "return known.user == prepared_name(user)",
        "return bool(known.user)",
        by_test(
            _BROWSER_TESTS,
            "test_who_logged_in_before_a_restart_is_delayed_by_nobody_at_their_address",
        ),
    ),
    Mutant(
        "one-user-has-all-sessions-of-browsers",
        "log-ins of one user end no session of another one",
        _SESSIONS,
        "        self._make_room(principal.name)\n",
        "",
        by_test(_BROWSER_TESTS, "test_logins_of_one_user_end_no_session_of_another_user"),
    ),
    Mutant(
        "anybody-says-who-asks",
        "only a proxy of the settings says who asks",
        "herdbook/http_proxies.py",
        "while told and self.know(client):",
        "while told:",
        by_test(
            "herdbook/http/test_listening.py",
            "test_only_a_proxy_of_the_settings_names_the_client",
        ),
    ),
    Mutant(
        "a-body-names-anything",
        "no handler runs for who may not, whatever the body names",
        _APP,
        "            if named:\n                self.gate.check_need(",
        "            if not who.grants:\n                self.gate.check_need(",
        by_test(
            _GATE_TESTS,
            "test_every_operation_is_refused_to_who_has_another_bucket_tablespace_and_tenant",
        ),
    ),
    Mutant(
        "one-tablespace-is-all",
        "what shows or changes more than one tablespace is for the whole store's administrators",
        _ASKING,
        'if parsed.word in (TABLESPACE, "RESTORE") or _shows_others(parsed):',
        'if parsed.word == "RESTORE":',
        by_test(_STORE_TESTS, "test_who_administers_a_tablespace_reaches_no_other_one_through_it"),
    ),
    Mutant(
        "whatever-its-length-on-the-loop",
        "a long statement over HTTP is read in a worker's thread",
        "herdbook/http/tablespaces.py",
        "if len(body.sql) > LONG_CHARACTERS:",
        "if not body.sql:",
        by_test(
            _STORE_TESTS,
            "test_a_long_statement_is_read_once_in_a_workers_thread_and_for_nobody_without_a_right",
        ),
    ),
    Mutant(
        "room-for-everybody",
        "no byte of an object is read from its connection before there is room for it",
        "herdbook/http/transfers.py",
        "Shares(settings.incoming_bytes_max, SMALL_BYTES_MAX)",
        "Shares(settings.object_bytes_max, SMALL_BYTES_MAX)",
        by_test(
            "herdbook/http/test_object_memory.py",
            "test_no_more_bytes_of_objects_are_read_than_there_is_room_for",
        ),
    ),
    Mutant(
        "half-a-body-is-an-object",
        "a body that is cut off leaves nothing behind that anybody could see",
        _OBJECTS,
        "            await upload.abort()\n",
        "            await upload.finish()\n",
        by_test(
            _OBJECT_TESTS,
            "test_a_body_that_is_cut_in_the_middle_leaves_nothing_that_anybody_sees",
        ),
    ),
    Mutant(
        "an-object-is-a-page",
        "a browser never takes an object for a page",
        _OBJECTS,
        'f"attachment; filename=',
        'f"inline; filename=',
        by_test(_OBJECT_TESTS, "test_an_object_is_never_a_page"),
    ),
    Mutant(
        "a-range-past-the-end",
        "a range is that part and says so",
        _RANGES,
        "end = min(int(last), size - 1) if last else size - 1",
        "end = int(last) if last else size - 1",
        by_test(_OBJECT_TESTS, "test_a_range_is_that_part_and_says_so"),
    ),
    Mutant(
        "any-version-goes-on",
        "a download goes on only in the version that it began with",
        _OBJECTS,
        "(only is not None and only.strip() != f'\"{info.etag}\"')",
        "only == ''",
        by_test(
            _OBJECT_TESTS,
            "test_a_download_goes_on_where_it_was_only_in_the_same_version",
        ),
    ),
    Mutant(
        "a-counter-runs-backwards",
        "a counter that begins anew is a gap",
        _RATES,
        "if before is None or after is None or after < before or gap_s <= 0:",
        "if before is None or after is None or gap_s <= 0:",
        by_test(_STORE_TESTS, "test_what_is_not_known_is_a_gap_and_no_nought"),
    ),
    Mutant(
        "everybodys-rates",
        "nobody sees the numbers of a tenant whose tasks they may not see",
        _RATES,
        "for name in each.ended or () if who.sees(name)}",
        "for name in each.ended or ()}",
        by_test(_STORE_TESTS, "test_rates_are_what_happened_between_looks"),
    ),
)
