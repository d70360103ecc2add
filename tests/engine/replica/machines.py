"""State machines and entries for the tests of replicas."""

from engine.log.position import Position
from engine.replica.contract import Rows
from engine.replica.entries import encode_command


class Register:
    """`key=value` sets a row and answers with the value before it."""

    level = 1

    def apply(self, rows: Rows, command: bytes, position: Position) -> bytes:
        key, _, value = command.partition(b"=")
        before = rows.get(key)
        rows.put(key, value)
        return before or b"-"


class Newer(Register):
    """One that knows commands of level 2."""

    level = 2


class Failing(Register):
    """One that is not total, as no machine may be."""

    def apply(self, rows: Rows, command: bytes, position: Position) -> bytes:
        result = super().apply(rows, command, position)
        if command == b"bad=1":
            raise ValueError("not total")
        return result


class Forgetful(Register):
    """One that is not pure: it drops every write of a key."""

    def apply(self, rows: Rows, command: bytes, position: Position) -> bytes:
        if command.startswith(b"lost="):
            return b"-"
        return super().apply(rows, command, position)


def commands(*texts: str, level: int = 1) -> list[bytes]:
    """One entry a command."""
    return [encode_command(text.encode(), level, None)[0] for text in texts]
