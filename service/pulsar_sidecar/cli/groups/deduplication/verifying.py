"""``pulsar-sidecar deduplication verify|extract``: whether messages are stored twice, by topics' entries."""

import os
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from pulsar_sidecar.analysis.formatting import format_columns, format_count
from pulsar_sidecar.cli import output
from pulsar_sidecar.cli.command_groups import ExitCode
from pulsar_sidecar.cli.connecting import (
    Context,
    LedgersRootPath,
    MetadataStoreAuth,
    NewDirectory,
    Topic,
)
from pulsar_sidecar.cli.groups.deduplication.show import app
from pulsar_sidecar.deduplication.verifying.describing import describe, result_of
from pulsar_sidecar.deduplication.verifying.requests import (
    DEFAULT_ENTRIES_PER_SECOND,
    ExtractRequest,
    StoredMessagesRequest,
    VerifyRequest,
)
from pulsar_sidecar.deduplication.verifying.verify import TopicResult
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.names import TopicDomain, parse_topic_name
from pulsar_sidecar.settings.sources import environment_settings

_ENDS = {
    TopicResult.CLEAN: ExitCode.DONE,
    TopicResult.FINDINGS: ExitCode.FINDINGS,
    TopicResult.NOT_PROVEN: ExitCode.FAILED,
}
_SHOWN = 20
_VERIFY_EXIT_CODES = (
    "Exit codes: 0 clean; 2 there are findings; 1 nothing was found, but not everything could be read, "
    "or wrong usage or an error, the reason is on standard error; 3 ZooKeeper does not answer."
)
_EXTRACT_EXIT_CODES = (
    "Exit codes: 0 done; 1 wrong usage or an error, the reason is on standard error; 3 ZooKeeper does not answer."
)
_COUNTED = {
    "duplicates": "duplicates",
    "reused": "reused",
    "repeated": "repeated",
    "goingBack": "going back",
    "epochs": "epochs",
    "gaps": "gaps",
}

_MetadataStoreUrl = Annotated[
    str | None,
    typer.Option(metavar="zk:HOST:PORT", help="As in broker.conf. Also PULSAR_SIDECAR_METADATA_STORE_URL."),
]
_Rate = Annotated[
    float, typer.Option("--rate", metavar="NUMBER", min=0, help="Maximum number of entries a second, 0 for no limit.")
]


@app.command(epilog=_VERIFY_EXIT_CODES, short_help="Prove that a topic holds no message twice.")
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

    The command reads every entry from the bookies, without a consumer and without fencing; it asks no broker, and the
    topic is not loaded. It opens batches, because their sequence ids lie inside. Entries that are in tiered storage
    alone, or unreadable, are listed as not seen, and such a topic is never called clean. Gaps are not findings: PIP-6
    allows them. Messages are compared within a partition, not between partitions.

    The command reads a topic with findings twice, the second time to compare payloads.

    Example: pulsar-sidecar deduplication verify persistent://public/default/orders
    --metadata-store-url zk:zookeeper:2181
    """
    _demand_entries(topic)
    stored = _stored_messages(metadata_store_url, auth, ledgers_root, rate)
    verified = ctx.obj.programs.verify_stored(VerifyRequest(topic, stored), output.info)
    chosen = ctx.obj.format
    is_table = chosen is output.Format.TABLE
    document = describe(topic, verified, _SHOWN if limit is None and is_table else limit)
    output.answer(document, (line for each in document["partitions"] for line in _lines(each)), chosen)
    raise typer.Exit(_ENDS[result_of(verified)])


@app.command(epilog=_EXTRACT_EXIT_CODES, short_help="Write many topics' message metadata as Parquet.")
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
    manifest = ctx.obj.programs.make_extract(ExtractRequest(scope, directory, stored), output.info)
    shown = ("scope", "topics", "gone", "ledgers", "entries", "messages", "unseen")
    document = manifest.document()
    output.document({"directory": str(directory), **{name: document[name] for name in shown}}, ctx.obj.format)


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


def _lines(partition: Mapping[str, Any]) -> Iterator[str]:
    sentences = {
        "clean": "clean",
        "findings": "there are findings",
        "not-proven": "nothing was found, but nothing is proven",
    }
    yield f"{output.printable(partition['topic'])}: {sentences[partition['verdict']]}"
    rows = ", ".join(f"{count:,} {kind}" for kind, count in partition["rows"].items() if count)
    if partition["earlierChunks"]:
        rows += f"; {partition['earlierChunks']:,} of them are chunks before a message's last"
    if partition["entries"]:
        between = f"from {partition['firstPosition']} to {partition['lastPosition']}"
        yield f"  {format_count(partition['entries'], 'entry')} {between}; rows by kind: {rows}"
    else:
        yield "  no entry was seen"
    for unseen in partition["notSeen"]:
        last = "the end" if unseen["lastEntryId"] is None else unseen["lastEntryId"]
        where = f"ledger {unseen['ledgerId']}, entries {unseen['firstEntryId']} to {last}"
        yield f"  NOT SEEN {where}: {unseen['cause']}, {output.printable(unseen['reason'])}"
    if partition["producers"]:
        yield format_columns([_producer_row(each) for each in partition["producers"]])
    if partition["findings"]:
        yield format_columns([_finding_row(each) for each in partition["findings"]])
    if partition["findingsNotShown"]:
        yield (
            f"and {format_count(partition['findingsNotShown'], 'more finding')}; see them with --limit or "
            "--output-format json"
        )
    if any(each["unopenedBatches"] for each in partition["producers"]):
        yield "batches whose messages' ids are not known were compared by their lowest ids alone"


def _producer_row(producer: Mapping[str, Any]) -> dict[str, str]:
    return {
        "producer": _name(producer),
        "messages": f"{producer['messages']:,}",
        "first id": str(producer["firstSequenceId"]),
        "last id": str(producer["lastSequenceId"]),
        **{title: f"{producer[name]:,}" for name, title in _COUNTED.items()},
        "unopened": f"{producer['unopened']:,}",
    }


def _finding_row(finding: Mapping[str, Any]) -> dict[str, str]:
    return {
        "finding": finding["finding"],
        "producer": _name(finding),
        "id": str(finding["sequenceId"]),
        "at": finding["position"],
        "earlier at": finding["earlierPosition"] or "-",
        "highest before": str(finding["highestBefore"]),
    }


def _name(row: Mapping[str, Any]) -> str:
    cluster = row["replicatedFrom"]
    return output.printable(row["producer"] if cluster is None else f"{row['producer']} (from {cluster})")
