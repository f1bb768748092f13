"""``pulsar-sidecar metadata`` and ``pulsar-sidecar ledgers``: what an audit works on, taken from a cluster."""

import os
from pathlib import Path
from typing import Annotated

import typer

from pulsar_sidecar.audit.requests import DEFAULT_NODES_PER_SECOND, DumpRequest, ListingRequest
from pulsar_sidecar.audit.sources.manifests import Manifest
from pulsar_sidecar.cli import output
from pulsar_sidecar.cli.command_groups import EXIT_CODES, new_group
from pulsar_sidecar.cli.connecting import Context, LedgersRootPath, MetadataStoreAuth, NewDirectory
from pulsar_sidecar.settings.sources import environment_settings

metadata_app = new_group("metadata", "Dump the metadata store's nodes, for an audit.")
ledgers_app = new_group("ledgers", "List BookKeeper's ledgers, for an audit.")

_Rate = Annotated[
    float | None,
    typer.Option(
        "--rate",
        metavar="NUMBER",
        min=0,
        help="Maximum number of nodes or ledgers read a second, 0 for no limit. Default: "
        f"{DEFAULT_NODES_PER_SECOND:,.0f} from a running ZooKeeper, no limit for other sources.",
    ),
]


@metadata_app.command(epilog=EXIT_CODES)
def dump(
    ctx: Context,
    source: Annotated[str, typer.Option(metavar="SOURCE", help="zk://... or zk-snapshot:...")],
    directory: NewDirectory,
    chroot: Annotated[
        str,
        typer.Option(metavar="PATH", help="Path of the cluster in a snapshot. With zk:// it is part of the source."),
    ] = "",
    ledgers_root: LedgersRootPath = "/ledgers",
    without_ledgers: Annotated[
        bool, typer.Option("--without-ledgers", help="Leave out BookKeeper's ledgers, usually most of the nodes.")
    ] = False,
    cursors_from: Annotated[
        str | None,
        typer.Option(metavar="zk:HOST:PORT", help="The running metadata store, for the ledgers of compaction cursors."),
    ] = None,
    rate: _Rate = None,
    auth: MetadataStoreAuth = None,
) -> None:
    """Copy the metadata store's nodes into Parquet tables for an audit.

    Sources: zk://HOST:PORT[,HOST:PORT][/CHROOT] reads a running ZooKeeper with its own protocol. zk-snapshot:FILE reads
    a file of ZooKeeper's data directory; it lacks later changes, so an audit of it plans no deletion.

    Make the listing (ledgers list) first and the dump second: a ledger that is linked in between is then in the dump.

    While a topic is loaded, its compacted ledger is named only by an entry on the bookies. With zk:// the
    command reads those entries too, without fencing. With a snapshot, name the running metadata store with
    --cursors-from; otherwise they are marked unreadable, and no ledger that they may name is deletable.

    The directory appears when the dump is complete; a failure leaves nothing. The command writes progress to standard
    error and the summary to standard output.

    Example: pulsar-sidecar metadata dump --source zk://zookeeper:2181 --output dumps/monday
    """
    request = DumpRequest(
        source=source,
        output=directory,
        chroot=chroot.rstrip("/"),
        ledgers_root=ledgers_root,
        without_ledgers=without_ledgers,
        cursors_from=cursors_from,
        nodes_per_second=rate,
        metadata_store_auth=auth or environment_settings(os.environ).get("metadata_store_auth"),
    )
    output.document(_summary(ctx.obj.programs.make_dump(request, output.info), directory), ctx.obj.format)


@ledgers_app.command("list", epilog=EXIT_CODES)
def list_ledgers(
    ctx: Context,
    source: Annotated[str, typer.Option(metavar="SOURCE", help="metadata, or bookie-http://HOST:PORT[,...].")],
    directory: NewDirectory,
    metadata_store_url: Annotated[
        str | None,
        typer.Option(
            metavar="zk:HOST:PORT",
            help="As in broker.conf, for --source metadata. Also PULSAR_SIDECAR_METADATA_STORE_URL.",
        ),
    ] = None,
    ledgers_root: LedgersRootPath = "/ledgers",
    with_metadata: Annotated[
        bool, typer.Option("--with-metadata", help="Include each ledger's metadata, not only its id.")
    ] = False,
    rate: _Rate = None,
    auth: MetadataStoreAuth = None,
) -> None:
    """List BookKeeper's ledgers into a Parquet table for an audit.

    Sources: metadata reads the ledgers' nodes in the metadata store; bookie-http://HOST:PORT[,HOST:PORT] requests
    the list from the bookies' HTTP admin API twice and compares. The two sources are independent: use both in case of
    doubt.

    An audit needs the ledgers' metadata (--with-metadata) in one of its inputs: a dump has it too, unless it was made
    --without-ledgers. Over HTTP it takes one request for each ledger.

    Make the listing first and the dump (metadata dump) second.

    Example: pulsar-sidecar ledgers list --source bookie-http://bookie-1:8000,bookie-2:8000 --output listings/monday
    """
    environment = environment_settings(os.environ)
    request = ListingRequest(
        source=source,
        output=directory,
        metadata_store_url=metadata_store_url or environment.get("metadata_store_url"),
        ledgers_root=ledgers_root,
        with_metadata=with_metadata,
        ledgers_per_second=rate,
        metadata_store_auth=auth or environment.get("metadata_store_auth"),
    )
    output.document(_summary(ctx.obj.programs.make_listing(request, output.info), directory), ctx.obj.format)


def _summary(manifest: Manifest, directory: Path) -> dict[str, object]:
    document = manifest.document()
    shared = ("kind", "source", "instanceId", "clusterName", "zxid", "mayCondemn", "reservations", "counts")
    return {"directory": str(directory), **{name: document[name] for name in shared}}
