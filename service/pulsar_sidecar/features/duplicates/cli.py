"""``pulsar-sidecar deduplication verify|extract|duplicates``: duplicates among topics' stored messages."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from pulsar_sidecar.cli import output
from pulsar_sidecar.cli.command_groups import ExitCode
from pulsar_sidecar.cli.connecting import (
    Context,
    LedgersRootPath,
    MetadataStoreAuth,
    NewDirectory,
    Topic,
    show_made,
)
from pulsar_sidecar.cli.shared_groups import deduplication_app
from pulsar_sidecar.features.duplicates.requests import (
    DEFAULT_ENTRIES_PER_SECOND,
    DuplicatesRequest,
    ExtractRequest,
    StoredMessagesRequest,
    VerifyRequest,
)
from pulsar_sidecar.features.duplicates.results import MessageFinding, VerifiedPartition, VerifiedProducer, describe
from pulsar_sidecar.features.duplicates.verify import TopicResult
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.names import TopicDomain, parse_topic_name
from pulsar_sidecar.reports.formatting import format_columns, format_count
from pulsar_sidecar.settings.sources import environment_settings

_ENDS = {
    TopicResult.CLEAN: ExitCode.DONE,
    TopicResult.FINDINGS: ExitCode.FINDINGS,
    TopicResult.NOT_PROVEN: ExitCode.FAILED,
}
_SHOWN = 20
_VERIFY_EXIT_CODES = (
    "Exit codes: 0 clean; 2 there are findings; 1 nothing was found, but not everything could be read, "
    "or wrong usage or an error, the reason is on standard error; 3 ZooKeeper does not respond."
)
_EXTRACT_EXIT_CODES = (
    "Exit codes: 0 done; 1 wrong usage or an error, the reason is on standard error; 3 ZooKeeper does not respond."
)
_DUPLICATES_EXIT_CODES = (
    "Exit codes: 0 clean; 2 there are findings; 1 nothing was found, but not everything could be read, "
    "or wrong usage or an error, the reason is on standard error."
)
_VERDICTS = {
    TopicResult.CLEAN: "clean",
    TopicResult.FINDINGS: "there are findings",
    TopicResult.NOT_PROVEN: "nothing was found, but nothing is proven",
}

_MetadataStoreUrl = Annotated[
    str | None,
    typer.Option(metavar="zk:HOST:PORT", help="As in broker.conf. Also PULSAR_SIDECAR_METADATA_STORE_URL."),
]
_Rate = Annotated[
    float, typer.Option("--rate", metavar="NUMBER", min=0, help="Maximum number of entries per second, 0 for no limit.")
]


@deduplication_app.command(epilog=_VERIFY_EXIT_CODES, short_help="Prove that a topic holds no message twice.")
def verify(
    ctx: Context,
    topic: Topic,
    metadata_store_url: _MetadataStoreUrl = None,
    ledgers_root: LedgersRootPath = "/ledgers",
    rate: _Rate = DEFAULT_ENTRIES_PER_SECOND,
    limit: Annotated[
        int | None,
        typer.Option(min=0, help=f"Maximum number of findings of a partition. Default: {_SHOWN} in a table, else all."),
    ] = None,
    auth: MetadataStoreAuth = None,
) -> None:
    """Prove that a topic holds no message twice, or show which: per producer duplicates, reused ids, ids that go back.

    The command reads every entry from the bookies, without a consumer and without fencing; it queries no broker and
    loads no topic. It opens batches, because their sequence ids lie inside. Entries that are only in tiered
    storage, or unreadable, are listed as not seen, and such a topic is never called clean. Gaps are not findings: PIP-6
    allows them. Messages are compared within a partition, not between partitions.

    The command reads a topic with findings twice, the second time to compare payloads.

    Example: pulsar-sidecar deduplication verify persistent://public/default/orders
    --metadata-store-url zk:zookeeper:2181
    """
    _demand_entries(topic)
    stored = _stored_messages(metadata_store_url, auth, ledgers_root, rate)
    verified = ctx.obj.programs.verify_stored(VerifyRequest(topic, stored), output.info)
    most = _SHOWN if limit is None and ctx.obj.format is output.Format.TABLE else limit
    found = describe(topic, verified, most)
    show_made(ctx, found, (line for each in found.partitions for line in _lines(each)))
    raise typer.Exit(_ENDS[found.verdict])


@deduplication_app.command(epilog=_EXTRACT_EXIT_CODES, short_help="Write many topics' message metadata as Parquet.")
def extract(
    ctx: Context,
    scope: Annotated[str, typer.Argument(metavar="TENANT|NAMESPACE|TOPIC")],
    directory: NewDirectory,
    metadata_store_url: _MetadataStoreUrl = None,
    ledgers_root: LedgersRootPath = "/ledgers",
    rate: _Rate = DEFAULT_ENTRIES_PER_SECOND,
    auth: MetadataStoreAuth = None,
) -> None:
    """Write the message metadata of many topics into Parquet tables, to search them for duplicates.

    One row for each message: producer, sequence id, position, publish time and a hash of its payload; no payload. The
    command reads as verify does, once, and at a limited rate. Two more tables hold the ranges of entries that were
    read, and of those that were not. The directory appears when the extract is complete; its manifest counts all rows.

    Example: pulsar-sidecar deduplication extract public/default --output extracts/monday
    --metadata-store-url zk:zookeeper:2181
    """
    if "://" in scope:
        _demand_entries(scope)
    stored = _stored_messages(metadata_store_url, auth, ledgers_root, rate)
    manifest = ctx.obj.programs.take_extract(ExtractRequest(scope, directory, stored), output.info)
    shown = ("scope", "topics", "gone", "ledgers", "entries", "messages", "unseen")
    document = manifest.document()
    output.document({"directory": str(directory), **{name: document[name] for name in shown}}, ctx.obj.format)


@deduplication_app.command(epilog=_DUPLICATES_EXIT_CODES, short_help="Find the duplicates in an extract.")
def duplicates(
    ctx: Context,
    extract: Annotated[Path, typer.Option(metavar="DIR", help="Directory that `deduplication extract` wrote.")],
    directory: NewDirectory,
) -> None:
    """Find the duplicates in an extract, of any number of topics: the same findings as those of verify.

    The command compares every file of the extract with its manifest first, and refuses an incomplete extract. It writes
    a directory: tables of findings, producers and topics, a report (report.html) and a summary. The report lists what
    the extract did not see, and such a topic is never called clean. The command reads nothing outside the extract: 10
    million messages take less than a minute on two cores.

    Example: pulsar-sidecar deduplication duplicates --extract extracts/monday --output duplicates/monday
    """
    concluded = ctx.obj.programs.look_for_duplicates(DuplicatesRequest(extract, directory), output.info)
    document = {"sentence": concluded.sentence, "nextStep": concluded.next_step}
    output.answer(document, [concluded.sentence, f"next: {concluded.next_step}"], ctx.obj.format)
    raise typer.Exit(concluded.exit_code)


def _demand_entries(topic: str) -> None:
    if parse_topic_name(topic).domain is not TopicDomain.PERSISTENT:
        raise InvalidInputError(f"{topic} has no entries; write persistent://tenant/namespace/topic")


def _stored_messages(
    metadata_store_url: str | None, auth: str | None, ledgers_root: str, rate: float
) -> StoredMessagesRequest:
    environment = environment_settings(os.environ)
    return StoredMessagesRequest(
        metadata_store_url or environment.get("metadata_store_url"),
        auth or environment.get("metadata_store_auth"),
        ledgers_root,
        rate or None,
    )


def _lines(partition: VerifiedPartition) -> Iterator[str]:
    yield f"{output.printable(partition.topic)}: {_VERDICTS[partition.verdict]}"
    if partition.entries:
        between = f"from {partition.first_position} to {partition.last_position}"
        rows = ", ".join(f"{count:,} {kind}" for kind, count in partition.rows.items() if count)
        chunks = f"; {partition.earlier_chunks:,} of them are chunks before a message's last"
        yield (
            f"  {format_count(partition.entries, 'entry')} {between}; rows by kind: {rows}"
            f"{chunks if partition.earlier_chunks else ''}"
        )
    else:
        yield "  no entry was seen"
    for unseen in partition.not_seen:
        last = "the end" if unseen.last_entry_id is None else unseen.last_entry_id
        where = f"ledger {unseen.ledger_id}, entries {unseen.first_entry_id} to {last}"
        yield f"  NOT SEEN {where}: {unseen.cause.value}, {output.printable(unseen.reason)}"
    if partition.producers:
        yield format_columns([_producer_row(each) for each in partition.producers])
    if partition.findings:
        yield format_columns([_finding_row(each) for each in partition.findings])
    if partition.findings_not_shown:
        yield (
            f"and {format_count(partition.findings_not_shown, 'more finding')}; see them with --limit or "
            "--output-format json"
        )
    if any(each.unopened_batches for each in partition.producers):
        yield "batches whose messages' ids are unknown were compared only by their lowest ids"


def _producer_row(producer: VerifiedProducer) -> dict[str, str]:
    return {
        "producer": _name(producer),
        "messages": f"{producer.messages:,}",
        "first id": str(producer.first_sequence_id),
        "last id": str(producer.last_sequence_id),
        "duplicates": f"{producer.duplicates:,}",
        "reused": f"{producer.reused:,}",
        "repeated": f"{producer.repeated:,}",
        "going back": f"{producer.going_back:,}",
        "epochs": f"{producer.epochs:,}",
        "gaps": f"{producer.gaps:,}",
        "unopened": f"{producer.unopened:,}",
    }


def _finding_row(finding: MessageFinding) -> dict[str, str]:
    return {
        "finding": finding.finding.value,
        "producer": _name(finding),
        "id": str(finding.sequence_id),
        "at": finding.position,
        "earlier at": finding.earlier_position or "-",
        "highest before": str(finding.highest_before),
    }


def _name(row: VerifiedProducer | MessageFinding) -> str:
    cluster = row.replicated_from
    return output.printable(row.producer if cluster is None else f"{row.producer} (from {cluster})")
