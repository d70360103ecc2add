"""Messages between clients and bookies that arrive late, twice, or never.

Invariants:
- What is delivered from one client to one bookie arrives in the order sent, and so do replies;
  only repeated appends come out of order.
- A lost request or reply becomes UNAVAILABLE after a while, or nothing ever: never a wrong claim.
- A message names a bookie id: a wiped node, which is a new bookie, does not get its old mail.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from engine.errors import BookieUnavailable
from engine.run import NO_ENTRY, Run
from engine.transport.contract import (
    AppendReply,
    Bookie,
    BookieInfo,
    LacReply,
    LedgerFacts,
    ReadReply,
    ReadRequest,
    Status,
)
from tests.simulation.loop import Process, SimLoop
from tests.simulation.trace import Trace

R = TypeVar("R")

_GAP_S: Final = 1e-6
_CONNECT_LOST_S: Final = 1.0


class Endpoint(Protocol):
    """A node that messages can reach."""

    @property
    def name(self) -> str:
        """The node's name, through all its bookie ids."""
        ...

    @property
    def process(self) -> Process:
        """The process that runs now."""
        ...

    @property
    def service(self) -> Bookie | None:
        """The bookie, if it serves."""
        ...


@dataclass(slots=True)
class NetworkFaults:
    """Rates of one run; a share of 0.01 hits one message in a hundred."""

    lost_share: float = 0.0
    lost_question_share: float = 0.0
    repeated_share: float = 0.0
    silent_share: float = 0.5
    slow_share: float = 0.0
    latency_s: float = 0.0005
    slow_s: float = 0.3


class Link:
    """The two directions between one client and one node."""

    __slots__ = ("blocked_in", "blocked_out", "held", "holding", "in_free_s", "out_free_s")

    def __init__(self) -> None:
        self.blocked_out = False
        self.blocked_in = False
        self.holding = False
        self.held: list[Callable[[], None]] = []
        self.out_free_s = 0.0
        self.in_free_s = 0.0


class Network:
    """All links. Nodes are found by bookie id; a crashed node answers nothing."""

    def __init__(
        self, loop: SimLoop, rng: random.Random, trace: Trace, faults: NetworkFaults
    ) -> None:
        self.loop = loop
        self.rng = rng
        self.trace = trace
        self.faults = faults
        self._endpoints: dict[str, Endpoint] = {}
        self._links: dict[tuple[str, str], Link] = {}

    def listen(self, bookie_id: str, endpoint: Endpoint) -> None:
        """A node serves as this bookie from now on."""
        self._endpoints[bookie_id] = endpoint

    def endpoint(self, bookie_id: str) -> Endpoint | None:
        """The node that serves as a bookie now, if it runs."""
        endpoint = self._endpoints.get(bookie_id)
        if endpoint is None or endpoint.service is None or not endpoint.process.alive:
            return None
        return endpoint if endpoint.service.bookie_id == bookie_id else None

    def link(self, client: str, bookie_id: str) -> Link:
        """The link between a client and the node that has, or had, a bookie id."""
        node = self._endpoints[bookie_id].name if bookie_id in self._endpoints else bookie_id
        return self.link_to(client, node)

    def link_to(self, client: str, node: str) -> Link:
        """The link between a client and a node, by names."""
        return self._links.setdefault((client, node), Link())

    def heal(self) -> None:
        """End every fault: nothing is lost or held from now on."""
        self.faults = NetworkFaults()
        for link in self._links.values():
            link.blocked_out = link.blocked_in = False
            self.release(link)

    def release(self, link: Link) -> None:
        """Let held messages go, in order."""
        link.holding = False
        held, link.held = link.held, []
        for send in held:
            send()

    def send_out(self, link: Link, deliver: Callable[[], None], lost_share: float = 0.0) -> bool:
        """Carry a request; False if it is lost. `deliver` runs in nobody's process."""
        if link.holding:
            link.held.append(lambda: self._carry_out(link, deliver))
            return True
        if link.blocked_out or self.unlucky(max(lost_share, self.faults.lost_share)):
            return False
        self._carry_out(link, deliver)
        return True

    def send_in(self, link: Link, process: Process, deliver: Callable[[], None]) -> bool:
        """Carry a reply to a client; False if it is lost."""
        if link.holding:
            link.held.append(lambda: self._carry_in(link, process, deliver))
            return True
        if link.blocked_in or self.unlucky(self.faults.lost_share):
            return False
        self._carry_in(link, process, deliver)
        return True

    def later(self, delay_s: float, process: Process, callback: Callable[[], None]) -> None:
        """Do something in a process after a while."""
        self.loop.deliver_at(self.loop.now + delay_s, process, callback)

    def latency_s(self) -> float:
        """How long one message is under way."""
        faults = self.faults
        latency_s = faults.latency_s * (0.5 + self.rng.random())
        if self.unlucky(faults.slow_share):
            latency_s += faults.slow_s * self.rng.random()
        return latency_s

    def _carry_out(self, link: Link, deliver: Callable[[], None]) -> None:
        link.out_free_s = max(self.loop.now + self.latency_s(), link.out_free_s + _GAP_S)
        self.loop.deliver_at(link.out_free_s, self.loop.world, deliver)

    def _carry_in(self, link: Link, process: Process, deliver: Callable[[], None]) -> None:
        link.in_free_s = max(self.loop.now + self.latency_s(), link.in_free_s + _GAP_S)
        self.loop.deliver_at(link.in_free_s, process, deliver)

    def unlucky(self, share: float) -> bool:
        return share > 0 and self.rng.random() < share


class SimTransport:
    """One client's view of the network; implements `engine.transport.contract.Transport`."""

    def __init__(self, network: Network, client: str, process: Process) -> None:
        self.network = network
        self.client = client
        self.process = process
        self._proxies: dict[str, SimBookieProxy] = {}

    async def connect(self, bookie_id: str) -> "SimBookieProxy":
        """A connection, if the bookie can be reached now. Raises `BookieUnavailable`."""
        network = self.network
        known = self._proxies.get(bookie_id)
        if known is not None and network.endpoint(bookie_id) is not None:
            return known
        await asyncio.sleep(network.latency_s())
        link = network.link(self.client, bookie_id)
        if link.blocked_in or link.blocked_out:
            await asyncio.sleep(_CONNECT_LOST_S)
        if network.endpoint(bookie_id) is None or link.blocked_in or link.blocked_out:
            raise BookieUnavailable(f"bookie {bookie_id} does not answer")
        proxy = SimBookieProxy(self, bookie_id, link)
        self._proxies[bookie_id] = proxy
        return proxy

    async def close(self) -> None:
        """Nothing is kept open."""
        self._proxies.clear()


class SimBookieProxy:
    """A connection from one client to one bookie id."""

    def __init__(self, transport: SimTransport, bookie_id: str, link: Link) -> None:
        self.bookie_id = bookie_id
        self._network = transport.network
        self._client = transport.client
        self._process = transport.process
        self._link = link

    def append(
        self,
        runs: Sequence[Run],
        reply: Callable[[AppendReply], None],
        *,
        key: bytes,
        facts: LedgerFacts | None = None,
        recovery: bool = False,
    ) -> None:
        network = self._network
        first, last = runs[0].first, runs[-1].last
        ledger_id = runs[0].ledger_id
        network.trace.event("append", self._client, self.bookie_id, ledger_id, first, last)
        unavailable = AppendReply(
            Status.UNAVAILABLE, ledger_id, first, last, self.bookie_id, NO_ENTRY
        )

        def give_up() -> None:
            self._maybe_later(lambda: reply(unavailable))

        def answer(answered: AppendReply) -> None:
            network.trace.event("reply", self._client, answered.bookie_id, answered.status, last)
            if not network.send_in(self._link, self._process, lambda: reply(answered)):
                network.trace.fault("lost reply", self._client, self.bookie_id)
                give_up()

        def deliver(answer: Callable[[AppendReply], None]) -> None:
            def call(service: Bookie) -> None:
                service.append(runs, answer, key=key, facts=facts, recovery=recovery)

            if not self._at_bookie(call):
                give_up()

        if not network.send_out(self._link, lambda: deliver(answer)):
            network.trace.fault("lost request", self._client, self.bookie_id)
            give_up()
        if network.unlucky(network.faults.repeated_share):
            network.trace.fault("repeated append", self._client, self.bookie_id, first)
            delay_s = network.rng.expovariate(1.0)
            network.later(delay_s, network.loop.world, lambda: deliver(_ignore))

    def confirm(self, ledger_id: int, lac: int) -> None:
        self._tell(lambda service: service.confirm(ledger_id, lac))

    def record(self, facts: LedgerFacts, key: bytes) -> None:
        self._tell(lambda service: service.record(facts, key))

    async def read(self, request: ReadRequest) -> ReadReply:
        silent = ReadReply(Status.UNAVAILABLE, (), None, None, NO_ENTRY, self.bookie_id, 0)
        return await self._ask("read", lambda service: service.read(request), silent)

    async def fence(self, ledger_id: int, key: bytes) -> LacReply:
        silent = LacReply(Status.UNAVAILABLE, NO_ENTRY, self.bookie_id, 0)
        return await self._ask("fence", lambda service: service.fence(ledger_id, key), silent)

    async def wait_lac(self, ledger_id: int, above: int, timeout_ms: int) -> LacReply:
        silent = LacReply(Status.UNAVAILABLE, NO_ENTRY, self.bookie_id, 0)
        return await self._ask(
            "wait_lac", lambda service: service.wait_lac(ledger_id, above, timeout_ms), silent
        )

    async def info(self) -> BookieInfo:
        found = await self._ask("info", lambda service: service.info(), None)
        if found is None:
            raise BookieUnavailable(f"bookie {self.bookie_id} does not answer")
        return found

    def _tell(self, call: Callable[[Bookie], None]) -> None:
        """A message without a reply."""
        self._network.send_out(self._link, lambda: self._drop_at_bookie(call))

    def _drop_at_bookie(self, call: Callable[[Bookie], None]) -> None:
        self._at_bookie(call)

    def _at_bookie(self, call: Callable[[Bookie], None]) -> bool:
        """Run a call in the bookie's process; False if the bookie is gone."""
        endpoint = self._network.endpoint(self.bookie_id)
        if endpoint is None:
            return False
        service = endpoint.service
        assert service is not None
        self._network.loop.deliver_at(self._network.loop.now, endpoint.process, call, service)
        return True

    async def _ask(
        self, what: str, call: Callable[[Bookie], Coroutine[Any, Any, R]], silent: R
    ) -> R:
        """Send a question and wait for its answer, for ever if it is lost."""
        network = self._network
        network.trace.event(what, self._client, self.bookie_id)
        answered: asyncio.Future[R] = network.loop.create_future()

        def settle(reply: R) -> None:
            if not answered.done():
                answered.set_result(reply)

        def give_up() -> None:
            self._maybe_later(lambda: settle(silent))

        async def serve(service: Bookie) -> None:
            reply = await call(service)
            if not network.send_in(self._link, self._process, lambda: settle(reply)):
                network.trace.fault("lost reply", self._client, self.bookie_id)
                give_up()

        def start(service: Bookie) -> None:
            network.loop.create_task(serve(service), name=f"{what} at {self.bookie_id}")

        def deliver() -> None:
            if not self._at_bookie(start):
                give_up()

        if not network.send_out(self._link, deliver, network.faults.lost_question_share):
            network.trace.fault("lost request", self._client, self.bookie_id)
            give_up()
        return await answered

    def _maybe_later(self, callback: Callable[[], None]) -> None:
        """A failure is noticed after a while, or never."""
        network = self._network
        if network.rng.random() >= network.faults.silent_share:
            network.later(0.01 + network.rng.expovariate(2.0), self._process, callback)


def _ignore(_: AppendReply) -> None:
    """The answer to a repeated append goes nowhere."""
