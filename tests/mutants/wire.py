"""Mutants of the wire between machines, of finding bookies, and of a server's end."""

from typing import Final

from tests.mutants.mutant import Mutant, by_test

_GREETING: Final = "engine/transport/greeting.py"
_SECURITY: Final = "engine/transport/security.py"
_BOUNDS: Final = "engine/transport/server_bounds.py"
_CONNECTION: Final = "engine/transport/server_connection.py"
_SERVING: Final = "engine/transport/serving.py"
_DIALING: Final = "engine/transport/dialing.py"
_LISTENING: Final = "engine/transport/listening.py"
_SERVER: Final = "engine/server.py"
_ROTATION_TESTS: Final = "engine/transport/test_rotation.py"
_SECURITY_TESTS: Final = "engine/transport/test_security.py"
_HOSTILE_TESTS: Final = "engine/transport/test_hostile.py"
_LISTENING_TESTS: Final = "engine/transport/test_listening.py"
_GREETING_TESTS: Final = "engine/transport/test_greeting.py"
_READS_TESTS: Final = "engine/transport/test_hostile_reads.py"
_DIALING_TESTS: Final = "engine/transport/test_dialing.py"

WIRE_MUTANTS: Final = (
    Mutant(
        "any-proof-is-good",
        "a server with a secret welcomes nobody who has not proved it",
        _GREETING,
        "        if answer is None:\n",
        "        answer = answer or self._security.server_proof(*challenges, self._binding)\n"
        "        if answer is None:\n",
        by_test(_SECURITY_TESTS, "test_a_wrong_secret_is_told_so_and_harms_nobody"),
    ),
    Mutant(
        "a-second-secret-opens-nothing",
        "of two shared secrets either is accepted",
        "engine/transport/security.py",
        "            for each in self.secrets\n            if proofs",
        "            for each in self.secrets[:1]\n            if proofs",
        by_test(_ROTATION_TESTS, "test_frames_accept_both_secrets_of_a_file_and_follow_it"),
    ),
    Mutant(
        "what-does-not-fit-is-used",
        "what cannot be read, or does not fit, changes nothing",
        "engine/ports/renewing.py",
        "        self._check(new, self.value)\n",
        "",
        by_test(
            _ROTATION_TESTS,
            "test_mismatched_files_change_nothing_and_are_logged_in_one_line[another_key-for TLS]",
        ),
    ),
    Mutant(
        "the-servers-proof-is-not-asked-for",
        "a client with a secret believes no server that has not proved it",
        _GREETING,
        "        if not self._client:\n            return\n",
        "        if self._expected is None:\n            return\n",
        by_test(_SECURITY_TESTS, "test_a_server_that_does_not_know_the_secret_is_not_believed"),
    ),
    Mutant(
        "one-challenge-for-all",
        "a recorded proof is worth nothing on another connection",
        _GREETING,
        "self._client, self._server = said, new_challenge()",
        "self._client, self._server = said, b'0' * CHALLENGE_BYTES",
        by_test(_SECURITY_TESTS, "test_a_recorded_proof_is_worth_nothing_on_another_connection"),
    ),
    Mutant(
        "proofs-without-the-certificate",
        "nobody who stands between passes proofs on",
        _SECURITY,
        "role + client + server + binding",
        "role + client + server",
        by_test(_SECURITY_TESTS, "test_nobody_in_the_middle_passes_proofs_on"),
    ),
    Mutant(
        "both-sides-prove-alike",
        "a proof made for one side is none for the other",
        _SECURITY,
        "role + client + server + binding",
        "client + server + binding",
        by_test(
            _SECURITY_TESTS,
            "test_a_proof_is_for_one_side_one_pair_of_challenges_and_one_certificate",
        ),
    ),
    Mutant(
        "clients-need-no-certificate",
        "a server with authorities wants a client's certificate",
        "engine/transport/serving.py",
        "if self._security.authorities is not None and not _has_certificate(wire):",
        "if not self._security.on and not _has_certificate(wire):",
        by_test(_SECURITY_TESTS, "test_where_users_may_come_the_secret_alone_makes_no_node"),
    ),
    Mutant(
        "frames-begin-without-room",
        "of a big frame only the first piece is taken in before there is room for it",
        _BOUNDS,
        "        if self._frames.ask(size_bytes, self._frame_granted, urgent=urgent):\n",
        "        if self._frames.take(size_bytes) or True:\n",
        by_test(_HOSTILE_TESTS, "test_big_frames_of_many_connections_wait_until_there_is_room"),
    ),
    Mutant(
        "recoveries-wait-behind-appends",
        "urgent frames need not wait for others",
        _BOUNDS,
        "self._frame_granted, urgent=urgent)",
        "self._frame_granted)",
        by_test(
            _HOSTILE_TESTS,
            "test_a_recovery_and_a_fence_pass_a_server_that_is_full_of_appends",
        ),
    ),
    Mutant(
        "a-lost-connection-keeps-its-room",
        "what a connection was granted is given back when it is lost",
        _BOUNDS,
        "            self._frames.give_back(self.reserved.popleft())\n\n    # Frames",
        "            self.reserved.popleft()\n\n    # Frames",
        by_test(
            _HOSTILE_TESTS, "test_who_stops_in_the_middle_of_a_frame_is_cut_off_and_frees_its_room"
        ),
    ),
    Mutant(
        "big-frames-before-the-greeting",
        "before a connection is greeted its frames are small",
        _SERVING,
        "            frame_bytes_max=GREETING_BYTES_MAX,\n",
        "            frame_bytes_max=2**24,\n",
        by_test(_HOSTILE_TESTS, "test_an_oversized_frame_is_refused_from_its_header_on"),
    ),
)

DIALING_MUTANTS: Final = (
    Mutant(
        "whoever-answers-is-the-bookie",
        "a connection to another bookie is never handed out",
        _DIALING,
        "        if bookie.bookie_id != bookie_id:\n",
        "        if not bookie.bookie_id:\n",
        by_test(
            _DIALING_TESTS,
            "test_another_bookie_at_the_address_is_refused_and_its_connection_closed",
        ),
    ),
    Mutant(
        "a-bookie-that-moved-is-asked-where-it-was",
        "a connection is not used any more once its bookie is registered elsewhere",
        _DIALING,
        "if known.gone or not _same_place(known.registration, registration):",
        "if known.gone:",
        by_test(_DIALING_TESTS, "test_a_bookie_that_moved_is_dialled_where_it_is_registered_now"),
    ),
    Mutant(
        "no-rest-after-a-failed-dial",
        "a bookie that could not be reached rests for a while",
        _DIALING,
        "        if self._clock.monotonic() < rest.until_s:\n",
        "        if self._clock.monotonic() < 0:\n",
        by_test(_DIALING_TESTS, "test_a_bookie_that_cannot_be_reached_rests_longer_each_time"),
    ),
    Mutant(
        "a-leaving-bookie-takes-more",
        "a bookie that leaves takes no normal append",
        "engine/bookie/appending.py",
        "        if self._gate.leaving:\n",
        "        if False:\n",
        by_test(
            "engine/bookie/test_service_appending.py",
            "test_a_bookie_that_leaves_finishes_what_it_took_and_still_serves_recoveries",
        ),
    ),
    Mutant(
        "a-shortcut-past-proofs",
        "where security is on nobody takes the socket beside a port",
        "engine/transport/dialing.py",
        "        near = None if encrypted or security.on else shortcut_to(address)\n",
        "        near = shortcut_to(address)\n",
        by_test(
            "engine/transport/test_shortcut.py",
            "test_who_has_to_prove_something_takes_no_shortcut",
        ),
    ),
    Mutant(
        "turns-of-many-frames-count-as-lone",
        "frames leave at once only while turns have one each",
        "engine/transport/connection.py",
        "            self._lone_turns = 0\n",
        "            self._lone_turns += 1\n",
        by_test(
            "engine/transport/test_connection.py",
            "test_what_follows_in_the_same_turn_leaves_behind_it_and_ends_that",
        ),
    ),
    Mutant(
        "frames-that-nobody-answered-leave-one-by-one",
        "a frame leaves at once only when something has come since the last that did",
        "engine/transport/connection.py",
        "        if self._answered and self._lone_turns >= _LONE_TO_LEAVE",
        "        if self._lone_turns >= _LONE_TO_LEAVE",
        by_test(
            "engine/transport/test_connection.py",
            "test_one_that_follows_before_an_answer_waits_for_company",
        ),
    ),
    Mutant(
        "what-nobody-answers-leaves-at-once",
        "frames to which nobody answers keep none that is answered waiting",
        "engine/transport/connection.py",
        " and self._lone_turns >= _LONE_TO_LEAVE and not posted:\n",
        " and self._lone_turns >= _LONE_TO_LEAVE:\n",
        by_test(
            "engine/transport/test_connection.py",
            "test_what_nobody_answers_leaves_with_its_turn_and_makes_no_request_wait",
        ),
    ),
    Mutant(
        "processors-never-sleep-again",
        "a machine at rest sleeps as ever",
        "engine/ports/system_latency.py",
        "        if now != seen:\n",
        "        if now != seen or latency.asked:\n",
        by_test(
            "engine/ports/test_system_latency.py",
            "test_it_is_asked_while_something_is_done_and_let_go_at_rest_and_at_the_end",
        ),
    ),
    Mutant(
        "anybody-may-write-from-anywhere",
        "without proofs a server listens to its own machine only",
        "engine/server_settings.py",
        "    if security.on or settings.insecure:\n",
        "    if security or settings.insecure:\n",
        by_test(
            "engine/test_server.py",
            "test_without_proofs_a_server_listens_to_its_own_machine_only",
        ),
    ),
    Mutant(
        "a-read-counts-as-what-it-asks-for",
        "a read has room for a whole entry before a bookie hears of it",
        _CONNECTION,
        "room_bytes = max(request.max_bytes, ENTRY_BYTES_MAX)",
        "room_bytes = request.max_bytes",
        by_test(
            _READS_TESTS,
            "test_reads_of_one_byte_count_as_the_whole_entries_that_answer_them",
        ),
    ),
    Mutant(
        "a-recoverys-read-waits-with-the-others",
        "of the room for reads a part is kept for recoveries",
        _CONNECTION,
        "urgent=request.fence_key is not None",
        "urgent=False",
        by_test(_READS_TESTS, "test_a_recovery_reads_from_a_server_that_is_full_of_reads"),
    ),
    Mutant(
        "fences-without-number",
        "one connection makes a bounded number of fences wait",
        _CONNECTION,
        "        if self._fences >= _FENCES_MAX:\n",
        "        if self._fences < 0:\n",
        by_test(_READS_TESTS, "test_fences_beyond_a_thousand_are_told_so_and_others_are_served"),
    ),
    Mutant(
        "strangers-are-not-counted",
        "a connection counts as soon as it is accepted, with TLS or not",
        _LISTENING,
        "room = len(self._open) < self._sockets_max and",
        "room = self._sockets_max > 0 and",
        by_test(
            _LISTENING_TESTS,
            "test_connections_that_never_begin_tls_are_counted_and_end_in_time",
        ),
    ),
    Mutant(
        "who-fails-at-tls-is-counted-for-ever",
        "a connection that was never handed out counts until it ends, and no longer",
        _LISTENING,
        "        self._forget(accepted.ended)\n",
        "",
        by_test(
            _LISTENING_TESTS,
            "test_what_is_no_tls_ends_its_own_connection_and_is_not_counted_on",
        ),
    ),
    Mutant(
        "the-drain-waits-for-repair-first",
        "a server that ends takes no new appends first",
        _SERVER,
        "        ending = [service.leave() for service in self.services]\n",
        "        ending = [self.store.sync()]\n",
        by_test(
            "engine/test_server.py",
            "test_a_server_that_ends_takes_nothing_new_even_while_the_store_is_silent",
        ),
    ),
    Mutant(
        "a-challenge-counts-twice",
        "a challenge is used once",
        _GREETING,
        '        self._client = self._server = b""\n        answer',
        "        answer",
        by_test(
            _GREETING_TESTS,
            "test_a_challenge_is_used_once_whether_the_proof_was_right_or_wrong",
        ),
    ),
    Mutant(
        "a-client-answers-every-challenge",
        "a client answers one challenge a connection",
        _GREETING,
        " or self._expected:",
        ":",
        by_test(_GREETING_TESTS, "test_a_client_answers_one_challenge_only"),
    ),
    Mutant(
        "a-challenge-of-any-length",
        "a challenge that is none is refused, and stops no server",
        _GREETING,
        " or len(said) != CHALLENGE_BYTES:\n            raise AccessRefused",
        ":\n            raise AccessRefused",
        by_test(_GREETING_TESTS, "test_what_is_no_whole_challenge_is_refused_on_both_sides"),
    ),
    Mutant(
        "frames-say-any-facts",
        "issue 3: bad input is answered by one clear error",
        "engine/transport/soundness.py",
        "    if not are_sound(facts):\n",
        "    if not facts.ensemble:\n",
        by_test("engine/transport/test_grpc_messages.py", "test_facts_that_cannot_be_are_refused"),
    ),
    Mutant(
        "calls-without-number",
        "one connection makes a bounded number of calls wait",
        _CONNECTION,
        "        if len(self._tasks) >= self._settings.calls_max:\n",
        "        if not self._settings.calls_max:\n",
        by_test(
            _READS_TESTS,
            "test_long_polls_beyond_the_bound_are_told_so_and_keep_no_fence_out",
        ),
    ),
)
