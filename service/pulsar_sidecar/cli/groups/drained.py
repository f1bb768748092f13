"""``pulsar-sidecar drained``: what stays undone where the sidecars are removed (PIP-186 "Compatibility")."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

import typer

from pulsar_sidecar.analysis.formatting import format_count
from pulsar_sidecar.cli import output
from pulsar_sidecar.cli.client import SidecarClient
from pulsar_sidecar.cli.command_groups import EXIT_CODES, CommandGroup, ExitCode, ServiceRefusedError
from pulsar_sidecar.cli.connecting import Context

_DELETION: Final = "/admin/v2/ledger-deletion"
_NOT_HANDED_ON: Final = ("settling", "kept", "leaked")
_SWITCHED_OFF: Final = 405

app = typer.Typer(cls=CommandGroup, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@dataclass(frozen=True, slots=True)
class Left:
    """Work of one kind that the sidecars still have; ``count`` None where it is not known now."""

    what: str
    count: int | None
    lost: str
    next_step: str


@app.command(epilog=f"{EXIT_CODES} 2: something is left. 4: something could not be counted.")
def drained(ctx: Context) -> None:
    """Show what would stay undone if the sidecars were removed now.

    Nothing is changed. Features that are switched off on the sidecar that answers are named and not looked at.

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
    output.info("the sidecars can be removed: nothing would stay undone")


def _document(left: Left) -> dict[str, object]:
    found = asdict(left)
    found["nextStep"] = found.pop("next_step")
    return found | {"count": "not known" if left.count is None else left.count}


def _deletions(client: SidecarClient) -> Iterator[Left]:
    status = client.call("GET", f"{_DELETION}/status")
    stays = "their ledgers stay on the bookies"
    yield Left(
        "topic deletions",
        status["runningTopicDeletions"],
        "the topics stay, or some of their ledgers do",
        "pulsar-sidecar ledger-deletion topic-deletions",
    )
    yield Left(
        "namespace deletions",
        status["runningNamespaceDeletions"],
        "the namespaces stay, with the topics that are left",
        "pulsar-sidecar ledger-deletion status",
    )
    yield Left(
        "protected ledgers",
        len(status["protectedLedgers"]),
        "restored ledgers that no topic lists again stay on the bookies",
        "pulsar-sidecar ledger-deletion end-protection LEDGER_ID, or add them to their topics' lists",
    )
    if not status["enabled"]:
        _not_looked_at("records and dead letters", "topicTwoPhaseDeletionEnabled")
        return
    inflight = status["inflight"]
    yield Left(
        "records in flight, retries included",
        None if inflight is None else inflight["count"],
        stays,
        "wait; pulsar-sidecar ledger-deletion resume, if deletion is paused",
    )
    yield Left(
        "dead letters",
        status["deadLetters"],
        stays,
        "pulsar-sidecar ledger-deletion dlq list, then dlq redrive",
    )


def _leaks(client: SidecarClient) -> Iterator[Left]:
    try:
        pages = [client.call("GET", f"{_DELETION}/watch/leaks?state={state}&limit=1") for state in _NOT_HANDED_ON]
    except ServiceRefusedError as error:
        if error.status != _SWITCHED_OFF:
            raise
        _not_looked_at("leaked ledgers", "ledgerDeletionWatch")
        return
    yield Left(
        "leaked ledgers that were not appended",
        sum(page["total"] for page in pages),
        "nothing references them, and they stay on the bookies",
        "pulsar-sidecar ledger-deletion watch leaks, then watch append",
    )


def _cancellations(client: SidecarClient) -> Iterator[Left]:
    status = client.call("GET", "/admin/v2/delayed-delivery/status")
    if not status["enabled"]:
        _not_looked_at("cancellations of delayed messages", "delayedMessageCancellingEnabled")
        return
    yield Left(
        "open cancellations",
        status["openCancellations"] if status["logRead"] else None,
        "a message is delivered if its broker loses the acknowledgement, or has not got it yet",
        "wait until the messages' due times have passed",
    )


def _plans(client: SidecarClient) -> Iterator[Left]:
    plans = client.call("GET", "/admin/v2/audit-plans")
    yield Left(
        "plans of audits that were sent in part",
        len(plans),
        "the ledgers of the rows that were not sent stay on the bookies",
        "; ".join(_resumption(plan) for plan in plans),
    )


def _resumption(plan: dict[str, Any]) -> str:
    return (
        f"resume {plan['auditId']} with pulsar-sidecar audit apply ({plan['sent']} of "
        f"{format_count(plan['rows'], 'row')} sent)"
    )


def _not_looked_at(what: str, setting: str) -> None:
    output.info(f"not looked at: {what}, since {setting} is off on this sidecar")
