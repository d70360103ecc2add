"""The specification of leadership, as a model that is explored in full.

    .venv/bin/python -m tests.leadership             the bounds of the suite
    .venv/bin/python -m tests.leadership --large     larger ones, some minutes

There are the records of processes and the list of the log in the metadata store, and the ledgers on
the bookies. Each is linearizable; a write of a record or of the list is a compare-and-set.

- A record belongs to one incarnation of a process: a version, its lease, and whether it is ended.
- The list says who leads: the epoch, the ledger that is written last, the incarnation that leads in
  this epoch, and whether it has resigned.
- A ledger takes appends of its own epoch until it is fenced. Closing it by recovery fences it.

Rules, each a field of `Rules`:

1. A process has one lease, for all that it leads. The lease begins before the write was sent that
   makes the record of its incarnation or renews it (`leases_from_the_sending`). A renewal names the
   version that the process wrote last. If it conflicts, the incarnation is over, and all that it
   leads ends (`stops_when_its_record_is_ended`). The process may begin another incarnation, with a
   record of its own.
2. An incarnation is named in a list only after its record was made (`makes_its_record_first`). So a
   record that is missing is one that was ended and then deleted.
3. Who wants the log reads the list. If this names a leader that has not resigned, it looks at the
   leader's record, waits from then on for the longer of the lease that the record tells and its own
   (`waits_for_the_longer_lease`), and ends the record from the version that it saw
   (`ends_what_it_saw`). Only a record that is ended, by whomever, ends the wait
   (`waits_for_the_end`). There is nothing to wait for if the list names its own incarnation, and
   its process does not lead this log.
4. It raises the epoch by one and names its own incarnation, from exactly the epoch that it read
   (`raises_from_what_was_read`). A conflict is the end of the attempt. This needs no lease.
5. It closes the last listed ledger by recovery, which fences it (`fences`), and applies it.
6. It lists a ledger of its own, if the list still has its epoch (`lists_in_its_epoch`). It leads.
7. A leader acknowledges an append when its ledger took it. That needs no lease.
8. A leader answers a read while a lease holds (`answers_under_the_lease`): that of the incarnation
   which the list names for its epoch, and not that of a later incarnation of its process
   (`leads_as_the_incarnation_named`). Without a lease it answers a read only after its ledger has
   taken an append that was sent after the read began (`confirms_reads_with_later_appends`).
9. Who resigns answers nothing from the moment before that is sent (`resigning_ends_the_lease`). The
   list is marked only if it still has the epoch that was read from it (`resigns_in_its_epoch`), and
   names the attempt that is given up (`resigns_one_attempt`): the same process may have tried again
   from the same epoch.
10. An operator who removes the log raises the epoch without waiting for anybody, and closes the
    last ledger. The list keeps the leader that it names (`a_removal_keeps_the_leader`).

Why it holds. A read that an append confirms: the ledger was not fenced when it took the append, so
nobody else had acknowledged anything when the read began. A read under a lease: let X answer in
epoch x while its lease holds. Somebody raised x to x + 1, and then
to where the log is now. The first who raised it as a candidate, Z, read a list that names X: a
removal keeps the name (rule 10). X has not resigned from that epoch, or it does not answer any more
(rule 9). So Z had seen X's record ended (rules 2 and 3), unless Z is of X's own process, which did
not lead then. Who ended it had waited since the last renewal for a whole lease, and no renewal
succeeds after it: X's lease had ended before Z raised the epoch, and it never holds again (rules 1
and 8). So X does not answer when a later leader begins. What X itself acknowledged is in its
ledger, which Z closed before it led (rules 5 and 6): nothing acknowledged is lost.

What is explored: all orders of all steps. Every request and every reply stays under way as long as
it likes, also after its sender has given up, which it may do at any moment (a cancellation, a
time-out). A process may end at any moment (a crash) and begin another incarnation. Time passes in
ticks; a lease is `Bounds.leases` ticks long by the slowest clock, a wait by the fastest, so the
drift between clocks is part of both. Versions of a record are not counted: what an onlooker saw is
the newest version or it is old, and an old one never becomes the newest again.

What is merged. A reply that is heard later makes no difference where only the next request, or the
end of the attempt, follows from it: replies are heard at once, but for those to an append. That of
a renewal tells of a lease that runs already; to hear of it later is to answer later. A process
hears that its record is ended when it likes. Reading the list is part of sending what follows from
it, and this stays under way. All who wait for the end of a record are one onlooker, who is always
there: somebody may want another log of the same leader. Nobody waits for the lease of a process
that ended, which allows more than the rules do. A record is made at once: nobody looks at it before
a list names it. The raise compares the epoch alone, which allows more than to compare the list.

What is left out: a request to make or renew a record whose sender gave up. Landing late it only
makes whoever waits for its end wait longer; so the record of an incarnation is made once, and a
process that does not know whether it was made begins another incarnation. A log that was removed
keeps its entries here, so that an answer from before the removal is told from a later one. That
somebody leads again at last is not checked. That a ledger is several bookies is specified
elsewhere.
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
    confirms_reads_with_later_appends: bool = True
    resigning_ends_the_lease: bool = True
    resigns_in_its_epoch: bool = True
    resigns_one_attempt: bool = True
    a_removal_keeps_the_leader: bool = True

    def without(self, *names: str) -> "Rules":
        """The rules but for these."""
        assert set(names) <= {field.name for field in fields(self)}, names
        return replace(self, **dict.fromkeys(names, False))


@dataclass(frozen=True)
class Bounds:
    """How much is explored: a process for each lease, and how often the whole may do what."""

    leases: tuple[int, ...] = (1, 1)
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
    asked: int = 0
    """How much was acknowledged when a read began that this append confirms."""


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
    stale: str = ""
    """What read without a lease lacks something acknowledged."""


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
        for what, after in self._all_steps(state):
            yield what, self._plain(after)

    def _all_steps(self, state: State) -> Iterator[Step]:
        ticked = _tick(state)
        if ticked != state:
            yield "time passes", ticked
        for at, process in enumerate(state.processes):
            for what, after in self._steps_of(state, at, process):
                yield f"process {at} {what}", after
        yield from self._removal(state)

    def _steps_of(self, state: State, at: int, process: Process) -> Iterator[Step]:
        if process.made:
            yield "ends and begins anew", _put(state, at, _begun_anew(_given_up(process)))
        if process.doing != FOLLOWS:
            yield "gives up", _put(state, at, self._abandoned(process))
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

    # The record of an incarnation

    def _record(self, state: State, at: int, process: Process) -> Iterator[Step]:
        call = process.renewal
        if process.ended and self.rules.stops_when_its_record_is_ended:
            if self.rules.leads_as_the_incarnation_named:
                process = _given_up(process)
            yield "hears that its record is ended", _put(state, at, _begun_anew(process))
        elif call is None:
            sent = process._replace(renewal=Call(_RENEWS, lease=process.lease_length))
            if process.made:
                yield "renews", _put(state, at, sent)
            elif self.rules.makes_its_record_first and self.rules.leases_from_the_sending:
                made = process._replace(made=True, lease=process.lease_length)
                yield "makes its record", _put(state, at, made)
            else:
                yield "sends its record", _put(state, at, sent)
        elif not call.done:
            seen = _OLD if process.seen else _NONE
            landed = process._replace(renewal=call._replace(done=True), made=True, seen=seen)
            if self.rules.leases_from_the_sending:
                landed = self._renewed(landed, call)
            yield "renewal lands", _put(state, at, landed)
        else:
            yield "hears of its renewal", _put(state, at, self._renewed(process, call))

    def _renewed(self, process: Process, call: Call) -> Process:
        runs = call.lease if self.rules.leases_from_the_sending else process.lease_length
        return process._replace(renewal=None, lease=max(process.lease, runs))

    def _onlooker(self, state: State, at: int, process: Process) -> Iterator[Step]:
        """Somebody else, who wants this log or another one, looks at a record, or ends it."""
        if process.over or self._spent(state):
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
        if self._spent(state):
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

    def _abandoned(self, process: Process) -> Process:
        """A process that gave up. It resigns, and cannot know whether it was named.

        A resignation of one attempt changes nothing unless that attempt was named, and then it is
        the one of a process that is named.
        """
        after, call = _given_up(process), process.call
        if self.rules.resigns_one_attempt or call is None or call.kind != RAISES:
            return after
        resigning = Call(_RESIGNS, epoch=call.epoch + 1)
        return after._replace(left=_sorted((*after.left, resigning)))

    # Leading

    def _append(self, state: State, at: int, process: Process) -> Iterator[Step]:
        call = process.append
        if call is None:
            if state.appends < self.bounds.appends:
                began = len(state.acknowledged)
                sent = process._replace(append=Call(_APPENDS, epoch=process.epoch, asked=began))
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
            began = call.asked
            if not self.rules.confirms_reads_with_later_appends:
                began = len(state.acknowledged)
            if len(applied) < began:
                stale = f"stale read: {len(applied)} entries of {began}"
                yield "answers a read without a lease", state._replace(stale=stale)
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
        """The state that stands for all that differ in the processes' names alone."""
        named = state.processes
        ordered = tuple(sorted(named, key=hash))
        return state if ordered == named else state._replace(processes=ordered)

    def _spent(self, state: State) -> bool:
        """Whether nobody campaigns any more."""
        return state.attempts >= self.bounds.attempts or state.epoch >= self.bounds.epochs

    def _plain(self, state: State) -> State:
        """A state without what makes no difference any more."""
        spent = self._spent(state)
        plain = tuple([self._plain_process(state, one, spent) for one in state.processes])
        return state if plain == state.processes else state._replace(processes=plain)

    def _plain_process(self, state: State, process: Process, spent: bool) -> Process:
        call = process.call
        if call is not None and not self._matters(state, call, spent):
            if call.kind != RECOVERS or not self._matters_later(state, call):
                process = _given_up(process)
        left = process.left
        if left:
            left = tuple([each for each in left if self._matters(state, each, spent)])
        if spent and process.doing == FOLLOWS:
            # Nobody campaigns any more: what a follower has makes no difference.
            return Process(process.lease_length, left=left)
        if left != process.left:
            process = process._replace(left=left)
        if spent and (process.named or process.seen):
            process = process._replace(named=False, seen=_NONE, wait=0)
        if process.seen == _OLD and self.rules.ends_what_it_saw and self.rules.waits_for_the_end:
            process = process._replace(seen=_NONE, wait=0)
        return process

    def _matters_later(self, state: State, call: Call) -> bool:
        """Whether the listing that follows a recovery can succeed."""
        return call.epoch == state.epoch or not self.rules.lists_in_its_epoch

    def _matters(self, state: State, call: Call, spent: bool) -> bool:
        """Whether a request can still change anything for others, or succeed."""
        if call.kind == _RESIGNS:
            return not spent and (call.epoch >= state.epoch or not self.rules.resigns_in_its_epoch)
        if call.kind == RAISES:
            if state.epoch >= self.bounds.epochs:
                return False
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
            wrong = (
                known.stale
                or broken(now)
                or went_back(moment, now)
                or lost(log, known.acknowledged)
            )
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
    return process._replace(ended=True, seen=_NONE, wait=0, renewal=None)


def _unnamed(state: State) -> State:
    """The list names nobody whose lease may hold."""
    processes = tuple(
        process._replace(named=False) if process.named else process for process in state.processes
    )
    return state._replace(processes=processes)


def _tick(state: State) -> State:
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
        processes.append(process._replace(**changes) if changes else process)
    return state._replace(processes=tuple(processes))
