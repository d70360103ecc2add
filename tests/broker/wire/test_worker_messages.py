"""What workers and the broker say survives the wire, in messages that fit it."""

import pytest

from broker.connection import (
    Acked,
    Assigned,
    Completion,
    Config,
    Done,
    Drain,
    Ended,
    FromBroker,
    FromWorker,
    Heartbeat,
    Hello,
    Interrupt,
    Leaving,
    Refused,
    Run,
    Welcome,
    WorkerLimits,
)
from broker.errors import InvalidTask
from broker.task import Mode
from broker.wire.grpc_generated import broker_pb2
from broker.wire.worker_messages import WorkerMessages
from engine.transport.grpc_settings import MESSAGE_BYTES_MAX

LIMITS = WorkerLimits(7, {"milk": 2, "any": 5}, (3, 0), (4,), {"barn": 1}, 50)
FROM_WORKER: list[FromWorker] = [
    Heartbeat(1, 2, 3, 4),
    Done(
        5,
        2,
        [
            Completion(1, 2, Ended.FINISHED, b"\xff"),
            Completion(1, 3, Ended.FINISHED, result_object="where it is"),
            Completion(3, 4, Ended.FAILED, error="Kuh weg: ä", retry_after_ms=0, no_retry=True),
        ],
    ),
    Config(6, LIMITS),
    Leaving(7),
    Leaving(8, ended=True),
]
FROM_BROKER: list[FromBroker] = [
    Welcome(9, 10_000, ((1, 2),), ((3, 4), (5, 6))),
    Assigned(9, [Run(1, 2, "elsa", "milk", b"\x00", 5, 6, Mode.AT_MOST_ONCE, "pool", "object")]),
    Assigned(9, [Run(1, 2, "elsa", "milk", b"", payload_object="where it is")]),
    Interrupt(9, [(1, 2)], "asked"),
    Acked(4),
    Refused("not I", "barn:1", final=True),
    Drain(),
]


def test_what_is_packed_is_unpacked_to_the_same() -> None:
    wire = WorkerMessages()
    hello = Hello("barn", "p1", "host", ("milk",), LIMITS, ((1, 2),))
    assert wire.unpack_hello(wire.pack_hello(hello)) == hello
    (packed,) = wire.pack_from_worker(FROM_WORKER)
    assert wire.unpack_from_worker(packed) == FROM_WORKER
    (packed,) = wire.pack_from_broker(FROM_BROKER)
    assert wire.unpack_from_broker(packed) == FROM_BROKER


def test_big_payloads_and_results_go_in_several_messages_that_fit() -> None:
    wire = WorkerMessages()
    runs = [Run(each, 1, "elsa", "milk", bytes(1024 * 1024)) for each in range(10)]
    packed = wire.pack_from_broker([Assigned(1, runs)])
    assert all(len(data) <= MESSAGE_BYTES_MAX for data in packed)
    told = [each for data in packed for each in wire.unpack_from_broker(data)]
    assert [run for each in told if isinstance(each, Assigned) for run in each.runs] == runs
    done: list[FromWorker] = [
        Done(each, 1, [Completion(each, 1, Ended.FINISHED, bytes(1024 * 1024)) for _ in range(3)])
        for each in range(4)
    ]
    packed = wire.pack_from_worker(done)
    assert all(len(data) <= MESSAGE_BYTES_MAX for data in packed)
    assert [each for data in packed for each in wire.unpack_from_worker(data)] == done


def bad_ends() -> dict[str, bytes]:
    wire = broker_pb2
    far = wire.Completion(task_id=1, ended=wire.ATTEMPT_END_FAILED, retry_after_ms=2**62)
    no_limits = wire.WorkerMessage(config=wire.Config(limits=wire.WorkerLimits(places=5_001)))
    too_large = wire.Completion(
        task_id=1, ended=wire.ATTEMPT_END_FINISHED, result=bytes(1024 * 1024 + 1)
    )
    nowhere = wire.Completion(task_id=1, ended=wire.ATTEMPT_END_FINISHED, result_object="o" * 2_001)
    unknown = wire.Completion(task_id=1, ended=17)  # type: ignore[arg-type, unused-ignore]
    return {
        "cannot be read": b"\xff",
        "does not know": wire.WorkerMessages(messages=[wire.WorkerMessage()]).SerializeToString(),
        "at most 5000 places": wire.WorkerMessages(messages=[no_limits]).SerializeToString(),
        "no such end": wire.WorkerMessages(
            messages=[wire.WorkerMessage(done=wire.Done(completions=[unknown]))]
        ).SerializeToString(),
        "nobody gave away": wire.WorkerMessages(
            messages=[wire.WorkerMessage(done=wire.Done(completions=[far]))]
        ).SerializeToString(),
        "names no object": wire.WorkerMessages(
            messages=[wire.WorkerMessage(done=wire.Done(completions=[nowhere]))]
        ).SerializeToString(),
        "at most": wire.WorkerMessages(
            messages=[wire.WorkerMessage(done=wire.Done(completions=[too_large]))]
        ).SerializeToString(),
    }


@pytest.mark.parametrize(("word", "data"), bad_ends().items(), ids=bad_ends())
def test_what_a_worker_may_not_say_is_refused_in_words(word: str, data: bytes) -> None:
    with pytest.raises(InvalidTask, match=word):
        WorkerMessages().unpack_from_worker(data)


@pytest.mark.parametrize("hello", [b"", b"\xff", WorkerMessages().pack_from_worker(FROM_WORKER)[0]])
def test_a_stream_that_begins_with_no_hello_is_refused(hello: bytes) -> None:
    with pytest.raises(InvalidTask):
        WorkerMessages().unpack_hello(hello)


def test_a_hello_has_names_of_bounded_length() -> None:
    hello = Hello("barn" * 51, "p1", "host", (), LIMITS)
    with pytest.raises(InvalidTask, match="at most 200 characters"):
        WorkerMessages().unpack_hello(WorkerMessages().pack_hello(hello))


def test_what_a_later_broker_says_besides_is_left_out() -> None:
    later = broker_pb2.BrokerMessages(messages=[broker_pb2.BrokerMessage()])
    assert WorkerMessages().unpack_from_broker(later.SerializeToString()) == []
