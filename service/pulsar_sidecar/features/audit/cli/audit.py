"""``pulsar-sidecar audit``: existing against referenced ledgers, and the remedies."""

from pathlib import Path
from typing import Annotated

import typer

from pulsar_sidecar.cli import output
from pulsar_sidecar.cli.command_groups import CommandGroup, ExitCode, new_group
from pulsar_sidecar.cli.connecting import Context, LedgerIdArgument, MetadataStoreAuth, NewDirectory, client_conf_of
from pulsar_sidecar.features.audit.requests import (
    HOUR_MS,
    AppliedPlan,
    ApplyRequest,
    AuditPolicy,
    AuditRequest,
    FindingsTable,
    GroupColumn,
    RowsRequest,
)
from pulsar_sidecar.model.errors import SidecarError

_EXIT_CODES = (
    "Exit codes: 0 done, or no findings (show); 2 findings (show); 1 an error, wrong usage, or a failed guard. "
    "Standard error has the reason."
)
_HELP = """Find unreferenced ledgers, and have them deleted.

An audit compares a listing of ledgers with a dump of the metadata store (see: ledgers list, metadata dump). A ledger is
deletable only when two audits, at least --look-window-hours apart, find it unreferenced and unchanged. The deletable
ones form a plan with a hash; apply sends an approved plan to the deletion service, which checks every ledger again
before it deletes it."""
_RUN_EXIT_CODES = (
    "Exit codes: 0 clean; 2 there are findings; 1 wrong usage, or inputs that cannot be audited (nothing is left "
    "behind), or a guard failed (the findings are written, without a plan)."
)
_DEFAULT = AuditPolicy()

_Audit = Annotated[Path, typer.Argument(metavar="AUDIT", help="The audit's directory.")]


def _hours(help_text: str) -> object:
    return typer.Option(metavar="HOURS", min=0, help=help_text)


def _share(help_text: str) -> object:
    return typer.Option(metavar="SHARE", min=0, max=1, help=help_text)


class _AuditGroup(CommandGroup):
    """Every error exits with 1, even `NotFoundError`: 2 means findings."""

    @staticmethod
    def exit_code(error: SidecarError) -> int:
        return ExitCode.FAILED


app = new_group("audit", _HELP, cls=_AuditGroup, epilog=_EXIT_CODES)


@app.command(epilog=_RUN_EXIT_CODES)
def run(
    ctx: Context,
    dump: Annotated[Path, typer.Option(metavar="DIR", help="Directory that metadata dump wrote.")],
    listing: Annotated[Path, typer.Option(metavar="DIR", help="Directory that ledgers list wrote, before the dump.")],
    directory: NewDirectory,
    previous: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The previous audit; without it nothing is deletable.")
    ] = None,
    min_age_hours: Annotated[
        float, _hours("Minimum age of a deletable ledger, by the metadata store's clock.")
    ] = _DEFAULT.min_age_ms / HOUR_MS,
    look_window_hours: Annotated[
        float, _hours("Minimum time between the first dump that found a ledger unreferenced and this one.")
    ] = _DEFAULT.look_window_ms / HOUR_MS,
    max_share: Annotated[
        float, _share("Largest allowed share of all ledgers, and of all bytes, that may be deleted.")
    ] = _DEFAULT.max_share,
    max_shrink: Annotated[
        float, _share("Largest allowed shrinkage of the inputs since the previous audit, as a fraction.")
    ] = _DEFAULT.max_shrink,
    allow_young: Annotated[
        bool, typer.Option("--allow-young", help="Allow --min-age-hours below 24. For experiments.")
    ] = False,
    foreign_subtrees: Annotated[
        list[str] | None,
        typer.Option(
            "--foreign-subtree",
            metavar="PATH",
            help="Path in the metadata store below which no node is Pulsar's; may be repeated. "
            "Without it nodes of an unknown kind protect every ledger from deletion.",
        ),
    ] = None,
    bookkeeper_exclusive: Annotated[
        bool,
        typer.Option(
            "--bookkeeper-exclusive-to-cluster",
            help="This BookKeeper serves only this Pulsar cluster. Without the option nothing is deletable: an "
            "audit cannot see another cluster's references.",
        ),
    ] = False,
    offloaded: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Directory that offload list wrote, before the dump: audits tiered storage."),
    ] = None,
    offload_exclusive: Annotated[
        bool,
        typer.Option(
            "--offload-exclusive-to-cluster",
            help="No other Pulsar cluster of this name offloads to the listed buckets, and none at all to the listed "
            "directories. Without the option no copy in tiered storage is deletable.",
        ),
    ] = False,
    offload_lag_hours: Annotated[
        float,
        typer.Option(
            "--offload-deletion-lag-hours",
            metavar="HOURS",
            help="The brokers' managedLedgerOffloadDeletionLagMs, for namespaces without a lag of their own; negative "
            "if they keep BookKeeper's copies.",
        ),
    ] = _DEFAULT.offload_lag_ms / HOUR_MS,
    price: Annotated[
        float,
        typer.Option(
            "--price-per-gib-month", metavar="PRICE", min=0, help="Estimate costs of tiered storage with this price."
        ),
    ] = 0.0,
    exact: Annotated[
        bool,
        typer.Option(
            "--exact",
            help="Decode every node separately with the exact decoder instead of whole columns. Slower, with "
            "the same result: a second opinion before a large plan is applied.",
        ),
    ] = False,
) -> None:
    """Compare a listing of ledgers with a dump of the metadata store; without Spark.

    One machine can audit millions of ledgers this way.

    Export the listing first (ledgers list), then take the dump (metadata dump). The command compares both with their
    manifests before it reads them. The result is a directory of tables, a report (report.html), metrics and a summary.

    The first audit makes no ledger deletable. Pass it to a later audit as --previous: the plan has the ledgers that
    both found unreferenced, unchanged and old enough, where every node that may reference them could be read. Set
    --bookkeeper-exclusive-to-cluster if this BookKeeper serves only this Pulsar cluster; without it there is no plan.

    With --offloaded the audit also compares tiered storage with the lists: copies that nothing references, and copies
    that are missing or incomplete. Unreferenced ones join the plan by the same rules.

    The Spark job pyspark_jobs/orphan_ledgers/job.py takes the same options and writes the same tables.

    Example: pulsar-sidecar audit run --dump dumps/tuesday --listing listings/tuesday --previous audits/monday
    --output audits/tuesday --bookkeeper-exclusive-to-cluster
    """
    policy = AuditPolicy(
        min_age_ms=round(min_age_hours * HOUR_MS),
        look_window_ms=round(look_window_hours * HOUR_MS),
        max_share=max_share,
        max_shrink=max_shrink,
        allow_young=allow_young,
        foreign_subtrees=tuple(foreign_subtrees or ()),
        bookkeeper_exclusive=bookkeeper_exclusive,
        offload_exclusive=offload_exclusive,
        offload_lag_ms=round(offload_lag_hours * HOUR_MS),
        price_per_gib_month=price,
    )
    request = AuditRequest(dump, listing, directory, previous, policy, exact, offloaded)
    audited = ctx.obj.programs.perform_audit(request, output.info)
    document = {"verdict": audited.verdict, "nextStep": audited.next_step}
    output.answer(document, [audited.verdict, f"next: {audited.next_step}"], ctx.obj.format)
    raise typer.Exit(audited.exit_code)


@app.command(epilog=_EXIT_CODES)
def show(
    ctx: Context,
    audit: _Audit,
    orphans: Annotated[bool, typer.Option("--orphans", help="Unreferenced ledgers.")] = False,
    missing: Annotated[bool, typer.Option("--missing", help="References to missing ledgers.")] = False,
    unattributed: Annotated[bool, typer.Option("--unattributed", help="Ledgers whose owner is not known.")] = False,
    usage: Annotated[bool, typer.Option("--usage", help="Storage by owner.")] = False,
    offloaded: Annotated[bool, typer.Option("--offloaded", help="Findings in tiered storage.")] = False,
    standing: Annotated[
        str | None,
        typer.Option(
            help="Show only ledgers with this status, such as too-young; condemned is the status of deletable ledgers."
        ),
    ] = None,
    kind: Annotated[str | None, typer.Option(help="Show only rows of this kind, such as data or cursor.")] = None,
    cause: Annotated[str | None, typer.Option(help="Show only rows with this likely cause.")] = None,
    finding: Annotated[str | None, typer.Option(help="Show only findings of this kind in tiered storage.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Show only rows of this tenant.")] = None,
    namespace: Annotated[
        str | None, typer.Option(metavar="TENANT/NAMESPACE", help="Show only rows of this namespace.")
    ] = None,
    topic: Annotated[str | None, typer.Option(help="Show only rows of this topic, by its full name.")] = None,
    by: Annotated[
        GroupColumn | None, typer.Option(help="Count the rows by this column instead, most bytes first.")
    ] = None,
    largest_first: Annotated[
        bool,
        typer.Option(
            "--largest-first", help="Sort by size, largest first, instead of by ledger id; --usage always does."
        ),
    ] = False,
    offset: Annotated[int, typer.Option(min=0, help="Number of rows to skip.")] = 0,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of rows of a table.")] = 20,
) -> None:
    """Show what an audit found: the verdict, counts, guards, what could not be checked, and the next step.

    With --orphans, --missing, --unattributed, --usage or --offloaded, the command shows rows of these tables instead;
    --standing, --kind, --cause, --finding, --tenant, --namespace and --topic filter them, and --by counts them.

    Exit code 0 if the audit is clean, 2 if it found something, 1 if a guard failed or there is an error.

    Example: pulsar-sidecar audit show audits/monday --orphans --kind cursor --limit 50
    """
    wanted = zip(FindingsTable, (orphans, missing, unattributed, usage, offloaded), strict=True)
    values = {
        "standing": standing, "kind": kind, "cause": cause, "finding": finding,
        "tenant": tenant, "namespace": namespace, "topic": topic,
    }  # fmt: skip
    equal = {name: value for name, value in values.items() if value is not None}
    chosen = tuple(table for table, is_wanted in wanted if is_wanted)
    tables = chosen or ((FindingsTable.ORPHANS,) if equal or by else ())
    rows = RowsRequest(equal, limit, offset, largest_first, by)
    shown = ctx.obj.programs.show_audit(audit, tables, rows)
    output.answer(shown.document, [shown.text], ctx.obj.format)
    raise typer.Exit(shown.exit_code)


@app.command(epilog=_EXIT_CODES)
def explain(
    ctx: Context,
    audit: _Audit,
    ledger_id: LedgerIdArgument,
    dump: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Dump to search for nodes that reference the ledger.")
    ] = None,
) -> None:
    """Explain an audit's facts about one ledger: its claimed owner, and why nothing references it.

    It also shows the ledger's status and which conditions for deletion it does not meet yet.

    An audit does not contain referenced ledgers; with --dump the command finds the nodes that reference the ledger.

    Example: pulsar-sidecar audit explain audits/monday 4711 --dump dumps/monday
    """
    explained = ctx.obj.programs.explain_ledger(audit, ledger_id, dump)
    output.answer({"ledgerId": ledger_id, "explanation": explained}, [explained], ctx.obj.format)


@app.command(epilog=_EXIT_CODES)
def apply(
    ctx: Context,
    audit: _Audit,
    execute: Annotated[bool, typer.Option("--execute", help="Send the records.")] = False,
    plan: Annotated[str | None, typer.Option(metavar="HASH", help="Hash of the approved plan.")] = None,
    rate: Annotated[float | None, typer.Option(min=0.1, help="Maximum number of records per second.")] = None,
    max_age_hours: Annotated[float, typer.Option(min=0, help="Maximum age of the audit, in hours.")] = 72.0,
    metadata_store_url: Annotated[str | None, typer.Option(metavar="zk:HOST:PORT", help="As in broker.conf.")] = None,
    broker_service_url: Annotated[
        str | None, typer.Option(metavar="pulsar://HOST:PORT", help="As in client.conf.")
    ] = None,
    auth: MetadataStoreAuth = None,
) -> None:
    """Send the deletable ledgers of an audit to the deletion service. Without --execute: only show the plan.

    You approve the plan's hash: --execute needs it as --plan, and refuses any other plan. The command deletes nothing:
    every ledger becomes a pending deletion, and the deletion service checks it again.

    The command sends each row once, however often it is stopped and repeated: rows carry their number in the plan, and
    the metadata store has the progress. (A broker that dies while rows are in flight may store some of
    them twice; the second copy of a row finds its ledger deleted.) --execute needs the metadata store and the brokers,
    as the sidecars have them (--metadata-store-url, --broker-service-url, or PULSAR_SIDECAR_* and client.conf).

    Example: pulsar-sidecar audit apply audits/monday

    Then: pulsar-sidecar audit apply audits/monday --execute --plan HASH
    """
    settings = ctx.obj.settings(
        metadata_store_url=metadata_store_url, metadata_store_auth=auth, broker_service_url=broker_service_url
    )
    request = ApplyRequest(
        audit=audit,
        execute=execute,
        plan_sha256=plan,
        rate=rate,
        max_age_hours=max_age_hours,
        metadata_store_url=settings.get("metadata_store_url"),
        metadata_store_auth=settings.get("metadata_store_auth"),
        broker_service_url=settings.get("broker_service_url"),
        client=client_conf_of(settings),
    )
    with output.ProgressBar("sending", output.info) as bar:
        applied = ctx.obj.programs.apply_audit(request, bar.report)
    _show_applied(applied, audit, ctx.obj.format)


def _show_applied(applied: AppliedPlan, audit: Path, form: output.Format) -> None:
    for warning in applied.warnings:
        output.info(f"warning: {warning}")
    document = {
        "audit": applied.audit_id,
        "plan": applied.plan_sha256,
        "ledgers": applied.rows,
        "bytes": applied.bytes,
        "unknownSizeLedgers": applied.unknown_size_ledgers,
        "executed": applied.executed,
    }
    if applied.executed:
        document |= {"sent": applied.sent, "sentEarlier": applied.sent_earlier}
    output.document(document, form)
    if not applied.rows:
        output.info("the plan is empty: there is nothing to send")
    elif not applied.executed:
        output.info(
            f"nothing was sent. Show the ledgers with: pulsar-sidecar audit show {audit} --orphans --standing "
            f"condemned\nSend them with: pulsar-sidecar audit apply {audit} --execute --plan {applied.plan_sha256}"
        )
    else:
        output.info("show the progress of their deletion with: pulsar-sidecar ledger-deletion status")


@app.command(epilog=_EXIT_CODES)
def report(
    ctx: Context,
    audit: _Audit,
    output_file: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Default: report.html in the audit.")
    ] = None,
) -> None:
    """Write the HTML report of an audit again; every audit comes with one.

    Example: pulsar-sidecar audit report audits/monday --output monday.html
    """
    written = str(ctx.obj.programs.report_audit(audit, output_file))
    output.answer({"report": written}, [written], ctx.obj.format)


@app.command(epilog=_EXIT_CODES)
def push(
    ctx: Context,
    audit: _Audit,
    group_url: Annotated[
        str,
        typer.Option(
            "--group-url",
            metavar="URL",
            help="Group of a Pushgateway: http://HOST:9091/metrics/job/NAME[/LABEL/VALUE].",
        ),
    ],
) -> None:
    """Push the metrics of an audit to a Pushgateway; they replace those of the group.

    Use it where the audit ran in a pod, which Prometheus cannot scrape afterwards. Prometheus must scrape the
    Pushgateway with honor_labels: true. Give each Pulsar cluster a group of its own.

    Example: pulsar-sidecar audit push audits/monday --group-url http://pushgateway:9091/metrics/job/pulsar-sidecar-audit
    """
    ctx.obj.programs.push_audit(audit, group_url)
    output.info(f"the metrics were pushed to {output.printable(group_url)}")


@app.command(epilog=_EXIT_CODES)
def prune(
    ctx: Context,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory with audits, dumps and listings.")],
    keep: Annotated[int, typer.Option(min=1, help="Minimum number of directories of each kind to keep.")] = 5,
    older_than_days: Annotated[
        float, typer.Option(min=0, help="Minimum age of a directory to remove, in days.")
    ] = 30.0,
    execute: Annotated[bool, typer.Option("--execute", help="Remove them.")] = False,
) -> None:
    """Remove old audits, dumps and listings. Without --execute: only list them.

    The command removes only complete directories that pulsar-sidecar wrote. It keeps the newest --keep of each kind,
    those younger than --older-than-days, and the inputs of every audit that it keeps.

    Example: pulsar-sidecar audit prune /var/lib/audits --keep 5 --older-than-days 30 --execute
    """
    pruned = ctx.obj.programs.prune_archive(directory, keep, older_than_days, execute)
    gone = "removed" if pruned.executed else "would be removed"
    rows = [{"directory": str(path), "what": gone, "why": "old"} for path in pruned.removed]
    rows += [{"directory": str(path), "what": "stays", "why": reason} for path, reason in pruned.kept.items()]
    output.document(rows, ctx.obj.format)
    if not rows:
        output.info(f"there is no audit, dump or listing below {directory}")
    elif pruned.removed and not pruned.executed:
        output.info("nothing was removed; repeat the command with --execute")
