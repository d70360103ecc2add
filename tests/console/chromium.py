"""A real headless Chromium, told what to do over a pair of pipes in the DevTools protocol.

Invariants:
- It speaks to nobody but the test: no port is open, and its profile is gone with it.
- Whatever a page complains of, and every address that it asks, is kept for the test to look at.
- Who waits, waits in the page for a condition, with a deadline.
"""

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

DEADLINE_S: Final = 30.0
STARTS: Final = 3
_FIRST_FREE: Final = 10
_PIECE_BYTES: Final = 1 << 20
_FLAGS: Final = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",
    "--no-first-run",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-color-profile=srgb",
    "--hide-scrollbars",
    "--lang=en",
)
_LEFT: Final = ("navigated or closed", "context was destroyed", "Cannot find context")
_WAIT: Final = """
new Promise((resolve, reject) => {
  const until = performance.now() + %d;
  const look = () => {
    let found;
    try { found = (%s); } catch (error) { found = null; }
    if (found) resolve(found);
    else if (performance.now() > until) reject(new Error("waited in vain"));
    else setTimeout(look, 15);
  };
  look();
})
"""


class PageError(AssertionError):
    """What was asked for did not happen in the page."""


def chromium_path() -> str:
    """The program. Fails where there is none."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        raise AssertionError("no Chromium found (Debian: apt-get install chromium)")
    return found


class Browser:
    """One process of Chromium."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.downloads = folder / "downloads"
        theirs_in, self._write = _pipe()
        self._read, theirs_out = _pipe()
        arguments = [chromium_path(), *_FLAGS, f"--user-data-dir={folder / 'profile'}"]
        with (folder / "chromium.log").open("wb") as log:
            self._pid = os.posix_spawn(
                arguments[0],
                arguments,
                os.environ | {"HOME": str(folder)},
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, theirs_in, 3),
                    (os.POSIX_SPAWN_DUP2, theirs_out, 4),
                    (os.POSIX_SPAWN_DUP2, log.fileno(), 1),
                    (os.POSIX_SPAWN_DUP2, log.fileno(), 2),
                ],
                setpgroup=0,
            )
        os.close(theirs_in)
        os.close(theirs_out)
        self._rest = b""
        self._number = 0
        self._pages: dict[str, Page] = {}

    def page(self, width: int = 1280, height: int = 900) -> "Page":
        """A new page with cookies and storage of its own."""
        context = self.send("Target.createBrowserContext")["browserContextId"]
        self.send(
            "Browser.setDownloadBehavior",
            behavior="allow",
            browserContextId=context,
            downloadPath=str(self.downloads),
            eventsEnabled=True,
        )
        target = self.send(
            "Target.createTarget",
            url="about:blank",
            browserContextId=context,
            width=width,
            height=height,
        )["targetId"]
        told = self.send("Target.attachToTarget", targetId=target, flatten=True)
        page = Page(self, told["sessionId"])
        self._pages[told["sessionId"]] = page
        for domain in ("Page", "Runtime", "Network", "Log", "DOM"):
            page.send(f"{domain}.enable")
        page.size(width, height)
        return page

    def send(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Have it do something; what it answers."""
        self._number += 1
        number = self._number
        told: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if session is not None:
            told["sessionId"] = session
        _write_all(self._write, json.dumps(told).encode() + b"\0")
        until = time.monotonic() + DEADLINE_S
        while True:
            said = self._message(until)
            if said.get("id") != number:
                self._heard(said)
            elif "error" in said:
                raise PageError(f"{method}: {said['error']['message']}")
            else:
                result: dict[str, Any] = said["result"]
                return result

    def _heard(self, said: dict[str, Any]) -> None:
        page = self._pages.get(said.get("sessionId", ""))
        if page is not None:
            page.heard(said.get("method", ""), said.get("params", {}))

    def _message(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            left = until - time.monotonic()
            ready, _, _ = select.select([self._read], [], [], max(0.0, left))
            if not ready:
                raise PageError(f"Chromium says nothing; its log: {self._log()}")
            piece = os.read(self._read, _PIECE_BYTES)
            if not piece:
                raise PageError(f"Chromium has ended; its log: {self._log()}")
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def _log(self) -> str:
        return (self._folder / "chromium.log").read_text(errors="replace")[-2_000:]

    def close(self) -> None:
        """End it and all that it started."""
        try:
            os.killpg(self._pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        os.waitpid(self._pid, 0)
        os.close(self._read)
        os.close(self._write)


class Page:
    """One page. `complaints` are errors of the console, `asked` all addresses that it asked."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self.complaints: list[str] = []
        self.asked: list[str] = []

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Have the page do something; what it answers."""
        return self._browser.send(method, self._session, **parameters)

    def heard(self, event: str, told: dict[str, Any]) -> None:
        """Keep what the page complains of, and whom it asks."""
        if event == "Runtime.exceptionThrown":
            details = told["exceptionDetails"]
            thrown = details.get("exception", {}).get("description", "")
            self.complaints.append(f"{details['text']} {thrown}")
        elif event == "Runtime.consoleAPICalled" and told["type"] in ("error", "assert"):
            self.complaints.append(str(told["args"]))
        elif event == "Log.entryAdded" and told["entry"]["level"] == "error":
            self.complaints.append(f"{told['entry']['text']} {told['entry'].get('url', '')}")
        elif event == "Network.requestWillBeSent":
            self.asked.append(told["request"]["url"])

    def size(self, width: int, height: int) -> None:
        """Have the window be so large, in CSS pixels."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def forget(self, *origins: str) -> None:
        """Keep nothing of what was: complaints, addresses, cookies and what pages stored."""
        self.send("Network.clearBrowserCookies")
        for origin in origins:
            self.send("Storage.clearDataForOrigin", origin=origin, storageTypes="all")
        self.complaints.clear()
        self.asked.clear()

    def theme(self, name: str) -> None:
        """Have the system want light or dark."""
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.send("Emulation.setEmulatedMedia", features=features)

    def network(self, *, on: bool) -> None:
        """Have every address out of reach, or within it again."""
        self.send(
            "Network.emulateNetworkConditions",
            offline=not on,
            latency=0,
            downloadThroughput=-1,
            uploadThroughput=-1,
        )

    def open(self, url: str) -> None:
        """Go to an address, whole."""
        self.send("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """The value of an expression in the page, awaited. Raises `PageError`."""
        told = self.send(
            "Runtime.evaluate",
            expression=script,
            awaitPromise=True,
            returnByValue=True,
            userGesture=True,
            allowUnsafeEvalBlockedByCSP=False,
        )
        if "exceptionDetails" in told:
            details = told["exceptionDetails"]
            thrown = details.get("exception", {}).get("description", "")
            raise PageError(f"{script[:300]}: {details['text']} {thrown}")
        return told["result"].get("value")

    def wait(self, condition: str, seconds: float = 20) -> Any:
        """Wait until an expression in the page is true; its value."""
        looking = _WAIT % (int(seconds * 1000), condition)
        while True:
            try:
                return self.run(looking)
            except PageError as error:
                # The page that was looked at has been left: what is looked for is on the next one.
                if any(text in str(error) for text in _LEFT):
                    continue
                shown = self.run("document.body?.innerText ?? ''")
                told = f"{error}\ncomplaints: {self.complaints}\npage: {shown}"
                raise PageError(told) from error

    def sees(self, text: str, seconds: float = 20) -> None:
        """Wait until a text is to be read in the page."""
        self.wait(f"document.body.innerText.includes({json.dumps(text)})", seconds)

    def click(self, text: str, inside: str = "body") -> None:
        """Click the button or link that is called so, when it is there."""
        found = (
            f"[...document.querySelectorAll({json.dumps(inside)})].flatMap("
            "(place) => [...place.querySelectorAll('button, a')]).find((each) => "
            f"each.innerText.trim() === {json.dumps(text)} && !each.disabled)"
        )
        self.wait(f"(() => {{ const it = {found}; it?.click(); return Boolean(it); }})()")

    def fill(self, selector: str, text: str) -> None:
        """Have a field hold a text."""
        chosen = json.dumps(selector)
        self.wait(f"Boolean(document.querySelector({chosen}))")
        self.run(f"document.querySelector({chosen}).value = {json.dumps(text)}")

    def key(self, key: str, *, ctrl: bool = False, shift: bool = False) -> None:
        """Press a key and let it go."""
        text = key if len(key) == 1 else "\r" if key == "Enter" else ""
        told: dict[str, Any] = {
            "key": key,
            "code": key if len(key) > 1 else f"Key{key.upper()}",
            "windowsVirtualKeyCode": _CODES.get(key, ord(key[0].upper())),
            "modifiers": 2 * ctrl + 8 * shift,
        }
        if text and not ctrl:
            told["text"] = text
        self.send("Input.dispatchKeyEvent", type="keyDown", **told)
        self.send("Input.dispatchKeyEvent", type="keyUp", **told)

    def type(self, text: str) -> None:
        """Type a text where the focus is."""
        self.send("Input.insertText", text=text)

    def choose_files(self, selector: str, *files: Path) -> None:
        """Have a field for files hold these."""
        root = self.send("DOM.getDocument")["root"]["nodeId"]
        node = self.send("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.send("DOM.setFileInputFiles", nodeId=node, files=[str(each) for each in files])

    def picture(self, file: Path) -> None:
        """Keep a picture of the page."""
        told = self.send("Page.captureScreenshot", format="png")
        file.write_bytes(base64.b64decode(told["data"]))


_CODES: Final = {
    "Tab": 9,
    "Enter": 13,
    "Escape": 27,
    "End": 35,
    "Home": 36,
    "ArrowUp": 38,
    "ArrowDown": 40,
}


def _pipe() -> tuple[int, int]:
    """A pair whose numbers are none that the child uses, and that it does not inherit by itself."""
    ends = os.pipe()
    made = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE) for end in ends)
    for end in ends:
        os.close(end)
    return made[0], made[1]


def _write_all(end: int, data: bytes) -> None:
    while data:
        data = data[os.write(end, data) :]


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser that answers, as long as the block lasts.

    Some never do, and a machine's first may still be read from its disk.
    """
    with ExitStack() as stack:
        for left in reversed(range(STARTS)):
            browser = stack.enter_context(_started())
            try:
                browser.send("Browser.getVersion")
                break
            except PageError:
                stack.close()
                if not left:
                    raise
        yield browser


@contextmanager
def _started() -> Iterator[Browser]:
    folder = Path(tempfile.mkdtemp(prefix="herdbook-chromium-"))
    (folder / "downloads").mkdir()
    browser = Browser(folder)
    try:
        yield browser
    finally:
        browser.close()
        # Its children may still be writing when they are killed.
        shutil.rmtree(folder, ignore_errors=True)
