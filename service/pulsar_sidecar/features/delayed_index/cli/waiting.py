"""``pulsar-sidecar topics delayed-messages``: waiting messages, as a table and a small plot."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated

import typer

from pulsar_sidecar.backlog.waiting import DueMessage, WaitingMessages, WaitingPage, round_step
from pulsar_sidecar.cli import output
from pulsar_sidecar.cli.command_groups import EXIT_CODES, ExitCode
from pulsar_sidecar.cli.connecting import Client, Context, Subscription, Topic, show_made, topic_path
from pulsar_sidecar.cli.shared_groups import topics_app
from pulsar_sidecar.cli.words import bar, span, utc
from pulsar_sidecar.model.results import result
from pulsar_sidecar.reports.formatting import format_count

_PAGE_ENTRIES = 50_000


@result
class WaitingTotals:
    """Waiting messages of all pages."""

    now: int
    complete: bool
    subscriptions: tuple[WaitingMessages, ...]


@topics_app.command("delayed-messages", epilog=EXIT_CODES)
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
    found = _read(ctx.obj.client(), path, subscription, limit)
    paragraphs = ("\n".join(_lines(each, found.now, rows)) for each in found.subscriptions)
    show_made(ctx, found, ["\n\n".join(paragraphs)])
    if not found.complete:
        output.info(f"the backlog has more than {format_count(limit, 'entry')}; read more with --limit")
        raise typer.Exit(ExitCode.NOT_ALL)


def _read(client: Client, path: str, subscription: str | None, limit: int) -> WaitingTotals:
    totals: dict[str, WaitingMessages] = {}
    after, done = None, 0
    with output.ProgressBar("entries", output.info) as progress:
        while True:
            parameters = {"subscription": subscription, "limit": min(_PAGE_ENTRIES, limit - done), "after": after}
            page = client.result(WaitingPage, "GET", path, parameters=parameters)
            for part in page.subscriptions:
                before = totals.get(part.subscription)
                totals[part.subscription] = part if before is None else _together(before, part)
            done, after = done + page.entries_read, page.after
            if after is None or done >= limit:
                return WaitingTotals(page.now, after is None, tuple(totals.values()))
            progress.report(done, min(limit, done + page.entries_left))


def _together(one: WaitingMessages, other: WaitingMessages) -> WaitingMessages:
    return replace(
        one,
        delayed=one.delayed + other.delayed,
        due=one.due + other.due,
        undelayed=one.undelayed + other.undelayed,
        unreadable=one.unreadable + other.unreadable,
        by_due_second=dict(sorted((Counter(one.by_due_second) + Counter(other.by_due_second)).items())),
        next=min(filter(None, (one.next, other.next)), key=_due, default=None),
        last=max(filter(None, (one.last, other.last)), key=_due, default=None),
    )


def _due(message: DueMessage) -> int:
    return message.deliver_at


def _lines(waiting: WaitingMessages, now_ms: int, rows: int) -> Iterator[str]:
    delayed = format_count(waiting.delayed, "delayed message")
    yield f"{waiting.subscription} ({waiting.type.value}): {delayed} waiting"
    others = (
        (waiting.due, "due and not acknowledged"),
        (waiting.undelayed, "without a due time"),
        (waiting.unreadable, "unreadable entries"),
    )
    yield from (f"  {count:,} {text}" for count, text in others if count)
    if waiting.next is None or waiting.last is None:
        return
    for word, message in (("next", waiting.next), ("last", waiting.last)):
        when = utc(message.deliver_at // 1000)
        away = span((message.deliver_at - now_ms) // 1000)
        yield f"  {word}  {when}  in {away}  {message.message_id} of {message.topic}"
    yield from _table(waiting.by_due_second, rows)


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
