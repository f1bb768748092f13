"""Texts that pages share: the command line equivalent to an action, and a feature's last error."""

from collections.abc import Iterator
from typing import Final, Protocol

from pulsar_sidecar.model.printable import command_line
from pulsar_sidecar.reports.formatting import format_age
from pulsar_sidecar.web.overview_parts import Concern

_RECENT_MS: Final = 600_000


class WithLastError(Protocol):
    """Status of a feature that keeps its last error."""

    @property
    def last_error(self) -> str | None: ...
    @property
    def last_error_at_ms(self) -> int | None: ...


def last_error(status: WithLastError, as_of_ms: int | None) -> tuple[str, str] | None:
    """Return kind, as in the macro ``state``, and text of a feature's last error; None if its status has none.

    An error of the last ten minutes is a warning, because features retry failures sooner; an older one is history.
    """
    if not status.last_error or status.last_error_at_ms is None or as_of_ms is None:
        return None
    age_ms = max(0, as_of_ms - status.last_error_at_ms)
    return "warn" if age_ms < _RECENT_MS else "off", f"{status.last_error} ({format_age(age_ms)} ago)"


def recent_error(status: WithLastError, as_of_ms: int | None, feature: str, href: str) -> Iterator[Concern]:
    """Yield a concern about a feature's last error if it is recent."""
    error = last_error(status, as_of_ms)
    if error and error[0] == "warn":
        yield Concern("warn", feature, f"last error: {error[1]}", href)


def command(*words: str) -> str:
    """Return a command line quoted for a shell."""
    return command_line(["pulsar-sidecar", *words])
