"""``pulsar-sidecar ledger-deletion watch``: ledgers that lost their last reference and that no broker deleted."""

from collections.abc import Iterator
from typing import Annotated

import typer

from pulsar_sidecar.cli import output
from pulsar_sidecar.cli.command_groups import EXIT_CODES, new_group
from pulsar_sidecar.cli.connecting import Context, LedgerIdArgument, show_answer, show_result
from pulsar_sidecar.features.ledger_deletion.watch.results import LeakCause, LeakState, ListedLeaks, WatchStatus

_BASE = "/admin/v2/ledger-deletion/watch"
_STATES, _CAUSES = ", ".join(LeakState), ", ".join(LeakCause)
Hold = Annotated[
    str,
    typer.Argument(
        metavar="HOLD", help="A ledger's id, a tenant, tenant/namespace, or persistent://tenant/namespace/topic."
    ),
]
app = new_group("watch", "Ledgers that lost their last reference and that no broker deleted.")
holds = new_group("hold", "Ledgers that the watch never appends.")
app.add_typer(holds)


@app.command(epilog=EXIT_CODES)
def status(ctx: Context) -> None:
    """Show the state of the watch: its lag, its leaks, the brake and the holds.

    Only the watching sidecar has figures; the others stand by.

    Example: pulsar-sidecar ledger-deletion watch status
    """
    watch = show_result(ctx, WatchStatus, _BASE)
    if ctx.obj.format is output.Format.TABLE and watch.leader is not None and watch.walked_ms is None:
        url = output.printable(watch.leader.advertised_url)
        output.info(f"get the figures with: pulsar-sidecar --admin-url {url} ledger-deletion watch status")


@app.command(epilog=EXIT_CODES)
def leaks(
    ctx: Context,
    state: Annotated[str | None, typer.Option(metavar="STATE", help=f"Only ledgers in this state: {_STATES}.")] = None,
    cause: Annotated[str | None, typer.Option(metavar="CAUSE", help=f"Only leaks of this cause: {_CAUSES}.")] = None,
    ended: Annotated[bool, typer.Option("--ended", help="Include ledgers that were deleted or linked again.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number of ledgers, oldest first.")] = 100,
    offset: Annotated[int, typer.Option(min=0, help="Number of ledgers to skip.")] = 0,
) -> None:
    """List the ledgers that nothing references and no broker deleted; count them by cause.

    settling: a broker may still delete it. kept: it must not be deleted, or not yet. leaked: it may be deleted, but
    is not appended; detail has the reason. appended: its record is on the pending-deletion topic.

    Example: pulsar-sidecar ledger-deletion watch leaks

    Example: pulsar-sidecar ledger-deletion watch leaks --state leaked --cause trim --limit 20

    Example: pulsar-sidecar ledger-deletion watch leaks --state deleted
    """
    parameters = {
        "state": state,
        "cause": cause,
        "limit": limit,
        "offset": offset or None,
        "ended": "true" if ended else None,
    }
    listed = show_result(ctx, ListedLeaks, f"{_BASE}/leaks", _rows, parameters)
    if ctx.obj.format is output.Format.TABLE:
        output.info(_summary(listed))


@app.command(epilog=EXIT_CODES)
def explain(ctx: Context, ledger_id: LedgerIdArgument) -> None:
    """Explain one ledger: the nodes that reference it, its owner, its leak, and what the deletion would decide now.

    Example: pulsar-sidecar ledger-deletion watch explain 4711
    """
    show_answer(ctx, "GET", f"{_BASE}/leaks/{ledger_id}")


@app.command(epilog=EXIT_CODES)
def append(
    ctx: Context,
    ledger_id: LedgerIdArgument,
    offload_attempt: Annotated[
        str | None,
        typer.Option(
            metavar="UUID",
            help="The copy in tiered storage that this offload attempt made.  [default: "
            "BookKeeper's copy, or the only one that leaked]",
        ),
    ] = None,
) -> None:
    """Append one leaked ledger or copy to the pending-deletion topic.

    For a watch that only reports; a copy is what an offload left in tiered storage. The watch evaluates the leak once
    more and appends it, which takes seconds; the deletion service checks it again before it deletes it.

    Example: pulsar-sidecar ledger-deletion watch append 4711

    Example: pulsar-sidecar ledger-deletion watch append 4711 --offload-attempt 5facb921-a29a-41f6-bc28-bf15d5273bac
    """
    parameters = {"offloadAttempt": offload_attempt} if offload_attempt else None
    show_answer(ctx, "POST", f"{_BASE}/leaks/{ledger_id}/append", parameters=parameters)


@app.command(epilog=EXIT_CODES)
def brake(
    ctx: Context, reason: Annotated[str, typer.Option(metavar="TEXT", help="Reason, which watch status shows.")]
) -> None:
    """Engage the brake: the watch appends nothing until watch resume.

    The watch also engages it when too many references vanish at once.

    Example: pulsar-sidecar ledger-deletion watch brake --reason "maintenance of the metadata store"
    """
    show_answer(ctx, "POST", f"{_BASE}/brake", {"reason": reason})


@app.command(epilog=EXIT_CODES)
def resume(ctx: Context) -> None:
    """Release the brake: leaked ledgers are appended again.

    Find out first why so many references vanished: watch status has the reason, watch leaks the ledgers.

    Example: pulsar-sidecar ledger-deletion watch resume
    """
    show_answer(ctx, "POST", f"{_BASE}/resume")


@holds.command("list", epilog=EXIT_CODES)
def list_holds(ctx: Context) -> None:
    """List the holds, and the brake's reason while it is engaged.

    Example: pulsar-sidecar ledger-deletion watch hold list
    """
    show_answer(ctx, "GET", f"{_BASE}/holds")


@holds.command(epilog=EXIT_CODES)
def add(ctx: Context, hold: Hold) -> None:
    """Never append the ledgers of a topic, namespace or tenant; or one ledger.

    A hold does not stop records that others append or that are on the topic already; pause stops every deletion.

    Example: pulsar-sidecar ledger-deletion watch hold add public/default

    Example: pulsar-sidecar ledger-deletion watch hold add persistent://public/default/orders
    """
    show_answer(ctx, "POST", f"{_BASE}/holds", {"hold": hold})


@holds.command(epilog=EXIT_CODES)
def remove(ctx: Context, hold: Hold) -> None:
    """Remove a hold, written as in the list.

    Example: pulsar-sidecar ledger-deletion watch hold remove public/default
    """
    show_answer(ctx, "DELETE", f"{_BASE}/holds", parameters={"hold": hold})


def _rows(listed: ListedLeaks) -> Iterator[str]:
    return output.table_lines(
        [
            {
                "ledgerId": leak.ledger_id,
                "offloadAttempt": leak.offload_attempt,
                "state": leak.state,
                "cause": leak.cause,
                "sinceMs": leak.since_ms,
                "lengthBytes": leak.length_bytes,
                "topic": leak.topic,
                "detail": leak.detail,
            }
            for leak in listed.leaks
        ]
    )


def _summary(listed: ListedLeaks) -> str:
    total, shown = listed.total, len(listed.leaks)
    if not total:
        return "0 ledgers"
    by_cause = sorted(listed.by_cause.items(), key=lambda each: (-each[1], each[0]))
    causes = ", ".join(f"{count:,} {output.printable(cause)}" for cause, count in by_cause)
    left = "" if shown == total else f"; {shown:,} of them are shown, --limit and --offset show others"
    return f"{total:,} ledger{'s' if total > 1 else ''}: {causes}{left}"
