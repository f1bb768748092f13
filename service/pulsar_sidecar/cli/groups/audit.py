"""``pulsar-sidecar audit``: what exists against what is referenced, and what to do about it."""

from pathlib import Path
from typing import Annotated, Any

import typer

from pulsar_sidecar.audit.requests import HOUR_MS, AppliedPlan, ApplyRequest, AuditPolicy, AuditRequest
from pulsar_sidecar.cli import output
from pulsar_sidecar.cli.command_groups import CommandGroup, ExitCode, new_group
from pulsar_sidecar.cli.connecting import Context, LedgerIdArgument, NewDirectory, is_true
from pulsar_sidecar.model.errors import SidecarError

_EXIT_CODES = (
    "Exit codes: 0 nothing was found, or it is done; 2 something was found (show); "
    "1 an error, wrong usage, or a guard that said no, the reason is on standard error."
)
_HELP = """Find ledgers that nothing references, and hand them to the deletion service.

An audit compares a listing of ledgers with a dump of the metadata store (see: ledgers list, metadata dump). A ledger is
deletable only when two audits, days apart, find it unreferenced and unchanged. The deletable ones make a plan with a
hash; apply sends an approved plan to the deletion service, which proves every ledger again before it deletes it."""
_RUN_EXIT_CODES = (
    "Exit codes: 0 clean; 2 there are findings; 1 wrong usage, or no audit could be made of the inputs (nothing is "
    "left behind), or a guard did not pass (the findings are there to look at, without a plan)."
)
_DEFAULT = AuditPolicy()

_Audit = Annotated[Path, typer.Argument(metavar="AUDIT", help="The audit's directory.")]
_Form = Annotated[output.Format | None, typer.Option("--format", help="json or table.")]


def _hours(help_text: str) -> Any:
    return typer.Option(metavar="HOURS", min=0, help=help_text)


def _share(help_text: str) -> Any:
    return typer.Option(metavar="SHARE", min=0, max=1, help=help_text)


class _AuditGroup(CommandGroup):
    """Every error ends with 1, also that no answer came: 2 says that something was found."""

    @staticmethod
    def exit_code(error: SidecarError) -> int:
        return ExitCode.FAILED


app = new_group("audit", _HELP, cls=_AuditGroup, epilog=_EXIT_CODES)


@app.command(epilog=_RUN_EXIT_CODES)
def run(
    ctx: Context,
    dump: Annotated[Path, typer.Option(metavar="DIR", help="What metadata dump made.")],
    listing: Annotated[Path, typer.Option(metavar="DIR", help="What ledgers list made, before the dump.")],
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
            help="Nodes of the metadata store below it are not Pulsar's; may be repeated. "
            "Otherwise nodes of an unknown kind keep every ledger from deletion.",
        ),
    ] = None,
    bookkeeper_exclusive: Annotated[
        bool,
        typer.Option(
            "--bookkeeper-exclusive-to-cluster",
            help="This BookKeeper serves only this Pulsar cluster. Without it nothing is deletable: another "
            "cluster's references cannot be seen from here.",
        ),
    ] = False,
    exact: Annotated[
        bool,
        typer.Option(
            "--exact",
            help="Read every node by itself with the exact decoder instead of whole columns. Slower, with the "
            "same result: a second opinion before a large plan is applied.",
        ),
    ] = False,
) -> None:
    """Compare a listing of ledgers with a dump of the metadata store, without Spark: one machine does millions.

    Make the listing first (ledgers list), then the dump (metadata dump). Both are compared with their manifests before
    anything is read. The result is a directory of tables, a report (report.html), metrics and a summary.

    Nothing is deletable at the first look. Give a later audit the one before with --previous: what both found
    unreferenced, unchanged, old enough, and with everything readable that might reference it, becomes the plan, if this
    BookKeeper serves only this Pulsar cluster: say so with --bookkeeper-exclusive-to-cluster.

    The Spark job pyspark_jobs/orphan_ledgers/job.py takes the same options and gives the same tables.

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
    )
    audited = ctx.obj.programs.make_audit(AuditRequest(dump, listing, directory, previous, policy, exact), output.info)
    output.result(f"{audited.verdict}\nnext: {audited.next_step}")
    raise typer.Exit(audited.exit_code)


@app.command(epilog=_EXIT_CODES)
def show(
    ctx: Context,
    audit: _Audit,
    orphans: Annotated[bool, typer.Option("--orphans", help="Unreferenced ledgers.")] = False,
    missing: Annotated[bool, typer.Option("--missing", help="References to missing ledgers.")] = False,
    unattributed: Annotated[bool, typer.Option("--unattributed", help="Ledgers that no known owner claims.")] = False,
    usage: Annotated[bool, typer.Option("--usage", help="Storage by owner.")] = False,
    standing: Annotated[
        str | None, typer.Option(help="Only rows with this standing, such as too-young. Deletable ledgers: condemned.")
    ] = None,
    kind: Annotated[str | None, typer.Option(help="Only rows of this kind, such as data or cursor.")] = None,
    cause: Annotated[str | None, typer.Option(help="Only rows with this likely cause.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Only rows of this tenant.")] = None,
    topic: Annotated[str | None, typer.Option(help="Only rows of this topic, by its full name.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of rows of a table.")] = 20,
    form: _Form = None,
) -> None:
    """Show what an audit found: the verdict, counts, guards, what could not be seen, and the next step.

    With --orphans, --missing, --unattributed or --usage, rows of these tables instead; --standing, --kind, --cause,
    --tenant and --topic choose among them.

    Exit code 0 if the audit is clean, 2 if it found something, 1 if a guard said no or there is an error.

    Example: pulsar-sidecar audit show audits/monday --orphans --kind cursor --limit 50
    """
    wanted = {"orphans": orphans, "missing": missing, "unattributed": unattributed, "usage": usage}
    values = {"standing": standing, "kind": kind, "cause": cause, "tenant": tenant, "topic": topic}
    equal = {name: value for name, value in values.items() if value is not None}
    tables = tuple(name for name, is_wanted in wanted.items() if is_wanted) or (("orphans",) if equal else ())
    shown = ctx.obj.programs.show_audit(audit, tables, equal, limit)
    if ctx.obj.format(form) is output.Format.JSON:
        output.document(shown.document, output.Format.JSON)
    else:
        output.result(output.printable(shown.text))
    raise typer.Exit(shown.exit_code)


@app.command(epilog=_EXIT_CODES)
def explain(
    ctx: Context,
    audit: _Audit,
    ledger_id: LedgerIdArgument,
    dump: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A dump, to find what references the ledger.")
    ] = None,
) -> None:
    """Explain in sentences what an audit knows of one ledger: who claims it, and why nothing references it.

    Also where its case stands, and what it would take to be deletable.

    A ledger that is referenced is not in an audit; name the dump, and the nodes that reference it are found there.

    Example: pulsar-sidecar audit explain audits/monday 4711 --dump dumps/monday
    """
    output.result(output.printable(ctx.obj.programs.explain_ledger(audit, ledger_id, dump)))


@app.command(epilog=_EXIT_CODES)
def apply(
    ctx: Context,
    audit: _Audit,
    execute: Annotated[bool, typer.Option("--execute", help="Send the records.")] = False,
    plan: Annotated[str | None, typer.Option(metavar="HASH", help="The plan that was approved.")] = None,
    rate: Annotated[float | None, typer.Option(min=0.1, help="Maximum number of records a second.")] = None,
    max_age_hours: Annotated[float, typer.Option(min=0, help="Maximum age of the audit, in hours.")] = 72.0,
    metadata_store_url: Annotated[str | None, typer.Option(metavar="zk:HOST:PORT", help="As in broker.conf.")] = None,
    broker_service_url: Annotated[str | None, typer.Option(metavar="pulsar://HOST:PORT")] = None,
    auth: Annotated[
        str | None,
        typer.Option(
            "--metadata-store-auth",
            metavar="SCHEME:CREDENTIAL",
            help="Other users see it in the process list; prefer PULSAR_SIDECAR_METADATA_STORE_AUTH.",
        ),
    ] = None,
    form: _Form = None,
) -> None:
    """Hand the deletable ledgers of an audit to the deletion service. Without --execute: only show the plan.

    The plan's hash is what is approved: --execute takes it with --plan, and another plan is refused. Nothing is deleted
    here: every ledger becomes a pending deletion, and the deletion service proves it again.

    Each row is sent once, however often the command is stopped and started again: rows carry their number in the plan,
    and the progress is stored in the metadata store. (A broker that dies while rows are in flight may store some of
    them twice; the second copy of a row finds its ledger deleted.) --execute needs the metadata store and the brokers,
    as the sidecars have them (--metadata-store-url, --broker-service-url, or PULSAR_SIDECAR_* and client.conf).

    Example: pulsar-sidecar audit apply audits/monday

    Then: pulsar-sidecar audit apply audits/monday --execute --plan HASH
    """
    settings = ctx.obj.settings(
        metadata_store_url=metadata_store_url, metadata_store_auth=auth, broker_service_url=broker_service_url
    )
    trusted = settings.get("tls_trust_certs_file_path")
    request = ApplyRequest(
        audit=audit,
        execute=execute,
        plan_sha256=plan,
        rate=rate,
        max_age_hours=max_age_hours,
        metadata_store_url=settings.get("metadata_store_url"),
        metadata_store_auth=settings.get("metadata_store_auth"),
        broker_service_url=settings.get("broker_service_url"),
        auth_plugin=settings.get("auth_plugin"),
        auth_params=settings.get("auth_params"),
        tls_trust_certs_file=Path(trusted) if trusted else None,
        tls_allow_insecure=is_true(settings, "tls_allow_insecure_connection", "false"),
        tls_verify_hostname=is_true(settings, "tls_enable_hostname_verification", "true"),
    )
    with output.ProgressBar("sending", output.info) as bar:
        applied = ctx.obj.programs.apply_audit(request, bar.report)
    _show_applied(applied, audit, ctx.obj.format(form))


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
            "nothing was sent. Look at the ledgers with: "
            f"pulsar-sidecar audit show {audit} --orphans --standing condemned\nSend them with: "
            f"pulsar-sidecar audit apply {audit} --execute --plan {applied.plan_sha256}"
        )
    else:
        output.info("see how they are deleted with: pulsar-sidecar ledger-deletion status")


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
    output.result(str(ctx.obj.programs.report_audit(audit, output_file)))


@app.command(epilog=_EXIT_CODES)
def prune(
    ctx: Context,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where audits, dumps and listings are.")],
    keep: Annotated[int, typer.Option(min=1, help="How many of each kind are always kept.")] = 5,
    older_than_days: Annotated[float, typer.Option(min=0, help="Younger ones are kept.")] = 30.0,
    execute: Annotated[bool, typer.Option("--execute", help="Remove them.")] = False,
    form: _Form = None,
) -> None:
    """Remove old audits, dumps and listings. Without --execute: only list them.

    Only complete directories of ours go. The newest of each kind stays, the newest --keep of them stay, younger ones
    than --older-than-days stay, and so does what a remaining audit was made from.

    Example: pulsar-sidecar audit prune /var/lib/audits --keep 5 --older-than-days 30 --execute
    """
    pruned = ctx.obj.programs.prune_archive(directory, keep, older_than_days, execute)
    gone = "removed" if pruned.executed else "would be removed"
    rows = [{"directory": str(path), "what": gone, "why": "old"} for path in pruned.removed]
    rows += [{"directory": str(path), "what": "stays", "why": reason} for path, reason in pruned.kept.items()]
    output.document(rows, ctx.obj.format(form))
    if not rows:
        output.info(f"there is no audit, dump or listing below {directory}")
    elif pruned.removed and not pruned.executed:
        output.info("nothing was removed; repeat the command with --execute")
