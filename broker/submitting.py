"""Takes tasks: what is judged first, what is written then.

Invariants:
- Nothing is written for a task that is refused, and of an atomic batch nothing if one is.
- Tasks that are taken get consecutive ids, in their order.
- A slot and a unique key have one holder, also within one batch.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from broker.alike import AlikeTasks
from broker.applying import Step, TransactionChanged
from broker.commands import TRANSACTION_TASKS_MAX, Refusal, Spec, Submit
from broker.following import followed
from broker.graphs import link, parent_ids
from broker.keys import (
    ENDING,
    PAYLOAD,
    SLOT,
    TRANSACTION,
    named,
    numbered,
    pack_id,
    unique_key,
    unpack_id,
)
from broker.rollout_commands import RESERVED
from broker.spec import EDGES_MAX
from broker.task import (
    INLINE_BYTES_MAX,
    Status,
    Task,
    Transaction,
    decode_transaction,
    encode,
)

TRANSACTION_EDGES_MAX: Final = 10_000
# Looking a member up in its enumeration costs more than most of what is done here with it.
_PREPARED: Final = Status.PREPARED
_DELAYED: Final = Status.DELAYED
_WAITING: Final = Status.WAITING
_NO_SPEC: Final = Spec("")
_FIRST_REFUSED: Final = Refusal(
    "invalid_task", "nothing stands before the first task of a batch that it could be as"
)
_BATCH_REFUSED: Final = Refusal("batch_refused", "another task of the batch was refused")


def submit(step: Step, wanted: Submit) -> bytes:
    """Take tasks; answers ids and refusals."""
    transaction: Transaction | None = None
    if wanted.transaction:
        found = open_transaction(step, wanted.transaction, wanted.owner)
        refusal = found if isinstance(found, Refusal) else full(found, len(wanted.specs))
        if refusal is not None:
            return encode([refusal] * len(wanted.specs))
        assert isinstance(found, Transaction)
        transaction = found
    return encode(take(step, wanted.specs, transaction, wanted.atomic))


def take(
    step: Step,
    specs: Sequence[Spec | bytes],
    transaction: Transaction | None = None,
    atomic: bool = False,
    reserved: bool = False,
    expired_code: bool = False,
) -> list[int | Refusal]:
    """The ids of accepted tasks, and refusals for the others. Bytes: see `Submit`.

    `reserved`: they may be steps of a roll-out. `expired_code`: their code pools may have expired.
    """
    first = step.counters.task + 1
    judging = _Judging(step, first, transaction, reserved, expired_code)
    answers, whole = judging.judge_all(specs)
    taken = judging.next_id - first
    if atomic and taken < len(answers):
        return [_BATCH_REFUSED if type(answer) is int else answer for answer in answers]
    step.counters.task += taken
    if transaction is not None and taken:
        transaction.ranges.append((first, taken))
        transaction.tasks += taken
        transaction.edges += judging.edges
        step.put(numbered(TRANSACTION, transaction.id), encode(transaction))
        step.changed(TransactionChanged(transaction.id, transaction))
    transaction_id = 0 if transaction is None else transaction.id
    alike: AlikeTasks | None = None
    before = _NO_SPEC
    for item, spec, answer in zip(specs, whole, answers, strict=True):
        if spec is None:
            assert type(answer) is int and type(item) is bytes
            if alike is None:
                alike = AlikeTasks(_made(step, before, answer, transaction_id, b"", 0))
            alike.put(step, answer, item)
            continue
        if alike is not None:
            alike.tell(step)
            alike = None
        if type(item) is not bytes:
            before = spec
        if type(answer) is int:
            _write(step, spec, answer, transaction_id, answers)
    if alike is not None:
        alike.tell(step)
    return answers


def open_transaction(step: Step, transaction_id: int, owner: str) -> Transaction | Refusal:
    """A transaction that has neither ended nor passed its time, nor is another owner's."""
    row = step.get(numbered(TRANSACTION, transaction_id))
    if row is None:
        return Refusal("unknown_transaction", f"no transaction {transaction_id} is open")
    found: Transaction = decode_transaction(row)
    if owner not in ("", found.owner):
        return foreign(found)
    if found.expires_ms <= step.now_ms:
        return Refusal("unknown_transaction", f"transaction {transaction_id} passed its time")
    return found


def committing(step: Step, transaction_id: int) -> bool:
    """Whether a transaction was committed and not all of its tasks have followed yet."""
    row = step.get(numbered(ENDING, transaction_id))
    return row is not None and decode_transaction(row).committed


def foreign(transaction: Transaction) -> Refusal:
    """What somebody else is told who asks for it."""
    return Refusal("access_denied", f"transaction {transaction.id} was begun by somebody else")


def full(transaction: Transaction, more: int) -> Refusal | None:
    """Why so many more tasks do not fit."""
    if transaction.tasks + more <= TRANSACTION_TASKS_MAX:
        return None
    return Refusal(
        "transaction_full",
        f"transaction {transaction.id} has {transaction.tasks:,} tasks, "
        f"{TRANSACTION_TASKS_MAX:,} fit",
    )


class _Judging:
    """Decides for each task of a batch, with those before it in mind."""

    def __init__(
        self,
        step: Step,
        next_id: int,
        transaction: Transaction | None,
        reserved: bool,
        expired_code: bool,
    ) -> None:
        self.next_id = next_id
        self.edges = 0
        self._step = step
        self._reserved = reserved
        self._expired_code = expired_code
        self._transaction_id = 0 if transaction is None else transaction.id
        self._edges_before = 0 if transaction is None else transaction.edges
        self._slots: dict[str, int] = {}
        self._unique_keys: dict[bytes, int] = {}
        self._answers: list[int | Refusal] = []

    def judge_all(
        self, items: Sequence[Spec | bytes]
    ) -> tuple[list[int | Refusal], list[Spec | None]]:
        """Ids and refusals; and the specs whole, None for what is written as the one before it."""
        answers = self._answers
        whole: list[Spec | None] = []
        before: Spec | None = None
        alike = False
        for item in items:
            if type(item) is not bytes:
                assert isinstance(item, Spec)
                before = spec = item
                alike = (
                    _is_plain(item)
                    and not self._transaction_id
                    and item.due_ms <= self._step.now_ms
                )
            elif before is None:
                answers.append(_FIRST_REFUSED)
                whole.append(_NO_SPEC)
                continue
            elif alike and len(item) <= INLINE_BYTES_MAX:
                answers.append(self.next_id)
                self.next_id += 1
                whole.append(None)
                continue
            else:
                spec = msgspec.structs.replace(before, payload=item)
            whole.append(spec)
            self.judge(spec)
        return answers, whole

    def judge(self, spec: Spec) -> int | Refusal:
        """The id that the task gets, or why it is not taken."""
        plain = _is_plain(spec)
        answer: int | Refusal | None = None if plain else self._refusal(spec)
        if answer is None:
            answer = self.next_id
            self.next_id += 1
            if not plain:
                self._remember(spec, answer)
        self._answers.append(answer)
        return answer

    def _remember(self, spec: Spec, task_id: int) -> None:
        if spec.slot:
            self._slots[spec.slot] = task_id
        if spec.unique_key:
            self._unique_keys[unique_key(spec.tenant, spec.unique_key)] = task_id
        self.edges += len(spec.parents)

    def _refusal(self, spec: Spec) -> Refusal | None:
        step = self._step
        if not self._reserved and spec.type.startswith(RESERVED):
            return Refusal("invalid_task", f"types that begin with {RESERVED} are roll-outs'")
        if spec.payload_object and spec.payload:
            return Refusal("invalid_task", "a payload is bytes or an object, not both")
        if spec.deadline_ms and spec.deadline_ms <= max(spec.due_ms, step.now_ms):
            return Refusal("deadline_before_start", "the deadline is not after the start")
        if spec.unique_key:
            key = unique_key(spec.tenant, spec.unique_key)
            holder = self._unique_keys.get(key) or _holder(step, key)
            if holder:
                return Refusal(
                    "duplicate", f"task {holder} has the unique key {spec.unique_key}", holder
                )
        if spec.slot:
            holder = self._slots.get(spec.slot) or _holder(step, named(SLOT, spec.slot))
            if holder:
                return Refusal("slot_busy", f"slot {spec.slot} is held by task {holder}", holder)
        if spec.codepool:
            refusal = pool_missing(step, spec.codepool, expired=self._expired_code)
            if refusal is not None:
                return refusal
        return self._judge_parents(spec) if spec.parents else None

    def _judge_parents(self, spec: Spec) -> Refusal | None:
        step = self._step
        edges = self.edges + len(spec.parents)
        if edges > EDGES_MAX:
            return Refusal("too_large", f"a batch has at most {EDGES_MAX:,} parents in all")
        if self._edges_before + edges > TRANSACTION_EDGES_MAX:
            return Refusal(
                "transaction_full", f"a transaction has at most {TRANSACTION_EDGES_MAX:,} parents"
            )
        found = parent_ids(spec, self._answers)
        if isinstance(found, Refusal):
            return found
        first = step.counters.task + 1
        for task_id in found:
            if first <= task_id < self.next_id:
                continue
            parent = step.active(task_id)
            if parent is None:
                if step.final(task_id) is None:
                    return Refusal("unknown_parent", f"there is no task {task_id}", task_id)
            elif parent.transaction not in (0, self._transaction_id) and not committing(
                step, parent.transaction
            ):
                return Refusal(
                    "unknown_parent", f"task {task_id} is in another open transaction", task_id
                )
        return None


def _is_plain(spec: Spec) -> bool:
    """Whether nothing but the state of the whole broker could be in its way."""
    return not (
        spec.slot
        or spec.unique_key
        or spec.parents
        or spec.codepool
        or spec.deadline_ms
        or spec.payload_object
        or spec.type.startswith(RESERVED)
    )


def _holder(step: Step, key: bytes) -> int:
    row = step.get(key)
    if row is None:
        return 0
    holder = unpack_id(row)
    # A task whose transaction was rolled back holds nothing, even if it still exists.
    followed(step, holder)
    return 0 if step.get(key) is None else holder


def pool_missing(step: Step, name: str, *, expired: bool = False) -> Refusal | None:
    """Why a task cannot name this code pool. With `expired`, the pool may have expired."""
    pool = step.pool(name)
    if pool is None or pool.parts_stored < pool.parts:
        return Refusal("unknown_code_pool", f"there is no code pool {name}")
    if 0 < pool.expires_ms <= step.now_ms and not expired:
        return Refusal("unknown_code_pool", f"code pool {name} has expired")
    return None


def holding_refused(step: Step, task: Task) -> Refusal | None:
    """Why an ended task cannot hold again what it held."""
    if task.slot:
        holder = _holder(step, named(SLOT, task.slot))
        if holder:
            return Refusal("slot_busy", f"slot {task.slot} is held by task {holder}", holder)
    if task.unique_key:
        holder = _holder(step, unique_key(task.tenant, task.unique_key))
        if holder:
            return Refusal(
                "duplicate", f"task {holder} has the unique key {task.unique_key}", holder
            )
    return pool_missing(step, task.codepool) if task.codepool else None


def hold(step: Step, task: Task) -> None:
    """Take what the task holds until it has ended."""
    if task.slot:
        step.put(named(SLOT, task.slot), pack_id(task.id))
    if task.unique_key:
        step.put(unique_key(task.tenant, task.unique_key), pack_id(task.id))
    if task.codepool:
        step.use_pool(task.codepool, 1)


def _write(
    step: Step, spec: Spec, task_id: int, transaction_id: int, answers: list[int | Refusal]
) -> None:
    payload = spec.payload
    payload_bytes = 0
    if len(payload) > INLINE_BYTES_MAX:
        payload_bytes = len(payload)
        step.put(numbered(PAYLOAD, task_id), payload)
        payload = b""
    task = _made(step, spec, task_id, transaction_id, payload, payload_bytes)
    if spec.slot or spec.unique_key or spec.codepool:
        hold(step, task)
    if spec.parents:
        link(step, task, spec, answers)
    else:
        step.store(None, task)


def _made(
    step: Step, spec: Spec, task_id: int, transaction_id: int, payload: bytes, payload_bytes: int
) -> Task:
    """The task as it begins."""
    now_ms = step.now_ms
    status = _DELAYED if spec.due_ms > now_ms else _WAITING
    if transaction_id:
        status = _PREPARED
    return Task(
        task_id,
        spec.tenant,
        spec.type,
        status,
        spec.priority,
        0,
        spec.attempts_max,
        spec.attempts_spent,
        spec.mode,
        now_ms,
        spec.due_ms,
        spec.deadline_ms,
        spec.time_limit_ms,
        spec.slot,
        spec.unique_key,
        spec.fixed,
        (spec.group or 1) if spec.fixed else 0,
        spec.resources if spec.fixed else (),
        backoff=spec.backoff,
        retention_ms=spec.retention_ms,
        dead_retention_ms=spec.dead_retention_ms,
        transaction=transaction_id,
        codepool=spec.codepool,
        execution=spec.execution,
        submitter=spec.submitter,
        payload=payload,
        payload_bytes=payload_bytes,
        payload_object=spec.payload_object,
    )
