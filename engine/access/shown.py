"""The read token that a client shows at bookies, which is another one from time to time.

Invariants:
- Of two tokens that is shown which ends later.
- A file that is not there, or not whole, changes nothing: tasks on other machines have none.
"""

import contextlib
from pathlib import Path
from typing import Final

from engine.access.tokens import ends_ms
from engine.ports.clock import Clock

_LOOK_S: Final = 60.0


class ShownToken:
    """The newest token that it was given. In any thread.

    Whoever renews it for several processes of a machine writes `file`, in which they look as often
    as once a minute.
    """

    def __init__(self, text: str = "", *, clock: Clock, file: Path | None = None) -> None:
        self._text = text
        self._clock = clock
        self._file = file
        self._looked_s = -_LOOK_S

    def __repr__(self) -> str:
        return "ShownToken()"

    @property
    def text(self) -> str:
        """What is shown now."""
        if self._file is not None:
            now_s = self._clock.monotonic()
            if now_s - self._looked_s >= _LOOK_S:
                self._looked_s = now_s
                with contextlib.suppress(OSError, UnicodeDecodeError):
                    self.renew(self._file.read_text())
        return self._text

    def renew(self, text: str) -> None:
        """Show another token from now on, if it ends later than the one that is shown."""
        if text != self._text and ends_ms(text) > ends_ms(self._text):
            self._text = text
