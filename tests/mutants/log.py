"""Mutants of the endless log: takeover, roll, tail, truncation, sweep."""

from typing import Final

from tests.mutants.mutant import Mutant, by_seeds, by_test

_LOG: Final = "engine/log/log.py"
_LIST: Final = "engine/log/log_list.py"
_WRITER: Final = "engine/log/log_writer.py"
_READER: Final = "engine/log/log_reader.py"
_TRUNCATION: Final = "engine/log/truncation.py"
_SWEEPING: Final = "engine/log/sweeping.py"
_LEADING_TESTS: Final = "engine/log/test_leading.py"
_ROLLING_TESTS: Final = "engine/log/test_rolling.py"
_TAILING_TESTS: Final = "engine/log/test_tailing.py"
_TRUNCATION_TESTS: Final = "engine/log/test_truncation.py"
_LIST_TESTS: Final = "engine/log/test_log_list.py"
_ROLL_ORDER: Final = by_test(
    _ROLLING_TESTS, "test_a_roll_creates_then_closes_then_lists_and_only_then_acknowledges"
)

LEADING_MUTANTS: Final = (
    Mutant(
        "takeover-recovers-before-it-raises-the-epoch",
        "design 4.4: raise the epoch in the list, then recover the last listed ledger",
        _LOG,
        "        held = await self._lists.update(held, raised)\n"
        "        epoch = held.list.epoch\n"
        "        last_entry = await self._close_last(held.list)\n",
        "        last_entry = await self._close_last(held.list)\n"
        "        held = await self._lists.update(held, raised)\n"
        "        epoch = held.list.epoch\n",
        by_test(_LEADING_TESTS, "test_a_takeover_raises_the_epoch_then_recovers_then_lists"),
    ),
    Mutant(
        "the-epoch-is-raised-again-after-a-conflict",
        "the epoch is raised from exactly the value that was read; on a conflict it is deposed",
        _LIST,
        "        check_epoch(current, epoch)\n        raised = ",
        "        raised = ",
        by_test(
            _LEADING_TESTS,
            "test_the_epoch_is_raised_only_from_what_was_read_while_the_caller_held_the_lead",
        ),
    ),
    Mutant(
        "takeover-does-not-recover",
        "design 4.4: a takeover recovers the last listed ledger, and with it fences its writer",
        _LOG,
        "reader = await self._client.open_ledger(ledger, recover=True)",
        "reader = await self._client.open_ledger(ledger, recover=False)",
        by_test(
            _LEADING_TESTS,
            "test_an_old_leader_that_cannot_hear_the_list_is_stopped_by_the_bookies",
        ),
    ),
    Mutant(
        "takeover-takes-a-missing-ledger-for-an-empty-one",
        "CONTRIBUTING: not found and cannot read are different answers",
        _LOG,
        '            raise CannotRead(f"log {self.name}: its last ledger, {ledger}, is gone") '
        "from error",
        "            return NO_ENTRY",
        by_test(
            _LEADING_TESTS,
            "test_a_log_whose_last_ledger_was_deleted_is_not_taken_for_an_empty_one",
        ),
    ),
    Mutant(
        "listing-without-a-look-at-the-epoch",
        "design 4.4: a ledger is listed only under the epoch that created it",
        _LIST,
        "        check_epoch(current, epoch)\n        if current.listed and",
        "        if current.listed and",
        by_test(_LEADING_TESTS, "test_a_leader_that_was_overtaken_while_it_recovered_is_deposed"),
    ),
    Mutant(
        "the-epoch-is-not-raised",
        "design 4.4: each takeover has an epoch of its own",
        _LIST,
        "raised = msgspec.structs.replace(current, epoch=epoch + 1)",
        "raised = msgspec.structs.replace(current, epoch=max(1, epoch))",
        by_test(
            _LEADING_TESTS,
            "test_the_epoch_counts_on_when_leaders_race_and_one_writer_is_left",
        ),
    ),
    Mutant(
        "a-lost-reply-about-the-list-is-a-conflict",
        "design 4.2-7: after a lost reply the loop takes its own token as success",
        _LIST,
        "                if held.list.token == token:\n                    return held\n",
        "",
        by_test(_LEADING_TESTS, "test_a_lost_reply_about_the_epoch_is_settled_by_the_token"),
    ),
    Mutant(
        "a-newer-list-is-read",
        "design 3: a newer major version is refused",
        _LIST,
        'check_major(value, "the list of a log", FORMAT_MAJOR)',
        'check_major(value, "the list of a log", FORMAT_MAJOR + 1)',
        by_test(_LIST_TESTS, "test_a_log_of_a_newer_version_is_left_alone"),
    ),
    Mutant(
        "an-idle-leader-does-not-look-at-the-list",
        "a leader that appends nothing hears of its successor, too",
        _WRITER,
        "                    check_epoch((await self._lists.read()).list, self.epoch)\n",
        "                    await self._lists.read()\n",
        by_test(_LEADING_TESTS, "test_an_idle_leader_hears_of_its_successor"),
    ),
)

ROLLING_MUTANTS: Final = (
    Mutant(
        "roll-lists-before-it-closes",
        "design 4.4: no ledger is listed while its predecessor is open",
        _WRITER,
        "            last_entry = await self._insist(\n",
        "            if ahead is not None:\n"
        "                await self._insist(partial(self._list, ahead.ledger_id, self._next - 1))\n"
        "            last_entry = await self._insist(\n",
        _ROLL_ORDER,
    ),
    Mutant(
        "roll-appends-before-it-lists",
        "design 4.4: no entry is acknowledged in a ledger before it is listed",
        _WRITER,
        "            await self._insist(partial(self._list, ahead.ledger_id, last_entry))\n"
        "            self._use(ahead)\n",
        "            self._use(ahead)\n"
        "            self._feed()\n"
        "            await self._insist(partial(self._list, ahead.ledger_id, last_entry))\n",
        _ROLL_ORDER,
    ),
    Mutant(
        "a-fenced-leader-does-not-look-at-the-epoch",
        "design 4.4: only while its epoch stands does a leader go on in another ledger",
        _WRITER,
        "            if self._failed:\n                await self._insist(self._check_epoch)\n",
        "",
        by_test(
            _ROLLING_TESTS,
            "test_a_deposed_leader_does_not_touch_its_ledger_again",
        ),
    ),
    Mutant(
        "a-fenced-ledger-ends-the-leader",
        "design 4.4: a leader that a repair fenced by mistake recovers its own ledger and rolls",
        _WRITER,
        "        self._failed = True\n        self._taking = False\n",
        "        self._failed = True\n        self._taking = False\n"
        '        self._end(AppendFailed("fenced"))\n',
        by_test(
            _ROLLING_TESTS,
            "test_a_ledger_that_was_fenced_under_a_standing_epoch_is_left_and_nothing_is_lost",
        ),
    ),
    Mutant(
        "what-is-durable-is-appended-again",
        "issue 4, A: what the end of the own ledger proves durable counts as acknowledged",
        _WRITER,
        "            self._count(last_entry)\n",
        "            self._count(last_entry if not self._failed else -1)\n",
        by_test(
            _ROLLING_TESTS,
            "test_what_the_end_of_a_fenced_ledger_proves_durable_is_not_appended_again",
        ),
    ),
    Mutant(
        "what-is-not-durable-waits-in-the-wrong-order",
        "issue 4, A: the rest is appended to the next ledger, in order",
        _WRITER,
        "self._waiting.extendleft(reversed(self._sent))",
        "self._waiting.extend(self._sent)",
        by_test(
            _ROLLING_TESTS,
            "test_what_the_end_of_a_fenced_ledger_proves_durable_is_not_appended_again",
        ),
    ),
    Mutant(
        "an-append-overtakes-those-that-wait",
        "futures resolve in the order of the calls",
        _WRITER,
        "self._taking and not self._waiting and not self._hold.on",
        "self._taking and not self._hold.on",
        by_test(_ROLLING_TESTS, "test_a_small_append_does_not_overtake_a_big_one_that_waits"),
    ),
    Mutant(
        "pending-bytes-of-a-log-without-bound",
        "design 4.2-8: every queue is bounded in bytes and pushes back",
        _WRITER,
        "if waiting_bytes and waiting_bytes + size_bytes > self._settings.pending_bytes_max:",
        "if size_bytes < 0:",
        by_test(
            _ROLLING_TESTS, "test_bytes_that_wait_are_bounded_and_refused_appends_store_nothing"
        ),
    ),
    Mutant(
        "an-idle-ledger-that-failed-is-kept",
        "what a failed ledger acknowledged last may not be announced: the leader leaves it",
        _WRITER,
        "        ledger.ended = partial(self._on_ledger_ended, ledger)\n",
        "",
        by_test(_ROLLING_TESTS, "test_a_ledger_whose_bookies_fail_is_left_for_another"),
    ),
    Mutant(
        "a-closed-client-lists-another-ledger",
        "a client that was closed leaves its ledgers to be recovered by who reads them",
        _WRITER,
        "        if ledger.abandoned:\n",
        "        if ledger.abandoned and self._closing:\n",
        by_test(_ROLLING_TESTS, "test_a_closed_client_ends_its_logs_and_lists_no_other_ledger"),
    ),
    Mutant(
        "a-log-rolls-until-its-list-does-not-fit",
        "the list of a log fits in a value of the metadata store",
        _WRITER,
        "        if self._listed >= LEDGERS_MAX:\n",
        "        if self._listed < 0:\n",
        by_test(_ROLLING_TESTS, "test_a_log_of_very_many_ledgers_rolls_only_where_it_must"),
    ),
    Mutant(
        "a-failed-roll-ends-the-leader",
        "a roll that finds no bookies waits, and the old ledger goes on",
        _WRITER,
        "            if self._taking:\n                raise\n            return None",
        "            return None",
        by_test(
            _ROLLING_TESTS, "test_a_roll_that_finds_no_bookies_waits_and_the_old_ledger_goes_on"
        ),
    ),
    Mutant(
        "a-roll-waits-for-stragglers",
        "a straggling bookie does not stall the log",
        _WRITER,
        "partial(self._ledger.close, self._settings.roll_straggler_ms)",
        "self._ledger.close",
        by_test(
            _ROLLING_TESTS,
            "test_a_roll_does_not_wait_for_a_straggler_and_the_mark_falls_when_it_has_caught_up",
        ),
    ),
    Mutant(
        "a-straggler-that-never-came-is-forgotten",
        "design 4.2-4: what lacks a replica enters the repair queue at its close",
        "engine/ledger/closing.py",
        "        if settled:\n",
        "        if settled or True:\n",
        by_test(
            _ROLLING_TESTS,
            "test_a_straggler_that_never_catches_up_puts_the_rolled_ledger_into_the_repair_queue",
        ),
    ),
)

TAILING_MUTANTS: Final = (
    Mutant(
        "a-tail-carries-the-old-entry-number",
        "herddb-blobit.md 4-2: the next ledger begins at its first entry",
        _READER,
        "return after.entry + 1 if ledger == after.ledger else 0",
        "return after.entry + 1",
        by_test(_TAILING_TESTS, "test_a_late_tail_begins_each_ledger_at_its_first_entry"),
    ),
    Mutant(
        "a-tail-skips-the-ledgers-between",
        "tailing crosses rolls without losing an entry",
        _READER,
        "        for listed in current.listed:\n            first = _first_in(listed.ledger, at)\n",
        "        for listed in reversed(current.listed):\n"
        "            first = _first_in(listed.ledger, at)\n",
        by_test(_TAILING_TESTS, "test_a_tail_may_begin_after_any_entry_that_is_kept"),
    ),
    Mutant(
        "a-tail-does-not-look-for-itself",
        "a watch that tells nothing delays a tail, never blinds it",
        _READER,
        "            async with asyncio.timeout(self._reader.settings.look_interval_ms / 1000):",
        "            async with asyncio.timeout(None):",
        by_test(_TAILING_TESTS, "test_a_tail_whom_nobody_tells_of_changes_looks_for_itself"),
    ),
    Mutant(
        "a-tail-passes-over-what-was-dropped",
        "reading what is no longer kept is a clear error",
        _READER,
        "        current = (await self._lists.read()).list\n        check_kept(current, at)\n"
        "        for listed in current.listed:\n            first",
        "        current = (await self._lists.read()).list\n"
        "        for listed in current.listed:\n            first",
        by_test(_TAILING_TESTS, "test_a_position_that_is_no_longer_kept_is_a_clear_error"),
    ),
    Mutant(
        "the-end-is-guessed",
        "the end of an open log is not guessed when bookies are silent",
        _READER,
        "return await reader.read_last_add_confirmed()",
        "return reader.last_add_confirmed",
        by_test(
            _TAILING_TESTS, "test_the_end_of_an_open_log_is_not_guessed_when_bookies_are_silent"
        ),
    ),
)

KEEPING_MUTANTS: Final = (
    Mutant(
        "truncation-past-a-pin",
        "design 4.4: truncation goes by the slowest pin, too",
        _TRUNCATION,
        "floor = min([checkpoint, *(pin.position for pin in pins)])",
        "floor = checkpoint",
        by_test(_TRUNCATION_TESTS, "test_a_pin_holds_the_ledgers_after_its_position"),
    ),
    Mutant(
        "truncation-past-the-checkpoint",
        "design 4.4: truncation goes by the durable checkpoint",
        _TRUNCATION,
        "if end > floor or",
        "if end.ledger > floor.ledger or",
        by_test(
            _TRUNCATION_TESTS, "test_a_ledger_with_one_entry_past_the_checkpoint_is_kept_whole"
        ),
    ),
    Mutant(
        "truncation-before-the-retention-time",
        "design 4.4: truncation goes by the retention time",
        _TRUNCATION,
        "_retained(after.listed_ms, now_ms, settings)",
        "_retained(listed.listed_ms - 1, now_ms, settings)",
        by_test(
            _TRUNCATION_TESTS,
            "test_a_ledger_is_kept_for_the_retention_time_after_the_next_was_listed",
        ),
    ),
    Mutant(
        "pins-ignore-that-clocks-differ-in-the-simulation",
        "a pin lasts as long as was asked for, whatever wall clocks differ",
        _TRUNCATION,
        "    allowed_ms = settings.clock_difference_ms\n",
        "    allowed_ms = 0\n",
        by_seeds(5013, 3, "--log"),
    ),
    Mutant(
        "retention-ignores-that-clocks-differ",
        "the clock of who drops may be ahead of that of who listed",
        _TRUNCATION,
        "wanted and not is_over(kept_until_ms, now_ms, settings.clock_difference_ms)",
        "wanted and now_ms < kept_until_ms",
        by_test(
            _TRUNCATION_TESTS,
            "test_a_machine_whose_clock_is_ahead_does_not_cut_the_retention_time_short",
        ),
    ),
    Mutant(
        "truncation-deletes-first",
        "the list first, then the ledgers",
        _LOG,
        "        held = await self._lists.update(await self._lists.read(), change)\n"
        "        await self._delete(",
        "        before = await self._lists.read()\n"
        "        after = change(before.list)\n"
        "        await self._delete(x for x in seen if after and x not in after.ledgers)\n"
        "        held = await self._lists.update(before, change)\n"
        "        await self._delete(",
        by_test(_TRUNCATION_TESTS, "test_ledgers_leave_the_list_before_they_are_deleted"),
    ),
    Mutant(
        "a-lost-reply-leaves-dropped-ledgers",
        "what any try of a truncation has dropped is deleted",
        _LOG,
        "        held = await self._lists.update(await self._lists.read(), change)\n"
        "        await self._delete(",
        "        held = await self._lists.update(await self._lists.read(), change)\n"
        "        seen = dict.fromkeys(held.list.ledgers)\n"
        "        await self._delete(",
        by_test(_TRUNCATION_TESTS, "test_truncation_drops_whole_ledgers_up_to_the_checkpoint"),
    ),
    Mutant(
        "a-pin-on-what-is-gone",
        "pinning what is not kept is refused",
        _TRUNCATION,
        "    check_kept(current, pin.position)\n",
        "",
        by_test(_TRUNCATION_TESTS, "test_a_truncation_that_comes_first_wins_against_a_pin"),
    ),
    Mutant(
        "a-replica-finds-no-place-for-its-pin",
        "however many others pin the log, a replica that restores itself finds a place for its pin",
        _TRUNCATION,
        "        pins_max -= FOR_REPLICAS\n",
        "",
        by_test(
            _TRUNCATION_TESTS,
            "test_a_replica_pins_a_log_that_has_as_many_pins_as_others_may_have",
        ),
    ),
    Mutant(
        "a-pin-ends-at-once",
        "clocks may differ: a pin holds a little longer than asked for",
        _TRUNCATION,
        "if not is_over(pin.expires_ms, now_ms, allowed_ms)]",
        "if not is_over(pin.expires_ms, now_ms, 0)]",
        by_test(
            _TRUNCATION_TESTS,
            "test_a_pin_is_over_only_after_its_expiry_and_what_clocks_may_differ",
        ),
    ),
    Mutant(
        "an-empty-ledger-moves-what-was-dropped",
        "dropped_through is the last entry that was dropped",
        _TRUNCATION,
        "        if listed.last_entry != NO_ENTRY:\n            dropped_through = end\n",
        "        dropped_through = end\n",
        by_test(_TRUNCATION_TESTS, "test_dropping_an_empty_ledger_takes_no_position_away"),
    ),
    Mutant(
        "the-sweeper-deletes-the-present-epoch",
        "design 4.4: the sweeper deletes ledgers of older epochs",
        _SWEEPING,
        "if marks.epoch < epoch:",
        "if marks.epoch <= epoch:",
        by_test(
            _TRUNCATION_TESTS,
            "test_the_sweeper_leaves_what_the_standing_leader_is_about_to_list",
        ),
    ),
    Mutant(
        "the-sweeper-deletes-what-is-kept",
        "design 4.4: the sweeper deletes what nothing references",
        _SWEEPING,
        "[ledger for ledger in ids if ledger not in keep]",
        "ids",
        by_test(
            _TRUNCATION_TESTS,
            "test_the_sweeper_deletes_what_older_epochs_created_and_never_listed",
        ),
    ),
    Mutant(
        "an-owner-hears-of-an-earlier-listing",
        "an answer is from a listing that began after the call",
        "engine/ledger/owners.py",
        "wanted = self._begun + 1",
        "wanted = self._begun",
        by_test(
            "engine/ledger/test_owners.py",
            "test_a_ledger_created_while_somebody_else_looks_is_found",
        ),
    ),
    Mutant(
        "ledgers-are-read-for-each-owner",
        "each ledger is read once for the sweeps of all owners",
        "engine/ledger/owners.py",
        "            ids -= owned\n",
        "",
        by_test(
            "engine/ledger/test_owners.py",
            "test_each_ledger_is_read_once_for_the_sweeps_of_all_owners",
        ),
    ),
    Mutant(
        "the-sweeper-deletes-what-is-another-logs",
        "a ledger goes only if its own metadata name this log",
        "engine/ledger/owners.py",
        "*(self._owned.get(owner, ()) for owner in owners)",
        "*self._owned.values()",
        by_test(
            _TRUNCATION_TESTS,
            "test_the_sweeper_touches_nothing_of_others",
        ),
    ),
    Mutant(
        "a-held-log-goes-on",
        "a log that is held sends nothing",
        "engine/log/log_writer.py",
        " and not self._hold.on\n",
        "\n",
        by_test(
            "engine/log/test_holding.py",
            "test_a_log_that_is_held_sends_nothing_and_goes_on_when_it_is_released",
        ),
    ),
    Mutant(
        "a-hold-has-no-end-of-its-own",
        "a log is held for at most a second",
        "engine/log/holding.py",
        "        self._timer = self._loop.call_later(HOLD_MS / 1000, self._release)\n",
        "",
        by_test(
            "engine/log/test_holding.py",
            "test_a_log_is_held_no_longer_than_a_second_for_one_backup",
        ),
    ),
    Mutant(
        "a-hold-counts-again-after-a-failed-read",
        "a leader waits at most HOLD_MS each time the key is created",
        "engine/log/holding.py",
        "            self._release()\n        elif",
        '            self._release()\n            self._seen = b""\n        elif',
        by_test(
            "engine/log/test_holding.py",
            "test_a_hold_that_could_not_be_read_meanwhile_does_not_hold_a_log_twice",
        ),
    ),
    Mutant(
        "each-log-watches-the-hold-by-itself",
        "the logs of one session share a watch of the hold",
        "engine/log/holding.py",
        "        shared = _holds.get(id(store))\n",
        "        shared = None\n",
        by_test(
            "engine/log/test_holding.py",
            "test_the_logs_of_one_session_read_the_hold_once_and_share_a_watch",
        ),
    ),
    Mutant(
        "a-second-hold-is-not-seen",
        "each try of a backup holds the log again",
        "engine/log/holding.py",
        "        elif value != self._seen:\n",
        "        elif not self._seen:\n",
        by_test(
            "engine/log/test_holding.py",
            "test_a_log_is_held_again_for_the_next_try_even_if_it_missed_the_end_of_the_last",
        ),
    ),
    Mutant(
        "a-log-s-end-waits-for-a-hold",
        "a log that is about to end does not wait for a hold",
        "engine/log/log_writer.py",
        "        self._closing = True\n        self._hold.close()\n        self._feed()\n",
        "        self._closing = True\n",
        by_test("engine/log/test_holding.py", "test_a_log_that_is_to_end_does_not_wait_for_a_hold"),
    ),
)
