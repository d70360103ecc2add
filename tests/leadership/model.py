"""DOC"""

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

    leases_from_the_sending: bool = True
    stops_when_its_record_is_ended: bool = True
    makes_its_record_first: bool = True
    waits_for_the_longer_lease: bool = True
    ends_what_it_saw: bool = True
    waits_for_the_end: bool = True
    raises_from_what_was_read: bool = True
    fences: bool = True
    lists_in_its_epoch: bool = True
    answers_under_the_lease: bool = True
    leads_as_the_incarnation_named: bool = True
    resigning_ends_the_lease: bool = True
    resigns_in_its_epoch: bool = True
    a_removal_keeps_the_leader: bool = True

    def without(self, *names: str) -> "Rules":
        """The rules but for these."""
        assert set(names) <= {field.name for field in fields(self)}, names
        return replace(self, **dict.fromkeys(names, False))


@dataclass(frozen=True)
class Bounds:
    """How much is explored: a process for each lease, and how often the whole may do what."""

    leases: tuple[int, ...] = (2, 2)
    attempts: int = 3
    epochs: int = 3
    appends: int = 2
    removals: int = 0


# What a process is doing.
FOLLOWS, RAISES, RECOVERS, LISTS, LEADS = range(5)
_RENEWS, _RESIGNS, _APPENDS = 5, 6, 7
_NAMES = ("follows", "raises", "recovers", "lists", "leads", "renewal", "resignation", "append")

# Which version of a record an onlooker saw.
_NONE, _NEWEST, _OLD = range(3)


class Call(NamedTuple):
    """A request under way, or, once it was `done`, the reply to it.

    `own`: the incarnation that a request names is still its process's own.
    `lease`: how long the lease from the sending of this request still runs.
    """

    kind: int
    done: bool = False
    succeeded: bool = False
    own: bool = False
    lease: int = 0
    epoch: int = 0
    ledger: int = 0
    entries: Entries = ()


class Process(NamedTuple):
    """What one process knows and has under way, and what the store holds of its incarnation."""

    lease_length: int
    made: bool = False
    """Whether the store has the record of its incarnation."""
    ended: bool = False
    seen: int = _NONE
    """Which version of its record somebody else has looked at."""
    wait: int = 0
    """How long that onlooker still waits."""
    named: bool = False
    """Whether the list names its incarnation as leader, which has not resigned."""
    lease: int = 0
    renewal: Call | None = None
    doing: int = FOLLOWS
    epoch: int = 0
    applied: Entries = ()
    call: Call | None = None
    append: Call | None = None
    left: tuple[Call, ...] = ()
    """Requests under way of attempts that it gave up."""

    @property
    def over(self) -> bool:
        """Whether nobody finds a record of its incarnation that is not ended."""
        return self.ended or not self.made


class State(NamedTuple):
    """Everything at one moment."""

    processes: tuple[Process, ...]
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
    removals: int = 0
    removing: int = 0
    """The epoch that an operator raised to remove the log, while that is under way."""


Step = tuple[str, State]


class Model:
    """All steps that are possible from a state."""

    def __init__(self, rules: Rules, bounds: Bounds) -> None:
        self.rules = rules
        self.bounds = bounds

    @property
    def first(self) -> State:
        """Nobody has ever led."""
        return State(tuple(Process(lease) for lease in self.bounds.leases))

    def moment(self, state: State) -> Moment:
        """What an onlooker sees."""
        answering = tuple(
            Answering(f"process {index}", process.epoch, len(process.applied))
            for index, process in enumerate(state.processes)
            if process.doing == LEADS
            and (process.lease > 0 or not self.rules.answers_under_the_lease)
        )
        return Moment(state.epoch, len(state.acknowledged), answering)

    def steps(self, state: State) -> Iterator[Step]:
        """Every step from a state, with what it is called."""
        ticked = self._tick(state)
        if ticked != state:
            yield "time passes", ticked
        for at, process in enumerate(state.processes):
            for what, after in self._steps_of(state, at, process):
                yield f"process {at} {what}", after
        yield from self._removal(state)

    def _steps_of(self, state: State, at: int, process: Process) -> Iterator[Step]:
        yield "ends and begins anew", _put(state, at, _begun_anew(_given_up(process)))
        if process.doing != FOLLOWS:
            yield "gives up", _put(state, at, _given_up(process))
        if process.named:
            yield "resigns", self._resigned(state, at, process)
        yield from self._record(state, at, process)
        yield from self._onlooker(state, at, process)
        if process.doing == FOLLOWS:
            yield from self._campaigns(state, at, process)
        elif process.call is not None:
            yield from self._call(state, at, process, process.call)
        else:
            yield from self._append(state, at, process)
        for index, call in enumerate(process.left):
            rest = process.left[:index] + process.left[index + 1 :]
            landed, _ = self._land(_put(state, at, process._replace(left=rest)), at, call)
            yield f"{_NAMES[call.kind]}, given up before, lands", landed

    def _tick(self, state: State) -> State:
        """Time passes for all."""
        processes = []
        for process in state.processes:
            changes: dict[str, Any] = {}
            if process.wait:
                changes["wait"] = process.wait - 1
            if process.lease:
                changes["lease"] = process.lease - 1
            renewal = process.renewal
            if renewal is not None and renewal.lease:
                changes["renewal"] = renewal._replace(lease=renewal.lease - 1)
            processes.append(self._heard(process._replace(**changes)) if changes else process)
        return state._replace(processes=tuple(processes))

    # The record of an incarnation

    def _record(self, state: State, at: int, process: Process) -> Iterator[Step]:
        call = process.renewal
        if call is None:
            sent = process._replace(renewal=Call(_RENEWS, lease=process.lease_length))
            yield "renews" if process.made else "makes a record", _put(state, at, sent)
        elif not call.done:
            succeeded = not process.ended
            seen = _OLD if process.seen and succeeded else process.seen
            reply = call._replace(done=True, succeeded=succeeded)
            landed = process._replace(renewal=reply, made=True, seen=seen)
            yield "renewal lands", _put(state, at, self._heard(landed))
        elif call.succeeded or not self.rules.stops_when_its_record_is_ended:
            runs = call.lease if self.rules.leases_from_the_sending else process.lease_length
            held = process._replace(renewal=None, lease=max(process.lease, runs))
            yield "hears of its renewal", _put(state, at, held)
        else:
            if self.rules.leads_as_the_incarnation_named:
                process = _given_up(process)
            yield "hears that its record is ended", _put(state, at, _begun_anew(process))

    def _heard(self, process: Process) -> Process:
        """A process that has heard of a renewal from which it learns nothing."""
        call = process.renewal
        if call is None or not call.succeeded or not self.rules.leases_from_the_sending:
            return process
        return process._replace(renewal=None) if call.lease <= process.lease else process

    def _onlooker(self, state: State, at: int, process: Process) -> Iterator[Step]:
        """Somebody else, who wants this log or another one, looks at a record, or ends it."""
        if process.over:
            return
        if process.seen != _NEWEST:
            others = (*state.processes[:at], *state.processes[at + 1 :])
            wait = min(other.lease_length for other in others)
            if self.rules.waits_for_the_longer_lease:
                wait = max(wait, process.lease_length)
            yield "is looked at", _put(state, at, process._replace(seen=_NEWEST, wait=wait))
        knows = process.seen == _NEWEST or (process.seen and not self.rules.ends_what_it_saw)
        if knows and process.wait == 0:
            yield "is ended by another", _put(state, at, _ended(process))

    # Taking the log over

    def _campaigns(self, state: State, at: int, process: Process) -> Iterator[Step]:
        if state.attempts >= self.bounds.attempts:
            return
        if not process.made and self.rules.makes_its_record_first:
            return
        if all(other is process or self._is_over(other) for other in state.processes):
            call = Call(RAISES, own=True, epoch=state.epoch)
            raising = process._replace(doing=RAISES, call=call)
            yield "raises the epoch", _put(state, at, raising)._replace(attempts=state.attempts + 1)

    def _is_over(self, process: Process) -> bool:
        """Whether the list does not name it as leader, or it is seen to lead no more."""
        if not process.named or process.over:
            return True
        return bool(process.seen) and process.wait == 0 and not self.rules.waits_for_the_end

    def _call(self, state: State, at: int, process: Process, call: Call) -> Iterator[Step]:
        what = f"{_NAMES[call.kind]} lands"
        after, reply = self._land(state, at, call)
        process = after.processes[at]
        if not reply.succeeded:
            yield f"{what}, it is too late", _put(after, at, _given_up(process))
        else:
            yield what, _put(after, at, _replied(process, reply))

    def _resigned(self, state: State, at: int, process: Process) -> State:
        """It resigns from the epoch of the list that it has just read."""
        stays = process.doing == LEADS and not self.rules.resigning_ends_the_lease
        call = Call(_RESIGNS, epoch=state.epoch)
        after = process if stays else _given_up(process)
        if call in after.left:
            return _put(state, at, after)
        return _put(state, at, after._replace(left=_sorted((*after.left, call))))

    # Leading

    def _append(self, state: State, at: int, process: Process) -> Iterator[Step]:
        call = process.append
        if call is None:
            if state.appends < self.bounds.appends:
                sent = process._replace(append=Call(_APPENDS, epoch=process.epoch))
                yield "appends", _put(state, at, sent)._replace(appends=state.appends + 1)
        elif not call.done:
            after, reply = self._land(state, at, call)
            yield (
                "append lands",
                _put(after, at, after.processes[at]._replace(append=reply)),
            )
        elif not call.succeeded:
            yield "hears that its ledger is fenced", _put(state, at, _given_up(process))
        else:
            applied = (*process.applied, process.epoch)
            after = _put(state, at, process._replace(append=None, applied=applied))
            # In its place in the log: a later leader may have acknowledged more meanwhile.
            acknowledged = state.acknowledged
            if len(applied) > len(acknowledged) or acknowledged[: len(applied)] != applied:
                acknowledged = applied
            yield "acknowledges", after._replace(acknowledged=acknowledged)

    # The operator

    def _removal(self, state: State) -> Iterator[Step]:
        """The log is removed. Its entries count on here, so that old answers stay old."""
        if state.removing:
            if state.last < state.removing and self.rules.fences:
                left = tuple(each for each in state.open if each != state.last)
                state = state._replace(open=left)
            if state.epoch == state.removing:
                if not self.rules.a_removal_keeps_the_leader:
                    state = _unnamed(state)
                before = (*state.before, *state.newest)
                state = state._replace(last=0, before=before, newest=())
            yield "an operator empties the list", state._replace(removing=0)
        elif state.removals < self.bounds.removals and state.epoch < self.bounds.epochs:
            epoch, removals = state.epoch + 1, state.removals + 1
            raised = state._replace(epoch=epoch, removing=epoch, removals=removals)
            yield "an operator raises the epoch", raised

    # What the store and the bookies do

    def _land(self, state: State, at: int, call: Call) -> tuple[State, Call]:
        """A request takes effect; returns the reply, too."""
        if call.kind == RAISES:
            return self._raise(state, at, call)
        if call.kind == _RESIGNS:
            if call.epoch != state.epoch and self.rules.resigns_in_its_epoch:
                return state, call._replace(done=True)
            return _unnamed(state), call._replace(done=True, succeeded=True)
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

    def _raise(self, state: State, at: int, call: Call) -> tuple[State, Call]:
        expected = call.epoch == state.epoch or not self.rules.raises_from_what_was_read
        if not expected or state.epoch >= self.bounds.epochs:
            return state, call._replace(done=True)
        after = _unnamed(state)
        after = _put(after, at, after.processes[at]._replace(named=call.own))
        reply = call._replace(done=True, succeeded=True, epoch=state.epoch + 1, ledger=state.last)
        return after._replace(epoch=reply.epoch), reply

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

        Processes have no names, and a request of nobody that can change nothing is gone.
        """
        spent = state.attempts >= self.bounds.attempts
        processes = []
        for process in state.processes:
            left = process.left
            if left:
                left = tuple(call for call in left if self._matters(state, call))
            if spent and process.doing == FOLLOWS:
                # Nobody campaigns any more: what a follower has makes no difference.
                processes.append(Process(process.lease_length, left=left))
            else:
                processes.append(self._plain(process._replace(left=left), spent))
        processes.sort(key=hash)
        return state._replace(processes=tuple(processes))

    def _plain(self, process: Process, spent: bool) -> Process:
        changes: dict[str, Any] = {}
        rules = self.rules
        if process.seen == _OLD and rules.ends_what_it_saw and rules.waits_for_the_end:
            changes["seen"] = _NONE
        if changes.get("seen", process.seen) == _NONE and process.wait:
            changes["wait"] = 0
        if spent and process.named:
            changes["named"] = False
        return process._replace(**changes) if changes else process

    def _matters(self, state: State, call: Call) -> bool:
        """Whether a request that was given up can still change anything."""
        if call.kind == _RESIGNS:
            return call.epoch == state.epoch or not self.rules.resigns_in_its_epoch
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
    """The steps from the first state on, in which each process keeps its name."""
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


def _put(state: State, at: int, process: Process) -> State:
    processes = state.processes
    return state._replace(processes=(*processes[:at], process, *processes[at + 1 :]))


def _sorted(calls: tuple[Call, ...]) -> tuple[Call, ...]:
    return tuple(sorted(calls))


def _replied(process: Process, reply: Call) -> Process:
    """A process whose request succeeded sends the next one."""
    if reply.kind == RAISES:
        call = Call(RECOVERS, epoch=reply.epoch, ledger=reply.ledger)
        return process._replace(doing=RECOVERS, epoch=reply.epoch, call=call)
    if reply.kind == RECOVERS:
        call = Call(LISTS, epoch=reply.epoch, entries=reply.entries)
        return process._replace(doing=LISTS, applied=reply.entries, call=call)
    return process._replace(doing=LEADS, call=None)


def _given_up(process: Process) -> Process:
    """A process that follows again; what it has under way lands or not."""
    under_way = list(process.left)
    for call in (process.call, process.append):
        if call is not None and not call.done:
            under_way.append(call)
    left = _sorted(tuple(under_way))
    return process._replace(doing=FOLLOWS, epoch=0, applied=(), call=None, append=None, left=left)


def _begun_anew(process: Process) -> Process:
    """A process with a new incarnation. What it has under way names the one before."""
    call = process.call and process.call._replace(own=False)
    left = _sorted(tuple(each._replace(own=False) for each in process.left))
    new = Process(process.lease_length, call=call, left=left)
    return new._replace(
        doing=process.doing, epoch=process.epoch, applied=process.applied, append=process.append
    )


def _ended(process: Process) -> Process:
    return process._replace(ended=True, seen=_NONE, wait=0)


def _unnamed(state: State) -> State:
    """The list names nobody whose lease may hold."""
    processes = tuple(
        process._replace(named=False) if process.named else process for process in state.processes
    )
    return state._replace(processes=processes)
