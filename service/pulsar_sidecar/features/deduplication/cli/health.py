"""``pulsar-sidecar deduplication stuck|forecast``: stuck cursors, and the cost of the next topic loads."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from pulsar_sidecar.cli.command_groups import EXIT_CODES, ExitCode
from pulsar_sidecar.cli.connecting import Context, namespace_path, show_made, show_result
from pulsar_sidecar.cli.shared_groups import deduplication_app
from pulsar_sidecar.features.deduplication.inspection.lag_limits import DEFAULT_BYTES, DEFAULT_ENTRIES, LagLimits
from pulsar_sidecar.features.deduplication.results import Amount, LoadForecasts, StuckReport
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.reports.formatting import format_bytes, format_count

_STUCK_EXIT_CODES = (
    "Exit codes: 0 nothing is stuck; 2 something is; 4 nothing was found, and not everything could be read; 1 an "
    "error, or wrong usage; 3 no answer came."
)

_OptionalNamespace = Annotated[
    str | None, typer.Argument(metavar="NAMESPACE", help="tenant/namespace. Default: all topics.")
]


@deduplication_app.command(epilog=_STUCK_EXIT_CODES, short_help="Find cursors that retain ledgers needlessly.")
def stuck(
    ctx: Context,
    namespace: _OptionalNamespace = None,
    dump: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Read a dump (metadata dump) instead of calling the service.")
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
    took no snapshot for a long time. Cursors that retain most bytes come first. The service reads the metadata store
    and the bookies, reads policies and the lists of loaded topics from brokers, and loads no topic.

    A dump holds no topic policies, and an older position of a topic that was loaded: conclusions from these are marked
    as not certain. It does not hold the length of a topic's last ledger: a lag within that is not found.

    Example: pulsar-sidecar deduplication stuck public/default

    Example: pulsar-sidecar deduplication stuck --dump dumps/monday
    """
    limits = LagLimits(entries, size_bytes)
    if dump is not None:
        if namespace is not None:
            namespace_path(namespace)
        found = ctx.obj.programs.find_stuck_in_dump(dump, namespace, limits, limit, enabled)
        show_made(ctx, found, _stuck_lines(found))
    elif enabled:
        raise InvalidInputError(
            "--broker-deduplication-enabled requires --dump; without a dump the service queries the brokers"
        )
    else:
        parameters = {"entries": entries, "sizeBytes": size_bytes, "most": limit}
        found = show_result(ctx, StuckReport, _path(namespace, "stuck"), _stuck_lines, parameters)
    if found.found:
        raise typer.Exit(ExitCode.FINDINGS)
    if found.unreadable:
        raise typer.Exit(ExitCode.NOT_ALL)


@deduplication_app.command(epilog=EXIT_CODES, short_help="Show the slowest topic loads.")
def forecast(ctx: Context, namespace: _OptionalNamespace = None) -> None:
    """Show the ten topic loads of a namespace, or of all, that deduplication slows most: entries, bytes, seconds.

    A broker that loads a topic replays the entries after the snapshot before it serves the topic. The service loads no
    topic. Exit code 4: not everything could be read, or too many topics would have to be queried for their policies.

    Example: pulsar-sidecar deduplication forecast public/default
    """
    if show_result(ctx, LoadForecasts, _path(namespace, "forecast"), _forecast_lines).unreadable:
        raise typer.Exit(ExitCode.NOT_ALL)


def _path(namespace: str | None, of: str) -> str:
    return f"{'/admin/v2' if namespace is None else namespace_path(namespace)}/deduplication/{of}"


def _stuck_lines(report: StuckReport) -> Iterator[str]:
    yield f"{_counts(report)}: {report.found:,} stuck, which hold {format_bytes(report.held_bytes)}"
    for each in report.stuck:
        yield ""
        doubt = "" if each.certain else ", not certain"
        yield f"{each.topic}: {each.reason} ({each.because}{doubt})"
        behind = "unknown" if each.since is None else _amount(each.since)
        yield f"  snapshot  at {each.position}, behind it {behind}"
        held = f"{format_count(each.held_ledgers, 'ledger')}, {format_bytes(each.held_bytes)}"
        yield f"  holds     {held}; no other cursor: {format_bytes(each.freed_bytes)}"
        yield f"  remedy    {each.remedy}"
    if report.found > len(report.stuck):
        yield f"\nand {report.found - len(report.stuck):,} more; see them with --limit"
    yield from (f"not read: {reason}" for reason in report.unreadable)


def _forecast_lines(found: LoadForecasts) -> Iterator[str]:
    yield _counts(found)
    for each in found.slowest:
        doubt = "" if each.deduplicated else ", unless its own policy switches deduplication off"
        late = f", more than topicLoadTimeoutSeconds ({found.load_timeout_seconds} s)" if each.times_out else ""
        yield f"{each.topic}: {each.seconds:,.1f} s{late}: {_amount(each.replay)} after {each.position}{doubt}"
    yield from (f"not read: {reason}" for reason in found.unreadable)
    yield f"assumed: {found.assumption}"


def _counts(found: StuckReport | LoadForecasts) -> str:
    topics = format_count(found.topics, "topic or partition", "topics or partitions")
    return f"{topics}, {found.cursors:,} with a deduplication cursor"


def _amount(amount: Amount) -> str:
    return f"{format_count(amount.entries, 'entry')}, {format_bytes(amount.size_bytes)}"
