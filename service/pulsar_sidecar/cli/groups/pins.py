"""``pulsar-sidecar pins``: which cursor, policy or copy keeps bytes on bookies, and what each remedy frees."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any
from urllib.parse import quote

import typer

from pulsar_sidecar.analysis.formatting import format_bytes, format_count
from pulsar_sidecar.cli.command_groups import EXIT_CODES, ExitCode, new_group
from pulsar_sidecar.cli.connecting import (
    Context,
    LedgerIdArgument,
    NamespaceArgument,
    Topic,
    namespace_path,
    show_answer,
    topic_path,
)
from pulsar_sidecar.cli.words import iso_time

_BASE = "/admin/v2/pins"
_Offset = Annotated[int, typer.Option(min=0, help="Number of larger ones to skip.")]

app = new_group("pins", "Show what keeps bytes on bookies, and what each remedy frees.")


@app.command(epilog=EXIT_CODES)
def topic(ctx: Context, topic: Topic) -> None:
    """Show what pins a topic's ledgers: cursors, retention, copies; when each ends by itself, and what it would free.

    No broker loads the topic for this. A ledger that several pins hold goes with none of them alone, so "frees" counts
    what goes if only that one lets go. Bookies free the bytes at their next collection.

    Example: pulsar-sidecar pins topic persistent://public/default/orders
    """
    show_answer(ctx, "GET", _pins(topic_path(topic)), lines=lambda found: _of_topics(found, remedies=True))


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
    show_answer(ctx, "GET", path, parameters={"offset": offset, "limit": limit}, lines=_of_namespace)


@app.command(epilog=EXIT_CODES)
def ledger(ctx: Context, ledger_id: LedgerIdArgument) -> None:
    """Show what pins one ledger, or which bookies have not collected it.

    Example: pulsar-sidecar pins ledger 4711
    """
    show_answer(ctx, "GET", f"{_BASE}/ledgers/{ledger_id}", lines=_of_ledger)


@app.command(epilog=EXIT_CODES)
def bookie(
    ctx: Context,
    bookie: Annotated[str, typer.Argument(metavar="BOOKIE", help="The bookie's id, by default host:port.")],
    by_topic: Annotated[bool, typer.Option("--by-topic", help="List topics instead of namespaces.")] = False,
    offset: _Offset = 0,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Maximum number of owners.")] = 20,
) -> None:
    """Show whose ledgers a bookie keeps, and what it has not collected yet.

    Example: pulsar-sidecar pins bookie 10.0.0.7:3181 --by-topic
    """
    parameters = {"byTopic": "true" if by_topic else "false", "offset": offset, "limit": limit}
    path = f"{_BASE}/bookies/{quote(bookie, safe='')}"
    show_answer(ctx, "GET", path, parameters=parameters, lines=_of_bookie)


@app.command(epilog=EXIT_CODES)
def bookies(ctx: Context) -> None:
    """List the bookies, with their ledgers' bytes and what is not collected; exit code 3 where all of them are down.

    Example: pulsar-sidecar pins bookies
    """
    path = f"{_BASE}/bookies"
    found = show_answer(ctx, "GET", path, lines=lambda found: [line for one in found for line in _of_bookie(one)])
    if all(one["state"] == "down" for one in found):
        typer.echo(f"no bookie is up, of {len(found):,} that have a cookie or are named by ledgers", err=True)
        raise typer.Exit(ExitCode.UNREACHABLE)


def _pins(path: str) -> str:
    """The place of a topic or namespace among pins."""
    return _BASE + path.removeprefix("/admin/v2").removeprefix("/admin")


def _of_topics(found: Sequence[Mapping[str, Any]], *, remedies: bool) -> Iterator[str]:
    if not found:
        yield "no partition has been used yet"
    for one in found:
        yield _heading(one)
        for pin in one["pins"]:
            yield from _of_pin(pin, remedies=remedies)
        for held in (each for each in one["held"] if len(each["pins"]) > 1):
            names = " and ".join(held["pins"])
            yield f"  {format_count(held['ledgers'], 'ledger')}, {_sizes(held, '')}, once all let go: {names}"


def _heading(one: Mapping[str, Any]) -> str:
    if one["shadowOf"]:
        return f"{one['topic']}: a shadow of {one['shadowOf']}, whose ledgers it reads"
    loaded = f"loaded by {one['loadedBy']}" if one["loadedBy"] else "NOT LOADED: nothing of it is trimmed"
    tiered = f", {format_bytes(one['tieredBytes'])} in tiered storage" if one["tieredBytes"] else ""
    return f"{one['topic']}: {_sizes(one, '')}{tiered}; {loaded}{_as_of(one)}"


def _as_of(one: Mapping[str, Any]) -> str:
    return f"; as of {iso_time(one['readMs'])}"


def _sizes(one: Mapping[str, Any], prefix: str) -> str:
    """``1.0 MiB (2.0 MiB on bookies)``."""
    once, all_copies = ("freesBytes", "freesOnBookiesBytes") if prefix else ("bytes", "onBookiesBytes")
    return f"{format_bytes(one[once])} ({format_bytes(one[all_copies])} on bookies)"


def _of_pin(pin: Mapping[str, Any], *, remedies: bool) -> Iterator[str]:
    name = f"{pin['cause']} {pin['holder']}".strip()
    ends = "" if pin["endsMs"] is None else f"; ends by itself {iso_time(pin['endsMs'])}"
    held = f"holds {format_count(pin['ledgers'], 'ledger')}, {_sizes(pin, '')}; frees {_sizes(pin, 'frees')}"
    yield f"  {name}: {held}{ends}"
    yield f"    {pin['detail']}"
    if pin["alsoHeldBy"]:
        yield f"    also held by: {'; '.join(pin['alsoHeldBy'])}"
    if remedies:
        yield from _of_remedies(pin["remedies"], "    ")


def _of_remedies(remedies: Sequence[Mapping[str, Any]], indent: str) -> Iterator[str]:
    for remedy in remedies:
        yield f"{indent}- {remedy['what']}" + (f": {remedy['command']}" if remedy["command"] else "")


def _of_namespace(found: Mapping[str, Any]) -> Iterator[str]:
    unreadable = f", {found['unreadable']:,} of them unreadable" if found["unreadable"] else ""
    counted = format_count(found["topics"], "topic")
    listed = f"{format_bytes(found['listedBytes'])} in their lists"
    yield f"{found['namespace']}: {counted}{unreadable}, {listed}{_as_of(found)}"
    for topic in found["unreadableTopics"]:
        yield f"  its list cannot be read: {topic}"
    yield from _of_topics(found["largest"], remedies=False) if found["largest"] else ()


def _of_ledger(found: Mapping[str, Any]) -> Iterator[str]:
    what = f"{found['kind']} of {found['topic']}" if found["topic"] else found["kind"] or "deleted, or of no topic"
    yield f"ledger {found['ledgerId']}: {what}, {_sizes(found, '')}{_as_of(found)}"
    for pin in found["pins"]:
        yield from _of_pin(pin, remedies=True)


def _of_bookie(found: Mapping[str, Any]) -> Iterator[str]:
    still_open = f", of which {found['openLedgers']:,} are still written to" if found["openLedgers"] else ""
    ledgers = f"{format_count(found['ledgers'], 'ledger')}{still_open}"
    state = "" if found["state"] == "writable" else f" ({found['state'].upper()})"
    yield f"{found['bookie']}{state}: {ledgers}; {format_bytes(found['sizeBytes'])} of closed ones{_as_of(found)}"
    if found["unreadableLedgers"]:
        named = ", ".join(map(str, found["unreadableLedgerIds"]))
        counted = format_count(found["unreadableLedgers"], "ledger")
        yield f"  not counted, because the metadata cannot be read: {counted}: {named}"
    yield from _of_figures(found)
    yield from _of_remedies(found["remedies"], "  ")
    for share in found["shares"]:
        owner = share["owner"] or "(no topic)"
        yield f"  {owner}: {format_count(share['ledgers'], 'ledger')}, {format_bytes(share['sizeBytes'])}"


def _of_figures(found: Mapping[str, Any]) -> Iterator[str]:
    figures = found["figures"]
    if figures is None:
        yield f"  its own figures are not known: {found['problem']}"
        return
    used, whole = (format_bytes(figures[name]) for name in ("diskUsedBytes", "diskTotalBytes"))
    yield f"  its disks: {used} of {whole} used, by whatever is on them"
    limit, live = (format_bytes(figures[name]) for name in ("entryLogLimitBytes", "liveBytes"))
    logs = format_count(figures["entryLogs"], "entry log")
    yield f"  {logs} of up to {limit} after its last collection, with {live} of ledgers that existed then"
    at_most = format_bytes(found["uncollectedAtMostBytes"])
    yield f"  not collected: not known, at most {at_most}, and {format_count(found['uncollectedLedgers'], 'ledger')}"
