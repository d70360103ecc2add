"""What a worker and the broker say to each other, and the link that carries it.

A link is a stream in both directions. In one process it hands over these objects; over gRPC they
are the messages of `proto/broker.proto`. Everything goes in batches: one call of `send` or
`receive` carries what gathered since the one before.

Invariants:
- The first message of the broker is `Welcome` or `Refused`; after `Refused` nothing comes.
- All that is said of tasks names the session: both sides drop what belongs to another one.
- An attempt is assigned once, and completed once: by the `Done` whose `sequence` is acknowledged.
- Sequences of a worker's messages grow by one; each is acknowledged by itself, a heartbeat at once,
  a `Done` when its results are durable.
- A worker ends its children half a lease after the sending of its last acknowledged heartbeat; the
  broker waits for the whole lease.
"""

import enum
from typing import Protocol

import msgspec

VERSION = 1
"""What is said here. A broker refuses a `Hello` of a later one."""

Attempt = tuple[int, int]
"""A task's id and the number of the attempt: the token that fences off all earlier attempts."""


class Ended(enum.IntEnum):
    """What an attempt came to, as the worker saw it."""

    FINISHED = 1
    FAILED = 2
    """It raised, passed its time or memory limit, or its process died: the retry rule decides."""
    HANDED_BACK = 3
    """It never began: it waits again, uncounted, whatever its mode."""
    ENDED_FOR_ANOTHER = 4
    """It had begun and was ended for no fault of its own: uncounted, lost if at most once."""
    INTERRUPTED = 5
    """It was ended because the broker asked for it."""


ANY_MODULE = "*:*"
"""Among a worker's types: all named as `module:function`, for it runs code that is sent."""


class WorkerLimits(msgspec.Struct, frozen=True, array_like=True):
    """What a worker takes at the same time. Replaced as a whole, also while it runs."""

    places: int
    """0: none for the moment."""
    places_by_type: dict[str, int] = {}
    """At most so many of a type; `any`: of every type that is not named."""
    groups: tuple[int, ...] = (0,)
    """In the order in which they are served; 0: any group that is not excluded."""
    excluded: tuple[int, ...] = ()
    resource_limits: dict[str, int] = {}
    share_percent: int = 0
    """How much of the free places of a type one tenant may have; 0: all."""


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """The beginning of a link. `running`: attempts that run here or whose end was not acknowledged.

    `process_id` tells one life of a worker from the next: it is drawn when its process starts.
    """

    worker_id: str
    process_id: str
    location: str
    types: tuple[str, ...]
    """The types that it runs; none: any type. `ANY_MODULE` stands for many."""
    limits: WorkerLimits
    running: tuple[Attempt, ...] = ()
    version: int = VERSION


# What the broker says


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The worker is connected. Of what it runs, `keep` goes on and `drop` is another's by now."""

    session: int
    lease_ms: int
    keep: tuple[Attempt, ...] = ()
    drop: tuple[Attempt, ...] = ()


class Run(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One attempt to run. Its assignment is durable.

    `deadline_ms` is a moment of the broker's clock, 0: none; `time_limit_ms` counts from the
    beginning of the function, 0: none.
    """

    id: int
    attempt: int
    tenant: str
    type: str
    payload: bytes
    time_limit_ms: int = 0
    deadline_ms: int = 0
    mode: int = 0
    codepool: str = ""
    execution: str = "factory"
    payload_object: str = ""
    """Where the payload is, if it is in a store of payloads."""


class Assigned(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Attempts to run now."""

    session: int
    runs: list[Run]


class Interrupt(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """End these attempts. Each is answered by its completion, whatever it came to meanwhile."""

    session: int
    attempts: list[Attempt]
    reason: str


class Acked(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """The message of that number was heard; of a `Done`: every result in it is durable or stale."""

    sequence: int


class Refused(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """The link ends. `leader` is where to connect instead, empty: not known, or not the matter.

    `final`: another attempt would be refused as well; the worker ends.
    """

    reason: str
    leader: str = ""
    final: bool = False


class Drain(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """Finish what runs, take nothing more, leave."""


FromBroker = Welcome | Assigned | Interrupt | Acked | Refused | Drain


# What the worker says


class Heartbeat(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The worker lives and consumes: `taken_total` attempts of this session came to it so far.

    `running` is how many places are taken.
    """

    sequence: int
    session: int
    running: int
    taken_total: int


class Completion(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The end of one attempt. `retry_after_ms`: no sooner than that, if it is tried again."""

    id: int
    attempt: int
    ended: Ended
    result: bytes = b""
    error: str = ""
    retry_after_ms: int | None = None
    no_retry: bool = False
    result_object: str = ""
    """Where the result is, if it is in a store of payloads."""


class Done(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Ends of attempts. Sent again over the next link if it is not acknowledged over this one."""

    sequence: int
    session: int
    completions: list[Completion]


class Config(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The worker's limits are these from now on."""

    sequence: int
    limits: WorkerLimits


class Leaving(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Assign nothing more: the worker drains.

    With `ended` nothing of it runs any more and all it did is acknowledged: its session ends.
    """

    sequence: int
    ended: bool = False


FromWorker = Heartbeat | Done | Config | Leaving


class WorkerLink(Protocol):
    """One connection of a worker with the leader."""

    async def receive(self) -> list[FromBroker]:
        """Wait for what the broker says; never empty. Raises `BrokerError` when the link ended."""
        ...

    async def send(self, messages: list[FromWorker]) -> None:
        """Say something; returns when the link has room for more. Raises `BrokerError` as above."""
        ...

    async def fetch_code(self, name: str) -> bytes:
        """A code pool's archive. Raises `UnknownCodePool`, `BrokerError` when the link ended."""
        ...

    async def close(self) -> None:
        """Let go of the link. The session lives on for its lease. May be called twice."""
        ...


class WorkerPort(Protocol):
    """Where workers connect."""

    async def connect(self, hello: Hello) -> WorkerLink:
        """Open a link to the leader. Raises `BrokerError` where none is reached."""
        ...
