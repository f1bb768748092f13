"""``publish``: arguments become a request, the outcome a summary, an exit code and a next command."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from pulsar_sidecar.features.publishing.messages import BatchLimits
from pulsar_sidecar.features.publishing.records import RecordFormat
from pulsar_sidecar.features.publishing.requests import (
    BrokerAccess,
    FilePublishResult,
    PublishedPartition,
    PublishFileRequest,
    PublishRequest,
)
from pulsar_sidecar.features.publishing.routing import HashingScheme
from pulsar_sidecar.model.client_conf import ClientConf
from pulsar_sidecar.model.errors import (
    ConflictError,
    InvalidInputError,
    OutcomeUnknownError,
    SidecarError,
    TemporaryError,
)
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.names import parse_topic_name

from tests.unit.cli.running import Ran, Terminal

TOPIC = "persistent://public/default/events"
USUAL = ("events.jsonl", TOPIC, "--producer-name", "n")
AGAIN = f"pulsar-sidecar publish events.jsonl {TOPIC} --producer-name n"
PUBLISHED = FilePublishResult(
    records=5,
    stored_earlier=2,
    stored=2,
    duplicates=1,
    bytes=70,
    sha256="ab",
    unfinished_at=None,
    is_stopped=False,
    partitions=[PublishedPartition(50, Position(LedgerId(3), EntryId(1))), PublishedPartition(None, None)],
)


def ran(terminal: Terminal, *options: str, answer: FilePublishResult | SidecarError = PUBLISHED) -> Ran:
    terminal.published = answer
    return terminal.run("publish", *USUAL, *options)


def test_the_usual_command(terminal: Terminal) -> None:
    result = ran(terminal, "--output", "json")
    assert (result.code, result.err.splitlines()[:2]) == (
        0,
        ["reading, bytes: 10 of 10", "publishing, bytes: 5 of 10"],
    )
    assert json.loads(result.out) == {
        "file": "events.jsonl",
        "topic": TOPIC,
        "producerName": "n",
        "records": 5,
        "storedEarlier": 2,
        "stored": 2,
        "duplicatesRefused": 1,
        "bytes": 70,
        "sha256": "ab",
        "unfinishedAt": None,
        "partitions": [
            {"partition": 0, "lastSequenceId": 50, "lastMessageId": "3:1"},
            {"partition": 1, "lastSequenceId": None, "lastMessageId": None},
        ],
    }
    brokers = BrokerAccess("pulsar://localhost:6650", "http://localhost:8080")
    publish = PublishRequest(parse_topic_name(TOPIC), "n")
    assert terminal.asked == [PublishFileRequest(Path("events.jsonl"), None, brokers, publish)]


def test_every_option(terminal: Terminal) -> None:
    terminal.set("PULSAR_SIDECAR_AUTH_PLUGIN", "token")
    terminal.set("PULSAR_SIDECAR_AUTH_PARAMS", "token:secret")
    terminal.set("PULSAR_SIDECAR_WEB_SERVICE_URL", "http://a:1")
    result = ran(
        terminal,
        *("--format", "length-prefixed", "--complete", "--fresh", "--dry-run", "--rate", "2.5", "--batch-size", "7"),
        *("--hashing-scheme", "Murmur3_32Hash", "--checkpoint", "c", "--broker-service-url", "pulsar+ssl://b:2"),
    )
    assert result.code == 0
    assert "nothing was published" in result.err
    brokers = BrokerAccess("pulsar+ssl://b:2", "http://a:1", ClientConf("token", "token:secret"))
    publish = PublishRequest(
        parse_topic_name(TOPIC),
        "n",
        RecordFormat.LENGTH_PREFIXED,
        is_complete=True,
        is_fresh=True,
        is_dry_run=True,
        records_per_second=2.5,
        limits=BatchLimits(messages=7),
        hashing=HashingScheme.MURMUR3_32_HASH,
    )
    assert terminal.asked == [PublishFileRequest(Path("events.jsonl"), Path("c"), brokers, publish)]


def test_a_signal_and_an_unfinished_record_end_with_4_and_the_next_command(terminal: Terminal) -> None:
    stopped = ran(terminal, "--fresh", "--complete", answer=replace(PUBLISHED, is_stopped=True))
    assert stopped.code == 4
    assert f"stopped before the file's end; continue with:\n  {AGAIN} --complete\n" in stopped.err
    unfinished = ran(terminal, "--rate", "3", "--checkpoint", "my c", answer=replace(PUBLISHED, unfinished_at=70))
    assert unfinished.code == 4
    assert "the record at byte 70 has no end yet" in unfinished.err
    assert f"  {AGAIN} --rate 3 --checkpoint 'my c'\n" in unfinished.err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConflictError("other"), 1),
        (InvalidInputError("bad"), 1),
        (TemporaryError("silent"), 3),
        (OutcomeUnknownError("no answer"), 3),
    ],
)
def test_an_error_names_the_next_step_and_no_secret(terminal: Terminal, error: SidecarError, code: int) -> None:
    terminal.set("PULSAR_SIDECAR_AUTH_PARAMS", "token:secret")
    result = ran(terminal, "--fresh", answer=error)
    assert (result.code, result.out) == (code, "")
    assert f"\n{error}\nstored records stay stored" in result.err
    assert result.err.endswith(f"{AGAIN}\n")
    assert "secret" not in result.err


@pytest.mark.parametrize(
    "wrong",
    [
        ("f", TOPIC),
        (*USUAL, "--format", "csv"),
        (*USUAL, "--rate", "0"),
        (*USUAL, "--batch-size", "0"),
        ("f", "a/b", "--producer-name", "n"),
    ],
)
def test_wrong_usage(terminal: Terminal, wrong: tuple[str, ...]) -> None:
    result = terminal.run("publish", *wrong)
    assert (result.code, result.out) == (1, "")
    assert terminal.asked == []


def test_help_teaches(terminal: Terminal) -> None:
    shown = terminal.run("publish", "--help")
    assert shown.code == 0
    for text in ("Example: pulsar-sidecar publish", "--producer-name", "Exit codes:", "deduplication"):
        assert text in shown.out
