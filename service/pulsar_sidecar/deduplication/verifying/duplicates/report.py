"""The report, one page with everything in it: ``templates/duplicates.html.j2``.

What could not be seen stands right below the verdict.
"""

from functools import cache
from typing import TYPE_CHECKING

from jinja2 import Environment

from pulsar_sidecar.analysis.formatting import Row, format_time
from pulsar_sidecar.analysis.pages import page_environment
from pulsar_sidecar.deduplication.verifying.duplicates.results import DuplicatesSummary, conclude

if TYPE_CHECKING:
    from pulsar_sidecar.deduplication.verifying.duplicates.running import ReportRows


def report_html(summary: DuplicatesSummary, shown: "ReportRows", place: str) -> str:
    """The page; ``place`` is the directory in the commands that it shows."""
    page = _templates().get_template("duplicates.html.j2")
    return page.render(summary=summary, shown=shown, conclusion=conclude(summary, place))


@cache
def _templates() -> Environment:
    environment = page_environment("pulsar_sidecar.deduplication.verifying.duplicates")
    environment.filters |= {"place": _place, "published": _published}
    return environment


def _place(row: Row, prefix: str = "") -> str:
    """``ledger:entry:batch index`` of a finding, or of the earlier message."""
    parts = [row[f"{prefix}{name}"] for name in ("ledger_id", "entry_id", "batch_index")]
    return "-" if parts[0] is None else ":".join(map(str, parts))


def _published(time_ms: int) -> str:
    """A time that a client has set to whatever it liked."""
    try:
        return format_time(time_ms)
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"
