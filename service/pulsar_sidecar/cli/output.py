"""Output to the terminal, only by this module, so that results and remarks never mix.

Invariant: standard output has only results, one write each, so that it can be piped; remarks to a person go to standard
error. A table shows foreign text without control characters, so that a topic's name cannot move the cursor.
"""

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Final, Self, TextIO, cast

from pulsar_sidecar.cli.words import reading, with_readable_texts, words
from pulsar_sidecar.model.clocks import Clock, SystemClock
from pulsar_sidecar.model.printable import printable as printable
from pulsar_sidecar.model.progress import Report
from pulsar_sidecar.reports.formatting import format_columns

_PROGRESS_LINES: Final = 20


class Format(Enum):
    """Output format."""

    JSON = "json"
    TABLE = "table"


def result(text: str) -> None:
    """Write a result to standard output; the command finishes its work even if the reader stops (``| head``)."""
    _write(text, sys.stdout)


def info(text: str) -> None:
    """Write a remark for the person at the terminal to standard error."""
    _write(text, sys.stderr)


def _write(text: str, stream: TextIO) -> None:
    try:
        print(text, file=stream, flush=True)
    except BrokenPipeError:
        # Discard the remaining output, including the interpreter's at exit.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def document(value: object, form: Format) -> None:
    """Write a service's response as indented JSON, or as a table of objects, of one object, or a plain value."""
    if form is Format.JSON:
        result(json.dumps(with_readable_texts(value), indent=2, ensure_ascii=False))
    elif value == []:
        info("none")
    else:
        result(_as_table(value))


def answer(value: object, lines: Iterable[str], form: Format) -> None:
    """Write a response to standard output, as JSON or as lines, if there are any."""
    if form is Format.JSON:
        document(value, form)
    elif text := "\n".join(lines):
        result(printable(text))


def json_line(answer: object, before: Mapping[str, str]) -> None:
    """Write a feature's result to standard output as one line of JSON, with these fields before its own."""
    from pulsar_sidecar.server.answers import as_json  # its import takes longer than --help

    result(json.dumps({**before, **as_json(answer)}, separators=(",", ":"), ensure_ascii=False))


class ProgressBar:
    """Progress of long work from the first report on: a bar on a terminal, elsewhere a line now and then.

    ``with_rate`` adds the rate per second and, elsewhere than on a terminal, the remaining time.
    """

    def __init__(self, what: str, report: Report, *, with_rate: bool = False, clock: Clock | None = None) -> None:
        from rich.console import Console  # its import takes longer than --help
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._what = what
        self._report = report
        self._reported = -1
        self._with_rate = with_rate
        self._clock = clock or SystemClock()
        self._began = self._clock.monotonic_seconds()
        rate = (TextColumn("{task.fields[rate]}"),) if with_rate else ()
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), *rate, TimeRemainingColumn())
        self._bar = Progress(*columns, console=Console(file=sys.stderr))
        self._task = self._bar.add_task(what, visible=False, rate="")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar.live.is_started:  # otherwise stopping it would write an empty line
            self._bar.stop()

    def report(self, done: int, total: int, more: str = "") -> None:
        """Report that ``done`` of ``total`` are done, never fewer than before, and show ``more`` beside it."""
        beside = f"; {more}" if more else ""
        if sys.stderr.isatty():
            self._bar.start()
            shown = f"{self._what}{beside}"
            rate = f"{self._rate(done):.1f}/s"
            self._bar.update(self._task, completed=done, total=total, visible=True, description=shown, rate=rate)
        elif total and done * _PROGRESS_LINES // total > self._reported:
            self._reported = done * _PROGRESS_LINES // total
            self._report(f"{self._what}: {done:,} of {total:,}{self._pace(done, total)}{beside}")

    def _rate(self, done: int) -> float:
        return done / max(self._clock.monotonic_seconds() - self._began, 0.001)

    def _pace(self, done: int, total: int) -> str:
        if not self._with_rate or not done:
            return ""
        rate = self._rate(done)
        return f", {rate:.1f}/s, {(total - done) / rate:,.0f} s left"


def _as_table(value: object) -> str:
    if isinstance(value, Mapping):
        return "\n".join(_object_lines(value))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "\n".join(table_lines(value))
    return _cell("", value)


def _object_lines(value: Mapping[str, object]) -> Iterator[str]:
    """Yield a line for each value; nested objects and lists are indented below their name."""
    simple = [name for name, item in value.items() if not _is_nested(item)]
    width = max((len(words(name)) for name in simple), default=0)
    for name, item in value.items():
        if not _is_nested(item):
            yield f"{words(name):{width}}  {_cell(name, item)}"
            continue
        yield words(name)
        lines = _object_lines(item) if isinstance(item, Mapping) else table_lines(cast("Sequence[object]", item))
        yield from (f"  {line}" for line in lines)


def _is_nested(item: object) -> bool:
    return bool(item) and (
        isinstance(item, Mapping) or (isinstance(item, list) and any(isinstance(part, Mapping) for part in item))
    )


def table_lines(items: Sequence[object]) -> Iterator[str]:
    """Yield a table of objects or of plain values; nothing without any."""
    rows = [dict(_flattened(row, "")) if isinstance(row, Mapping) else {"": _cell("", row)} for row in items]
    if rows:
        yield from format_columns(rows).split("\n")


def _flattened(value: Mapping[str, object], prefix: str) -> Iterator[tuple[str, str]]:
    for name, item in value.items():
        full = f"{prefix}{words(name)}"
        if isinstance(item, Mapping) and item:
            yield from _flattened(item, f"{full} ")
        elif isinstance(item, list) and _is_nested(item):
            for index, part in enumerate(item, 1):
                yield from _flattened(part, f"{full} {index} ")
        else:
            yield full, _cell(name, item)


def _cell(name: str, value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case list() | Mapping():
            return ", ".join(_cell(name, item) for item in value) or "-"
        case _:
            return reading(name, value) or printable(str(value)).replace("\n", "\\n")
