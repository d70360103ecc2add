"""A program of many processes: its name, and what one of them keeps from going for all of them.

Whoever pins something for the program notes the pin in a folder of the driver's machine; the driver
renews all that is noted, and drops it when the program ends.

Invariants:
- A pin is noted after it holds, and lasts by itself until the driver has surely seen the note.
- A note is whole or not there.
- What a noted pin keeps is pinned once, however often a program asks for it.
"""

import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

import msgspec

from engine.errors import EngineError
from engine.place import Place

RENEWED_MS: Final = 5 * 60_000
"""How long a pin lasts that the driver renews: several times as long as its pauses."""
ALONE_MS: Final = 2 * 3_600_000
"""How long one lasts that nobody renews."""
_NOTED: Final = ".pin"


class Renewable(Protocol):
    """A pin, picklable."""

    @property
    def place(self) -> Place:
        """The store that it is in."""
        ...

    def renew(self) -> None:
        """Hold it again for `RENEWED_MS`. Raises `NotFound` if what it held is gone."""
        ...

    def drop(self) -> None:
        """Let go; what it held may go. One that is noted is dropped by the driver alone."""
        ...

    def keeps(self, other: "Renewable") -> bool:
        """Whether all that another one keeps is kept by this one, too."""
        ...


class Application(msgspec.Struct, frozen=True):
    """What all processes of a program know of it; `folder` is "" where nobody renews pins."""

    name: str = ""
    folder: str = ""

    @property
    def pin_ms(self) -> int:
        """How long a pin has to last by itself."""
        return RENEWED_MS if self.folder and Path(self.folder).is_dir() else ALONE_MS

    def note(self, pin: Renewable, name: str) -> None:
        """Leave it to the driver to renew a pin, if it is on this machine; `name` is unique."""
        if self.pin_ms != RENEWED_MS:
            return
        path = Path(self.folder, name)
        path.write_bytes(pickle.dumps(pin))
        path.rename(path.with_suffix(_NOTED))

    def noted_for(self, wanted: Renewable) -> Renewable | None:
        """A pin that was noted and keeps all that another one would, renewed; None without one."""
        for path, pin in self.noted():
            if pin.keeps(wanted):
                try:
                    pin.renew()
                    # The driver lets go of what nobody asked for in the longest time.
                    os.utime(path)
                except (EngineError, FileNotFoundError):
                    continue
                return pin
        return None

    def noted(self) -> Iterator[tuple[Path, Renewable]]:
        """All pins that were noted, and where, those first that were asked for longest ago.

        Without its file a pin is noted no more.
        """
        if not self.folder:
            return
        for path in sorted(Path(self.folder).glob(f"*{_NOTED}"), key=_asked_ns):
            try:
                pin: Renewable = pickle.loads(path.read_bytes())
            except FileNotFoundError:
                # The driver took it away meanwhile.
                continue
            yield path, pin


def _asked_ns(path: Path) -> tuple[int, str]:
    try:
        return path.stat().st_mtime_ns, path.name
    except FileNotFoundError:
        return 0, path.name
