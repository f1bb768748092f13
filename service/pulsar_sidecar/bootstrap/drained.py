"""``pulsar-sidecar drained``: work that would be lost with the sidecars (PIP-186 "Compatibility")."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Final

import typer

from pulsar_sidecar.cli import output
from pulsar_sidecar.cli.client import SidecarClient
from pulsar_sidecar.cli.command_groups import EXIT_CODES, CommandGroup, ExitCode, ServiceRefusedError
from pulsar_sidecar.cli.connecting import Context
from pulsar_sidecar.features.audit.results.answers import UnfinishedPlan
from pulsar_sidecar.features.delayed_messages.results import CancelStatus
from pulsar_sidecar.features.ledger_deletion.results import ServiceStatus
from pulsar_sidecar.features.ledger_deletion.watch.results import LeakState, ListedLeaks
from pulsar_sidecar.reports.formatting import format_count

_DELETION: Final = "/admin/v2/ledger-deletion"
_NOT_APPENDED: Final = (LeakState.SETTLING, LeakState.KEPT, LeakState.LEAKED)
_SWITCHED_OFF: Final = 405

app = typer.Typer(cls=CommandGroup, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@dataclass(frozen=True, slots=True)
class Left:
    """Remaining work of one kind; ``count`` is None if it is not known now."""

    what: str
    count: int | None
    lost: str
    next_step: str


@app.command(epilog=f"{EXIT_CODES} 2: something is left. 4: something could not be counted.")
def drained(ctx: Context) -> None:
    """Show what would be left undone if the sidecars were removed now.

    The command changes nothing. It names features that are switched off on the sidecar, and does not check them.

    Example: pulsar-sidecar drained && systemctl disable --now pulsar-sidecar
    """
    client: SidecarClient = ctx.obj.client()
    left = [*_deletions(client), *_leaks(client), *_cancellations(client), *_plans(client)]
    rows = [each for each in left if each.count != 0]
    output.document([_document(each) for each in rows], ctx.obj.format)
    if any(each.count is None for each in rows):
        raise typer.Exit(ExitCode.NOT_ALL)
    if rows:
        raise typer.Exit(ExitCode.FINDINGS)
    output.info("the sidecars can be removed: nothing would be left undone")


def _document(left: Left) -> dict[str, object]:
    found = asdict(left)
    found["nextStep"] = found.pop("next_step")
    return found | {"count": "not known" if left.count is None else left.count}


def _deletions(client: SidecarClient) -> Iterator[Left]:
    status = client.result(ServiceStatus, "GET", f"{_DELETION}/status")
    stays = "their ledgers stay on the bookies"
    yield Left(
        "topic deletions",
        status.running_topic_deletions,
        "the topics stay, or some of their ledgers do",
        "pulsar-sidecar ledger-deletion topic-deletions",
    )
    yield Left(
        "namespace deletions",
        status.running_namespace_deletions,
        "the namespaces stay, with the topics that are left",
        "pulsar-sidecar ledger-deletion status",
    )
    yield Left(
        "protected ledgers",
        len(status.protected_ledgers),
        "restored ledgers that no topic lists again stay on the bookies",
        "pulsar-sidecar ledger-deletion end-protection LEDGER_ID, or add them to their topics' lists",
    )
    if not status.enabled:
        _report_unchecked("records and dead letters", "topicTwoPhaseDeletionEnabled")
        return
    yield Left(
        "records in flight, retries included",
        None if status.inflight is None else status.inflight.count,
        stays,
        "wait; pulsar-sidecar ledger-deletion resume, if deletion is paused",
    )
    yield Left(
        "dead letters",
        status.dead_letters,
        stays,
        "pulsar-sidecar ledger-deletion dlq list, then dlq redrive",
    )


def _leaks(client: SidecarClient) -> Iterator[Left]:
    try:
        path = f"{_DELETION}/watch/leaks?limit=1&state="
        pages = [client.result(ListedLeaks, "GET", path + state) for state in _NOT_APPENDED]
    except ServiceRefusedError as error:
        if error.status != _SWITCHED_OFF:
            raise
        _report_unchecked("leaked ledgers", "ledgerDeletionWatch")
        return
    yield Left(
        "leaked ledgers that were not appended",
        sum(page.total for page in pages),
        "nothing references them, and they stay on the bookies",
        "pulsar-sidecar ledger-deletion watch leaks, then watch append",
    )


def _cancellations(client: SidecarClient) -> Iterator[Left]:
    status = client.result(CancelStatus, "GET", "/admin/v2/delayed-delivery/status")
    if not status.enabled:
        _report_unchecked("cancellations of delayed messages", "delayedMessageCancellingEnabled")
        return
    yield Left(
        "open cancellations",
        status.open_cancellations if status.log_read else None,
        "a message is delivered if its broker loses the acknowledgement, or has not received it yet",
        "wait until the messages' due times have passed",
    )


def _plans(client: SidecarClient) -> Iterator[Left]:
    plans = client.result(list[UnfinishedPlan], "GET", "/admin/v2/audit-plans")
    yield Left(
        "audit plans that were sent only in part",
        len(plans),
        "the ledgers of the rows that were not sent stay on the bookies",
        "; ".join(_resumption(plan) for plan in plans),
    )


def _resumption(plan: UnfinishedPlan) -> str:
    rows = format_count(plan.rows, "row")
    return f"resume {plan.audit_id} with pulsar-sidecar audit apply ({plan.sent} of {rows} sent)"


def _report_unchecked(what: str, setting: str) -> None:
    output.info(f"not checked: {what}, because {setting} is off on this sidecar")
