"""``pulsar-sidecar pins``: cursors, policies and copies that keep bytes on bookies, and their remedies."""

from collections.abc import Iterator, Sequence
from typing import Annotated
from urllib.parse import quote

import typer

from pulsar_sidecar.cli.command_groups import EXIT_CODES, ExitCode, new_group
from pulsar_sidecar.cli.connecting import (
    Context,
    LedgerIdArgument,
    NamespaceArgument,
    Topic,
    namespace_path,
    show_result,
    topic_path,
)
from pulsar_sidecar.cli.words import iso_time
from pulsar_sidecar.features.pins import results
from pulsar_sidecar.ownership.registrations import BookieState
from pulsar_sidecar.reports.formatting import format_bytes, format_count

_BASE = "/admin/v2/pins"
_Offset = Annotated[int, typer.Option(min=0, help="Number of topics or owners to skip, largest first.")]

app = new_group("pins", "Show what pins bytes on bookies, and the effect of each remedy.")


@app.command(epilog=EXIT_CODES)
def topic(ctx: Context, topic: Topic) -> None:
    """Show what pins a topic's ledgers: cursors, retention, copies; when each expires, and what its release frees.

    No broker loads the topic for this. Releasing one of several pins of a ledger does not free it, so "frees" counts
    only the ledgers that this pin alone holds. Bookies free the bytes at their next collection.

    Example: pulsar-sidecar pins topic persistent://public/default/orders
    """
    show_result(ctx, list[results.TopicPins], _pins(topic_path(topic)), lambda found: _of_topics(found, remedies=True))


@app.command(epilog=EXIT_CODES)
def namespace(
    ctx: Context,
    namespace: NamespaceArgument,
    offset: _Offset = 0,
    limit: Annotated[int, typer.Option(min=1, max=100, help="Maximum number of topics.")] = 20,
) -> None:
    """Show what pins the largest topics of a namespace; remedies are in `pins topic`.

    Example: pulsar-sidecar pins namespace public/default
    """
    path = _pins(namespace_path(namespace))
    show_result(ctx, results.NamespacePins, path, _of_namespace, {"offset": offset, "limit": limit})


@app.command(epilog=EXIT_CODES)
def ledger(ctx: Context, ledger_id: LedgerIdArgument) -> None:
    """Show what pins one ledger, or the bookies that have not collected it.

    Example: pulsar-sidecar pins ledger 4711
    """
    show_result(ctx, results.LedgerPins, f"{_BASE}/ledgers/{ledger_id}", _of_ledger)


@app.command(epilog=EXIT_CODES)
def bookie(
    ctx: Context,
    bookie: Annotated[str, typer.Argument(metavar="BOOKIE", help="The bookie's id, by default host:port.")],
    by_topic: Annotated[bool, typer.Option("--by-topic", help="List topics instead of namespaces.")] = False,
    offset: _Offset = 0,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Maximum number of owners.")] = 20,
) -> None:
    """Show the owners of a bookie's ledgers, and the bytes not collected yet.

    Example: pulsar-sidecar pins bookie 10.0.0.7:3181 --by-topic
    """
    parameters = {"byTopic": "true" if by_topic else "false", "offset": offset, "limit": limit}
    path = f"{_BASE}/bookies/{quote(bookie, safe='')}"
    show_result(ctx, results.BookiePins, path, _of_bookie, parameters)


@app.command(epilog=EXIT_CODES)
def bookies(ctx: Context) -> None:
    """List the bookies, with their ledgers' bytes and the bytes not collected; exit code 3 if all of them are down.

    Example: pulsar-sidecar pins bookies
    """
    found = show_result(ctx, list[results.BookiePins], f"{_BASE}/bookies", _of_bookies)
    if all(one.state is BookieState.DOWN for one in found):
        typer.echo(f"none of {len(found):,} bookies that have a cookie or are named by ledgers is up", err=True)
        raise typer.Exit(ExitCode.UNREACHABLE)


def _pins(path: str) -> str:
    return _BASE + path.removeprefix("/admin/v2").removeprefix("/admin")


def _of_topics(found: Sequence[results.TopicPins], *, remedies: bool) -> Iterator[str]:
    if not found:
        yield "no partition has been used yet"
    for one in found:
        yield _heading(one)
        for pin in one.pins:
            yield from _of_pin(pin, remedies=remedies)
        for held in (each for each in one.held if len(each.pins) > 1):
            names = " and ".join(held.pins)
            together = _sizes(held.bytes, held.on_bookies_bytes)
            yield f"  {format_count(held.ledgers, 'ledger')}, {together}, once all of these are released: {names}"


def _heading(one: results.TopicPins) -> str:
    if one.shadow_of:
        return f"{one.topic}: a shadow of {one.shadow_of}, whose ledgers it reads"
    loaded = f"loaded by {one.loaded_by}" if one.loaded_by else "NOT LOADED: none of it is trimmed"
    tiered = _tiered(one.tiered_bytes, one.tiered_alone_bytes)
    return f"{one.topic}: {_sizes(one.bytes, one.on_bookies_bytes)}{tiered}; {loaded}{_as_of(one.read_ms)}"


def _tiered(tiered: int, alone: int) -> str:
    return f", {format_bytes(tiered)} in tiered storage ({format_bytes(alone)} only there)" if tiered else ""


def _as_of(read_ms: int) -> str:
    return f"; as of {iso_time(read_ms)}"


def _sizes(once: int, on_bookies: int) -> str:
    """Return ``1.0 MiB (2.0 MiB on bookies)``."""
    return f"{format_bytes(once)} ({format_bytes(on_bookies)} on bookies)"


def _of_pin(pin: results.Pin, *, remedies: bool) -> Iterator[str]:
    ends = "" if pin.ends_ms is None else f"; expires {iso_time(pin.ends_ms)}"
    holds = f"holds {format_count(pin.ledgers, 'ledger')}, {_sizes(pin.bytes, pin.on_bookies_bytes)}"
    frees = f"frees {_sizes(pin.frees_bytes, pin.frees_on_bookies_bytes)}"
    yield f"  {pin.name}: {holds}; {frees}{ends}"
    yield f"    {pin.detail}"
    if pin.also_held_by:
        yield f"    also held by: {'; '.join(pin.also_held_by)}"
    if remedies:
        yield from _of_remedies(pin.remedies, "    ")


def _of_remedies(remedies: Sequence[results.Remedy], indent: str) -> Iterator[str]:
    for remedy in remedies:
        yield f"{indent}- {remedy.what}" + (f": {remedy.command}" if remedy.command else "")


def _of_namespace(found: results.NamespacePins) -> Iterator[str]:
    unreadable = f", {found.unreadable:,} of them unreadable" if found.unreadable else ""
    counted = format_count(found.topics, "topic")
    tiered = _tiered(found.tiered_bytes, found.tiered_alone_bytes)
    listed = f"{format_bytes(found.listed_bytes)} in their lists{tiered}"
    yield f"{found.namespace}: {counted}{unreadable}, {listed}{_as_of(found.read_ms)}"
    for topic in found.unreadable_topics:
        yield f"  its list cannot be read: {topic}"
    yield from _of_topics(found.largest, remedies=False) if found.largest else ()


def _of_ledger(found: results.LedgerPins) -> Iterator[str]:
    what = f"{found.kind} of {found.topic}" if found.topic else found.kind or "deleted, or of no topic"
    yield f"ledger {found.ledger_id}: {what}, {_sizes(found.bytes, found.on_bookies_bytes)}{_as_of(found.read_ms)}"
    for pin in found.pins:
        yield from _of_pin(pin, remedies=True)


def _of_bookies(found: Sequence[results.BookiePins]) -> Iterator[str]:
    for one in found:
        yield from _of_bookie(one)


def _of_bookie(found: results.BookiePins) -> Iterator[str]:
    still_open = f", of which {found.open_ledgers:,} are open" if found.open_ledgers else ""
    ledgers = f"{format_count(found.ledgers, 'ledger')}{still_open}"
    state = "" if found.state is BookieState.WRITABLE else f" ({found.state.upper()})"
    yield f"{found.bookie}{state}: {ledgers}; {format_bytes(found.size_bytes)} of closed ones{_as_of(found.read_ms)}"
    if found.unreadable_ledgers:
        named = ", ".join(map(str, found.unreadable_ledger_ids))
        counted = format_count(found.unreadable_ledgers, "ledger")
        yield f"  not counted, because the metadata cannot be read: {counted}: {named}"
    yield from _of_figures(found)
    yield from _of_remedies(found.remedies, "  ")
    for share in found.shares:
        owner = share.owner or "(no topic)"
        yield f"  {owner}: {format_count(share.ledgers, 'ledger')}, {format_bytes(share.size_bytes)}"


def _of_figures(found: results.BookiePins) -> Iterator[str]:
    figures = found.figures
    if figures is None:
        yield f"  its figures are unavailable: {found.problem}"
        return
    used, whole = format_bytes(figures.disk_used_bytes), format_bytes(figures.disk_total_bytes)
    yield f"  disk usage: {used} of {whole}, including other files"
    limit, live = format_bytes(figures.entry_log_limit_bytes), format_bytes(figures.live_bytes)
    logs = format_count(figures.entry_logs, "entry log")
    yield f"  {logs} of up to {limit} after its last garbage collection, with {live} of live ledgers"
    at_most, ledgers = format_bytes(found.uncollected_at_most_bytes), found.uncollected_ledgers or 0
    yield f"  not collected: unknown, at most {at_most}, and {format_count(ledgers, 'ledger')}"
