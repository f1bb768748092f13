"""``pulsar-sidecar publish``: a file's records, each stored once, however often the command is killed and repeated."""

import shlex
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from pulsar_sidecar.cli import output
from pulsar_sidecar.cli.command_groups import CommandGroup, ExitCode
from pulsar_sidecar.cli.connecting import Context, Topic, client_conf_of
from pulsar_sidecar.features.publishing.messages import BatchLimits
from pulsar_sidecar.features.publishing.records import RecordFormat
from pulsar_sidecar.features.publishing.requests import (
    BrokerAccess,
    FilePublishResult,
    PublishFileRequest,
    PublishRequest,
)
from pulsar_sidecar.features.publishing.routing import HashingScheme
from pulsar_sidecar.model.errors import OutcomeUnknownError, SidecarError, TemporaryError
from pulsar_sidecar.model.names import parse_topic_name

_DEFAULT_BATCH = BatchLimits().messages

_HELP = """Publish a file's records to a topic, each stored exactly once and in order.

Kill it at any moment and repeat the command: it continues where it stopped, with neither a gap nor a second copy. A
record's sequence id is the byte at which it begins; brokers refuse an id that they have stored for the producer name.
The topic needs deduplication: pulsar-admin topicPolicies set-deduplication --enable TOPIC (or for its namespace).

Formats: lines (the payload is the line without its newline); json-lines (an object with payload (text) or
payloadBase64, and optionally key, properties and eventTime in milliseconds); length-prefixed (4 bytes, big-endian,
before each payload). A record with a key goes to the partition that Java's client chooses for the key; without a key
the sequence id decides.

The command stores its progress in a checkpoint beside the file (FILE.NAME.checkpoint), with SHA-256 sums of the
published bytes. It refuses a file that was shrunk, differs in the published part or was replaced, and names the offset.
Without the checkpoint it reads the topic back and compares. A file may grow: the next run publishes what was appended.
A last line without a newline may be incomplete: the command does not publish it and exits with 4, unless --complete is
given. TLS settings and credentials come from client.conf or PULSAR_SIDECAR_*.

Example: pulsar-sidecar publish events.jsonl persistent://shop/orders/events --producer-name loader-1 --format
json-lines --broker-service-url pulsar://broker:6650 --web-service-url http://broker:8080"""

_EXIT_CODES = (
    "Exit codes: 0 the whole file is published; 1 refused, wrong usage or a malformed record, the reason is on "
    "standard error; 3 no broker answered, or none confirmed in time; 4 not the whole file: a signal stopped it, or "
    "the last record is unfinished. After 3 and 4, and after a kill, repeat the command."
)

app = typer.Typer(cls=CommandGroup, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command("publish", help=_HELP, epilog=_EXIT_CODES)
def publish(
    ctx: Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A regular file.")],
    topic: Topic,
    producer_name: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Unique among the topic's producers, the same in each run: brokers recognise stored records by it.",
        ),
    ],
    record_format: Annotated[
        RecordFormat, typer.Option("--format", help="How the file is divided into records.")
    ] = RecordFormat.LINES,
    is_complete: Annotated[
        bool, typer.Option("--complete", help="Publish a last line without a newline, too: nothing will be appended.")
    ] = False,
    is_fresh: Annotated[
        bool,
        typer.Option(
            "--fresh/--resume",
            help="--resume continues where the last run ended, or begins. --fresh begins, and refuses a name that has "
            "published something: there is a checkpoint, a broker remembers it, or the topic holds a message of it.",
        ),
    ] = False,
    is_dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the file, the topic and where to continue; publish nothing.")
    ] = False,
    rate: Annotated[
        float | None, typer.Option(metavar="NUMBER", min=0.001, help="Maximum number of records per second.")
    ] = None,
    batch_size: Annotated[
        int, typer.Option(metavar="NUMBER", min=1, max=100_000, help="Maximum number of records in a batch.")
    ] = _DEFAULT_BATCH,
    hashing_scheme: Annotated[
        HashingScheme, typer.Option(help="Hash function for keys: the one that the topic's other producers use.")
    ] = HashingScheme.JAVA_STRING_HASH,
    checkpoint: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Where to keep the checkpoint. Default: beside the file.")
    ] = None,
    broker_service_url: Annotated[
        str | None,
        typer.Option(metavar="pulsar://HOST:PORT", help="The brokers. Also from PULSAR_SIDECAR_* or client.conf."),
    ] = None,
    web_service_url: Annotated[
        str | None,
        typer.Option(
            metavar="http://HOST:PORT",
            help="The brokers' admin REST service, which knows whether deduplication is in effect.",
        ),
    ] = None,
) -> None:
    settings = ctx.obj.settings(broker_service_url=broker_service_url, web_service_url=web_service_url)
    request = PublishFileRequest(
        file,
        checkpoint,
        BrokerAccess(
            broker_service_url=settings.get("broker_service_url", "pulsar://localhost:6650"),
            web_service_url=settings.get("web_service_url", "http://localhost:8080"),
            client=client_conf_of(settings),
        ),
        PublishRequest(
            topic=parse_topic_name(topic),
            producer_name=producer_name,
            record_format=record_format,
            is_complete=is_complete,
            is_fresh=is_fresh,
            is_dry_run=is_dry_run,
            records_per_second=rate,
            limits=BatchLimits(messages=batch_size),
            hashing=hashing_scheme,
        ),
    )
    again = _command_line(request, broker_service_url, web_service_url)
    try:
        with closing(_Progress()) as progress:
            published = ctx.obj.programs.publish_file(request, output.info, progress.report)
    except SidecarError as error:
        output.info(output.printable(str(error), kept="\n\t"))
        output.info(f"stored records stay stored once; fix the cause, and continue with:\n  {again}")
        is_silent = isinstance(error, TemporaryError | OutcomeUnknownError)
        raise typer.Exit(ExitCode.UNREACHABLE if is_silent else ExitCode.FAILED) from error
    output.document(_document(request, published), ctx.obj.format)
    if is_dry_run:
        output.info("nothing was published")
    if published.unfinished_at is not None:
        output.info(
            f"the record at byte {published.unfinished_at} has no end yet and is not published; when the file has "
            f"grown, continue with (or with --complete, if it is a last line):\n  {again}"
        )
    if published.is_stopped:
        output.info(f"stopped before the file's end; continue with:\n  {again}")
    if published.is_stopped or published.unfinished_at is not None:
        raise typer.Exit(ExitCode.NOT_ALL)


class _Progress:
    def __init__(self) -> None:
        self._doing: str | None = None
        self._bar: output.ProgressBar | None = None

    def report(self, doing: str, done: int, total: int) -> None:
        if self._bar is None or doing != self._doing:
            self.close()
            self._doing, self._bar = doing, output.ProgressBar(doing, output.info)
        self._bar.report(done, total)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.__exit__()


def _command_line(request: PublishFileRequest, broker_service_url: str | None, web_service_url: str | None) -> str:
    """Return the command that continues; it contains neither --fresh nor a credential."""
    publish = request.publish
    given = {
        "--producer-name": publish.producer_name,
        "--format": None if publish.record_format is RecordFormat.LINES else publish.record_format.value,
        "--rate": None if publish.records_per_second is None else f"{publish.records_per_second:g}",
        "--batch-size": None if publish.limits.messages == _DEFAULT_BATCH else str(publish.limits.messages),
        "--hashing-scheme": None if publish.hashing is HashingScheme.JAVA_STRING_HASH else publish.hashing.value,
        "--checkpoint": None if request.checkpoint is None else str(request.checkpoint),
        "--broker-service-url": broker_service_url,
        "--web-service-url": web_service_url,
    }
    words = ["pulsar-sidecar", "publish", str(request.file), str(publish.topic)]
    words += [word for name, value in given.items() if value is not None for word in (name, value)]
    if publish.is_complete:
        words.append("--complete")
    return shlex.join(words)


def _document(request: PublishFileRequest, published: FilePublishResult) -> dict[str, object]:
    return {
        "file": str(request.file),
        "topic": str(request.publish.topic),
        "producerName": request.publish.producer_name,
        "records": published.records,
        "storedEarlier": published.stored_earlier,
        "stored": published.stored,
        "duplicatesRefused": published.duplicates,
        "bytes": published.bytes,
        "sha256": published.sha256,
        "unfinishedAt": published.unfinished_at,
        "partitions": [
            {
                "partition": index,
                "lastSequenceId": each.last_sequence_id,
                "lastMessageId": None if each.position is None else str(each.position),
            }
            for index, each in enumerate(published.partitions)
        ],
    }
