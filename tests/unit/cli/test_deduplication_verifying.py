"""``deduplication verify|extract``: arguments become a request, findings a table and an exit code."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

from pulsar_sidecar.features.duplicates.findings import Finding, MessagePlace, Producer, ProducerCounts
from pulsar_sidecar.features.duplicates.rows import FindingKind, MessageKind
from pulsar_sidecar.features.duplicates.verify import VerifiedTopic
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.ledgers import UnseenCause, UnseenEntries
from pulsar_sidecar.model.names import parse_topic_name

from tests.unit.cli.running import Terminal
from tests.unit.duplicates.test_extract import MANIFEST

TOPIC = "persistent://public/default/orders"
URL = ("--metadata-store-url", "zk:zookeeper:2181")


def at(ledger_id: int, entry_id: int) -> Position:
    return Position(LedgerId(ledger_id), EntryId(entry_id))


CLEAN = VerifiedTopic(
    parse_topic_name(TOPIC),
    entries=1200,
    first=at(3, 0),
    last=at(9, 4),
    rows=Counter({MessageKind.MESSAGE: 9000, MessageKind.MARKER: 3}),
    earlier_chunks=0,
    producers={Producer("a\x1b", "west"): ProducerCounts(1, 9, 9, 0, 0, messages=9000)},
    findings=(),
    unseen=(),
)
DUPLICATE = Finding(
    FindingKind.DUPLICATE,
    Producer("a\x1b", "west"),
    9,
    MessagePlace(LedgerId(9), EntryId(4), 0),
    MessageKind.REPLICATED,
    5,
    9,
    MessagePlace(LedgerId(3), EntryId(8), 1),
)
UNSEEN = UnseenEntries(LedgerId(5), EntryId(0), None, UnseenCause.OFFLOADED, "ledger 5 is in tiered storage only")


def test_a_clean_topic(terminal: Terminal) -> None:
    terminal.verified = [CLEAN]
    ran = terminal.run("deduplication", "verify", TOPIC, *URL)
    assert (ran.code, ran.err) == (0, "")
    assert f"{TOPIC}: clean\n  1,200 entries from 3:0 to 9:4; rows by kind: 9,000 message, 3 marker\n" in ran.out
    assert "a\\x1b (from west)" in ran.out
    (request,) = terminal.asked
    assert (request.topic, request.stored.metadata_store_url, request.stored.entries_per_second) == (TOPIC, URL[1], 2e4)
    assert (request.stored.ledgers_root, request.stored.metadata_store_auth) == ("/ledgers", None)


def test_chunks_are_distinguished(terminal: Terminal) -> None:
    terminal.verified = [replace(CLEAN, earlier_chunks=1200)]
    ran = terminal.run("deduplication", "verify", TOPIC, *URL)
    assert "9,000 message, 3 marker; 1,200 of them are chunks before a message's last\n" in ran.out


def test_every_option(terminal: Terminal) -> None:
    terminal.verified = [CLEAN]
    terminal.set("PULSAR_SIDECAR_METADATA_STORE_AUTH", "digest:a:b")
    terminal.set("PULSAR_SIDECAR_METADATA_STORE_URL", "zk:other:2181")
    assert terminal.run("deduplication", "verify", "orders", "--rate", "0", "--ledgers-root-path", "/bk").code == 0
    stored = terminal.asked[0].stored
    assert (stored.metadata_store_url, stored.metadata_store_auth) == ("zk:other:2181", "digest:a:b")
    assert (stored.ledgers_root, stored.entries_per_second) == ("/bk", None)


def test_findings(terminal: Terminal) -> None:
    terminal.verified = [CLEAN, replace(CLEAN, findings=(DUPLICATE,) * 30)]
    ran = terminal.run("deduplication", "verify", TOPIC, *URL)
    assert ran.code == 2
    assert ran.out.count("duplicate  a\\x1b (from west)  9   9:4:0  3:8:1") == 20
    assert "and 10 more findings" in ran.out
    document = json.loads(terminal.run("deduplication", "verify", TOPIC, *URL, "--output", "json").out)
    assert [len(partition["findings"]) for partition in document["partitions"]] == [0, 30]
    assert document["partitions"][1]["producers"][0]["duplicates"] == 30
    assert terminal.run("deduplication", "verify", TOPIC, *URL, "--limit", "3").out.count("9:4:0") == 3


def test_unseen_entries_exit_with_1(terminal: Terminal) -> None:
    unopened = replace(CLEAN.producers[Producer("a\x1b", "west")], unopened=1, unopened_batches=1)
    empty = replace(CLEAN, entries=0, first=None, last=None, rows=Counter(), producers={}, unseen=(UNSEEN,))
    terminal.verified = [empty, replace(CLEAN, producers={Producer("p", None): unopened})]
    ran = terminal.run("deduplication", "verify", TOPIC, *URL)
    assert ran.code == 1
    assert "clean" not in ran.out
    assert "no entry was seen\n  NOT SEEN ledger 5, entries 0 to the end: offloaded, ledger 5 is in tiered" in ran.out
    assert "compared only by their lowest ids" in ran.out


def test_topics_without_entries_are_refused(terminal: Terminal) -> None:
    topic = "non-persistent://public/default/orders"
    for refused in (("verify", "a/b"), ("verify", topic), ("extract", topic, "--output", "out")):
        ran = terminal.run("deduplication", *refused, *URL)
        assert (ran.code, terminal.asked) == (1, []), refused
    assert "has no entries" in ran.err


def test_an_extract(terminal: Terminal) -> None:
    terminal.extracted = MANIFEST
    ran = terminal.run("deduplication", "extract", "public/default", "--output", "out", *URL, "--format", "json")
    assert ran.code == 0
    document = json.loads(ran.out)
    assert (document["directory"], document["messages"], document["unseen"]["offloaded"]["ranges"]) == ("out", 20, 1)
    (request,) = terminal.asked
    assert (request.scope, request.output, request.stored.entries_per_second) == ("public/default", Path("out"), 2e4)
