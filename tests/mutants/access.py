"""Mutants of who is let in, and of what they may do."""

from typing import Final

from tests.mutants.mutant import Mutant, by_test

_PRINCIPAL: Final = "engine/access/principal.py"
_SCRAM: Final = "engine/access/scram.py"
_TOKENS: Final = "engine/access/tokens.py"
_OWNERS: Final = "engine/access/owners.py"
_SIGNING: Final = "engine/access/signing.py"
_SERVING: Final = "engine/transport/serving.py"
_READABLE: Final = "engine/transport/readable.py"
_GRPC: Final = "engine/transport/grpc_security.py"
_GUEST: Final = "herd/wire/guest.py"
_LEASES: Final = "herd/wire/grpc_leases.py"
_SESSION: Final = "herd/sql/session.py"
_SPACES: Final = "herd/sql/spaces.py"
_PERMITS: Final = "herd/permits.py"
_TENANTS: Final = "broker/tenant_calls.py"
_BROKER: Final = "broker/wire/grpc_service.py"
_FORWARDING: Final = "broker/wire/forwarding.py"
_KNOWN: Final = "herdbook/access/authenticator.py"
_ROWS: Final = "herdbook/access/rows.py"
_PRINCIPAL_TESTS: Final = "engine/access/test_principal.py"
_SCRAM_TESTS: Final = "engine/access/test_scram.py"
_TOKENS_TESTS: Final = "engine/access/test_tokens.py"
_READERS_TESTS: Final = "engine/transport/test_readers.py"
_HERD_TESTS: Final = "herd/wire/test_access.py"
_MEANWHILE_TESTS: Final = "herd/wire/test_access_meanwhile.py"
_BROKER_TESTS: Final = "broker/wire/test_access.py"
_USERS_TESTS: Final = "herdbook/access/test_users.py"

ACCESS_MUTANTS: Final = (
    Mutant(
        "a-connection-of-an-old-token-is-used-on",
        "a connection that was made with a token of before is not used for what comes next",
        "engine/transport/dialing.py",
        "if known.token != self._shown:",
        "if False:",
        by_test(
            _READERS_TESTS,
            "test_a_renewed_token_counts_for_what_is_read_next[framed]",
        ),
    ),
    Mutant(
        "staged-rows-of-anybody",
        "nothing is read but what was staged for this tablespace, whatever ledgers an order names",
        "herd/staging/registry.py",
        '    if custom.get("owner") != OWNER or whose != tablespace.lower():',
        "    if whose is None:",
        by_test(
            "herd/staging/test_ingesting.py",
            "test_ledgers_that_were_not_staged_for_the_tablespace_are_not_read[row by row]",
        ),
    ),
    Mutant(
        "administrators-go-without-a-lock",
        "as long as there are users there is an administrator among them",
        _ROWS,
        "rows = await users.lock_many(locked, transaction=transaction)",
        "rows = [await users.get(each) for each in locked]",
        by_test(_USERS_TESTS, "test_of_two_administrators_who_are_removed_at_once_one_stays"),
    ),
    Mutant(
        "tasks-are-told-the-first-token",
        "tasks are told the newest token as they are planned",
        "engine/place.py",
        "place, token=_shown_at(place).text, user",
        "place, user",
        by_test(
            "spark/test_session.py",
            "test_a_users_token_is_renewed_by_the_driver_for_all_processes",
        ),
    ),
    Mutant(
        "a-port-of-their-own-for-each-guess",
        "whoever guesses at a password waits, at whatever door and from whatever port",
        "engine/access/door.py",
        "return self.guesses.trying(host_of(peer), user)",
        "return self.guesses.trying(peer, user)",
        by_test(
            "herd/wire/test_guessing.py",
            "test_guesses_over_frames_and_over_grpc_are_counted_together",
        ),
    ),
    Mutant(
        "a-grant-to-all-reaches-the-users",
        "a grant to all tablespaces does not reach users and grants",
        _PRINCIPAL,
        "self.name == ALL and (kind, name) not in _APART",
        "self.name == ALL",
        by_test(_PRINCIPAL_TESTS, "test_a_grant_to_all_does_not_reach_the_users"),
    ),
    Mutant(
        "rows-of-buckets-are-like-others",
        "no grant lets anybody write rows that say what buckets hold",
        _PRINCIPAL,
        'if right != "read" and kind == "tablespace" and _holds_names(name):',
        "if False:",
        by_test(
            _PRINCIPAL_TESTS,
            "test_no_grant_lets_anybody_write_what_says_what_buckets_hold[blobs]",
        ),
    ),
    Mutant(
        "what-buckets-share-is-granted-like-others",
        "a tablespace that buckets share is read by whom the names of all buckets are granted",
        _PRINCIPAL,
        'if kind == "tablespace" and name.lower().startswith(SHARED_NAMES):',
        "if False:",
        by_test(
            _PRINCIPAL_TESTS,
            "test_what_many_buckets_share_is_read_by_whom_the_names_of_all_buckets_are_granted"
            "[blobs__pool_1]",
        ),
    ),
    Mutant(
        "tables-of-buckets-are-like-others",
        "tables that say what buckets hold are changed by administrators of the store alone",
        "herd/permits.py",
        "        if name.lower() in OF_BUCKETS:",
        "        if name in ():",
        by_test(
            "herd/wire/test_access_to_buckets.py",
            "test_no_call_changes_a_table_of_buckets_for_who_is_not_the_stores_administrator",
        ),
    ),
    Mutant(
        "every-right-is-enough",
        "who may read may not write for that",
        _PRINCIPAL,
        "named and _STEPS[self.right] >= _STEPS[right]",
        "named",
        by_test(_PRINCIPAL_TESTS, "test_a_right_brings_those_below_it"),
    ),
    Mutant(
        "one-nonce-is-enough",
        "a recorded login is worth nothing",
        _SCRAM,
        "        self._said += self._nonce\n",
        "        self._said += 'same'\n",
        by_test(_SCRAM_TESTS, "test_a_recorded_exchange_is_worth_nothing"),
    ),
    Mutant(
        "a-login-without-the-certificate",
        "nobody who stands between passes a login on",
        _SCRAM,
        '_bytes_of(attributes["c"]) == self._header + self._binding',
        '_bytes_of(attributes["c"]).startswith(self._header)',
        by_test(_SCRAM_TESTS, "test_a_proof_over_another_certificate_is_none_here"),
    ),
    Mutant(
        "the-server-of-a-login-is-believed",
        "a server that does not know the user is not believed",
        _SCRAM,
        "if self._signature is None or not hmac.compare_digest(shown, self._signature):",
        "if self._signature is None:",
        by_test(_SCRAM_TESTS, "test_a_server_that_does_not_know_the_user_is_not_believed"),
    ),
    Mutant(
        "tokens-for-ever",
        "a token ends with its moment",
        _TOKENS,
        "    if is_over(claims.expires_ms, now_ms):\n",
        "    if claims.expires_ms < 0:\n",
        by_test(_TOKENS_TESTS, "test_a_token_ends_with_its_moment"),
    ),
    Mutant(
        "tokens-without-a-signature",
        "only who knows the secret signs tokens",
        _TOKENS,
        " any(hmac.compare_digest(signature.encode(), each.encode()) for each in expected):\n",
        " signature:\n",
        by_test(_TOKENS_TESTS, "test_a_token_of_another_cluster_or_of_another_use_is_none"),
    ),
    Mutant(
        "one-token-for-all-uses",
        "a token for bookies opens no session",
        _TOKENS,
        "    if not exact or claims.use != use:\n",
        "    if not exact:\n",
        by_test(_TOKENS_TESTS, "test_a_token_of_another_cluster_or_of_another_use_is_none"),
    ),
    Mutant(
        "a-ledger-of-nobody-is-everybodys",
        "a ledger that does not say whose it is is read by no token",
        _OWNERS,
        "return principal.admin if owner is None else",
        "return True if owner is None else",
        by_test(_TOKENS_TESTS, "test_a_ledger_says_whose_it_is"),
    ),
    Mutant(
        "a-token-says-more-than-the-grants",
        "a signer says no more than the grants of who asks",
        _SIGNING,
        "        if principal.admin:\n",
        "        if principal.grants:\n",
        by_test(_TOKENS_TESTS, "test_a_signer_says_no_more_than_the_grants"),
    ),
    Mutant(
        "a-token-reads-every-ledger",
        "a bookie compares a token's owners with the ledger's",
        _READABLE,
        "        if allowed is False:\n            return self._refused()\n        reply",
        "        reply",
        by_test(_READERS_TESTS, "test_a_reader_reads_ledgers_of_its_owner_alone"),
    ),
    Mutant(
        "a-token-fences",
        "who may only read fences nothing",
        _READABLE,
        "        if request.fence_key is not None:\n            return self._refused()\n",
        "",
        by_test(_READERS_TESTS, "test_a_reader_changes_nothing"),
    ),
    Mutant(
        "a-proof-of-nothing",
        "a user is welcome only when the proof was judged",
        _SERVING,
        "            said = login.check(frame.head)\n",
        "            said = {LOGIN: b''}\n",
        by_test(_HERD_TESTS, "test_nobody_else_is_greeted"),
    ),
    Mutant(
        "users-stay-for-ever",
        "a user who is removed is sent away",
        _SERVING,
        "            await self.caller.now()\n",
        "            await asyncio.sleep(0)\n",
        by_test(_HERD_TESTS, "test_a_user_who_is_removed_is_sent_away"),
    ),
    Mutant(
        "the-secret-is-enough-beside-certificates",
        "a node shows its certificate where certificates are asked for",
        _SERVING,
        "authorities is not None and not _has_certificate(wire)",
        "authorities is not None and not wire",
        by_test(_HERD_TESTS, "test_over_tls_users_need_no_certificate_and_nodes_do"),
    ),
    Mutant(
        "grpc-forgets-to-ask",
        "a call over gRPC without a proof is refused",
        _GRPC,
        "            return _refusal(grpc.StatusCode.UNAUTHENTICATED, _NOT_KNOWN)\n",
        "            return await continuation(handler_call_details)\n",
        by_test(_HERD_TESTS, "test_every_method_over_grpc_is_refused_without_a_right"),
    ),
    Mutant(
        "calls-are-not-judged",
        "every kind of call is judged before it is done",
        _GUEST,
        "        try:\n            check_call(self.caller.principal, call)\n"
        "            if self._closed:",
        "        try:\n            if self._closed:",
        by_test(_HERD_TESTS, "test_every_method_over_grpc_is_refused_without_a_right"),
    ),
    Mutant(
        "a-session-for-whoever-has-its-token",
        "a session over gRPC is its user's alone",
        _LEASES,
        "lease is None or lease.guest.caller.principal.name != caller.principal.name",
        "lease is None",
        by_test(_HERD_TESTS, "test_a_session_over_grpc_is_its_users_alone"),
    ),
    Mutant(
        "statements-are-not-judged",
        "a statement needs its right",
        _SESSION,
        "            self.permits.check(planned)\n",
        "            pass\n",
        by_test(_HERD_TESTS, "test_a_statement_needs_its_right_and_no_more"),
    ),
    Mutant(
        "what-was-changed-is-committed",
        "nothing is committed by a right that was taken back",
        _SESSION,
        "                self._check_commit(transaction)\n",
        "",
        by_test(_MEANWHILE_TESTS, "test_nothing_is_committed_by_a_right_that_was_taken_back"),
    ),
    Mutant(
        "a-session-keeps-who-opened-it",
        "a grant that is taken back counts in sessions over gRPC",
        _LEASES,
        "        lease.guest.caller = caller\n",
        "",
        by_test(_MEANWHILE_TESTS, "test_a_grant_that_is_taken_back_counts_in_sessions_over_grpc"),
    ),
    Mutant(
        "whoever-opens-it-counts",
        "a session that is opened for somebody may do no more than they",
        _GUEST,
        "        return Permits(lambda: whose, name)\n",
        "        return None\n",
        by_test(
            _MEANWHILE_TESTS,
            "test_a_session_that_is_opened_for_somebody_may_do_no_more_than_they",
        ),
    ),
    Mutant(
        "a-stream-outlives-its-user",
        "a stream over gRPC ends when its user is not welcome any more",
        "herd/wire/grpc_service.py",
        "            await CALLER.get().now()\n",
        "            pass\n",
        by_test(_MEANWHILE_TESTS, "test_a_stream_over_grpc_ends_with_its_users_welcome"),
    ),
    Mutant(
        "anybody-drops-tablespaces",
        "a statement about another tablespace is judged by that one's name",
        _SPACES,
        '        session.permits.need("admin", wanted.name)\n',
        "        pass\n",
        by_test(_HERD_TESTS, "test_another_tablespace_is_not_reached_by_any_way"),
    ),
    Mutant(
        "everybody-sees-every-session",
        "system tables show what may be seen",
        _PERMITS,
        "    return other is not None and other.user == asking.user\n",
        "    return True\n",
        by_test(_HERD_TESTS, "test_system_tables_show_what_may_be_seen"),
    ),
    Mutant(
        "a-task-is-what-its-asker-shows",
        "what a caller shows of a task is never believed",
        _TENANTS,
        "return await self._calls.payload(await seen_task(self._calls, self._who, task.id))",
        "return await self._calls.payload(task)",
        by_test(_BROKER_TESTS, "test_what_a_user_says_of_themselves_is_not_believed"),
    ),
    Mutant(
        "new-calls-are-everybodys",
        "a call that nobody has sorted in is for administrators",
        _TENANTS,
        "        if name in OF_ANYBODY:\n",
        "        if name:\n",
        by_test(_BROKER_TESTS, "test_every_other_call_is_for_administrators"),
    ),
    Mutant(
        "workers-need-no-grant",
        "who takes tasks needs the right to all tenants",
        _BROKER,
        "            check_works(await self._asking())\n        except BrokerError as error:\n"
        "            final",
        "            await self._asking()\n        except BrokerError as error:\n            final",
        by_test(_BROKER_TESTS, "test_a_worker_needs_the_right_to_all_tenants"),
    ),
    Mutant(
        "a-node-lends-its-name",
        "a user's call is passed on in that user's name",
        _FORWARDING,
        "        return bearer(token) if token else",
        "        return bearer(token) if not token else",
        by_test(_BROKER_TESTS, "test_a_users_call_is_judged_again_by_who_leads"),
    ),
    Mutant(
        "old-answers-are-good",
        "what is revoked ends when the answer is old",
        _KNOWN,
        "        if kept is not None and age_s <= FRESH_S:\n",
        "        if kept is not None:\n",
        by_test(_USERS_TESTS, "test_what_is_revoked_ends_when_the_answer_is_old"),
    ),
    Mutant(
        "who-is-not-known-waits-for-ever",
        "whoever asks for something that is not known waits a bounded time",
        _KNOWN,
        "            await asyncio.wait((looking.task,), timeout=WAIT_S)\n",
        "            await asyncio.wait((looking.task,), timeout=None)\n",
        by_test(
            _USERS_TESTS,
            "test_a_login_waits_a_bounded_time_for_rows_that_do_not_answer",
        ),
    ),
    Mutant(
        "who-cannot-be-asked-is-open",
        "users that cannot be looked up are not unknown",
        _ROWS,
        '            raise MetadataUnavailable(f"users cannot be looked up: {error}") from error\n',
        '            raise UserUnknown(f"users cannot be looked up: {error}") from error\n',
        by_test(_USERS_TESTS, "test_users_that_cannot_be_looked_up_are_not_unknown"),
    ),
    Mutant(
        "heirs-of-a-name",
        "a new user of an old name inherits nothing",
        _ROWS,
        "                    await grants.delete(key, transaction=transaction)\n",
        "                    continue\n",
        by_test(_USERS_TESTS, "test_a_new_user_of_an_old_name_inherits_nothing"),
    ),
)
