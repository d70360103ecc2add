"""What workers and the broker say, as messages of `proto/broker.proto` and back.

Invariants:
- A message that the file allows and the broker does not is refused with a word, never passed on.
- What one side packs, the other one unpacks to an equal object.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from broker.connection import (
    Acked,
    Assigned,
    Attempt,
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
from broker.keys import ID_MAX
from broker.spec import NAME_LENGTH_MAX, OBJECT_NAME_MAX, TIME_MAX_MS
from broker.task import ERROR_LENGTH_MAX, PAYLOAD_BYTES_MAX, Mode

if TYPE_CHECKING:
    from broker.wire.grpc_generated import broker_pb2 as wire

PLACES_MAX: Final = 5_000
_LIMITS_MAX: Final = 1_000
MESSAGE_BYTES: Final = 2 * 1024 * 1024
"""A message to send gathers about as much; one task more still fits what a server takes."""


class WorkerMessages:
    """Both directions. Loads protobuf when it is made."""

    def __init__(self) -> None:
        from broker.wire.grpc_generated import broker_pb2

        self._wire = broker_pb2

    # What a worker says

    def pack_hello(self, hello: Hello) -> bytes:
        """The first message of a worker's stream."""
        said = self._wire.WorkerMessages()
        to = said.messages.add().hello
        to.worker_id, to.process_id, to.location = hello.worker_id, hello.process_id, hello.location
        to.types.extend(hello.types)
        to.version = hello.version
        self._limits_to(to.limits, hello.limits)
        self._attempts_to(to.running, hello.running)
        return said.SerializeToString()

    def unpack_hello(self, data: bytes) -> Hello:
        """A worker's first message. Raises `InvalidTask`."""
        said = self._parsed(self._wire.WorkerMessages, data).messages
        if len(said) != 1 or said[0].WhichOneof("message") != "hello":
            raise InvalidTask("a worker's first message is its hello, alone")
        hello = said[0].hello
        if not hello.worker_id or not hello.process_id:
            raise InvalidTask("a hello names worker and process")
        for name in (hello.worker_id, hello.process_id, hello.location, *hello.types):
            if len(name) > NAME_LENGTH_MAX:
                raise InvalidTask(f"a name has at most {NAME_LENGTH_MAX} characters")
        return Hello(
            hello.worker_id,
            hello.process_id,
            hello.location,
            tuple(hello.types),
            _limits_of(hello.limits),
            _attempts_of(hello.running),
            hello.version,
        )

    def pack_from_worker(self, messages: Iterable[FromWorker]) -> list[bytes]:
        """What a worker says after its hello, in as many messages as it takes."""
        return self._packed(self._wire.WorkerMessages, messages, self._from_worker_to)

    def unpack_from_worker(self, data: bytes) -> list[FromWorker]:
        """What a worker said. Raises `InvalidTask`."""
        said = self._parsed(self._wire.WorkerMessages, data).messages
        return [_from_worker(each) for each in said]

    # What the broker says

    def pack_from_broker(self, messages: Iterable[FromBroker]) -> list[bytes]:
        """What the broker says, in as many messages as it takes."""
        return self._packed(self._wire.BrokerMessages, messages, self._from_broker_to)

    def unpack_from_broker(self, data: bytes) -> list[FromBroker]:
        """What the broker said; what a later version says besides is left out.

        Raises `InvalidTask`.
        """
        said = self._parsed(self._wire.BrokerMessages, data).messages
        found = [_from_broker(each) for each in said]
        return [each for each in found if each is not None]

    # Inside

    def _parsed(self, kind: Any, data: bytes) -> Any:
        from google.protobuf.message import DecodeError

        try:
            return kind.FromString(data)
        except DecodeError as error:
            raise InvalidTask(f"{kind.DESCRIPTOR.name} cannot be read") from error

    def _packed(
        self, kind: Any, messages: Iterable[Any], put: Callable[[Any, Any], int]
    ) -> list[bytes]:
        packed, gathered, size_bytes = [], kind(), 0
        for message in messages:
            for part in parts_of_message(message):
                size_bytes += put(gathered.messages.add(), part)
                if size_bytes >= MESSAGE_BYTES:
                    packed.append(gathered.SerializeToString())
                    gathered, size_bytes = kind(), 0
        if gathered.messages:
            packed.append(gathered.SerializeToString())
        return packed

    def _from_worker_to(self, to: "wire.WorkerMessage", message: FromWorker) -> int:
        size_bytes = 0
        if isinstance(message, Done):
            to.done.sequence, to.done.session = message.sequence, message.session
            for each in message.completions:
                size_bytes += len(each.result) + len(each.error) + 64
                to.done.completions.add(
                    task_id=each.id,
                    attempt=each.attempt,
                    ended=int(each.ended),
                    result=each.result,
                    error=each.error,
                    retry_after_ms=each.retry_after_ms,
                    no_retry=each.no_retry,
                    result_object=each.result_object,
                )
        elif isinstance(message, Heartbeat):
            to.heartbeat.sequence, to.heartbeat.session = message.sequence, message.session
            to.heartbeat.running, to.heartbeat.taken_total = message.running, message.taken_total
        elif isinstance(message, Config):
            to.config.sequence = message.sequence
            self._limits_to(to.config.limits, message.limits)
        else:
            to.leaving.sequence, to.leaving.ended = message.sequence, message.ended
        return size_bytes

    def _from_broker_to(self, to: "wire.BrokerMessage", message: FromBroker) -> int:
        size_bytes = 0
        if isinstance(message, Assigned):
            to.assigned.session = message.session
            for run in message.runs:
                size_bytes += len(run.payload) + 64
                to.assigned.runs.add(
                    task_id=run.id,
                    attempt=run.attempt,
                    tenant=run.tenant,
                    type=run.type,
                    payload=run.payload,
                    time_limit_ms=run.time_limit_ms,
                    deadline_ms=run.deadline_ms,
                    at_most_once=run.mode == Mode.AT_MOST_ONCE,
                    code_pool=run.codepool,
                    execution=run.execution,
                    payload_object=run.payload_object,
                )
        elif isinstance(message, Acked):
            to.acked.sequence = message.sequence
        elif isinstance(message, Welcome):
            to.welcome.session, to.welcome.lease_ms = message.session, message.lease_ms
            self._attempts_to(to.welcome.keep, message.keep)
            self._attempts_to(to.welcome.drop, message.drop)
        elif isinstance(message, Interrupt):
            to.interrupt.session, to.interrupt.reason = message.session, message.reason
            self._attempts_to(to.interrupt.attempts, message.attempts)
        elif isinstance(message, Refused):
            to.refused.reason, to.refused.leader = message.reason, message.leader
            to.refused.final = message.final
        else:
            to.drain.SetInParent()
        return size_bytes

    def _attempts_to(self, to: Any, attempts: Iterable[Attempt]) -> None:
        for task_id, attempt in attempts:
            to.add(task_id=task_id, attempt=attempt)

    def _limits_to(self, to: "wire.WorkerLimits", limits: WorkerLimits) -> None:
        to.places, to.share_percent = limits.places, limits.share_percent
        to.places_by_type.update(limits.places_by_type)
        to.groups.extend(limits.groups)
        to.excluded.extend(limits.excluded)
        to.resource_limits.update(limits.resource_limits)


def parts_of_message(message: Any) -> Iterable[Any]:
    """A message, or several that say the same: a batch of big payloads fits no single one."""
    if not isinstance(message, Assigned):
        return [message]
    parts, runs, size_bytes = [], [], 0
    for run in message.runs:
        runs.append(run)
        size_bytes += len(run.payload)
        if size_bytes >= MESSAGE_BYTES:
            parts.append(Assigned(message.session, runs))
            runs, size_bytes = [], 0
    if runs:
        parts.append(Assigned(message.session, runs))
    return parts


def _from_worker(said: "wire.WorkerMessage") -> FromWorker:
    kind = said.WhichOneof("message")
    if kind == "done":
        completions = [_completion(each) for each in said.done.completions]
        return Done(said.done.sequence, said.done.session, completions)
    if kind == "heartbeat":
        beat = said.heartbeat
        return Heartbeat(beat.sequence, beat.session, beat.running, beat.taken_total)
    if kind == "config":
        return Config(said.config.sequence, _limits_of(said.config.limits))
    if kind == "leaving":
        return Leaving(said.leaving.sequence, said.leaving.ended)
    raise InvalidTask("a worker says what this broker does not know")


def _completion(said: "wire.Completion") -> Completion:
    if said.ended not in _ENDS:
        raise InvalidTask(f"task {said.task_id}: an attempt has no such end: {said.ended}")
    if said.task_id > ID_MAX or said.attempt > ID_MAX or said.retry_after_ms > TIME_MAX_MS:
        raise InvalidTask("a completion has numbers that nobody gave away")
    if len(said.result) > PAYLOAD_BYTES_MAX:
        raise InvalidTask(f"task {said.task_id}: a result has at most {PAYLOAD_BYTES_MAX} bytes")
    if len(said.result_object) > OBJECT_NAME_MAX:
        raise InvalidTask(f"task {said.task_id}: that names no object: {said.result_object[:80]}")
    return Completion(
        said.task_id,
        said.attempt,
        Ended(said.ended),
        said.result,
        said.error[:ERROR_LENGTH_MAX],
        said.retry_after_ms if said.HasField("retry_after_ms") else None,
        said.no_retry,
        said.result_object,
    )


def _from_broker(said: "wire.BrokerMessage") -> FromBroker | None:
    kind = said.WhichOneof("message")
    if kind == "assigned":
        return Assigned(said.assigned.session, [_run(each) for each in said.assigned.runs])
    if kind == "acked":
        return Acked(said.acked.sequence)
    if kind == "welcome":
        hail = said.welcome
        keep, drop = _attempts_of(hail.keep), _attempts_of(hail.drop)
        return Welcome(hail.session, hail.lease_ms, keep, drop)
    if kind == "interrupt":
        asked = said.interrupt
        return Interrupt(asked.session, list(_attempts_of(asked.attempts)), asked.reason)
    if kind == "refused":
        return Refused(said.refused.reason, said.refused.leader, said.refused.final)
    return Drain() if kind == "drain" else None


def _run(said: "wire.Run") -> Run:
    return Run(
        said.task_id,
        said.attempt,
        said.tenant,
        said.type,
        said.payload,
        said.time_limit_ms,
        said.deadline_ms,
        int(Mode.AT_MOST_ONCE if said.at_most_once else Mode.AT_LEAST_ONCE),
        said.code_pool,
        said.execution,
        said.payload_object,
    )


def _limits_of(said: "wire.WorkerLimits") -> WorkerLimits:
    if said.places > PLACES_MAX:
        raise InvalidTask(f"a worker has at most {PLACES_MAX} places")
    if len(said.places_by_type) + len(said.resource_limits) + len(said.groups) > _LIMITS_MAX:
        raise InvalidTask(f"a worker has at most {_LIMITS_MAX} limits and groups")
    return WorkerLimits(
        said.places,
        dict(said.places_by_type),
        tuple(said.groups),
        tuple(said.excluded),
        dict(said.resource_limits),
        said.share_percent,
    )


def _attempts_of(said: Any) -> tuple[Attempt, ...]:
    return tuple((each.task_id, each.attempt) for each in said)


_ENDS: Final = frozenset(int(each) for each in Ended)
