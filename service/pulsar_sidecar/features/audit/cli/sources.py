"""``pulsar-sidecar metadata``, ``ledgers`` and ``offload``: what an audit works on, taken from a cluster."""

import os
from pathlib import Path
from typing import Annotated

import typer

from pulsar_sidecar.cli import output
from pulsar_sidecar.cli.command_groups import EXIT_CODES, new_group
from pulsar_sidecar.cli.connecting import Context, LedgersRootPath, MetadataStoreAuth, NewDirectory
from pulsar_sidecar.features.audit.requests import (
    DEFAULT_NODES_PER_SECOND,
    DumpRequest,
    ListingRequest,
    OffloadListingRequest,
)
from pulsar_sidecar.features.audit.sources.manifests import Manifest
from pulsar_sidecar.settings.sources import environment_settings

metadata_app = new_group("metadata", "Dump the metadata store's nodes, for an audit.")
ledgers_app = new_group("ledgers", "List BookKeeper's ledgers, for an audit.")
offload_app = new_group("offload", "List the objects in tiered storage, for an audit.")

_Rate = Annotated[
    float | None,
    typer.Option(
        "--rate",
        metavar="NUMBER",
        min=0,
        help="Maximum number of nodes or ledgers read per second, 0 for no limit. Default: "
        f"{DEFAULT_NODES_PER_SECOND:,.0f}. A snapshot has no limit.",
    ),
]


_MetadataStoreUrl = Annotated[
    str | None,
    typer.Option(metavar="zk:HOST:PORT", help="As in broker.conf. Also PULSAR_SIDECAR_METADATA_STORE_URL."),
]


@metadata_app.command(epilog=EXIT_CODES)
def dump(
    ctx: Context,
    source: Annotated[
        str, typer.Option(metavar="SOURCE", help="zk://..., etcd:http://..., zk-snapshot:... or rocksdb-copy:...")
    ],
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

    Sources: zk://HOST:PORT[,HOST:PORT][/CHROOT] reads a running ZooKeeper with its own protocol;
    etcd:http://HOST:PORT[,http://HOST:PORT] reads a running etcd as of one revision. zk-snapshot:FILE reads a file of
    ZooKeeper's data directory; it lacks later changes, so an audit of it plans no deletion.
    rocksdb-copy:DIRECTORY reads a copy of a stopped standalone's data/metadata; an audit of it plans no deletion
    either, and the command needs the extra "rocksdb".

    Make the listing (ledgers list) first and the dump second: a ledger that is linked in between is then in the dump.

    While a topic is loaded, its compacted ledger is named only by an entry on the bookies. With zk:// or etcd: the
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
    output.document(_summary(ctx.obj.programs.take_dump(request, output.info), directory), ctx.obj.format)


@ledgers_app.command("list", epilog=EXIT_CODES)
def list_ledgers(
    ctx: Context,
    directory: NewDirectory,
    metadata_store_url: Annotated[
        str | None,
        typer.Option(
            metavar="zk:HOST:PORT",
            help="As in broker.conf, or rocksdb-copy:DIRECTORY. Also PULSAR_SIDECAR_METADATA_STORE_URL.",
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

    The command reads the ledgers' nodes in the metadata store, or in a copy of a standalone's (see metadata dump).

    An audit needs the ledgers' metadata (--with-metadata) in one of its inputs: a dump has it too, unless it was taken
    --without-ledgers.

    Export the listing first, then take the dump (metadata dump).

    Example: pulsar-sidecar ledgers list --metadata-store-url zk:zookeeper:2181 --output listings/monday
    """
    environment = environment_settings(os.environ)
    request = ListingRequest(
        output=directory,
        metadata_store_url=metadata_store_url or environment.get("metadata_store_url"),
        ledgers_root=ledgers_root,
        with_metadata=with_metadata,
        ledgers_per_second=rate,
        metadata_store_auth=auth or environment.get("metadata_store_auth"),
    )
    output.document(_summary(ctx.obj.programs.export_listing(request, output.info), directory), ctx.obj.format)


@offload_app.command("list", epilog=EXIT_CODES)
def list_offloaded(
    ctx: Context,
    directory: NewDirectory,
    locations: Annotated[
        list[str],
        typer.Option(
            "--location",
            metavar="LOCATION",
            help="Bucket or directory, written as in offloadAllowedLocations; may be repeated.",
        ),
    ],
    region: Annotated[
        str, typer.Option(metavar="REGION", help="Region of buckets on Amazon itself (s3://bucket).")
    ] = "",
    cluster: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The brokers' clusterName. Default: the metadata store's only cluster."),
    ] = None,
    metadata_store_url: _MetadataStoreUrl = None,
    ledgers_root: LedgersRootPath = "/ledgers",
    auth: MetadataStoreAuth = None,
) -> None:
    """List the objects of offloaded ledgers into a Parquet table for an audit.

    Locations: s3://bucket[@https://host:port], gs://bucket[@endpoint], azure://container@endpoint,
    oss://bucket@endpoint or file:///directory, the base of the filesystem driver. Credentials come from the same
    variables as the service's (PULSAR_SIDECAR_S3_MANAGED_LEDGER_OFFLOAD_CREDENTIAL_ID, ...) or from the provider's own
    chain; they need to list the bucket and to read its objects.

    The command sends one request for each object: its user metadata have its owner, and an index the length of the
    data. It deletes and writes nothing there.

    List tiered storage first, then take the dump (metadata dump). The metadata store proves this order.

    Example: pulsar-sidecar offload list --location s3://tiered@https://minio:9000 --metadata-store-url
    zk:zookeeper:2181 --output listings/offloaded
    """
    environment = environment_settings(os.environ)
    request = OffloadListingRequest(
        output=directory,
        locations=tuple(locations),
        region=region,
        metadata_store_url=metadata_store_url or environment.get("metadata_store_url"),
        ledgers_root=ledgers_root,
        cluster_name=cluster,
        metadata_store_auth=auth or environment.get("metadata_store_auth"),
    )
    output.document(_summary(ctx.obj.programs.export_offload_listing(request, output.info), directory), ctx.obj.format)


def _summary(manifest: Manifest, directory: Path) -> dict[str, object]:
    document = manifest.document()
    shared = ("kind", "source", "instanceId", "clusterName", "zxid", "mayCondemn", "reservations", "counts")
    return {"directory": str(directory), **{name: document[name] for name in shared}}
