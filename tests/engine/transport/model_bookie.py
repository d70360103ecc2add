"""A bookie that is a dict: it keeps the contract, durably as far as a dict can."""

import asyncio
from collections.abc import Callable, Sequence

from engine.run import NO_ENTRY, Run
from engine.transport.contract import (
    AppendReply,
    BookieInfo,
    LacReply,
    LedgerFacts,
    ReadReply,
    ReadRequest,
    Status,
)


class ModelBookie:
    """Entries by ledger and id. `holding` keeps replies to appends back until `release`."""

    def __init__(self, bookie_id: str, boot: int = 1) -> None:
        self.bookie_id = bookie_id
        self.boot = boot
        self.calls: list[str] = []
        self.facts: list[LedgerFacts] = []
        self.holding = False
        self.held: list[Callable[[], None]] = []
        self._entries: dict[int, dict[int, Run]] = {}
        self._keys: dict[int, bytes] = {}
        self._fenced: set[int] = set()
        self._lacs: dict[int, int] = {}
        self._grown = asyncio.Event()

    def release(self) -> None:
        """Send the replies kept back."""
        held, self.held = self.held, []
        for send in held:
            send()

    def append(
        self,
        runs: Sequence[Run],
        reply: Callable[[AppendReply], None],
        *,
        key: bytes,
        facts: LedgerFacts | None = None,
        recovery: bool = False,
    ) -> None:
        ledger_id, first, last = runs[0].ledger_id, runs[0].first, runs[-1].last
        self.calls.append(f"append {first}-{last}{' recovery' if recovery else ''}")
        status = Status.OK
        if self._keys.setdefault(ledger_id, key) != key:
            status = Status.UNAUTHORIZED
        elif ledger_id in self._fenced and not recovery:
            status = Status.FENCED
        else:
            if facts is not None:
                self.facts.append(facts)
            kept = self._entries.setdefault(ledger_id, {})
            for run in runs:
                kept.update((entry_id, run) for entry_id in range(run.first, run.last + 1))
                self.confirm(ledger_id, run.lac)
        answer = AppendReply(status, ledger_id, first, last, self.bookie_id, self.boot)
        if self.holding:
            self.held.append(lambda: reply(answer))
        else:
            asyncio.get_running_loop().call_soon(reply, answer)

    def confirm(self, ledger_id: int, lac: int) -> None:
        self._lacs[ledger_id] = max(lac, self._lacs.get(ledger_id, NO_ENTRY))
        self._grown.set()

    def record(self, facts: LedgerFacts, key: bytes) -> None:
        self.facts.append(facts)

    async def read(self, request: ReadRequest) -> ReadReply:
        self.calls.append(f"read {request.first}-{request.last}")
        if request.fence_key is not None:
            await self.fence(request.ledger_id, request.fence_key)
        lac = self._lacs.get(request.ledger_id, NO_ENTRY)
        kept = self._entries.get(request.ledger_id)
        if kept is None:
            return self._reply(Status.NO_SUCH_LEDGER, (), None, lac)
        runs: list[Run] = []
        entry_id, size_bytes = request.first, 0
        while entry_id <= request.last and size_bytes < request.max_bytes:
            run = kept.get(entry_id)
            if run is None:
                return self._reply(Status.OK, tuple(runs), (entry_id, request.last), lac)
            runs.append(run.cut(entry_id, min(run.last, request.last)))
            size_bytes += len(runs[-1].body)
            entry_id = runs[-1].last + 1
        return self._reply(Status.OK, tuple(runs), None, lac)

    async def fence(self, ledger_id: int, key: bytes) -> LacReply:
        self.calls.append("fence")
        if self._keys.setdefault(ledger_id, key) != key:
            return LacReply(Status.UNAUTHORIZED, NO_ENTRY, self.bookie_id, self.boot)
        self._fenced.add(ledger_id)
        return await self.wait_lac(ledger_id, -2, 0)

    async def wait_lac(self, ledger_id: int, above: int, timeout_ms: int) -> LacReply:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while timeout_ms and self._lacs.get(ledger_id, NO_ENTRY) <= above:
                    self._grown.clear()
                    await self._grown.wait()
        except TimeoutError:
            pass
        lac = self._lacs.get(ledger_id, NO_ENTRY)
        return LacReply(Status.OK, lac, self.bookie_id, self.boot)

    async def info(self) -> BookieInfo:
        return BookieInfo(self.bookie_id, self.boot, "cluster", True, 2**40, 2**39)

    def _reply(
        self, status: Status, runs: tuple[Run, ...], missing: tuple[int, int] | None, lac: int
    ) -> ReadReply:
        return ReadReply(status, runs, missing, None, lac, self.bookie_id, self.boot)
