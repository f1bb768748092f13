"""The C++ client's lines, brought to the process's own log through a pipe.

A thread of the client may still log after ``Client.close`` has returned. With the client's Python logger it then enters
an interpreter that may be ending; CPython ends such a thread, C++ takes that for a crash, and a program that succeeded
ends by SIGABRT (docs/client-aborts-at-exit.md). Invariant: to log, no thread of the client calls Python; it writes to a
file descriptor, and a Python thread reads there.
"""

import atexit
import logging
import os
import re
import threading
from functools import cache
from typing import Final, TextIO

import pulsar

LOGGER: Final = logging.getLogger("pulsar_sidecar.adapters.pulsar.client")
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
"""Behind what was written so far."""
_REPEAT_SECONDS: Final = 30.0
_REMEMBERED_LINES: Final = 1000


class RepetitionFilter(logging.Filter):
    """Logs a repeated line once in 30 seconds: the client repeats itself many times a second while a broker is down."""

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
    """One pipe for all clients of the process, and the thread that forwards its lines to a logger."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        # Neither end is ever closed: without a reader a write would end the process by SIGPIPE.
        read_end, self._write_end = os.pipe()
        self._drained = threading.Event()
        lines = open(read_end, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115 - it stays open
        threading.Thread(target=self._forward, args=(lines,), name="pulsar-client-log", daemon=True).start()
        atexit.register(self.drain)

    def client_logger(self) -> pulsar.FileLogger:
        """What ``pulsar.Client`` takes as its logger: WARNING and above, or as the logger's own level has it."""
        level = _CLIENT_LEVELS.get(self._logger.level or logging.WARNING, pulsar.LoggerLevel.Error)
        return pulsar.FileLogger(level, f"/dev/fd/{self._write_end}")

    def drain(self) -> None:
        """Wait until what the client has written so far is in the log, at most a second."""
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
        if match is None:  # a further line of a message, or a form that this version does not know
            self._logger.warning("%s", line)
        else:
            self._logger.log(_LEVELS.get(match["level"], logging.WARNING), "%s", match["message"])


@cache
def client_log() -> ClientLog:
    """The process's own, made by the first client that is opened."""
    LOGGER.addFilter(RepetitionFilter())
    return ClientLog(LOGGER)
