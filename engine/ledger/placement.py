"""Choosing bookies for an ensemble.

Invariants:
- An ensemble never names a bookie twice.
- Two replicas of a write set are on one host only while no other host has a usable bookie. When
  another host has one, a writer moves one of them (`engine.ledger.respreading`).
- If entries have to survive the loss of a host, rack or zone, a new ledger gets an ensemble only if
  its live bookies can acknowledge entries in two hosts, racks or zones. If they only should,
  because that is the default, bookies of one host are chosen rather than none.
- A bookie that failed is not chosen again until it has restarted or its quarantine is over. A full
  bookie is chosen only with `from_reserve`, and one that is being decommissioned never.
- The choice depends on the given random generator, never on the order of a hash table.
- Bookies for a new ledger are chosen from the registrations that were read last. They are read
  again only if bookies have come or gone since, or if there are too few.
"""

import asyncio
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from engine.errors import InvalidRequest, NotEnoughBookies
from engine.ledger.capacity import Capacity
from engine.ledger.quorum import UNKNOWN, Quorums, covered, writable
from engine.ledger.spreading import NO_COST, Cost, cost_of, fittest, spread
from engine.metadata.bookies import Bookies, Registration
from engine.metadata.ledgers import Survives
from engine.ports.clock import Clock
from engine.transport.address import TCP, is_loopback, parse_host_port

_HOSTS_MIN: Final = 2
_DRAWS_MAX: Final = 32

_Found = tuple[dict[str, Registration], frozenset[str]]


class Ensemble(NamedTuple):
    """Bookies for a ledger.

    `absent` are the indexes whose bookie is known but away. `survives` is the loss that the
    ledger's entries survive, and `domains` are the domains of the bookies (`Fragment`).
    """

    bookies: tuple[str, ...]
    absent: frozenset[int]
    survives: Survives = "bookie"
    domains: tuple[int, ...] = ()


class Better(NamedTuple):
    """An exchange that spreads an ensemble better: `bookie_id` at index `at`, or None for none.

    `cost` is how badly the replicas are spread after the exchange, or as they are if there is none.
    """

    at: int | None
    bookie_id: str
    cost: Cost


class Placement:
    """Picks bookies among those registered and writable.

    A bookie on `local_host` is preferred for one replica of each new ledger.
    """

    def __init__(
        self,
        bookies: Bookies,
        rng: random.Random,
        clock: Clock,
        quarantine_ms: int,
        local_host: str = "",
        capacity: Capacity | None = None,
    ) -> None:
        self._bookies = bookies
        self._rng = rng
        self._clock = clock
        self._quarantine_s = quarantine_ms / 1000
        self._local_host = local_host
        self.capacity = capacity if capacity is not None else Capacity(1)
        """What is known of room for new data; it hears of all registrations that are seen here."""
        self._failed: dict[str, tuple[int, float]] = {}
        self._seen: dict[str, Registration] = {}
        """The last registration seen of each bookie, for its domain and to notice a restart."""
        self._hosts: dict[str, str] = {}
        """The hosts of bookies that were away whenever the registrations were read."""
        self._beside: dict[str, bool] = {}
        self._kept: _Found | None = None
        """What `_look` found last; None if bookies may have come or gone since."""
        self._unwatch: Callable[[], None] | None = None
        self._changes = 0

    def close(self) -> None:
        """Stop watching the bookies."""
        if self._unwatch is not None:
            self._unwatch()
        self._kept = None

    async def new_ensemble(
        self, quorums: Quorums, *, survives: Survives | None = "bookie", from_reserve: bool = False
    ) -> Ensemble:
        """Choose bookies for a new ledger whose entries survive a loss.

        `survives` None means the loss of a host in a cluster of more than two hosts, if their
        bookies allow that, and the loss of a bookie otherwise. With `from_reserve`, bookies with
        full disks are used if there are too few others. Raises `NotEnoughBookies` if some write set
        would not reach an ack quorum, or if the ledger could not be recovered without the absent
        bookies: they may never come back.
        """
        kept = self._kept
        if kept is not None and len(self._present(*kept)) >= quorums.ensemble:
            with suppress(NotEnoughBookies):
                return await self._choose(*kept, quorums, survives, from_reserve)
        if self._unwatch is None:
            self._unwatch = self._bookies.watch(self._forget)
        found = await self._look()
        return await self._choose(*found, quorums, survives, from_reserve)

    async def _choose(
        self,
        registered: dict[str, Registration],
        leaving: frozenset[str],
        quorums: Quorums,
        survives: Survives | None,
        from_reserve: bool,
    ) -> Ensemble:
        usual = survives is None
        survives = survives or await self._usually_survived(quorums, registered, leaving)
        present, size = self._present(registered, leaving), quorums.ensemble
        if from_reserve and len(present) < size:
            present += self._full(registered, leaving, size - len(present))
        chosen = spread(present, size, quorums, registered, self._rng, self._local_host)
        if len(chosen) < size:
            chosen = await self._with_absent(chosen, present, size, leaving)
        absent = frozenset(i for i, name in enumerate(chosen) if name not in present)
        alive = set(range(len(chosen))) - absent
        if len(chosen) == size and survives != "bookie":
            found = self._spanning(chosen, absent, quorums, survives, present)
            if found is None and from_reserve:
                full = self._full(registered, leaving, len(registered))
                every = list(dict.fromkeys([*present, *full]))
                found = self._spanning(chosen, absent, quorums, survives, every)
            if found is not None:
                return found
        possible = len(chosen) == size and writable(quorums, alive) and covered(quorums, alive)
        if possible and (usual or survives == "bookie"):
            return Ensemble(chosen, absent)
        why = await self._shortage(quorums, present, registered, leaving)
        if possible:
            why = (
                f"found no ensemble that stores each entry on bookies known to be in two "
                f"{survives}s: {why}"
            )
        raise NotEnoughBookies(why)

    async def _with_absent(
        self, chosen: Sequence[str], present: Sequence[str], size: int, leaving: Collection[str]
    ) -> tuple[str, ...]:
        """Fill an ensemble with bookies that are known but away, in any order."""
        known = await self._bookies.known()
        away = [name for name in known if name not in present and name not in leaving]
        # A bookie that was given up may never come back, so it is taken last.
        given_up = frozenset(await self._bookies.given_up())
        picked = self._rng.sample(sorted(away), len(away))
        picked.sort(key=given_up.__contains__)
        mixed = [*chosen, *picked[: size - len(chosen)]]
        self._rng.shuffle(mixed)
        return tuple(mixed)

    def _spanning(
        self,
        chosen: tuple[str, ...],
        absent: frozenset[int],
        quorums: Quorums,
        survives: Survives,
        candidates: Sequence[str],
    ) -> Ensemble | None:
        """These bookies, or others of the candidates, if they span two hosts, racks or zones.

        The best spread need not span two: an unknown host costs nothing, and some write set of a
        wide ensemble may be on one host. So some random ensembles are tried as well.
        """
        for _ in range(_DRAWS_MAX):
            domains = self._domains(chosen, survives)
            judged = quorums.with_domains(domains)
            alive = set(range(len(chosen))) - absent
            if writable(judged, alive) and covered(judged, alive):
                return Ensemble(chosen, absent, survives, domains)
            if len(candidates) < len(chosen):
                return None
            chosen = tuple(self._rng.sample(sorted(candidates), len(chosen)))
            absent = frozenset()
        return None

    async def substitutes(
        self,
        ensemble: tuple[str, ...],
        failed: frozenset[int],
        quorums: Quorums,
        *,
        survives: Survives = "bookie",
        strict: bool = False,
        domains: tuple[int, ...] = (),
        from_reserve: bool = False,
    ) -> Ensemble | None:
        """The ensemble with a new bookie at each failed index for which there is one.

        None if there is none for any index. `domains` are those of the ensemble so far; if it has
        none, the new one has none either. If all bookies of the new ensemble together could not
        acknowledge an entry, the result is None if `strict`, and an ensemble without domains if
        not. A failed bookie that is usable again may take its own place. With `from_reserve`,
        bookies with full disks are used if there are no others, or none that help.
        """
        registered, leaving = await self._look()
        full = self._full(registered, leaving, len(registered)) if from_reserve else []
        found = self._replaced(ensemble, failed, quorums, registered, leaving, full)
        if found is None or survives == "bookie" or not domains:
            return found
        # Bookies that stay keep their domains: if the outcome of this change stays unknown, entries
        # are acknowledged by the old fragment and recovered by the new one. For the same reason, a
        # ledger that had no domains for a while never gets them again.
        staying = [UNKNOWN if index in failed else domain for index, domain in enumerate(domains)]
        await self._learn_hosts(ensemble)
        usable = list(dict.fromkeys([*self._present(registered, leaving), *full]))
        for tried in (found, self._elsewhere(found, failed, survives, staying, registered, usable)):
            if tried is not None:
                numbers = self._domains(tried.bookies, survives, staying)
                if writable(quorums.with_domains(numbers), range(len(tried.bookies))):
                    return tried._replace(survives=survives, domains=numbers)
        return None if strict else found

    def _replaced(
        self,
        ensemble: tuple[str, ...],
        failed: frozenset[int],
        quorums: Quorums,
        registered: dict[str, Registration],
        leaving: Collection[str],
        full: Sequence[str],
    ) -> Ensemble | None:
        present = self._present(registered, leaving)
        kept = ["" if index in failed else name for index, name in enumerate(ensemble)]
        changed = list(kept)
        for index in sorted(failed):
            others = {name for name in (*changed, *ensemble) if name != ensemble[index]}
            candidates = [name for name in present if name not in others]
            candidates = candidates or [name for name in full if name not in others]
            picked = fittest(candidates, changed, index, quorums.write, registered, self._rng)
            changed[index] = picked or ""
        if changed == kept:
            return None
        absent = frozenset(index for index, name in enumerate(changed) if not name)
        found = tuple(name or ensemble[index] for index, name in enumerate(changed))
        return Ensemble(found, absent)

    def _elsewhere(
        self,
        found: Ensemble,
        failed: frozenset[int],
        survives: Survives,
        staying: Sequence[int],
        registered: Mapping[str, Registration],
        usable: Sequence[str],
    ) -> Ensemble | None:
        """The same with a bookie of another host, rack or zone at the first failed index."""
        here = {
            self._domain_of(name, survives)
            for name, number in zip(found.bookies, staying, strict=True)
            if number != UNKNOWN
        }
        for name in self._rng.sample(usable, len(usable)):
            domain = getattr(registered[name], survives)
            if domain and domain not in here and name not in found.bookies:
                at = min(failed)
                bookies = (*found.bookies[:at], name, *found.bookies[at + 1 :])
                return Ensemble(bookies, found.absent - {at})
        return None

    async def _usually_survived(
        self, quorums: Quorums, registered: Mapping[str, Registration], leaving: Collection[str]
    ) -> Survives:
        """The loss that entries survive by default.

        In a cluster of two hosts it is a bookie: otherwise one host down would stop all writes.
        """
        if quorums.ack == 1:
            return "bookie"
        hosts = {found.host for name, found in registered.items() if name not in leaving}
        if 1 < len(hosts - {""}) <= _HOSTS_MIN:
            away = set(await self._bookies.known()) - {*registered, *leaving}
            if away:
                # Hosts whose bookies are away for the moment belong to the cluster, too.
                places = await self._bookies.places()
                hosts |= {places[name].host for name in away if name in places}
        return "host" if len(hosts - {""}) > _HOSTS_MIN else "bookie"

    def _domains(
        self, ensemble: Sequence[str], survives: Survives, given: Sequence[int] = ()
    ) -> tuple[int, ...]:
        """The failure domains of bookies. Known domains in `given` stay as they are."""
        if survives == "bookie":
            return ()
        numbers = list(given or [UNKNOWN] * len(ensemble))
        names = [self._domain_of(name, survives) for name in ensemble]
        placed = zip(names, numbers, strict=True)
        known = {name: number for name, number in placed if number != UNKNOWN}
        for index, name in enumerate(names):
            if name and numbers[index] == UNKNOWN:
                # A bookie that stays, but whose domain this client does not know, may be here, too.
                new = UNKNOWN if "" in known else max(numbers) + 1
                numbers[index] = known.setdefault(name, new)
        return tuple(numbers)

    def _domain_of(self, bookie_id: str, survives: Survives) -> str:
        """The host, rack or zone of a bookie; "" if it is not known."""
        seen = self._seen.get(bookie_id)
        if seen is not None:
            return str(getattr(seen, survives))
        return self._hosts.get(bookie_id, "") if survives == "host" else ""

    async def _learn_hosts(self, bookie_ids: Sequence[str]) -> None:
        """Learn where bookies are that this client has never seen registered."""
        unseen = [name for name in bookie_ids if name not in self._seen and name not in self._hosts]
        if unseen:
            places = await self._bookies.places()
            self._hosts |= {name: places[name].host if name in places else "" for name in unseen}

    async def replacement(
        self,
        ensemble: tuple[str, ...],
        index: int,
        quorums: Quorums,
        *,
        excluded: Collection[str] = (),
    ) -> str | None:
        """A bookie outside the ensemble and `excluded` that fits best at an index, or None."""
        registered, leaving = await self._look()
        taken = {*ensemble, *excluded}
        candidates = [name for name in self._present(registered, leaving) if name not in taken]
        return fittest(candidates, ensemble, index, quorums.write, registered, self._rng)

    def better(
        self,
        ensemble: tuple[str, ...],
        movable: Collection[int],
        quorums: Quorums,
        staying: Mapping[str, Registration],
        rng: random.Random | None = None,
    ) -> Better:
        """The exchange that spreads best: at a movable index, for one of the bookies that stay.

        The only replica on the local host stays there. `rng` chooses among bookies that are equally
        good, instead of the placement's own generator.
        """
        rng = rng or self._rng
        found = Better(None, "", cost_of(ensemble, quorums.write, staying))
        candidates = [name for name in self._present(staying, ()) if name not in ensemble]
        near = [i for i, name in enumerate(ensemble) if self._is_near(staying.get(name))]
        for index in movable:
            if found.cost == NO_COST or near == [index]:
                continue
            chosen = fittest(candidates, ensemble, index, quorums.write, staying, rng)
            if chosen is not None:
                changed = (*ensemble[:index], chosen, *ensemble[index + 1 :])
                cost = cost_of(changed, quorums.write, staying)
                if cost < found.cost:
                    found = Better(index, chosen, cost)
        return found

    def _is_near(self, found: Registration | None) -> bool:
        return found is not None and bool(found.host) and found.host == self._local_host

    def beside(self, bookie_ids: Iterable[str]) -> bool:
        """Whether bookies are known to run on the client's machine: their addresses say so."""
        return all(self._beside.get(name, False) for name in bookie_ids)

    def note_failure(self, bookie_id: str) -> None:
        """Keep a bookie out of new ensembles for a while. Call it once for each failure."""
        until = self._clock.monotonic() + self._quarantine_s
        seen = self._seen.get(bookie_id)
        self._failed[bookie_id] = (-1 if seen is None else seen.boot, until)

    def next_release_s(self) -> float | None:
        """In how many seconds the next quarantine is over; None if there is none."""
        now_s = self._clock.monotonic()
        return min(
            (until - now_s for _, until in self._failed.values() if until > now_s), default=None
        )

    def _forget(self) -> None:
        """Bookies may have come or gone: read the registrations again for the next ledger."""
        self._changes += 1
        self._kept = None

    async def _look(self) -> "_Found":
        """Read the registrations, and which bookies are being decommissioned."""
        changes = self._changes
        registered, names = await asyncio.gather(
            self._bookies.available(), self._bookies.decommissioning()
        )
        self._seen.update(registered)
        self._beside.update({name: _runs_here(found) for name, found in registered.items()})
        leaving = frozenset(names)
        if self._unwatch is not None and changes == self._changes:
            self._kept = registered, leaving
        self.capacity.note(registered, leaving)
        for name, found in registered.items():
            if not found.writable:
                # If it failed, a full disk was the reason. Once it has space, it can be used.
                self._failed.pop(name, None)
        return registered, leaving

    def _present(
        self, registered: Mapping[str, Registration], leaving: Collection[str]
    ) -> list[str]:
        return [
            name
            for name, found in registered.items()
            if found.writable and name not in leaving and not self._quarantined(found)
        ]

    def _full(
        self, registered: Mapping[str, Registration], leaving: Collection[str], count: int
    ) -> list[str]:
        """At most `count` of the bookies whose disks have only their reserve left."""
        full = [
            name
            for name, found in registered.items()
            if not found.writable and name not in leaving and not self._quarantined(found)
        ]
        return self._rng.sample(full, min(count, len(full)))

    async def are_full(self, bookie_ids: Collection[str]) -> bool:
        """Whether all these bookies are registered and accept no new data, with full disks."""
        registered, _ = await self._look()
        found = [registered[name] for name in bookie_ids if name in registered]
        return (
            bool(found)
            and len(found) == len(bookie_ids)
            and not any(each.writable for each in found)
        )

    def _quarantined(self, found: Registration) -> bool:
        failure = self._failed.get(found.bookie_id)
        if failure is None:
            return False
        boot, until = failure
        if found.boot > boot >= 0 or self._clock.monotonic() >= until:
            del self._failed[found.bookie_id]
            return False
        return True

    async def _shortage(
        self,
        quorums: Quorums,
        usable: Collection[str],
        registered: Mapping[str, Registration],
        leaving: Collection[str],
    ) -> str:
        """Why `usable` was not enough, as text. A quarantine may have ended since it was read."""
        full = [name for name, found in registered.items() if not found.writable]
        others = set(usable) | set(full) | set(leaving)
        failing = [name for name in registered if name not in others]
        known = await self._bookies.known()
        away = [name for name in known if name not in registered and name not in leaving]
        counted = {
            "read-only": len(full),
            "failing, and tried again later": len(failing),
            "being decommissioned": len(leaving),
            "known but not registered": len(away),
        }
        parts = ", ".join(f"{count} {what}" for what, count in counted.items() if count)
        sizes = f"{quorums.ensemble}/{quorums.write}/{quorums.ack}"
        return (
            f"a ledger of {sizes} (ensemble/write/ack quorum) needs more than the "
            f"{len(usable)} usable {'bookie' if len(usable) == 1 else 'bookies'}"
            + (f"; besides there are {parts}" if parts else "")
        )


def _runs_here(found: Registration) -> bool:
    """Whether a bookie is reached within a process or a machine, and by nobody else."""
    over_tcp = found.address.startswith(TCP)
    if (found.address and not over_tcp) or not (found.address or found.grpc):
        return True
    with suppress(InvalidRequest):
        return is_loopback(parse_host_port(found.address.removeprefix(TCP) or found.grpc)[0])
    return False
