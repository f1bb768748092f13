"""Pages that load nothing from anywhere and run no script: one file with everything in it.

Whatever came from the cluster is escaped, and shown with the characters that would hide in it or turn the text around
it; what a form sends back is marked ``|e``, which keeps it as it is. ``templates/page.html.j2`` is the frame of every
page, with its tables and figures; ``templates/plots.html.j2`` has the plots.
"""

import re
from collections.abc import Sequence
from itertools import islice
from typing import Final, NamedTuple

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup, escape

from pulsar_sidecar.analysis.formatting import format_age, format_bytes, format_count, format_instant, format_time
from pulsar_sidecar.model.printable import printable

REPORT_NAME: Final = "report.html"
_ROW_OR_CELL: Final = re.compile(r"<(tr|td|th)\b([^>]*)>")
_SPAN: Final = re.compile(r'colspan="(\d+)"')


class PlotItem(NamedTuple):
    """One bar or point: what it stands for, its length or height, and the text beside it."""

    label: str
    value: float
    text: str


def page_environment(package: str) -> Environment:
    """The templates of a package beside those of this one; everything that the pages among them get is escaped."""
    environment = Environment(
        finalize=_visible,
        autoescape=select_autoescape(("html.j2",)),
        loader=ChoiceLoader([PackageLoader(package), PackageLoader("pulsar_sidecar.analysis")]),
        lstrip_blocks=True,
        trim_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {
        "age": format_age,
        "bytes": format_bytes,
        "instant": format_instant,
        "labelled": labelled,
        "number": "{:,}".format,
        "counted": format_count,
        "time": format_time,
    }
    return environment


def labelled(rows: Markup, heads: Sequence[str]) -> Markup:
    """Return a table's rows with each cell labelled by its column's head, for windows too narrow for columns."""
    heads_of_row = iter(heads)

    def label(tag: re.Match[str]) -> str:
        nonlocal heads_of_row
        if tag[1] == "tr":
            heads_of_row = iter(heads)
            return tag[0]
        span = _SPAN.search(tag[2])
        spanned = list(islice(heads_of_row, int(span[1]) if span else 1))
        head = "".join(spanned).removesuffix("#") if span is None else ""
        return f'<{tag[1]}{tag[2]} data-label="{escape(head)}">' if head else tag[0]

    return Markup(_ROW_OR_CELL.sub(label, rows))  # noqa: S704 - the rows are rendered, so escaped already


def _visible(value: object) -> object:
    return value if isinstance(value, Markup) else printable(str(value), "\n\t")
