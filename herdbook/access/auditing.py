"""Writes the lines of the audit to a file that rotates, or to the program's log.

    [audit]
    folder = "/var/log/herdbook"           # one file a kind of server; without it: the log

Invariants:
- Nobody but the user who runs the server reads the files.
- A full file is put aside, at most `FILES` of them are kept.
- If another program, such as `logrotate`, moves or deletes a file, a new one is created.
"""

import logging
import os
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, Final

from engine.access.audit import Audit, LineAudit
from engine.errors import InvalidRequest
from engine.ports.clock import SystemClock
from herdbook.finding import FILE_VARIABLE, configuration_file, read_configuration

FILE_BYTES: Final = 64 * 1024 * 1024
FILES: Final = 10
_logger: Final = logging.getLogger("herdbook.audit")


def audit_of(folder: Path | None, where: str) -> Audit:
    """The audit of one kind of server. Raises `InvalidRequest` for a folder that cannot be used."""
    if folder is None:
        return LineAudit(_logger.info, SystemClock().wall_ms)
    file = folder / f"audit-{where}.jsonl"
    try:
        handler = _files.get(file)
        if handler is None:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            handler = _files[file] = _OwnFile(
                file, maxBytes=FILE_BYTES, backupCount=FILES - 1, encoding="utf-8"
            )
    except OSError as error:
        raise InvalidRequest(f"the audit cannot be kept in {folder}: {error.strerror}") from error
    kept = handler

    def write(line: str) -> None:
        kept.emit(logging.LogRecord(where, logging.INFO, "", 0, line, None, None))

    return LineAudit(write, SystemClock().wall_ms)


def configured_audit(where: str) -> Audit:
    """The audit that the configuration asks for. Raises `InvalidRequest` as `audit_of`."""
    needed = bool(os.environ.get(FILE_VARIABLE))
    configuration = read_configuration(configuration_file(os.environ), needed=needed)
    return audit_of(configuration.path(configuration.audit.folder), where)


class _OwnFile(RotatingFileHandler):
    """One that others cannot read, and whose failures are told to who writes."""

    def _open(self) -> Any:
        def opener(name: str, flags: int) -> int:
            return os.open(name, flags, 0o600)

        return open(self.baseFilename, self.mode, encoding=self.encoding, opener=opener)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line to the file that has the name at this moment."""
        if self.stream is not None and not self._has_name(self.stream.fileno()):
            self.stream.close()
            self.stream = None
        super().emit(record)

    def _has_name(self, fd: int) -> bool:
        try:
            return os.path.samestat(os.stat(self.baseFilename), os.fstat(fd))
        except FileNotFoundError:
            return False

    def handleError(self, record: logging.LogRecord) -> None:
        """Raise it again: a line that is lost has to be counted."""
        raise


_files: Final[dict[Path, _OwnFile]] = {}
"""Those that this process writes, until logging itself ends."""
