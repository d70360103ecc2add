"""Mutants of a node's supervisor, of its signs of life, its log and its ports."""

from typing import Final

from tests.mutants.mutant import Mutant, by_test

_SUPERVISOR: Final = "herdbook/node/supervisor.py"
_TESTS: Final = "herdbook/node/test_supervisor.py"
_SERVE_TESTS: Final = "herdbook/node/test_serve.py"
_KILLED_TESTS: Final = "herdbook/node/test_killed.py"
_SERVED_TESTS: Final = "herdbook/test_folder_served.py"
_SO_OFTEN: Final = "test_a_process_is_started_again_only_so_often"
_SILENT: Final = "test_who_gives_no_sign_of_life_is_silent_and_that_is_said_once"

SUPERVISOR_MUTANTS: Final = (
    Mutant(
        "a-role-is-started-again-without-a-longer-pause",
        "the pause before another start doubles",
        _SUPERVISOR,
        "table.restart_pause_ms << (in_a_row - 1)",
        "table.restart_pause_ms",
        by_test(_TESTS, _SO_OFTEN),
    ),
    Mutant(
        "a-role-is-started-once-more-than-it-may",
        "a process is started again only so often",
        _SUPERVISOR,
        "        if in_a_row > self._table.restarts_max:",
        "        if in_a_row > self._table.restarts_max + 1:",
        by_test(_TESTS, _SO_OFTEN),
    ),
    Mutant(
        "a-role-s-old-ends-count-for-ever",
        "who ran for long counts as well again",
        _SUPERVISOR,
        "            in_a_row = 1 if steady else in_a_row + 1",
        "            in_a_row = in_a_row + 1",
        by_test(
            _TESTS,
            "test_who_ran_for_long_before_it_ended_is_started_again_as_if_for_the_first_time",
        ),
    ),
    Mutant(
        "a-role-that-cannot-be-is-tried-again",
        "what cannot be, and never served, ends the node",
        _SUPERVISOR,
        "        if self._wrong and not self._served:",
        "        if False:",
        by_test(_TESTS, "test_what_cannot_be_ends_the_node_with_what_it_said"),
    ),
    Mutant(
        "a-role-that-has-served-ends-the-node",
        "what has served is started again, whatever ended it",
        _SUPERVISOR,
        "        if self._wrong and not self._served:",
        "        if self._wrong:",
        by_test(_TESTS, "test_what_has_served_is_started_again_whatever_it_says"),
    ),
    Mutant(
        "roles-end-in-the-order-of-their-start",
        "roles end in the opposite order of their start",
        _SUPERVISOR,
        "        for role in reversed(Role):",
        "        for role in Role:",
        by_test(_TESTS, "test_roles_end_in_the_opposite_order_of_their_start_over_all_processes"),
    ),
    Mutant(
        "nobody-waits-for-the-bookie",
        "what needs a bookie begins when the node's own serves",
        _SUPERVISOR,
        "                    await other.settled.wait()",
        "                    pass",
        by_test(_TESTS, "test_what_needs_a_bookie_begins_when_that_one_serves"),
    ),
    Mutant(
        "what-begins-while-the-node-ends-is-left",
        "no process is left behind, whenever the signal comes",
        _SUPERVISOR,
        "looked before it was there.\n            self.kill()",
        "looked before it was there.\n            pass",
        by_test(
            _TESTS, "test_a_signal_that_comes_while_a_process_is_being_made_leaves_none_behind"
        ),
    ),
    Mutant(
        "a-loop-that-stands-still-serves",
        "a role without a sign of life does not count as serving",
        _SUPERVISOR,
        'self.state.state == "serving" and silent_ms >= self._table.silence_ms:',
        "False:",
        by_test(_TESTS, _SILENT),
    ),
    Mutant(
        "a-sign-of-life-does-not-count",
        "silence begins anew with each sign of life",
        _SUPERVISOR,
        '            self._set("serving")\n        self._silent_s = 0.0',
        '            self._set("serving")',
        by_test(_TESTS, _SILENT),
    ),
    Mutant(
        "a-silent-role-stays-for-ever",
        "who is silent for too long is killed",
        _SUPERVISOR,
        '            self.state.error = f"it was silent for {silent_ms} ms, and was killed"\n'
        "            self.kill()",
        "            pass",
        by_test(_TESTS, "test_who_is_silent_for_too_long_is_killed_and_started_again"),
    ),
    Mutant(
        "a-silent-role-is-killed-against-its-settings",
        "silence_ms_max 0 leaves silent roles alone",
        _SUPERVISOR,
        "        elif 0 < self._table.silence_ms_max <= silent_ms:",
        "        elif self._table.silence_ms_max <= silent_ms:",
        by_test(_TESTS, "test_who_is_silent_stays_so_where_that_is_wanted"),
    ),
    Mutant(
        "a-supervisors-pause-is-a-roles-silence",
        "only time in which the supervisor looked counts as silence",
        _SUPERVISOR,
        "self.passed(min(now_s - before_s, _PAUSE_COUNTED * self._look_s))",
        "self.passed(now_s - before_s)",
        by_test(_TESTS, "test_a_pause_of_the_supervisor_is_nobody_elses_silence"),
    ),
    Mutant(
        "a-node-is-ready-without-its-roles",
        "a node is ready when all its roles serve",
        "herdbook/http/health.py",
        '(lacking() if lacking is not None else "")',
        '""',
        by_test(
            "herdbook/http/test_gate.py",
            "test_a_node_of_which_a_role_does_not_serve_is_not_ready_and_says_which",
        ),
    ),
    Mutant(
        "a-node-that-stands-still-serves",
        "below a loop that stands still nobody counts as serving",
        "herdbook/node/status.py",
        "    if silent_s * 1000 >= status.silence_ms:",
        "    if False:",
        by_test(
            "herdbook/node/test_status.py",
            "test_a_node_whose_own_loop_stands_still_is_silent_until_it_turns_again",
        ),
    ),
    Mutant(
        "a-line-waits-for-who-takes-it",
        "lines that find no room are lost and counted",
        "herdbook/node/passing_on.py",
        "            if len(self._lines) >= self._lines_max:",
        "            if False:",
        by_test(
            "herdbook/node/test_passing_on.py",
            "test_who_has_lines_never_waits_for_who_takes_them_and_what_is_lost_is_counted",
        ),
    ),
    Mutant(
        "two-clusters-take-the-same-port",
        "a port is held by its name until its server listens",
        "herdbook/node/ports.py",
        '                    name.bind(f"\\0herdbook port {self._host}:{port}")',
        "                    pass",
        by_test(
            "herdbook/node/test_ports.py",
            "test_two_clusters_that_start_at_once_take_different_ports",
        ),
    ),
    Mutant(
        "a-folder-is-made-for-a-node-that-cannot-be",
        "ports are looked at before anything is made",
        "herdbook/node/serving.py",
        "    if not folder.exists():",
        "    if False:",
        by_test(
            _SERVE_TESTS,
            "test_ports_that_somebody_has_are_named_with_what_moves_them_and_nothing_is_made",
        ),
    ),
    Mutant(
        "a-server-of-a-folder-wants-the-tasks-for-itself",
        "a server serves tasks that another opener of the folder runs",
        "herdbook/task_server.py",
        "        calls = await book.broker.calls()",
        "        calls = await book.broker.open()",
        by_test(_SERVED_TESTS, "test_a_server_serves_tasks_that_another_opener_runs"),
    ),
    Mutant(
        "each-role-of-a-node-opens-the-folder-for-itself",
        "the roles of a process share one opening of the folder",
        "herdbook/node/opening.py",
        "        return self._sharing.use(_NAME, self._opening)",
        "        return self._opening()",
        by_test(_SERVED_TESTS, "test_the_roles_of_a_node_share_one_opening_of_its_folder"),
    ),
    Mutant(
        "a-folder-is-opened-again-while-it-closes",
        "who comes while the last opener closes waits until it is closed",
        "herd/sharing.py",
        "        async with shared.changing:\n            shared.opened = None\n",
        "        self._open.pop(key, None)\n"
        "        async with shared.changing:\n            shared.opened = None\n",
        by_test(
            "herd/test_sharing.py",
            "test_a_caller_that_comes_during_a_close_waits_and_opens_it_again",
        ),
    ),
    Mutant(
        "what-a-killed-server-left-names-a-server",
        "a server's file is valid only while it is locked",
        "herdbook/task_api.py",
        "    # Nobody holds the lock: its server was killed.\n    return None\n",
        "    return _decoded(folder)\n",
        by_test(
            _SERVED_TESTS,
            "test_a_killed_servers_file_is_ignored_even_if_its_port_is_in_use",
        ),
    ),
    Mutant(
        "a-node-waits-for-no-process-that-was-killed",
        "a node waits for the ports of its killed processes",
        "herdbook/node/serving.py",
        "DYING_S if killed else 0.0",
        "0.0",
        by_test(
            _KILLED_TESTS,
            "test_a_node_waits_for_the_ports_of_its_killed_processes_and_of_nobody_else",
        ),
    ),
    Mutant(
        "a-node-waits-for-the-ports-of-others",
        "whose ports somebody else has is told at once",
        "herdbook/node/serving.py",
        "DYING_S if killed else 0.0",
        "DYING_S",
        by_test(
            _KILLED_TESTS,
            "test_a_node_waits_for_the_ports_of_its_killed_processes_and_of_nobody_else",
        ),
    ),
    Mutant(
        "a-cluster-for-development-moves-from-its-own-ports",
        "a development cluster waits for the ports of its killed processes",
        "herdbook/node/ports.py",
        "            if time.monotonic() >= self._until_s:",
        "            if self._until_s:",
        by_test(
            _KILLED_TESTS,
            "test_a_development_cluster_gets_its_ports_back_when_its_old_processes_end",
        ),
    ),
    Mutant(
        "a-zookeeper-does-not-wait-for-the-one-that-was-killed",
        "a ZooKeeper waits a moment for the lock of its folder",
        "herdbook/zookeeper_server.py",
        "                    if time.monotonic() > deadline:\n                        raise Zoo",
        "                    if deadline:\n                        raise Zoo",
        by_test(
            _KILLED_TESTS,
            "test_zookeeper_starts_after_a_killed_server_has_released_its_folder",
        ),
    ),
    Mutant(
        "a-node-runs-that-ended-before-the-machine-was-started",
        "a status whose time is ahead of the clock is from before the machine restarted",
        "herdbook/node/status.py",
        "    if silent_s < -_CLOCK_S:",
        "    if False:",
        by_test(
            _KILLED_TESTS, "test_a_node_that_ended_before_the_machine_restarted_is_not_running"
        ),
    ),
    Mutant(
        "a-cluster-for-development-forgets-its-ports",
        "a cluster that is started again has the ports that it had",
        "herdbook/node/ports.py",
        "        had = self._had.get(whose, wanted)",
        "        had = wanted",
        by_test(
            "herdbook/node/test_ports.py",
            "test_a_cluster_that_is_started_again_has_the_ports_that_it_had",
        ),
    ),
)
