"""``pulsar-sidecar deduplication stuck|forecast``: what deduplication keeps, and what it costs the next loads."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from pulsar_sidecar.analysis.formatting import format_bytes, format_count
from pulsar_sidecar.cli import output
from pulsar_sidecar.cli.command_groups import EXIT_CODES, ExitCode
from pulsar_sidecar.cli.connecting import Context, namespace_path, show_answer
from pulsar_sidecar.cli.groups.deduplication.show import app
from pulsar_sidecar.deduplication.inspection.lag_limits import DEFAULT_BYTES, DEFAULT_ENTRIES, LagLimits
from pulsar_sidecar.model.errors import InvalidInputError

_STUCK_EXIT_CODES = (
    "Exit codes: 0 nothing is stuck; 2 something is; 4 nothing was found, and not everything could be read; 1 an "
    "error, or wrong usage; 3 no answer came."
)

_OptionalNamespace = Annotated[
    str | None, typer.Argument(metavar="NAMESPACE", help="tenant/namespace. Default: all topics.")
]


@app.command(epilog=_STUCK_EXIT_CODES, short_help="Find cursors that retain ledgers needlessly.")
def stuck(
    ctx: Context,
    namespace: _OptionalNamespace = None,
    dump: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Read a dump (metadata dump) instead of asking the service.")
    ] = None,
    entries: Annotated[
        int, typer.Option(min=0, help="Maximum number of entries after the snapshot.")
    ] = DEFAULT_ENTRIES,
    size_bytes: Annotated[int, typer.Option("--bytes", min=0, help="Maximum number of bytes after the snapshot.")] = (
        DEFAULT_BYTES
    ),
    enabled: Annotated[
        bool,
        typer.Option(
            "--broker-deduplication-enabled", help="With --dump: brokers have brokerDeduplicationEnabled=true."
        ),
    ] = False,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Maximum number of cursors shown.")] = 100,
) -> None:
    """Find deduplication cursors that retain ledgers although deduplication is off, or that lag: bytes and remedy.

    A cursor is left over where deduplication is off and no broker has loaded the topic since. It lags where brokers
    took no snapshot for long. Cursors that retain most bytes come first. The service reads the metadata store and the
    bookies, asks brokers for policies and for the topics that they have loaded, and loads no topic.

    A dump holds no topic policies, and an older position of a topic that was loaded: conclusions from these are marked
    as not certain. It does not hold the length of a topic's last ledger: a lag within that is not found.

    Example: pulsar-sidecar deduplication stuck public/default

    Example: pulsar-sidecar deduplication stuck --dump dumps/monday
    """
    answer = _in_dump(ctx, dump, namespace, LagLimits(entries, size_bytes), limit, enabled=enabled)
    if answer is None:
        parameters = {"entries": entries, "sizeBytes": size_bytes, "most": limit}
        answer = ctx.obj.client().call("GET", f"{_place(namespace)}/deduplication/stuck", parameters=parameters)
    output.answer(answer, _stuck_lines(answer), ctx.obj.format)
    if answer["found"]:
        raise typer.Exit(ExitCode.FINDINGS)
    if answer["unreadable"]:
        raise typer.Exit(ExitCode.NOT_ALL)


def _place(namespace: str | None) -> str:
    return "/admin/v2" if namespace is None else namespace_path(namespace)


def _in_dump(
    ctx: Context, dump: Path | None, namespace: str | None, limits: LagLimits, limit: int, *, enabled: bool
) -> dict[str, Any] | None:
    if dump is None:
        if enabled:
            raise InvalidInputError(
                "--broker-deduplication-enabled goes with --dump; without it the service asks the brokers"
            )
        return None
    if namespace is not None:
        namespace_path(namespace)
    # It takes longer to load than --help to answer.
    from pulsar_sidecar.api.rooms.deduplication import StuckReportAnswer

    found = ctx.obj.programs.find_stuck_in_dump(dump, namespace, limits, limit, enabled)
    return StuckReportAnswer.model_validate(found).model_dump(mode="json")


@app.command(epilog=EXIT_CODES, short_help="Show the slowest loads.")
def forecast(ctx: Context, namespace: _OptionalNamespace = None) -> None:
    """Show the ten slowest loads of a namespace, or of all topics, because of deduplication: entries, bytes, seconds.

    A broker that loads a topic replays the entries after the snapshot before it serves the topic. The service loads no
    topic. Exit code 4: not everything could be read, or too many topics would have to be asked for their policies.

    Example: pulsar-sidecar deduplication forecast public/default
    """
    path = f"{_place(namespace)}/deduplication/forecast"
    answer = show_answer(ctx, "GET", path, lines=_forecast_lines)
    if answer["unreadable"]:
        raise typer.Exit(ExitCode.NOT_ALL)


def _stuck_lines(answer: Mapping[str, Any]) -> Iterator[str]:
    counts = (
        f"{format_count(answer['topics'], 'topic or partition', 'topics or partitions')}, {answer['cursors']:,} "
        "with a deduplication cursor"
    )
    yield f"{counts}: {answer['found']:,} stuck, which hold {format_bytes(answer['heldBytes'])}"
    for each in answer["stuck"]:
        yield ""
        doubt = "" if each["certain"] else ", not certain"
        yield f"{each['topic']}: {each['reason']} ({each['because']}{doubt})"
        since = each["since"]
        behind = (
            "unknown"
            if since is None
            else f"{format_count(since['entries'], 'entry')}, {format_bytes(since['sizeBytes'])}"
        )
        yield f"  snapshot  at {each['position']}, behind it {behind}"
        frees = "unknown" if each["freedBytes"] is None else format_bytes(each["freedBytes"])
        held = f"{format_count(each['heldLedgers'], 'ledger')}, {format_bytes(each['heldBytes'])}"
        yield f"  holds     {held}; no other cursor: {frees}"
        yield f"  remedy    {each['remedy']}"
    if answer["found"] > len(answer["stuck"]):
        yield f"\nand {answer['found'] - len(answer['stuck']):,} more; see them with --limit"
    yield from (f"not read: {reason}" for reason in answer["unreadable"])


def _forecast_lines(answer: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"{format_count(answer['topics'], 'topic or partition', 'topics or partitions')}, {answer['cursors']:,} "
        "with a deduplication cursor"
    )
    for each in answer["slowest"]:
        replay = each["replay"]
        doubt = "" if each["deduplicated"] else ", unless its own policy switches deduplication off"
        late = f", more than topicLoadTimeoutSeconds ({answer['loadTimeoutSeconds']} s)" if each["timesOut"] else ""
        amount = (
            f"{format_count(replay['entries'], 'entry')}, {format_bytes(replay['sizeBytes'])} after {each['position']}"
        )
        yield f"{each['topic']}: {each['seconds']:,.1f} s{late}: {amount}{doubt}"
    yield from (f"not read: {reason}" for reason in answer["unreadable"])
    yield f"assumed: {answer['assumption']}"
