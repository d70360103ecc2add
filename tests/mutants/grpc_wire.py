"""Mutants of the gRPC wire: order, bounds, secrets, answers."""

from typing import Final

from tests.mutants.mutant import Mutant, by_test

_CLIENT: Final = "engine/transport/grpc_client.py"
_CONNECTION: Final = "engine/transport/grpc_connection.py"
_STREAM: Final = "engine/transport/grpc_stream.py"
_SECURITY: Final = "engine/transport/grpc_security.py"
_SERVICE: Final = "engine/transport/grpc_service.py"
_TESTS: Final = "engine/transport/test_grpc.py"
_LIMITS: Final = "engine/transport/test_grpc_limits.py"
_PRIORITY: Final = "engine/transport/test_grpc_priority.py"
_SECURITY_TESTS: Final = "engine/transport/test_grpc_security.py"

GRPC_MUTANTS: Final = (
    Mutant(
        "a-read-overtakes-appends-over-grpc",
        "contract: requests of one connection about one ledger reach the bookie in order",
        _CLIENT,
        "        await self.connection.reached(ledger_id)\n        asked = self._wire.ReadRequest(",
        "        asked = self._wire.ReadRequest(",
        by_test(_TESTS, "test_a_read_waits_for_an_append_that_the_server_has_not_taken_yet"),
    ),
    Mutant(
        "an-append-overtakes-a-fencing-read-over-grpc",
        "contract: requests of one connection about one ledger reach the bookie in order",
        _CLIENT,
        "            self.connection.post_fence(self.bookie_id, ledger_id, fence_key)\n",
        "            pass\n",
        by_test(_TESTS, "test_an_append_after_a_fencing_read_is_fenced"),
    ),
    Mutant(
        "an-append-overtakes-a-fence-over-grpc",
        "2.5: an append behind a fence meets it",
        _STREAM,
        "                await asyncio.sleep(0)\n",
        "",
        by_test(
            "engine/transport/test_grpc_contract.py",
            "TestGrpc::test_appends_and_fences_of_one_ledger_keep_their_order",
        ),
    ),
    Mutant(
        "another-bookies-reply-counts-over-grpc",
        "design 4.3: a reply counts for the bookie that gave it",
        _STREAM,
        "        if reply.bookie_id != bookie_id:\n            status, boot",
        "        if not bookie_id:\n            status, boot",
        by_test(_TESTS, "test_a_reply_of_another_bookie_is_not_passed_on"),
    ),
    Mutant(
        "a-grpc-stream-is-read-without-bound",
        "4.2-8: every queue is bounded in bytes and pushes back",
        _STREAM,
        "            await self._held.acquire(0)\n",
        "",
        by_test(_TESTS, "test_a_server_reads_no_more_of_a_stream_than_it_may_hold_unanswered"),
    ),
    Mutant(
        "many-grpc-streams-are-read-without-bound",
        "4.2-8: every queue is bounded in bytes and pushes back",
        _STREAM,
        "                await self._in_all.acquire(0)\n",
        "                pass\n",
        by_test(_TESTS, "test_all_streams_together_hold_no_more_than_the_server_may"),
    ),
    Mutant(
        "recoveries-wait-for-writers-over-grpc",
        "issue 3: priority for fencing and recovery",
        _STREAM,
        "            if _has_normal_append(message):\n",
        "            if message.orders:\n",
        by_test(_PRIORITY, "test_recoveries_and_fences_pass_a_server_that_is_full_of_appends"),
    ),
    Mutant(
        "recoveries-wait-for-readers-over-grpc",
        "issue 3: priority for fencing and recovery",
        _SERVICE,
        "acquire(held_bytes, urgent=part.fence_key is not None)",
        "acquire(held_bytes)",
        by_test(_PRIORITY, "test_a_recovery_reads_from_a_server_that_is_full_of_reads"),
    ),
    Mutant(
        "grpc-readers-hold-bytes-without-bound",
        "4.2-8: every queue is bounded in bytes and pushes back",
        _SERVICE,
        "        await holder.acquire(held_bytes)\n",
        "        holder.take(held_bytes)\n",
        by_test(_LIMITS, "test_readers_that_take_nothing_cost_a_bounded_number_of_bytes"),
    ),
    Mutant(
        "long-polls-keep-writers-out",
        "issue 3: priority for fencing and recovery",
        _SERVICE,
        "            if timeout_ms and not self._polls.has_room(user):\n",
        "            if self.long_polls < 0:\n",
        by_test(_LIMITS, "test_long_polls_never_keep_writers_out"),
    ),
    Mutant(
        "a-lost-grpc-connection-answers-nothing",
        "contract: what is pending when a connection is lost is UNAVAILABLE",
        _CONNECTION,
        "            one.give_up(error)\n        self._ready.clear()\n",
        "            pass\n        self._ready.clear()\n",
        by_test(
            _TESTS,
            "test_a_lost_server_answers_all_that_is_pending_once_and_dialling_again_serves",
        ),
    ),
    Mutant(
        "any-secret-opens-grpc",
        "issue 3: a shared secret is needed when security is on",
        _SECURITY,
        "            if any(hmac.compare_digest(value, secret) for secret in secrets):\n",
        "            if value:\n",
        by_test(
            _SECURITY_TESTS, "test_a_wrong_secret_and_a_missing_one_are_told_so_and_harm_nobody"
        ),
    ),
    Mutant(
        "a-secret-crosses-the-network-in-the-clear",
        "issue 3: a secret goes over TLS or within the machine",
        _SECURITY,
        "    if (security.secret or security.logs_in) and not is_loopback(host):\n",
        "    if (security.secret or security.logs_in) and not host:\n",
        by_test(_SECURITY_TESTS, "test_a_secret_never_crosses_a_network_in_the_clear"),
    ),
    Mutant(
        "grpc-clients-need-no-certificate",
        "issue 3: mutual TLS",
        _SECURITY,
        "    require = security.authorities is not None and not strangers\n",
        "    require = False\n",
        by_test(
            _SECURITY_TESTS,
            "test_a_client_without_a_certificate_or_with_a_strangers_is_refused",
        ),
    ),
    Mutant(
        "a-closing-grpc-server-forgets-what-it-took",
        "issue 3: a server that is stopped drains",
        _STREAM,
        "            while self._unanswered or self._writing is not None:\n",
        "            while self._writing is not None:\n",
        by_test(_TESTS, "test_a_server_that_closes_answers_what_it_took_and_ends_long_polls"),
    ),
    Mutant(
        "strangers-calls-without-number",
        "callers without the secret never take the calls of those who have it",
        _SECURITY,
        "room = self._running.total() < self._calls_max",
        "room = True",
        by_test(_SECURITY_TESTS, "test_one_address_has_a_quarter_of_the_calls_of_strangers"),
    ),
    Mutant(
        "one-address-takes-all-calls-of-strangers",
        "one address keeps no other one from logging in",
        _SECURITY,
        "if not room or self._running[address] >= self._of_address_max:",
        "if not room:",
        by_test(_SECURITY_TESTS, "test_one_address_begins_a_quarter_of_the_logins_at_most"),
    ),
    Mutant(
        "strangers-watch-health",
        "without the secret nothing is open but a health check",
        _SECURITY,
        "handler_call_details.method == _OPEN_METHOD:",
        "handler_call_details.method.startswith('/grpc.'):",
        by_test(_SECURITY_TESTS, "test_a_health_check_is_open_to_everybody_and_nothing_else_is"),
    ),
    Mutant(
        "a-grpc-read-counts-as-what-it-asks-for",
        "a read has room for a whole entry before a bookie hears of it",
        _SERVICE,
        "held_bytes = max(part.max_bytes, ENTRY_BYTES_MAX)",
        "held_bytes = part.max_bytes",
        by_test(_LIMITS, "test_a_read_of_one_byte_counts_as_the_entry_that_may_answer_it"),
    ),
)
