"""State machines and entries for the tests of replicas."""

from engine.errors import InvalidRequest
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


class Curious(Register):
    """One that looks at whatever it is shown: what it sees decides what it writes."""

    def apply(self, rows: Rows, command: bytes, position: Position) -> bytes:
        seen = len(rows.scan(b"")) + len(rows.scan(b"\0", b"\1")) + len(rows.scan(b"\0", b"b"))
        own = [rows.get(b"\0#"), rows.get(b"\0l"), rows.get(b"")]
        rows.put(command, b"%d %r" % (seen, own))
        return b"%d %r" % (seen, own)


class Careless(Register):
    """One that gives back, or stores, what is no bytes."""

    async def _later(self) -> bytes:
        return b"-"

    def apply(self, rows: Rows, command: bytes, position: Position) -> bytes:
        wrong: dict[bytes, object] = {
            b"none": None, b"text": "1", b"number": 1, b"buffer": bytearray(b"1"),
        }  # fmt: skip
        if command in wrong:
            return wrong[command]  # type: ignore[return-value]
        if command == b"later":
            return self._later()  # type: ignore[return-value]
        if command == b"put text":
            rows.put(b"k", "v")  # type: ignore[arg-type]
        if command == b"put buffer":
            rows.put(b"k", bytearray(b"v"))  # type: ignore[arg-type]
        return b"done"


class Bold(Register):
    """One that puts and deletes whatever key it is told, and says what it heard."""

    def apply(self, rows: Rows, command: bytes, position: Position) -> bytes:
        try:
            rows.delete(command)
            rows.put(command, b"1")
        except InvalidRequest:
            return b"refused"
        return b"done"


def commands(*texts: str, level: int = 1) -> list[bytes]:
    """One entry a command."""
    return [encode_command(text.encode(), level, None)[0] for text in texts]
