"""``pulsar-sidecar audit``: what exists against what is referenced, and what to do about it."""

from pathlib import Path
from typing import Annotated

import typer

from pulsar_sidecar.audit.requests import (
    Applied,
    ApplyRequest,
)
from pulsar_sidecar.cli import output
from pulsar_sidecar.cli.command_groups import CommandGroup, new_group
from pulsar_sidecar.cli.connecting import GlobalOptions, chosen
from pulsar_sidecar.cli.exits import ExitCode
from pulsar_sidecar.cli.groups.audit_running import add_run
from pulsar_sidecar.cli.programs import Programs
from pulsar_sidecar.cli.progress_bar import ProgressBar
from pulsar_sidecar.model.errors import SidecarError
from pulsar_sidecar.model.ids import MAX_LEDGER_ID

AUDIT_EXIT_CODES = (
    "Exit codes: 0 nothing was found, or it is done; 2 something was found (show); "
    "1 an error, wrong usage, or a guard that said no, the reason is on standard error."
)


_HELP = """Find ledgers that nothing references, and hand them to the deletion service.

An audit compares a listing of ledgers with a dump of the metadata store (see: ledgers list, metadata dump). A ledger is
condemned only when two audits, days apart, find it unreferenced and unchanged. What is condemned is a plan with a hash;
apply sends an approved plan to the deletion service, which proves every ledger again before it deletes it."""

_SHOW_HELP = """Show what an audit found: the verdict, counts, guards, what could not be seen, and the next step.

With --orphans, --missing, --unattributed or --usage, rows of these tables instead; --standing, --kind, --cause,
--tenant and --topic choose among them.

Exit code 0 if the audit is clean, 2 if it found something, 1 if a guard said no or there is an error.

Example: pulsar-sidecar audit show audits/monday --orphans --kind cursor --limit 50"""

_EXPLAIN_HELP = """Explain in sentences what an audit knows of one ledger: who claims it, why nothing references it,
where its case stands, and what it would take to condemn it.

A ledger that is referenced is not in an audit; name the dump, and the nodes that reference it are found there.

Example: pulsar-sidecar audit explain audits/monday 4711 --dump dumps/monday"""

_APPLY_HELP = """Hand the condemned ledgers of an audit to the deletion service. Without --execute: only show the plan.

The plan's hash is what is approved: --execute takes it with --plan, and another plan is refused. Nothing is deleted
here: every ledger becomes a pending deletion, and the deletion service proves it again.

Each row is sent once, however often the command is stopped and started again: rows carry their number in the plan, and
the progress is stored in the metadata store. (A broker that dies while rows are in flight may store some of them
twice; the second copy of a row finds its ledger deleted.) --execute needs the metadata store and the brokers, as the
sidecars have them (--metadata-store-url, --broker-service-url, or PULSAR_SIDECAR_* and client.conf).

Example: pulsar-sidecar audit apply audits/monday

Then: pulsar-sidecar audit apply audits/monday --execute --plan HASH"""

_PRUNE_HELP = """Remove old audits, dumps and listings. Without --execute: only list them.

Only complete directories of ours go. The newest of each kind stays, the newest --keep of them stay, younger ones than
--older-than-days stay, and so does what a remaining audit was made from.

Example: pulsar-sidecar audit prune /var/lib/audits --keep 5 --older-than-days 30 --execute"""

_Audit = Annotated[Path, typer.Argument(metavar="AUDIT", help="The audit's directory.")]
_Form = Annotated[output.Format | None, typer.Option("--format", help="json or table.")]


class _AuditGroup(CommandGroup):
    """Every error ends with 1, also that no answer came: 2 says that something was found."""

    @staticmethod
    def exit_code(error: SidecarError) -> int:
        return ExitCode.FAILED


def audit_app(programs: Programs) -> typer.Typer:
    """The group ``audit``."""
    app = new_group("audit", _HELP, cls=_AuditGroup, epilog=AUDIT_EXIT_CODES)
    for add_command in (add_run, _add_show, _add_explain, _add_apply, _add_report, _add_prune):
        add_command(app, programs)
    return app


def _add_show(app: typer.Typer, programs: Programs) -> None:
    @app.command("show", help=_SHOW_HELP, epilog=AUDIT_EXIT_CODES)
    def _show(
        ctx: typer.Context,
        audit: _Audit,
        orphans: Annotated[bool, typer.Option("--orphans", help="Unreferenced ledgers.")] = False,
        missing: Annotated[bool, typer.Option("--missing", help="References to missing ledgers.")] = False,
        unattributed: Annotated[
            bool, typer.Option("--unattributed", help="Ledgers that no known owner claims.")
        ] = False,
        usage: Annotated[bool, typer.Option("--usage", help="Storage by owner.")] = False,
        standing: Annotated[str | None, typer.Option(help="Only rows with this standing, such as condemned.")] = None,
        kind: Annotated[str | None, typer.Option(help="Only rows of this kind, such as data or cursor.")] = None,
        cause: Annotated[str | None, typer.Option(help="Only rows with this likely cause.")] = None,
        tenant: Annotated[str | None, typer.Option(help="Only rows of this tenant.")] = None,
        topic: Annotated[str | None, typer.Option(help="Only rows of this topic, by its full name.")] = None,
        limit: Annotated[int, typer.Option(min=1, help="Maximum number of rows of a table.")] = 20,
        form: _Form = None,
    ) -> None:
        options: GlobalOptions = ctx.obj
        wanted = {"orphans": orphans, "missing": missing, "unattributed": unattributed, "usage": usage}
        values = {"standing": standing, "kind": kind, "cause": cause, "tenant": tenant, "topic": topic}
        equal = {name: value for name, value in values.items() if value is not None}
        tables = tuple(name for name, is_wanted in wanted.items() if is_wanted) or (("orphans",) if equal else ())
        shown = programs.show_audit(audit, tables, equal, limit)
        if options.format(form) is output.Format.JSON:
            output.document(shown.document, output.Format.JSON)
        else:
            output.result(output.printable(shown.text))
        raise typer.Exit(shown.exit_code)


def _add_explain(app: typer.Typer, programs: Programs) -> None:
    @app.command("explain", help=_EXPLAIN_HELP, epilog=AUDIT_EXIT_CODES)
    def _explain(
        audit: _Audit,
        ledger_id: Annotated[int, typer.Argument(metavar="LEDGER_ID", min=0, max=MAX_LEDGER_ID)],
        dump: Annotated[
            Path | None, typer.Option(metavar="DIR", help="A dump, to find what references the ledger.")
        ] = None,
    ) -> None:
        output.result(output.printable(programs.explain_ledger(audit, ledger_id, dump)))


def _add_apply(app: typer.Typer, programs: Programs) -> None:
    @app.command("apply", help=_APPLY_HELP, epilog=AUDIT_EXIT_CODES)
    def _apply(
        ctx: typer.Context,
        audit: _Audit,
        execute: Annotated[bool, typer.Option("--execute", help="Send the records.")] = False,
        plan: Annotated[str | None, typer.Option(metavar="HASH", help="The plan that was approved.")] = None,
        rate: Annotated[float | None, typer.Option(min=0.1, help="Maximum number of records a second.")] = None,
        max_age_hours: Annotated[float, typer.Option(min=0, help="Maximum age of the audit, in hours.")] = 72.0,
        metadata_store_url: Annotated[
            str | None, typer.Option(metavar="zk:HOST:PORT", help="As in broker.conf.")
        ] = None,
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
        options: GlobalOptions = ctx.obj
        with ProgressBar("sending", output.info) as bar:
            written = options.written()
            trusted = options.tls_trust_cert_path or written.get("tls_trust_certs_file_path")
            request = ApplyRequest(
                audit=audit,
                execute=execute,
                plan_sha256=plan,
                rate=rate,
                max_age_hours=max_age_hours,
                metadata_store_url=metadata_store_url or written.get("metadata_store_url"),
                metadata_store_auth=auth or written.get("metadata_store_auth"),
                broker_service_url=broker_service_url or written.get("broker_service_url"),
                auth_plugin=options.auth_plugin or written.get("auth_plugin"),
                auth_params=options.auth_params or written.get("auth_params"),
                tls_trust_certs_file=Path(trusted) if trusted else None,
                tls_allow_insecure=chosen(
                    options.tls_allow_insecure, written.get("tls_allow_insecure_connection"), False
                ),
                tls_verify_hostname=chosen(
                    options.tls_enable_hostname_verification, written.get("tls_enable_hostname_verification"), True
                ),
            )
            applied = programs.apply_audit(request, bar.report)
        _show_applied(applied, audit, options.format(form))


def _show_applied(applied: Applied, audit: Path, form: output.Format) -> None:
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


def _add_report(app: typer.Typer, programs: Programs) -> None:
    @app.command("report", epilog=AUDIT_EXIT_CODES)
    def _report(
        audit: _Audit,
        output_file: Annotated[
            Path | None, typer.Option("--output", metavar="FILE", help="Default: report.html in the audit.")
        ] = None,
    ) -> None:
        """Write the HTML report of an audit again; every audit comes with one.

        Example: pulsar-sidecar audit report audits/monday --output monday.html
        """
        output.result(str(programs.report_audit(audit, output_file)))


def _add_prune(app: typer.Typer, programs: Programs) -> None:
    @app.command("prune", help=_PRUNE_HELP, epilog=AUDIT_EXIT_CODES)
    def _prune(
        ctx: typer.Context,
        directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where audits, dumps and listings are.")],
        keep: Annotated[int, typer.Option(min=1, help="How many of each kind are always kept.")] = 5,
        older_than_days: Annotated[float, typer.Option(min=0, help="Younger ones are kept.")] = 30.0,
        execute: Annotated[bool, typer.Option("--execute", help="Remove them.")] = False,
        form: _Form = None,
    ) -> None:
        options: GlobalOptions = ctx.obj
        pruned = programs.prune_archive(directory, keep, older_than_days, execute)
        gone = "removed" if pruned.executed else "would be removed"
        rows = [{"directory": str(path), "what": gone, "why": "old"} for path in pruned.removed]
        rows += [{"directory": str(path), "what": "stays", "why": reason} for path, reason in pruned.kept.items()]
        output.document(rows, options.format(form))
        if not rows:
            output.info(f"there is no audit, dump or listing below {directory}")
        elif pruned.removed and not pruned.executed:
            output.info("nothing was removed; repeat the command with --execute")
