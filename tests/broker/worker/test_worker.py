"""A worker's session: links that break, leases that end, results that get lost, drains."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from broker.connection import (
    Assigned,
    Config,
    Done,
    Drain,
    Ended,
    Heartbeat,
    Interrupt,
    Leaving,
    Refused,
    Run,
    Welcome,
    WorkerLimits,
)
from broker.errors import AccessDenied
from tests.broker.worker.scripted import LEASE_MS, Scene, runs
from tests.simulation.virtual import elapse, virtually


def played(script: Coroutine[Any, Any, None]) -> None:
    virtually(script)


async def linked() -> Scene:
    scene = Scene()
    await scene.worker.connected()
    await elapse(0.1)
    return scene


async def with_work(*ids: int) -> Scene:
    scene = await linked()
    scene.port.link.say(Assigned(scene.worker.session, runs(*ids)))
    await elapse(0.1)
    assert [each[0] for each in scene.places.running] == list(ids)
    return scene


def test_what_ends_is_told_in_one_message_and_forgotten_when_it_is_acknowledged() -> None:
    async def script() -> None:
        scene = await with_work(1, 2, 3)
        scene.places.end([(1, 1), (2, 1)])
        scene.places.end([(3, 1)])
        await elapse(0.1)
        assert len(scene.port.link.all_of(Done)) == 1
        assert [each.id for each in scene.port.link.told()] == [1, 2, 3]
        scene.port.link.cut()
        await elapse(5.0)
        assert scene.port.link.hello.running == () and scene.port.link.told() == []
        await scene.end()

    played(script())


def test_a_broken_link_stops_nothing_and_what_ended_meanwhile_is_told_over_the_next() -> None:
    async def script() -> None:
        scene = await with_work(1, 2)
        scene.port.answers = lambda message: not isinstance(message, Done)
        scene.places.end([(1, 1)])
        await elapse(0.1)
        scene.port.link.cut()
        scene.port.answers = lambda message: True
        await elapse(1.0)
        link = scene.port.link
        assert link is not scene.port.links[0]
        assert sorted(link.hello.running) == [(1, 1), (2, 1)]
        assert [each.id for each in link.told()] == [1] and scene.places.running == [(2, 1)]
        assert [each.session for each in link.heard if isinstance(each, Done)] == [2]
        await scene.end()

    played(script())


def test_heartbeats_tell_what_was_taken_and_keep_the_work_alive() -> None:
    async def script() -> None:
        scene = await with_work(1, 2)
        await elapse(5 * LEASE_MS / 1000)
        beats = [each for each in scene.port.link.heard if isinstance(each, Heartbeat)]
        assert len(beats) > 30
        assert (beats[-1].taken_total, beats[-1].running, beats[-1].session) == (2, 2, 1)
        assert scene.places.ended_all_s == [] and len(scene.port.links) == 1
        await scene.end()

    played(script())


def test_half_a_lease_after_the_last_acknowledged_heartbeat_was_sent_all_is_ended() -> None:
    async def script() -> None:
        scene = await with_work(1)
        await elapse(LEASE_MS / 1000)
        beats = [each for each in scene.port.link.heard if isinstance(each, Heartbeat)]
        scene.port.answers = lambda message: False
        last_s = asyncio.get_running_loop().time()
        scene.port.welcome = lambda hello, session: Refused("no leader yet")
        await elapse(LEASE_MS / 1000)
        (ended_s,) = scene.places.ended_all_s
        assert last_s + LEASE_MS * 3 / 8000 - 0.01 <= ended_s <= last_s + LEASE_MS / 2000 + 0.01
        assert beats and scene.places.running == []
        # The next leader hears that it was ended for no fault of its own.
        scene.port.answers = lambda message: True
        scene.port.welcome = lambda hello, session: Welcome(session, LEASE_MS, hello.running)
        await elapse(3.0)
        assert [each.ended for each in scene.port.link.told()] == [Ended.ENDED_FOR_ANOTHER]
        await scene.end()

    played(script())


def test_what_comes_when_half_a_lease_has_passed_is_handed_back_and_never_begun() -> None:
    async def script() -> None:
        scene = await linked()
        scene.port.answers = lambda message: isinstance(message, Done)
        # The process stands still, and what was sent meanwhile is the first that it reads.
        scene.clock.passed_s += LEASE_MS / 1000
        scene.port.link.say(Assigned(scene.worker.session, runs(1)))
        await elapse(0.001)
        assert scene.places.begun == []
        assert [each.ended for each in scene.port.links[0].told()] == [Ended.HANDED_BACK]
        await scene.end()

    played(script())


def test_a_link_that_does_not_answer_is_given_up_for_another_before_the_lease_ends() -> None:
    async def script() -> None:
        scene = await with_work(1)
        deaf = scene.port.link
        scene.port.answers = lambda message: scene.port.link is not deaf
        await elapse(LEASE_MS / 1000)
        assert len(scene.port.links) == 2 and scene.places.ended_all_s == []
        assert scene.places.running == [(1, 1)]
        await scene.end()

    played(script())


def test_what_another_session_says_is_dropped() -> None:
    async def script() -> None:
        scene = await with_work(1)
        scene.port.link.say(Assigned(scene.worker.session - 1, runs(2)))
        scene.port.link.say(Interrupt(scene.worker.session + 1, [(1, 1)], "no"))
        await elapse(0.1)
        assert scene.places.running == [(1, 1)] and scene.places.interrupted == []
        scene.port.link.say(Interrupt(scene.worker.session, [(1, 1)], "somebody asked"))
        await elapse(0.1)
        assert [each.ended for each in scene.port.link.told()] == [Ended.INTERRUPTED]
        await scene.end()

    played(script())


def test_what_the_next_leader_gave_to_others_is_ended_and_its_result_forgotten() -> None:
    async def script() -> None:
        scene = await with_work(1, 2)
        scene.port.answers = lambda message: not isinstance(message, Done)
        scene.places.end([(2, 1)])
        await elapse(0.1)
        scene.port.welcome = lambda hello, session: Welcome(session, LEASE_MS, (), hello.running)
        scene.port.answers = lambda message: True
        scene.port.link.cut()
        await elapse(1.0)
        assert [each[0] for each in scene.places.interrupted] == [(1, 1), (2, 1)]
        assert [each.id for each in scene.port.link.told()] == [1]
        await scene.end()

    played(script())


def test_a_leader_that_is_away_is_looked_for_until_it_is_there() -> None:
    async def script() -> None:
        scene = await linked()
        scene.port.refusing = True
        scene.port.link.cut()
        await elapse(60.0)
        assert len(scene.port.links) == 1
        scene.port.refusing = False
        await elapse(2.5)
        assert len(scene.port.links) == 2 and scene.worker.session == 2
        await scene.end()

    played(script())


def test_a_worker_that_reaches_no_broker_says_so_once_and_when_it_does(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def script() -> None:
        scene = Scene()
        scene.port.refusing = True
        await elapse(60.0)
        assert [each.getMessage() for each in caplog.records if each.levelname == "WARNING"] == [
            "worker barn is not connected and goes on trying: nobody leads"
        ]
        scene.port.refusing = False
        await elapse(3.0)
        assert caplog.records[-1].getMessage() == "worker barn is connected now"
        scene.port.link.cut()
        await elapse(3.0)
        assert len(scene.port.links) == 2
        assert [each.levelname for each in caplog.records].count("WARNING") == 2
        await scene.end()

    played(script())


def test_a_worker_whose_name_another_one_has_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    async def script() -> None:
        scene = Scene()
        scene.port.welcome = lambda hello, session: Refused("worker barn is connected already")
        await elapse(60.0)
        assert [each.getMessage() for each in caplog.records if each.levelname == "WARNING"] == [
            "worker barn is not connected and goes on trying: worker barn is connected already"
        ]
        await scene.end()

    played(script())


def test_a_worker_that_is_refused_for_good_ends_with_the_reason() -> None:
    async def script() -> None:
        scene = Scene()
        scene.port.welcome = lambda hello, session: Refused("the secret is wrong", final=True)
        with pytest.raises(AccessDenied, match="secret is wrong"):
            await scene.life

    played(script())


def test_a_drain_finishes_what_runs_hands_back_what_comes_and_leaves() -> None:
    async def script() -> None:
        scene = await with_work(1)
        scene.worker.drain()
        await elapse(0.1)
        assert [each.ended for each in scene.port.link.heard if isinstance(each, Leaving)] == [
            False
        ]
        scene.port.link.say(Assigned(1, runs(2)))
        await elapse(1.0)
        assert [each.ended for each in scene.port.link.told()] == [Ended.HANDED_BACK]
        scene.places.end([(1, 1)])
        assert await scene.life
        told = [type(each) for each in scene.port.link.heard if not isinstance(each, Heartbeat)]
        assert told == [Leaving, Done, Done, Leaving]
        assert not scene.port.link.open

    played(script())


@pytest.mark.parametrize("hurried", [False, True])
def test_a_drain_ends_what_runs_too_long_or_when_asked_a_second_time(hurried: bool) -> None:
    async def script() -> None:
        scene = await with_work(1)
        begun_s = asyncio.get_running_loop().time()
        scene.port.link.say(Drain())
        await elapse(0.5)
        if hurried:
            scene.worker.drain()
        assert not await scene.life
        took_s = asyncio.get_running_loop().time() - begun_s
        assert (took_s < 1.0) if hurried else (3.0 <= took_s < 3.5)
        assert [each.ended for each in scene.port.link.told()] == [Ended.ENDED_FOR_ANOTHER]

    played(script())


def test_a_worker_does_not_leave_its_session_while_something_does_not_end() -> None:
    async def script() -> None:
        scene = await with_work(1)

        async def end_all() -> None:
            await asyncio.Event().wait()

        scene.places.end_all = end_all  # type: ignore[method-assign]
        scene.worker.drain()
        assert not await scene.life
        left = [each.ended for each in scene.port.link.heard if isinstance(each, Leaving)]
        assert left == [False] and scene.places.running == [(1, 1)]

    played(script())


def test_what_does_not_end_keeps_no_other_tasks_away_once_the_lease_is_renewed() -> None:
    async def script() -> None:
        scene = await with_work(1)

        async def end_all() -> None:
            await asyncio.Event().wait()

        scene.places.end_all = end_all  # type: ignore[method-assign]
        scene.port.answers = lambda message: False
        scene.port.refusing = True
        await elapse(LEASE_MS / 1000)
        scene.port.answers = lambda message: True
        scene.port.refusing = False
        await elapse(3.0)
        scene.port.link.say(Assigned(scene.worker.session, runs(2)))
        await elapse(0.1)
        assert scene.places.running == [(1, 1), (2, 1)] and not scene.port.link.told()
        await scene.end()

    played(script())


def test_a_drain_that_is_asked_for_three_times_waits_for_nobody() -> None:
    async def script() -> None:
        scene = await with_work(1)
        scene.port.answers = lambda message: isinstance(message, Heartbeat)
        begun_s = asyncio.get_running_loop().time()
        scene.worker.drain()
        scene.worker.drain()
        await elapse(1.0)
        assert scene.places.running == [] and not scene.life.done(), "the end of it is told"
        scene.worker.drain()
        assert not await scene.life
        assert asyncio.get_running_loop().time() - begun_s < 1.1

    played(script())


def test_a_drain_tells_the_last_results_to_the_next_leader() -> None:
    async def script() -> None:
        scene = await with_work(1)
        scene.port.link.cut()
        scene.port.refusing = True
        await elapse(0.1)
        scene.worker.drain()
        scene.places.end([(1, 1)])
        await elapse(1.0)
        assert not scene.life.done()
        scene.port.refusing = False
        assert await scene.life
        assert [each.id for each in scene.port.link.told()] == [1]

    played(script())


def test_an_idle_worker_whose_link_is_broken_says_farewell_over_the_next_one() -> None:
    async def script() -> None:
        scene = await linked()
        scene.port.refusing = True
        scene.port.link.cut()
        await elapse(0.1)
        scene.worker.drain()
        await elapse(1.0)
        assert not scene.life.done()
        scene.port.refusing = False
        assert await scene.life
        assert len(scene.port.links) == 2
        assert [each.ended for each in scene.port.link.heard if isinstance(each, Leaving)] == [
            False,
            True,
        ]

    played(script())


@pytest.mark.parametrize("met_a_broker", [False, True])
def test_an_idle_worker_without_a_broker_leaves_when_it_has_looked_for_its_own(
    met_a_broker: bool,
) -> None:
    async def script() -> None:
        scene = await linked() if met_a_broker else Scene()
        scene.port.refusing = True
        if met_a_broker:
            scene.port.link.cut()
        await elapse(0.1)
        scene.worker.drain()
        begun_s = asyncio.get_running_loop().time()
        assert await scene.life
        took_s = asyncio.get_running_loop().time() - begun_s
        assert (5.0 <= took_s < 5.1) if met_a_broker else took_s < 0.1

    played(script())


def test_limits_change_while_it_runs_and_stand_in_the_next_hello() -> None:
    async def script() -> None:
        scene = await linked()
        scene.worker.change_limits(WorkerLimits(9, {"milk": 2}))
        await elapse(0.1)
        (config,) = [each for each in scene.port.link.heard if isinstance(each, Config)]
        assert config.limits.places == 9
        scene.port.link.cut()
        await elapse(1.0)
        assert scene.port.link.hello.limits == WorkerLimits(9, {"milk": 2})
        await scene.end()

    played(script())


def test_a_worker_with_fewer_processes_has_fewer_places_whatever_its_limits_are() -> None:
    async def script() -> None:
        scene = await linked()
        scene.worker.stand(0.5)
        scene.worker.change_limits(WorkerLimits(9, {"milk": 2}))
        scene.worker.stand(0.0)
        await elapse(0.1)
        told = [each.limits for each in scene.port.link.heard if isinstance(each, Config)]
        assert [each.places for each in told] == [2, 4, 0]
        scene.port.link.cut()
        await elapse(1.0)
        assert scene.port.link.hello.limits.places == 0
        scene.worker.stand(1.0)
        await elapse(0.1)
        told = [each.limits for each in scene.port.link.heard if isinstance(each, Config)]
        assert told == [WorkerLimits(9, {"milk": 2})]
        await scene.end()

    played(script())


def test_many_big_results_are_told_in_messages_of_bounded_size() -> None:
    async def script() -> None:
        scene = await linked()
        link = scene.port.link
        link.say(Assigned(1, [Run(each, 1, "elsa", "milk", b"") for each in range(2_500)]))
        await elapse(0.1)
        scene.places.end(list(scene.places.runs))
        await elapse(0.1)
        sizes = [len(each.completions) for each in link.heard if isinstance(each, Done)]
        assert sizes == [1_000, 1_000, 500]
        sequences = [each.sequence for each in link.heard]
        assert sorted(sequences) == list(range(1, len(sequences) + 1))
        await scene.end()

    played(script())
