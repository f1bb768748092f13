"""Log lines of the C++ client, forwarded to the process's own log through a pipe.

A thread of the client may still log after ``Client.close`` has returned. With the client's Python logger it then enters
an interpreter that may be shutting down; CPython ends such a thread, C++ treats that as a crash, and a successful
program ends by SIGABRT (docs/client-aborts-at-exit.md). Invariant: no thread of the client calls Python to log; it
writes to a file descriptor, which a Python thread reads.
"""

import atexit
import logging
import os
import re
import threading
from functools import cache
from typing import Final, TextIO

import pulsar

LOGGER: Final = logging.getLogger("pulsar_sidecar.adapters.pulsar_client")
_LINE = re.compile(r"[\d-]+ [\d:.]+ (?P<level>[A-Z]+) +\[\d+\] \w+:\d+ \| (?P<message>.*)")
"""``SimpleLogger::log`` of the C++ client: time, level, thread, file and line, message."""
_LEVELS: Final = {"DEBUG": logging.DEBUG, "INFO": logging.INFO, "WARN": logging.WARNING, "ERROR": logging.ERROR}
_CLIENT_LEVELS: Final = {
    logging.DEBUG: pulsar.LoggerLevel.Debug,
    logging.INFO: pulsar.LoggerLevel.Info,
    logging.WARNING: pulsar.LoggerLevel.Warn,
}
_DRAIN_SECONDS: Final = 1.0
_MARK: Final = "\x00drained"
"""Marks the end of the lines written so far."""
_REPEAT_SECONDS: Final = 30.0
_REMEMBERED_LINES: Final = 1000


class RepetitionFilter(logging.Filter):
    """Filter that passes a repeated line once in 30 s: the client repeats itself fast while a broker is down."""

    def __init__(self) -> None:
        super().__init__()
        self._shown: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        line = record.getMessage()
        shown = self._shown.get(line)
        if shown is not None and record.created - shown < _REPEAT_SECONDS:
            return False
        if len(self._shown) >= _REMEMBERED_LINES:
            self._shown.clear()
        self._shown[line] = record.created
        return True


class ClientLog:
    """Pipe for all clients of the process, with the thread that forwards its lines to a logger."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        # Neither end is ever closed: without a reader, SIGPIPE would end the process at a write.
        read_end, self._write_end = os.pipe()
        self._drained = threading.Event()
        lines = open(read_end, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115 - it stays open
        threading.Thread(target=self._forward, args=(lines,), name="pulsar-client-log", daemon=True).start()
        atexit.register(self.drain)

    def client_logger(self) -> pulsar.FileLogger:
        """Return the logger for ``pulsar.Client``: WARNING and above, or the logger's own level."""
        level = _CLIENT_LEVELS.get(self._logger.level or logging.WARNING, pulsar.LoggerLevel.Error)
        return pulsar.FileLogger(level, f"/dev/fd/{self._write_end}")

    def drain(self) -> None:
        """Wait, at most a second, until the log has the lines that the client has written so far."""
        self._drained.clear()
        os.write(self._write_end, f"{_MARK}\n".encode())
        self._drained.wait(_DRAIN_SECONDS)

    def _forward(self, lines: TextIO) -> None:
        for text in lines:
            line = text.rstrip("\n")
            if line == _MARK:
                self._drained.set()
            else:
                self._log(line)

    def _log(self, line: str) -> None:
        match = _LINE.fullmatch(line)
        if match is None:  # a further line of a message, or an unknown form
            self._logger.warning("%s", line)
        else:
            self._logger.log(_LEVELS.get(match["level"], logging.WARNING), "%s", match["message"])


@cache
def client_log() -> ClientLog:
    """Return the process's own client log, made by the first client that is opened."""
    LOGGER.addFilter(RepetitionFilter())
    return ClientLog(LOGGER)
