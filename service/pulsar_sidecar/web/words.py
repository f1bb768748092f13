"""Words that pages share: the command line beside what a page does, and a room's last error."""

from typing import Final

from pulsar_sidecar.analysis.formatting import format_age
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


def command(*words: str) -> str:
    """A command line that a shell takes as it is."""
    return command_line(["pulsar-sidecar", *words])
