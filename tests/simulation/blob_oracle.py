"""The rules that an object store must never break, checked with its clients' answers.

The bytes of each put identify the put. So every reader notices at once if a body is truncated or
mixes two puts.

Invariants checked:
- A body that is read is one whole body that was put under that name.
- The history of each name is linearizable: an acknowledged body stays until it is replaced.
- Each append is in the object once, in the order of its client's appends.
"""

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from tests.linearizability import Kind, Operation, check
from tests.simulation.oracles import Violation

_HEADER_BYTES = 8


def body_of(number: int, length: int) -> bytes:
    """The bytes that a put stores."""
    head = number.to_bytes(4) + length.to_bytes(4)
    return head + random.Random(number).randbytes(length)


def number_of(body: bytes) -> int:
    """Which put a body is of. Raises `Violation` for one that is not whole."""
    number, length = int.from_bytes(body[:4]), int.from_bytes(body[4:_HEADER_BYTES])
    if body != body_of(number, length):
        raise Violation(f"a body of {len(body)} bytes does not match any put: {body[:16]!r}")
    return number


def numbers_in(body: bytes) -> list[int]:
    """Which puts joined bodies are of, in order. Raises `Violation`."""
    found: list[int] = []
    while body:
        length = _HEADER_BYTES + int.from_bytes(body[4:_HEADER_BYTES])
        found.append(number_of(body[:length]))
        body = body[length:]
    return found


def token_of(number: int) -> bytes:
    """What an append adds."""
    return b"<%06d>" % number


def tokens_in(body: bytes) -> list[int]:
    """What was appended, in order. Raises `Violation` for what no append adds."""
    pieces = [body[start : start + 8] for start in range(0, len(body), 8)]
    numbers = [int(piece[1:-1]) if len(piece) == 8 else -1 for piece in pieces]
    if any(token_of(number) != piece for number, piece in zip(numbers, pieces, strict=True)):
        raise Violation(f"half an append is visible: {body!r}")
    return numbers


@dataclass
class Appended:
    """What is known of the appends to one object."""

    done: list[int] = field(default_factory=list)
    begun: list[int] = field(default_factory=list)
    by_client: dict[str, list[int]] = field(default_factory=dict)


class BlobOracle:
    """Listens to the clients of one run."""

    def __init__(self) -> None:
        self.calls: dict[int, Operation] = {}
        self.put_under: dict[int, str] = {}
        """The name under which each put stores its body."""
        self.appended: dict[str, Appended] = {}
        self.kept_ids: dict[str, int] = {}
        """Ids of objects without a name, and which put each is of, until they are deleted."""
        self.answered = 0
        """How many calls had an outcome that their clients know."""
        self._numbers = 0

    def next_number(self) -> int:
        """A number for a put, or for a call."""
        self._numbers += 1
        return self._numbers

    def begin(self, call: Operation) -> int:
        """A call begins: it may happen from now on, whatever becomes of its client."""
        number = self.next_number()
        self.calls[number] = replace(call, returned=math.inf)
        return number

    def end(self, number: int, now_s: float, **known: Any) -> None:
        """A call was answered; `known` is its answer."""
        self.calls[number] = replace(self.calls[number], returned=now_s, **known)

    def forget(self, number: int) -> None:
        """A call did not happen, or shows nothing."""
        del self.calls[number]

    def on_body(self, name: str, body: bytes, now_s: float) -> str:
        """A body was read under a name; returns which put it is of."""
        number = number_of(body)
        if self.put_under.get(number) != name:
            raise Violation(f"{name} holds what was put under {self.put_under.get(number)}")
        return str(number)

    def on_tokens(self, name: str, body: bytes, *, whole: bool) -> None:
        """What was appended to an object was read; `whole`: when all appends had ended."""
        numbers, known = tokens_in(body), self.appended.setdefault(name, Appended())
        if len(set(numbers)) != len(numbers) or not set(numbers) <= set(known.begun):
            raise Violation(f"{name} holds {numbers}, appended were {known.begun}")
        for client, begun in known.by_client.items():
            own = [number for number in numbers if number in begun]
            if own != sorted(own):
                raise Violation(f"{name}: the appends of {client} stand as {own}")
        missing = [number for number in known.done if number not in numbers]
        if whole and missing:
            raise Violation(f"{name} has lost what was appended: {missing}")

    def judge(self) -> None:
        """Look at all histories. Raises `Violation`."""
        witness = check(self._history())
        if witness is not None:
            raise Violation(f"not linearizable: {witness}")

    def _history(self) -> Iterable[Operation]:
        for call in self.calls.values():
            if call.kind is Kind.READ and call.unknown:
                continue
            yield call
