"""``pulsar-sidecar broker-stats``: PIP-186's addition to pulsar-admin's group of that name."""

import typer

from pulsar_sidecar.cli import output
from pulsar_sidecar.cli.command_groups import new_group
from pulsar_sidecar.cli.connecting import GlobalOptions, Output
from pulsar_sidecar.cli.exits import EXIT_CODES
from pulsar_sidecar.cli.output import Format

app = new_group("broker-stats", "Figures about deletion (PIP-186 BrokerStats).")


@app.command("estimated-inflight-deletion-ledger-count", epilog=EXIT_CODES)
def estimated_inflight_deletion_ledger_count(ctx: typer.Context, form: Output = None) -> None:
    """Print how many ledgers wait to be deleted; 0 means that all are done.

    Example: pulsar-sidecar broker-stats estimated-inflight-deletion-ledger-count
    """
    options: GlobalOptions = ctx.obj
    estimate = options.client().call("GET", "/admin/v2/ledger-deletion/inflight")
    if options.format(form) is Format.TABLE and isinstance(estimate, dict):
        output.result(str(estimate["count"]))
        output.info(f"measured {estimate['ageMs']} ms ago")
    else:
        output.document(estimate, Format.JSON)
