"""``pulsar-sidecar audit run``: the embedded engine."""

from pathlib import Path
from typing import Annotated

import typer

from pulsar_sidecar.audit.requests import HOUR_MS, AuditRequest, Policy
from pulsar_sidecar.cli import output
from pulsar_sidecar.cli.programs import Programs

_DEFAULT = Policy()
_HOURS = "HOURS"
_RUN_EXIT_CODES = (
    "Exit codes: 0 clean; 2 there are findings; 1 wrong usage, or no audit could be made of the inputs (nothing is "
    "left behind), or a guard did not pass (the findings are there to look at, without a plan)."
)
_RUN_HELP = """Compare a listing of ledgers with a dump of the metadata store, without Spark: one machine does millions.

Make the listing first (ledgers list), then the dump (metadata dump). Both are compared with their manifests before
anything is read. The result is a directory of tables, a report (report.html), metrics and a summary.

Nothing is condemned at the first look. Give a later audit the one before with --previous: what both found unreferenced,
unchanged, old enough, and with everything readable that might reference it, becomes the plan, if this BookKeeper
serves only this Pulsar cluster: say so with --bookkeeper-exclusive-to-cluster.

The Spark job pyspark_jobs/orphan_ledgers/job.py takes the same options and gives the same tables.

Example: pulsar-sidecar audit run --dump dumps/tuesday --listing listings/tuesday --previous audits/monday
         --output audits/tuesday --bookkeeper-exclusive-to-cluster"""


def add_run(app: typer.Typer, programs: Programs) -> None:
    """Add the command ``run`` to the group ``audit``."""

    @app.command("run", help=_RUN_HELP, epilog=_RUN_EXIT_CODES)
    def _run(
        dump: Annotated[Path, typer.Option(metavar="DIR", help="What metadata dump made.")],
        listing: Annotated[Path, typer.Option(metavar="DIR", help="What ledgers list made, before the dump.")],
        directory: Annotated[
            Path, typer.Option("--output", metavar="DIR", help="The directory to create; it must not exist.")
        ],
        previous: Annotated[
            Path | None, typer.Option(metavar="DIR", help="The previous audit; without it nothing is condemned.")
        ] = None,
        min_age_hours: Annotated[
            float,
            typer.Option(
                metavar=_HOURS, min=0, help="Minimum age of a condemned ledger, by the metadata store's clock."
            ),
        ] = _DEFAULT.min_age_ms / HOUR_MS,
        look_window_hours: Annotated[
            float,
            typer.Option(
                metavar=_HOURS,
                min=0,
                help="Minimum time between the first dump that found a ledger unreferenced and this one.",
            ),
        ] = _DEFAULT.look_window_ms / HOUR_MS,
        max_share: Annotated[
            float,
            typer.Option(
                metavar="SHARE",
                min=0,
                max=1,
                help="Largest allowed share of all ledgers, and of all bytes, that may be condemned.",
            ),
        ] = _DEFAULT.max_share,
        max_shrink: Annotated[
            float,
            typer.Option(
                metavar="SHARE",
                min=0,
                max=1,
                help="Largest allowed shrinkage of the inputs since the previous audit, as a fraction.",
            ),
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
                "Otherwise nodes of an unknown kind keep every ledger from being condemned.",
            ),
        ] = None,
        bookkeeper_exclusive: Annotated[
            bool,
            typer.Option(
                "--bookkeeper-exclusive-to-cluster",
                help="This BookKeeper serves only this Pulsar cluster. Without it nothing is condemned: another "
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
        policy = Policy(
            min_age_ms=round(min_age_hours * HOUR_MS),
            look_window_ms=round(look_window_hours * HOUR_MS),
            max_share=max_share,
            max_shrink=max_shrink,
            allow_young=allow_young,
            foreign_subtrees=tuple(foreign_subtrees or ()),
            bookkeeper_exclusive=bookkeeper_exclusive,
        )
        audited = programs.make_audit(AuditRequest(dump, listing, directory, previous, policy, exact), output.info)
        output.result(f"{audited.verdict}\nnext: {audited.next_step}")
        raise typer.Exit(audited.exit_code)
