"""HTML pages that load nothing and run no script: one file with everything in it.

Text from the cluster is escaped, as are characters in it that would hide or reverse the text around them; a value that
a form sends back is marked ``|e``, which leaves it unchanged. ``templates/page.html.j2`` is the frame of every
page, with its tables and figures; ``templates/plots.html.j2`` has the plots.
"""

import re
from collections.abc import Sequence
from itertools import islice
from typing import Final, NamedTuple

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup, escape

from pulsar_sidecar.model.printable import printable
from pulsar_sidecar.reports.formatting import format_age, format_bytes, format_count, format_instant, format_time

REPORT_NAME: Final = "report.html"
_ROW_OR_CELL: Final = re.compile(r"<(tr|td|th)\b([^>]*)>")
_SPAN: Final = re.compile(r'colspan="(\d+)"')


class PlotItem(NamedTuple):
    """A bar or point: its name, its length or height, and the text beside it."""

    label: str
    value: float
    text: str


def page_environment(*packages: str) -> Environment:
    """Return the templates of these packages and of this one; everything inserted into the pages is escaped."""
    environment = Environment(
        finalize=_visible,
        autoescape=select_autoescape(("html.j2",)),
        loader=ChoiceLoader([PackageLoader(package) for package in (*packages, "pulsar_sidecar.reports")]),
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
