"""The workers of a term: their links, their sessions, and what each of them runs.

Invariants:
- A worker has one session and at most one link. A second process with the same name is refused
  until the first one has left or its lease has expired: its tasks may run until then.
- Messages of a link apply only to the session of that link.
- A place becomes free when the worker reports the end of the attempt, or when its session ends.
- A heartbeat renews a lease, and is acknowledged, only if the worker takes in what was sent to it
  before the last one, and only if no other leader's term had begun when it came: see `leases`.
- The leader waits for a worker for as long as the longest lease that the worker may be using.
- A worker that keeps handing back all its tasks gets none for a pause, which grows each time.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Protocol

import msgspec

from broker.commands import Forget, Lost, Running, Session, decode_session
from broker.connection import (
    VERSION,
    Acked,
    Attempt,
    Config,
    Done,
    Ended,
    FromWorker,
    Heartbeat,
    Hello,
    Interrupt,
    Leaving,
    Refused,
    Welcome,
    WorkerLimits,
)
from broker.connection import Completion as Told
from broker.errors import BrokerError
from broker.leading.completing import Completing
from broker.leading.leases import Leases
from broker.leading.link import LocalLink
from broker.leading.proposing import Proposing
from broker.spec import HELD_MAX, NAME_LENGTH_MAX, SETTING_BYTES_MAX
from broker.task import SessionState, Task, WorkerSession

HELD_PART: Final = 1_000
BACKS_MAX: Final = 3
"""How often in a row a worker may hand back everything that it reports, before it has to rest."""
REST_MS: Final = 100
REST_MS_MAX: Final = 10_000
_HANDED_BACK: Final = Ended.HANDED_BACK
_logger = logging.getLogger(__name__)


class Known(msgspec.Struct, array_like=True):
    """The part of a worker's `Hello` that is stored with its session, for the next leader."""

    types: tuple[str, ...]
    limits: WorkerLimits
    lease_ms: int = 0
    """The longest lease that it may be using; 0: not known."""


_encode = msgspec.msgpack.Encoder().encode
decode_known = msgspec.msgpack.Decoder(Known).decode


class Member:
    """One worker, as the leader knows it."""

    __slots__ = (
        "asked",
        "attempts",
        "backs",
        "beaten_total",
        "heard",
        "known",
        "leaving",
        "link",
        "location",
        "process_id",
        "resting",
        "sent_total",
        "session",
        "since_ms",
        "taken_total",
        "told",
        "worker_id",
    )

    def __init__(self, worker_id: str) -> None:
        self.worker_id = worker_id
        self.session = 0
        self.process_id = ""
        self.location = ""
        self.since_ms = 0
        self.known = Known((), WorkerLimits(0))
        self.heard = False
        """Whether a heartbeat has come in this session: then the worker knows its lease."""
        self.link: LocalLink | None = None
        """None: it cannot be reached at the moment."""
        self.leaving = False
        self.backs = 0
        """How often in a row it has handed back everything that it reported."""
        self.resting = False
        self.attempts: dict[int, int] = {}
        """The tasks that it runs, and the number of each attempt."""
        self.told: dict[int, int] = {}
        """Attempts whose end it has reported, and is not logged yet: their places are free."""
        self.asked: dict[int, str] = {}
        """The tasks that it was asked to end, and why."""
        self.sent_total = 0
        self.beaten_total = 0
        """The value of `sent_total` at its last heartbeat."""
        self.taken_total = 0

    @property
    def assignable(self) -> bool:
        """Whether tasks may be assigned to it."""
        return self.link is not None and not self.leaving and not self.resting


class Places(Protocol):
    """Is called when a worker's places change. This is the scheduler's side of a member."""

    def came(self, member: Member) -> None:
        """A worker has connected, or has changed its limits."""
        ...

    def went(self, member: Member) -> None:
        """A worker's session has ended."""
        ...

    def freed(self, task_ids: Iterable[int]) -> None:
        """Attempts have ended; their places are free."""
        ...

    def rests(self, member: Member, rest_ms: int) -> None:
        """A worker gets no tasks for this long."""
        ...


class Crew:
    """All workers of one term."""

    def __init__(
        self,
        proposing: Proposing,
        completing: Completing,
        leases: Leases,
        places: Places,
        drawn: Callable[[], int],
        may_grant: Callable[[], bool],
        wrong: Callable[[str], None],
    ) -> None:
        """`may_grant`: see `Replicated.may_answer`. `wrong` is called if something here fails."""
        self.wrong = wrong
        self._may_grant = may_grant
        self._proposing = proposing
        self._completing = completing
        self._leases = leases
        self._places = places
        self._drawn = drawn
        self._members: dict[str, Member] = {}
        self._unconfirmed: list[tuple[Member, LocalLink, int]] = []
        """Heartbeats, by their sequence numbers, to be acknowledged once the log has accepted."""
        self._confirming = False
        self._draining = False

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def get(self, worker_id: str) -> Member | None:
        """A worker that has a session."""
        return self._members.get(worker_id)

    # The beginning of a term

    def restore(self, row: WorkerSession) -> None:
        """Restore a session of an earlier leader. Its worker gets a whole lease to reconnect."""
        if row.state is not SessionState.CONNECTED:
            return
        member = self._members[row.worker_id] = Member(row.worker_id)
        self._know(member, row)

    def session_began(self, row: WorkerSession) -> None:
        """A worker's session was logged, even if its link fails afterwards."""
        member = self._members.get(row.worker_id)
        if member is None:
            member = self._members[row.worker_id] = Member(row.worker_id)
        if member.link is not None:
            member.link.end("the worker has connected again")
        self._know(member, row)
        member.leaving = False
        member.sent_total = member.beaten_total = member.taken_total = 0

    def _know(self, member: Member, row: WorkerSession) -> None:
        member.session, member.process_id = row.session, row.process_id
        member.location, member.since_ms = row.location, row.since_ms
        try:
            member.known = decode_known(row.limits)
        except msgspec.MsgspecError:
            # Another version wrote them. The worker sends them again when it reconnects.
            _logger.info("the limits of worker %s are not understood", row.worker_id)
        member.heard = False
        self._leases.grant(row.worker_id, member.known.lease_ms)
        self._places.came(member)

    # Connecting

    async def connect(self, hello: Hello) -> LocalLink:
        """Open a link for a worker. Raises `BrokerError` if the term ends meanwhile."""
        link = LocalLink(hello.worker_id, self._hear, self._link_ended)
        refusal = self._refusal(hello)
        if refusal is not None:
            link.say(refusal)
            link.end(refusal.reason)
            return link
        before = self._members.get(hello.worker_id)
        # Tasks under way were never sent: they are handed back when the log answers.
        held: list[int] = []
        lease_ms = self._leases.lease_ms
        if before is not None:
            if not before.heard:
                # Until its first heartbeat, it may be using the lease of the session before.
                lease_ms = max(lease_ms, before.known.lease_ms)
            held = [*before.attempts, *before.told]
            if before.link is not None:
                before.link.end("the worker has connected again")
        session = Session(
            hello.worker_id,
            hello.process_id,
            hello.location,
            self._proposing.time.now_ms(),
            [Running(*attempt) for attempt in hello.running],
            held,
            _encode(Known(hello.types, hello.limits, lease_ms)),
            str(hello.version),
            self._drawn(),
        )
        opened = decode_session(await self._proposing.ask(session))
        keep = tuple((one.task_id, one.attempt) for one in opened.keep)
        self._welcome(link, hello, opened.session, keep)
        return link

    def _refusal(self, hello: Hello) -> Refused | None:
        if hello.version > VERSION:
            return Refused(
                f"the worker has protocol version {hello.version}, the broker {VERSION}: upgrade "
                "the broker first",
                final=True,
            )
        if not 0 < len(hello.worker_id) <= NAME_LENGTH_MAX:
            text = f"a worker's id has 1 to {NAME_LENGTH_MAX} letters"
            return Refused(text, final=True)
        too_long = max(len(hello.process_id), len(hello.location)) > NAME_LENGTH_MAX
        if too_long or len(hello.running) > HELD_MAX:
            text = f"a worker's process and place have at most {NAME_LENGTH_MAX} letters each"
            return Refused(f"{text}, and it runs at most {HELD_MAX} tasks", final=True)
        if len(_encode(Known(hello.types, hello.limits))) > SETTING_BYTES_MAX:
            return Refused("the worker names too many types or limits", final=True)
        if self._draining:
            return Refused("this leader is about to be replaced by another one")
        known = self._members.get(hello.worker_id)
        if known is not None and known.process_id != hello.process_id:
            return self._taken(known)
        return None

    def _taken(self, known: Member) -> Refused:
        """Refuse a second process with the same name: the first may still run its tasks."""
        if known.link is not None:
            return Refused(
                f"worker {known.worker_id} is already connected from {known.location}: "
                "give this worker another name, or stop the other one"
            )
        left_ms = self._leases.left_ms(known.worker_id)
        return Refused(
            f"worker {known.worker_id} was another process at {known.location}, which did not shut "
            f"down cleanly: its id becomes free in {left_ms:,} ms"
        )

    def _welcome(
        self, link: LocalLink, hello: Hello, session: int, keep: tuple[Attempt, ...]
    ) -> None:
        member = self._members.get(hello.worker_id) or Member(hello.worker_id)
        if member.session > session:
            link.end("the worker has connected again")
            return
        if member.link is not None:
            member.link.end("the worker has connected again")
        self._members[hello.worker_id] = member
        kept = dict(keep)
        asked, member.asked = member.asked, {}
        member.session, member.process_id = session, hello.process_id
        member.location, member.since_ms = hello.location, self._proposing.time.now_ms()
        member.known = Known(hello.types, hello.limits, member.known.lease_ms)
        member.leaving = False
        member.sent_total = member.beaten_total = member.taken_total = 0
        member.link, link.session = link, session
        self._leases.grant(hello.worker_id, member.known.lease_ms)
        drop = tuple(one for one in hello.running if kept.get(one[0]) != one[1])
        link.say(Welcome(session, self._leases.lease_ms, keep, drop))
        self._places.came(member)
        for task_id, reason in asked.items():
            self.interrupt(task_id, member.worker_id, reason)

    # Hearing

    def _hear(self, link: LocalLink, messages: Sequence[FromWorker]) -> None:
        member = self._members.get(link.worker_id)
        if member is None or member.link is not link:
            link.end("the session is over")
            return
        try:
            self._take_in(member, link, messages)
        except Exception:
            _logger.exception("handling messages of worker %s failed", link.worker_id)
            self.wrong("handling messages of a worker failed")

    def _take_in(self, member: Member, link: LocalLink, messages: Sequence[FromWorker]) -> None:
        for message in messages:
            kind = type(message)
            if kind is Done:
                self._done(member, link, message)  # type: ignore[arg-type]
            elif kind is Heartbeat:
                self._beaten(member, link, message)  # type: ignore[arg-type]
            elif isinstance(message, Config):
                member.known = msgspec.structs.replace(member.known, limits=message.limits)
                self._places.came(member)
                link.say(Acked(message.sequence))
            elif isinstance(message, Leaving):
                self._leaves(member, link, message)

    def _done(self, member: Member, link: LocalLink, done: Done) -> None:
        if done.session == member.session:
            # It works on its tasks, so this is as good as a heartbeat.
            self._leases.grant(member.worker_id, member.known.lease_ms)
            attempts, asked = member.attempts, member.asked
            ended = [one.id for one in done.completions if attempts.get(one.id) == one.attempt]
            for task_id in ended:
                attempt = attempts.pop(task_id, None)
                if attempt is not None:
                    member.told[task_id] = attempt
                if asked:
                    asked.pop(task_id, None)
            # The functions have ended, so their places are free before the results are durable.
            self._places.freed(ended)
            if done.completions:
                self._handed_back(member, done.completions)
        self._completing.take(link, done)

    def _beaten(self, member: Member, link: LocalLink, beat: Heartbeat) -> None:
        if beat.session != member.session:
            return
        taken_in = beat.taken_total >= member.beaten_total
        member.taken_total = beat.taken_total
        member.beaten_total = member.sent_total
        if not member.heard:
            # It has received its welcome, so from now on it uses the lease in that.
            member.heard = True
            member.known = msgspec.structs.replace(member.known, lease_ms=self._leases.lease_ms)
        if taken_in and self._may_grant():
            self._acknowledge(member, link, beat.sequence)
        elif taken_in:
            self._unconfirmed.append((member, link, beat.sequence))
            self._confirm()

    def _acknowledge(self, member: Member, link: LocalLink, sequence: int) -> None:
        self._leases.grant(member.worker_id, self._leases.lease_ms)
        # The worker renews its lease when it gets this.
        link.say(Acked(sequence))

    def _confirm(self) -> None:
        """Acknowledge the heartbeats that came while the lease has expired, if the log accepts.

        One append answers for all that came before it was sent. The next one waits for its answer.
        """
        if self._confirming or not self._unconfirmed:
            return
        self._confirming = True
        beats, self._unconfirmed = self._unconfirmed, []

        def heard(told: bytes | BrokerError) -> None:
            self._confirming = False
            if not isinstance(told, BrokerError):
                for member, link, sequence in beats:
                    if member.link is link:
                        self._acknowledge(member, link, sequence)
            asyncio.get_running_loop().call_soon(self._confirm)

        # A command that changes nothing.
        self._proposing.send(Forget([], self._proposing.time.now_ms()), heard)

    def _handed_back(self, member: Member, told: Sequence[Told]) -> None:
        """Pause a worker that begins none of its tasks: each round costs two log entries.

        Causes are, for example, a code pool that it cannot fetch, or processes that do not start.
        """
        if not all(one.ended is _HANDED_BACK for one in told):
            member.backs = 0
            return
        member.backs += 1
        if member.backs >= BACKS_MAX and not member.resting and not member.leaving:
            rest_ms = min(REST_MS << min(member.backs - BACKS_MAX, 20), REST_MS_MAX)
            _logger.warning(
                "worker %s at %s has handed back all its tasks %d times in a row: it gets no "
                "tasks for %d ms; see the worker's log",
                *(member.worker_id, member.location, member.backs, rest_ms),
            )
            self._places.rests(member, rest_ms)

    def _leaves(self, member: Member, link: LocalLink, leaving: Leaving) -> None:
        member.leaving = True
        if not leaving.ended:
            link.say(Acked(leaving.sequence))
            return

        def heard(told: bytes | BrokerError) -> None:
            if not isinstance(told, BrokerError):
                link.say(Acked(leaving.sequence))
                link.end("the worker has left")

        self._end_session(member, left=True, heard=heard)

    def _link_ended(self, link: LocalLink) -> None:
        member = self._members.get(link.worker_id)
        if member is not None and member.link is link:
            member.link = None

    # Running

    def interrupt(self, task_id: int, worker_id: str, reason: str) -> None:
        """Ask a worker to end a task's attempt, and again if it reconnects."""
        member = self._members.get(worker_id)
        attempt = member.attempts.get(task_id) if member is not None else None
        if member is None or attempt is None or task_id in member.asked:
            return
        member.asked[task_id] = reason
        if member.link is not None:
            member.link.say(Interrupt(member.session, [(task_id, attempt)], reason))

    def forget(self, tasks: Iterable[Task]) -> None:
        """These tasks no longer run on their workers, as logged."""
        members = self._members
        for task in tasks:
            member = members.get(task.worker_id)
            if member is not None:
                member.told.pop(task.id, None)
                if member.attempts.pop(task.id, None) is not None:
                    member.asked.pop(task.id, None)

    def look(self) -> None:
        """End sessions whose lease has expired. To be called several times per lease."""
        for worker_id in self._leases.expired():
            member = self._members.get(worker_id)
            if member is not None:
                _logger.warning(
                    "worker %s at %s sent nothing for %d ms: its %d tasks are taken back",
                    worker_id,
                    member.location,
                    max(self._leases.lease_ms, member.known.lease_ms),
                    len(member.attempts),
                )
                self._end_session(member, left=False, heard=lambda told: None)

    def _end_session(
        self, member: Member, *, left: bool, heard: Callable[[bytes | BrokerError], None]
    ) -> None:
        if not left and member.link is not None:
            member.link.end("the session's lease has expired")
        held = [*member.attempts, *member.told]
        now_ms = self._proposing.time.now_ms()
        parts = [held[at : at + HELD_PART] for at in range(0, len(held), HELD_PART)] or [[]]
        for number, part in enumerate(parts):
            last = number == len(parts) - 1
            lost = Lost(member.worker_id, member.session, now_ms, part, left, self._drawn())
            self._proposing.send(lost, heard if last else _unheard)

    def session_ended(self, worker_id: str, session: int) -> None:
        """The end of a session was logged."""
        member = self._members.get(worker_id)
        if member is not None and member.session == session:
            if member.link is not None and not member.leaving:
                member.link.end("the session is over")
            self._places.freed(member.attempts)
            del self._members[worker_id]
            self._leases.end(worker_id)
            self._places.went(member)

    # The end of a term

    def drain(self) -> None:
        """Accept no more workers."""
        self._draining = True

    def end(self, refusal: Refused) -> None:
        """Close all links. The workers then look for the next leader."""
        self._draining = True
        for member in list(self._members.values()):
            if member.link is not None:
                member.link.say(refusal)
                member.link.end(refusal.reason)


def _unheard(told: bytes | BrokerError) -> None:
    """Ignore the answer."""
