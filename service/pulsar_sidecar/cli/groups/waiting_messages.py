"""``pulsar-sidecar topics delayed-messages``: waiting messages, as a table and a small plot."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from pulsar_sidecar.analysis.formatting import format_count
from pulsar_sidecar.cli import output
from pulsar_sidecar.cli.command_groups import EXIT_CODES, ExitCode
from pulsar_sidecar.cli.connecting import Client, Context, Subscription, Topic, topic_path
from pulsar_sidecar.cli.groups.delayed_messages import app
from pulsar_sidecar.delayed_delivery.backlog import round_step

_PAGE_ENTRIES = 50_000
_BAR_WIDTH = 40


@dataclass(slots=True)
class Total:
    """One subscription's counts over all pages."""

    type: str = ""
    counts: Counter[str] = field(default_factory=Counter)
    by_due_second: Counter[int] = field(default_factory=Counter)
    next: dict[str, Any] | None = None
    last: dict[str, Any] | None = None

    def add(self, part: Mapping[str, Any]) -> None:
        self.type = part["type"]
        self.counts.update({name: part[name] for name in ("delayed", "due", "undelayed", "unreadable")})
        self.by_due_second.update({int(second): count for second, count in part["byDueSecond"].items()})
        self.next = _chosen(min, self.next, part["next"])
        self.last = _chosen(max, self.last, part["last"])


@app.command("delayed-messages", epilog=EXIT_CODES)
def delayed_messages(
    ctx: Context,
    topic: Topic,
    subscription: Subscription = None,
    limit: Annotated[
        int, typer.Option(min=1, help="Maximum number of entries to read from the backlog, oldest first.")
    ] = 10_000_000,
    rows: Annotated[int, typer.Option(min=1, max=1000, help="Maximum number of rows.")] = 20,
) -> None:
    """Show the waiting delayed messages of each subscription: counts by due time, the next and the last.

    The service reads the backlog from the bookies, without a consumer, and moves no cursor. Acknowledged messages, and
    so cancelled ones, are not counted. Exit code 4: --limit was reached before the end of the backlog.

    Example: pulsar-sidecar topics delayed-messages persistent://public/default/orders -s billing
    """
    path = f"{topic_path(topic)}/delayedMessages"
    totals, now_ms, complete = _read(ctx.obj.client(), path, subscription, limit)
    paragraphs = ("\n".join(_lines(name, total, now_ms, rows)) for name, total in totals.items())
    output.answer(_document(totals, now_ms, complete), ["\n\n".join(paragraphs)], ctx.obj.format)
    if not complete:
        output.info(f"the backlog has more than {format_count(limit, 'entry')}; read more with --limit")
        raise typer.Exit(ExitCode.NOT_ALL)


def _read(client: Client, path: str, subscription: str | None, limit: int) -> tuple[dict[str, Total], int, bool]:
    totals: dict[str, Total] = {}
    parameters: dict[str, Any] = {"subscription": subscription}
    done = 0
    with output.ProgressBar("entries", output.info) as progress:
        while True:
            parameters["limit"] = min(_PAGE_ENTRIES, limit - done)
            page = client.call("GET", path, parameters=parameters)
            for part in page["subscriptions"]:
                totals.setdefault(part["subscription"], Total()).add(part)
            done += page["entriesRead"]
            if page["after"] is None or done >= limit:
                return totals, page["now"], page["after"] is None
            progress.report(done, min(limit, done + page["entriesLeft"]))
            parameters["after"] = page["after"]


def _chosen(choose: Any, one: dict[str, Any] | None, other: dict[str, Any] | None) -> dict[str, Any] | None:
    found = [message for message in (one, other) if message is not None]
    return choose(found, key=lambda message: message["deliverAt"]) if found else None


def _document(totals: Mapping[str, Total], now_ms: int, complete: bool) -> dict[str, object]:
    return {
        "now": now_ms,
        "complete": complete,
        "subscriptions": [
            {
                "subscription": name,
                "type": total.type,
                **total.counts,
                "next": total.next,
                "last": total.last,
                "byDueSecond": {str(second): total.by_due_second[second] for second in sorted(total.by_due_second)},
            }
            for name, total in totals.items()
        ],
    }


def _lines(name: str, total: Total, now_ms: int, rows: int) -> Iterator[str]:
    counts = total.counts
    yield f"{name} ({total.type}): {format_count(counts['delayed'], 'delayed message')} waiting"
    others = {"due": "due and not acknowledged", "undelayed": "without a due time", "unreadable": "unreadable entries"}
    yield from (f"  {counts[kind]:,} {text}" for kind, text in others.items() if counts[kind])
    if total.next is None or total.last is None:
        return
    for word, message in (("next", total.next), ("last", total.last)):
        when = utc(message["deliverAt"] // 1000)
        away = span((message["deliverAt"] - now_ms) // 1000)
        yield f"  {word}  {when}  in {away}  {message['messageId']} of {message['topic']}"
    yield from _table(total.by_due_second, rows)


def _table(by_due_second: Mapping[int, int], rows: int) -> Iterator[str]:
    step = round_step(max(by_due_second) - min(by_due_second) + 1, rows)
    counted: Counter[int] = Counter()
    for second, count in by_due_second.items():
        counted[second // step * step] += count
    yield from due_rows(counted, step)


def due_rows(counted: Mapping[int, int], step: int, accuracy: str = "") -> Iterator[str]:
    """Messages by the beginning of the step in which they are due, a row for each step from the first to the last."""
    largest = max(counted.values())
    yield f"  due from (UTC)        messages in {span(step)}{accuracy}"
    for start in range(min(counted), max(counted) + 1, step):
        messages = counted.get(start, 0)
        yield f"  {utc(start)}  {messages:>10,}  {bar(messages, largest)}".rstrip()


def bar(value: float, largest: float) -> str:
    """A bar as long as the value is large; at least one character if it is not zero."""
    return "#" * max(1, round(value / largest * _BAR_WIDTH)) if value else ""


def utc(second: int) -> str:
    """A second since the epoch, for people."""
    try:
        return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return f"second {second}"


def known_count(number: int | None) -> str:
    """A number, or a question mark where it is not known."""
    return "?" if number is None else f"{number:,}"


def span(seconds: int) -> str:
    """A length of time, for people."""
    for length, word in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= length:
            whole, rest = divmod(seconds, length)
            return f"{whole} {word}" if not rest or length == 60 else f"{whole}.{rest * 10 // length} {word}"
    return f"{max(0, seconds)} s"
