"""The specification of leadership, as a model that is explored in full.

    .venv/bin/python -m tests.leadership             the bounds of the suite
    .venv/bin/python -m tests.leadership --large     larger ones, some minutes

There are two objects in the metadata store, the key and the list, and the ledgers on the bookies.
Each is linearizable; a write of the key or the list is a compare-and-set.

- The key says who is elected: a version, whether it was given back, and the lease of its holder.
- The list says who leads: the epoch, and the ledger that is written last.
- A ledger takes appends of its own epoch until it is fenced. Closing it by recovery fences it.

Rules, each a field of `Rules`:

1. A candidate looks at the key and waits from then on for the longer of the lease that the key
   tells and its own (`waits_for_the_longer_lease`); not at all if the key was given back. Then it
   takes the key from the version that it saw (`takes_what_it_saw`).
2. A holder's lease begins before its write of the key was sent (`leases_from_the_sending`), with
   the write that takes the key and with each write that renews it.
3. A holder whose renewal conflicts has lost the key and stops (`stops_when_the_key_is_lost`).
4. Who has the key reads the list. The reply counts only if the lease holds when it arrives
   (`looks_at_the_lease_after_the_read`). A read before the key is won would be safe too, as long as
   rule 5 holds, but finds an old epoch more often (`reads_when_elected`).
5. It raises the epoch by one, from exactly the epoch that it read (`raises_from_what_was_read`). A
   conflict is the end of the attempt.
6. It closes the last listed ledger by recovery, which fences it (`fences`), and applies it.
7. It lists a ledger of its own, if the list still has its epoch (`lists_in_its_epoch`). It leads.
8. A leader acknowledges an append when its ledger took it. That needs no lease.
9. A leader answers reads, and grants whatever it grants, only while its lease holds
   (`answers_under_the_lease`).
10. Who gives the key back, or ends its attempt for another reason, has no lease from the moment
    before that is sent (`resigning_ends_the_lease`).

Why it holds. Let X answer in epoch x while its lease holds, and let an append have been
acknowledged in a later epoch. Somebody, Z, raised x to x + 1. By rule 5 Z had read x, which X began
after it had won the key; by rule 4 Z's lease ended after this read, so after X had won. Leases of
two holders never overlap (rules 1 to 3), so Z was elected after X's lease had ended, and raised
the epoch after that (rule 4). So the append was acknowledged after X's lease had ended, and X does
not answer any more (rules 9 and 10). What X itself acknowledged is in its ledger, which Z closed
before it led (rules 6 and 7): nothing acknowledged is lost.

What is explored: all orders of all steps. Every request and every reply stays under way as long as
it likes, also after its sender has given up, which it may do at any moment (a crash, a
cancellation, a time-out). A node's own delay is that of its next request. Time passes in ticks; a
lease is `Bounds.leases` ticks long by the slowest clock, a wait by the fastest, so the drift
between clocks is part of both. Versions of the key are not counted: a reference to a version is
current or it is old, and an old one never becomes current again.

What is merged: a reply that is heard later makes no difference where only the next request, or
the end of the attempt, follows from it, whenever that is. So the replies to raising, recovering
and listing are heard at once. Those about the key, the read and an append come when they like.

What is left out: a request to take or renew the key whose sender gave up. Landing late it only
makes writes of others conflict. That a ledger is several bookies is specified elsewhere.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

from tests.leadership.invariants import Answering, Moment, broken, lost, went_back

Entries = tuple[int, ...]
"""What a log holds: of each entry the epoch in which it was appended."""


@dataclass(frozen=True)
class Rules:
    """Which rules hold; the module's docstring says what each is."""

    waits_for_the_longer_lease: bool = True
    takes_what_it_saw: bool = True
    leases_from_the_sending: bool = True
    stops_when_the_key_is_lost: bool = True
    looks_at_the_lease_after_the_read: bool = True
    reads_when_elected: bool = True
    raises_from_what_was_read: bool = True
    fences: bool = True
    lists_in_its_epoch: bool = True
    answers_under_the_lease: bool = True
    resigning_ends_the_lease: bool = True

    def without(self, *names: str) -> "Rules":
        """The rules but for these."""
        assert set(names) <= {field.name for field in fields(self)}, names
        return replace(self, **dict.fromkeys(names, False))


AS_IT_STOOD = Rules().without("looks_at_the_lease_after_the_read", "raises_from_what_was_read")
"""What was run before: the epoch was read at any time, and raised once more after a conflict."""


@dataclass(frozen=True)
class Bounds:
    """How much is explored: a node for each lease, and how often the whole may do what."""

    leases: tuple[int, ...] = (2, 2)
    attempts: int = 3
    epochs: int = 3
    appends: int = 2


# What a node is doing.
FOLLOWS, TAKES, READS, RAISES, RECOVERS, LISTS, LEADS = range(7)
_NAMES = ("follows", "takes", "reads", "raises", "recovers", "lists", "leads")
_RESIGNS, _APPENDS = 7, 8


class Call(NamedTuple):
    """A request under way, or, once it was `done`, the reply to it.

    `current`: the version of the key that a request names, or a reply tells, is the newest one.
    `lease`: how long the lease from the sending of this request still runs.
    """

    kind: int
    done: bool = False
    succeeded: bool = False
    current: bool = False
    lease: int = 0
    epoch: int = 0
    ledger: int = 0
    entries: Entries = ()


class Node(NamedTuple):
    """What one node knows and has under way."""

    lease_length: int
    doing: int = FOLLOWS
    current: bool = False
    """Whether the version of the key that it saw, or holds, is the newest one. It cannot know."""
    wait: int = 0
    lease: int = 0
    epoch: int = 0
    applied: Entries = ()
    call: Call | None = None
    renewal: Call | None = None
    append: Call | None = None
    left: tuple[Call, ...] = ()
    """Requests under way of attempts that it gave up."""


class State(NamedTuple):
    """Everything at one moment."""

    nodes: tuple[Node, ...]
    free: bool = True
    """Whether nobody holds the key."""
    told_lease: int = 0
    epoch: int = 0
    last: int = 0
    """The epoch whose ledger is listed last, 0 if none is."""
    before: Entries = ()
    """What the ledgers before that one hold, as the list says."""
    newest: Entries = ()
    """What the last ledger holds."""
    open: tuple[int, ...] = ()
    """The epochs whose ledgers are not fenced."""
    acknowledged: Entries = ()
    attempts: int = 0
    appends: int = 0


Step = tuple[str, State]


class Model:
    """All steps that are possible from a state."""

    def __init__(self, rules: Rules, bounds: Bounds) -> None:
        self.rules = rules
        self.bounds = bounds

    @property
    def first(self) -> State:
        """Nobody has ever led."""
        return State(tuple(Node(lease) for lease in self.bounds.leases))

    def moment(self, state: State) -> Moment:
        """What an onlooker sees."""
        answering = tuple(
            Answering(f"node {index}", node.epoch, len(node.applied))
            for index, node in enumerate(state.nodes)
            if node.doing == LEADS and (node.lease > 0 or not self.rules.answers_under_the_lease)
        )
        return Moment(state.epoch, len(state.acknowledged), answering)

    def steps(self, state: State) -> Iterator[Step]:
        """Every step from a state, with what it is called."""
        ticked = _tick(state)
        if ticked != state:
            yield "time passes", ticked
        for at, node in enumerate(state.nodes):
            for what, after in self._steps_of(state, at, node):
                yield f"node {at} {what}", after

    def _steps_of(self, state: State, at: int, node: Node) -> Iterator[Step]:
        if node.doing == FOLLOWS:
            yield from self._campaigns(state, at, node)
        else:
            yield "gives up", _put(state, at, _given_up(node))
            yield "resigns", self._resigned(state, at, node)
            if node.doing != TAKES and node.renewal is None:
                renewal = Call(TAKES, current=node.current, lease=node.lease_length)
                yield "renews", _put(state, at, node._replace(renewal=renewal))
        if node.call is not None:
            yield from self._call(state, at, node, node.call)
        if node.renewal is not None:
            yield from self._renewal(state, at, node, node.renewal)
        if node.doing == LEADS:
            yield from self._append(state, at, node)
        for index, call in enumerate(node.left):
            rest = node.left[:index] + node.left[index + 1 :]
            landed, _ = self._land(_put(state, at, node._replace(left=rest)), at, call)
            yield f"{_kind(call)}, given up before, lands", landed

    # The key

    def _campaigns(self, state: State, at: int, node: Node) -> Iterator[Step]:
        if state.attempts >= self.bounds.attempts:
            return
        wait = node.lease_length
        if self.rules.waits_for_the_longer_lease:
            wait = max(wait, state.told_lease)
        if not node.current:
            epoch = 0 if self.rules.reads_when_elected else state.epoch
            looked = node._replace(current=True, wait=0 if state.free else wait, epoch=epoch)
            yield "looks at the key", _put(state, at, looked)
        elif node.wait == 0:
            call = Call(TAKES, current=True, lease=node.lease_length)
            taking = node._replace(doing=TAKES, call=call)
            yield "takes the key", _put(state, at, taking)._replace(attempts=state.attempts + 1)

    def _renewal(self, state: State, at: int, node: Node, call: Call) -> Iterator[Step]:
        if not call.done:
            after, reply = self._land(state, at, call)
            yield "renewal lands", _put(after, at, after.nodes[at]._replace(renewal=reply))
        elif call.succeeded or not self.rules.stops_when_the_key_is_lost:
            lease = max(node.lease, self._lease(node, call))
            held = node._replace(renewal=None, lease=lease, current=call.current)
            yield "hears of its renewal", _put(state, at, held)
        else:
            yield "hears that it lost the key", _put(state, at, _given_up(node))

    def _lease(self, node: Node, call: Call) -> int:
        return call.lease if self.rules.leases_from_the_sending else node.lease_length

    def _resigned(self, state: State, at: int, node: Node) -> State:
        stays = node.doing == LEADS and not self.rules.resigning_ends_the_lease
        call = Call(_RESIGNS, current=node.current)
        after = node if stays else _given_up(node)
        if call in after.left:
            return state
        return _put(state, at, after._replace(left=_sorted((*after.left, call))))

    # Taking the log over

    def _call(self, state: State, at: int, node: Node, call: Call) -> Iterator[Step]:
        what = f"{_kind(call)} lands"
        if not call.done:
            state, call = self._land(state, at, call)
            node = state.nodes[at]._replace(call=call)
            if call.kind in (TAKES, READS):
                yield what, _put(state, at, node)
                return
        else:
            what = f"hears of its {_kind(call)}"
            call = node.call or call
        after = self._replied(node, call)
        if after is not None:
            yield what, _put(state, at, after)
        else:
            yield f"{what}, it is deposed", self._resigned(state, at, node)

    def _replied(self, node: Node, call: Call) -> Node | None:
        """What a node does when it hears; None: it gives up."""
        if call.kind == TAKES:
            if not call.succeeded:
                return _given_up(node)
            held = node._replace(lease=self._lease(node, call), current=call.current)
            if self.rules.reads_when_elected:
                return held._replace(doing=READS, call=Call(READS))
            return held._replace(doing=RAISES, call=Call(RAISES, epoch=node.epoch))
        if not call.succeeded:
            return None
        if call.kind == READS:
            if node.lease <= 0 and self.rules.looks_at_the_lease_after_the_read:
                return None
            return node._replace(doing=RAISES, call=Call(RAISES, epoch=call.epoch))
        if call.kind == RAISES:
            recovery = Call(RECOVERS, epoch=call.epoch, ledger=call.ledger)
            return node._replace(doing=RECOVERS, epoch=call.epoch, call=recovery)
        if call.kind == RECOVERS:
            listing = Call(LISTS, epoch=call.epoch, entries=call.entries)
            return node._replace(doing=LISTS, applied=call.entries, call=listing)
        return node._replace(doing=LEADS, call=None)

    # Leading

    def _append(self, state: State, at: int, node: Node) -> Iterator[Step]:
        call = node.append
        if call is None:
            if state.appends < self.bounds.appends:
                sent = node._replace(append=Call(_APPENDS, epoch=node.epoch))
                yield "appends", _put(state, at, sent)._replace(appends=state.appends + 1)
        elif not call.done:
            after, reply = self._land(state, at, call)
            yield "append lands", _put(after, at, after.nodes[at]._replace(append=reply))
        elif not call.succeeded:
            yield "hears that its ledger is fenced", self._resigned(state, at, node)
        else:
            applied = (*node.applied, node.epoch)
            after = _put(state, at, node._replace(append=None, applied=applied))
            # In its place in the log: a later leader may have acknowledged more meanwhile.
            acknowledged = state.acknowledged
            if len(applied) > len(acknowledged) or acknowledged[: len(applied)] != applied:
                acknowledged = applied
            yield "acknowledges", after._replace(acknowledged=acknowledged)

    # What the store and the bookies do

    def _land(self, state: State, at: int, call: Call) -> tuple[State, Call]:
        """A request takes effect; returns the reply, too."""
        if call.kind == TAKES:
            if not call.current and self.rules.takes_what_it_saw:
                return state, call._replace(done=True)
            length = state.nodes[at].lease_length
            after = _key_written(state)._replace(free=False, told_lease=length)
            return after, call._replace(done=True, succeeded=True, current=True)
        if call.kind == _RESIGNS:
            after = _key_written(state)._replace(free=True) if call.current else state
            return after, call._replace(done=True, succeeded=call.current)
        if call.kind == READS:
            return state, call._replace(done=True, succeeded=True, epoch=state.epoch)
        if call.kind == RAISES:
            expected = call.epoch == state.epoch or not self.rules.raises_from_what_was_read
            if not expected or state.epoch >= self.bounds.epochs:
                return state, call._replace(done=True)
            epoch = state.epoch + 1
            reply = Call(RAISES, True, True, epoch=epoch, ledger=state.last)
            return state._replace(epoch=epoch), reply
        if call.kind == RECOVERS:
            # If another ledger was listed since, the epoch was raised, and listing fails.
            entries = (*state.before, *state.newest) if call.ledger == state.last else ()
            left = tuple(each for each in state.open if each != call.ledger)
            after = state._replace(open=left) if self.rules.fences else state
            return after, call._replace(done=True, succeeded=True, entries=entries)
        if call.kind == LISTS:
            return self._list(state, call)
        assert call.kind == _APPENDS
        if call.epoch not in state.open:
            return state, call._replace(done=True)
        if call.epoch == state.last:
            state = state._replace(newest=(*state.newest, call.epoch))
        return state, call._replace(done=True, succeeded=True)

    def _list(self, state: State, call: Call) -> tuple[State, Call]:
        if call.epoch != state.epoch and self.rules.lists_in_its_epoch:
            return state, call._replace(done=True)
        after = state._replace(
            last=call.epoch,
            before=call.entries,
            newest=(),
            open=(*state.open, call.epoch),
        )
        return after, call._replace(done=True, succeeded=True)

    # States that are the same

    def canonical(self, state: State) -> State:
        """The state that stands for all from which the same can follow.

        Nodes have no names, and a request of nobody that can change nothing any more is gone.
        """
        spent = state.attempts >= self.bounds.attempts
        nodes = []
        for node in state.nodes:
            left = node.left
            if left:
                left = tuple(call for call in left if self._matters(state, call))
            if spent and node.doing == FOLLOWS:
                # Nobody campaigns any more: what a follower saw makes no difference.
                nodes.append(Node(node.lease_length, left=left))
            else:
                nodes.append(node if left == node.left else node._replace(left=left))
        nodes.sort(key=hash)
        return state._replace(nodes=tuple(nodes))

    def _matters(self, state: State, call: Call) -> bool:
        """Whether a request that was given up can still change anything."""
        if call.kind == _RESIGNS:
            return call.current
        if call.kind == RAISES:
            return call.epoch == state.epoch or not self.rules.raises_from_what_was_read
        if call.kind == RECOVERS:
            return call.ledger in state.open
        if call.kind == LISTS:
            return call.epoch == state.epoch or not self.rules.lists_in_its_epoch
        return call.epoch in state.open


@dataclass(frozen=True)
class Found:
    """What an exploration came to."""

    states: int
    violation: str = ""
    trace: tuple[str, ...] = ()
    """The steps that lead there, as short a way as there is."""


def explore(
    rules: Rules, bounds: Bounds, tell: Callable[[int], None] = lambda states: None
) -> Found:
    """Every state that can be reached, breadth first, up to the first that breaks an invariant."""
    model = Model(rules, bounds)
    first = model.canonical(model.first)
    came_from: dict[State, State | None] = {first: None}
    waiting = deque([first])
    while waiting:
        state = waiting.popleft()
        moment = model.moment(state)
        for _, after in model.steps(state):
            known = model.canonical(after)
            if known in came_from:
                continue
            came_from[known] = state
            now = model.moment(known)
            log = (*known.before, *known.newest)
            wrong = broken(now) or went_back(moment, now) or lost(log, known.acknowledged)
            if wrong:
                return Found(len(came_from), wrong, _trace(model, came_from, known))
            waiting.append(known)
            if len(came_from) % 100_000 == 0:
                tell(len(came_from))
    return Found(len(came_from))


def _trace(model: Model, came_from: dict[State, State | None], end: State) -> tuple[str, ...]:
    """The steps from the first state on, in which each node keeps its name."""
    way = [end]
    while (before := came_from[way[-1]]) is not None:
        way.append(before)
    told: list[str] = []
    state = model.first
    for wanted in reversed(way[:-1]):
        what, state = next(
            (what, after) for what, after in model.steps(state) if model.canonical(after) == wanted
        )
        told.append(what)
    return tuple(told)


def _put(state: State, at: int, node: Node) -> State:
    return state._replace(nodes=(*state.nodes[:at], node, *state.nodes[at + 1 :]))


def _kind(call: Call) -> str:
    return (*_NAMES, "resignation", "append")[call.kind]


def _sorted(calls: tuple[Call, ...]) -> tuple[Call, ...]:
    return tuple(sorted(calls))


def _given_up(node: Node) -> Node:
    """A node that follows again; what it has under way and can change something lands or not."""
    under_way: list[Call] = list(node.left)
    for call in (node.call, node.append):
        if call is not None and not call.done and call.kind not in (TAKES, READS):
            under_way.append(call)
    return Node(node.lease_length, left=_sorted(tuple(under_way)))


def _key_written(state: State) -> State:
    """The key has a new version: every reference to an earlier one is old."""
    return state._replace(nodes=tuple(_outdated(node) for node in state.nodes))


def _outdated(node: Node) -> Node:
    changes: dict[str, Any] = {"current": False}
    if node.call is not None and node.call.current:
        changes["call"] = node.call._replace(current=False)
    if node.renewal is not None and node.renewal.current:
        changes["renewal"] = node.renewal._replace(current=False)
    if any(call.current for call in node.left):
        changes["left"] = _sorted(tuple(call._replace(current=False) for call in node.left))
    return node._replace(**changes)


def _tick(state: State) -> State:
    """Time passes for all."""
    nodes = []
    for node in state.nodes:
        changes: dict[str, Any] = {}
        if node.wait:
            changes["wait"] = node.wait - 1
        if node.lease:
            changes["lease"] = node.lease - 1
        for name in ("call", "renewal"):
            call = getattr(node, name)
            if call is not None and call.lease:
                changes[name] = call._replace(lease=call.lease - 1)
        nodes.append(node._replace(**changes) if changes else node)
    return state._replace(nodes=tuple(nodes))
