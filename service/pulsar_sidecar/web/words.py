"""Words that pages share: the command line beside what a page does, and a room's last error."""

from typing import Any, Final

from pulsar_sidecar.analysis.formatting import format_age, format_bytes, format_time
from pulsar_sidecar.model.printable import command_line
from pulsar_sidecar.web.readings import Reading

_RECENT_MS: Final = 600_000


def last_error(reading: Reading) -> tuple[str, str] | None:
    """The kind, as in the macro ``state``, and the words of a room's last error; None where its status has none.

    One of the last ten minutes is a warning: what fails is tried again sooner. An older one is shown for what it was.
    """
    status = reading.value
    if status is None or reading.as_of_ms is None or not status["lastError"]:
        return None
    age_ms = max(0, reading.as_of_ms - status["lastErrorAtMs"])
    return "warn" if age_ms < _RECENT_MS else "off", f"{status['lastError']} ({format_age(age_ms)} ago)"


def waiting_bytes(inflight: Any) -> str:
    """The bytes of the ledgers that wait for deletion."""
    size = inflight["waitingBytes"]
    return "size unknown" if size is None else format_bytes(size)


def pause_words(control: Any) -> str:
    """Who paused deletion, since when and why, as far as that is known."""
    by, since_ms = control.get("pausedBy"), control.get("pausedSinceMs")
    who = "" if by is None else f" by {by}"
    since = "" if since_ms is None else f" since {format_time(since_ms)}"
    return f"{control['pausedReason'] or 'no reason given'} (paused{who}{since})"


def command(*words: str) -> str:
    """A command line that a shell takes as it is."""
    return command_line(["pulsar-sidecar", *words])
