"""The only place that writes to the terminal, so that results and remarks never mix.

Invariant: standard output carries results only, one write each, so it can be piped; everything addressed to a person
goes to standard error. A table shows text of others without its control characters, so that a topic's name cannot move
the cursor.
"""

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Final, Self, TextIO, cast

from pulsar_sidecar.analysis.formatting import format_columns
from pulsar_sidecar.cli.words import reading, with_readings, words
from pulsar_sidecar.model.clocks import Clock, SystemClock
from pulsar_sidecar.model.printable import printable as printable
from pulsar_sidecar.model.progress import Report

_PROGRESS_LINES: Final = 20


class Format(Enum):
    """Output format."""

    JSON = "json"
    TABLE = "table"


def result(text: str) -> None:
    """Write a result to standard output; where no program reads on (``| head``), the command still does its work."""
    _write(text, sys.stdout)


def info(text: str) -> None:
    """Write a remark for the person at the terminal, on standard error, if one reads it."""
    _write(text, sys.stderr)


def _write(text: str, stream: TextIO) -> None:
    try:
        print(text, file=stream, flush=True)
    except BrokenPipeError:
        # What is still to be written goes nowhere, what the interpreter writes while it ends included.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def document(value: object, form: Format) -> None:
    """Write what a service answered: as indented JSON, or as a table of objects, of one object, or a plain value."""
    if form is Format.JSON:
        result(json.dumps(with_readings(value), indent=2, ensure_ascii=False))
    elif value == []:
        info("none")
    else:
        result(_as_table(value))


def answer(value: object, lines: Iterable[str], form: Format) -> None:
    """Write an answer to standard output: its lines, or its JSON."""
    if form is Format.TABLE:
        result(printable("\n".join(lines)))
    else:
        document(value, form)


class ProgressBar:
    """Shows how much of long work is done, from the first report on: a bar on a terminal, else a line now and then.

    ``with_rate`` shows how many are done a second, too, and elsewhere than on a terminal the time that is left.
    """

    def __init__(self, what: str, report: Report, *, with_rate: bool = False, clock: Clock | None = None) -> None:
        from rich.console import Console  # it takes longer to load than --help to answer
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
        if self._bar.live.is_started:  # where it never was, stopping it writes an empty line
            self._bar.stop()

    def report(self, done: int, total: int, more: str = "") -> None:
        """So many of so many are done, and ``more`` that is shown beside it; never fewer than before."""
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
        return "\n".join(_list_lines(value))
    return _cell("", value)


def _object_lines(value: Mapping[str, object]) -> Iterator[str]:
    """A line for each value; an object or a list of objects stands indented below its name."""
    simple = [name for name, item in value.items() if not _is_nested(item)]
    width = max((len(words(name)) for name in simple), default=0)
    for name, item in value.items():
        if not _is_nested(item):
            yield f"{words(name):{width}}  {_cell(name, item)}"
            continue
        yield words(name)
        lines = _object_lines(item) if isinstance(item, Mapping) else _list_lines(cast("Sequence[object]", item))
        yield from (f"  {line}" for line in lines)


def _is_nested(item: object) -> bool:
    return bool(item) and (
        isinstance(item, Mapping) or (isinstance(item, list) and any(isinstance(part, Mapping) for part in item))
    )


def _list_lines(items: Sequence[object]) -> Iterator[str]:
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
