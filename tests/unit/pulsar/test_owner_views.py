"""Views of live owners: whole, or an error."""

import copy
import json
from typing import Any

import pytest
from pulsar_sidecar.adapters.pulsar.rest.owner_views import owned_bundles, owner_view, owning_url
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.names import parse_topic_name

TOPIC = parse_topic_name("persistent://public/default/t")


def internal_stats() -> dict[str, Any]:
    """As a 4.0.8 broker prints them, shortened."""
    return {
        "ledgers": [{"ledgerId": 10, "entries": 5}, {"ledgerId": 12, "entries": 0}],
        "cursors": {
            "sub%2Fa": {"readPosition": "10:3", "cursorLedger": 11, "properties": {}},
            "reader-1": {"readPosition": "12:0", "cursorLedger": -1, "properties": {}},
            "__compaction": {"readPosition": "12:0", "cursorLedger": 14, "properties": {"CompactedTopicLedger": 15}},
        },
        "schemaLedgers": [{"ledgerId": 13, "entries": 1}],
        "compactedLedger": {"ledgerId": 15, "entries": 4},
    }


def test_a_view_has_every_part() -> None:
    view = owner_view("b:8080", TOPIC, internal_stats())
    assert view.broker == "b:8080"
    assert view.ledgers == {10, 12}
    assert view.cursors == {"sub%2Fa", "reader-1", "__compaction"}
    assert view.cursor_ledgers == {11, 14}
    assert view.schema_ledgers == {13}
    assert view.compacted_ledger == 15
    assert view.reading == {10, 12, 15}


@pytest.mark.parametrize(
    ("opened", "stored", "expected"), [(-1, None, None), (-1, 15, 15), (15, None, 15), (16, 15, 15)]
)
def test_the_stored_compacted_ledger_counts_and_an_open_one_is_being_read(
    opened: int, stored: int | None, expected: int | None
) -> None:
    document = internal_stats()
    document["compactedLedger"]["ledgerId"] = opened
    document["cursors"]["__compaction"]["properties"] = {} if stored is None else {"CompactedTopicLedger": stored}
    view = owner_view("b", TOPIC, document)
    assert view.compacted_ledger == expected
    assert (opened in view.reading) == (opened != -1)
    assert -1 not in view.reading


def broken() -> list[Any]:
    documents: list[Any] = [None, [], "text", {}]
    for part in internal_stats():
        without, wrong = internal_stats(), internal_stats()
        del without[part]
        wrong[part] = "x"
        documents += [without, wrong]
    for key, value in (("readPosition", "x"), ("cursorLedger", "11"), ("properties", {"CompactedTopicLedger": "a"})):
        document = copy.deepcopy(internal_stats())
        document["cursors"]["__compaction"][key] = value
        documents.append(document)
    return documents


@pytest.mark.parametrize("document", broken())
def test_an_answer_that_lacks_a_part_is_no_view(document: object) -> None:
    with pytest.raises(TemporaryError):
        owner_view("b", TOPIC, document)


def test_the_owner_s_address() -> None:
    assert owning_url(b'{"httpUrl": "http://b:8080/", "httpUrlTls": "https://b:8443"}', TOPIC) == "http://b:8080"
    assert owning_url(b'{"httpUrl": null, "httpUrlTls": "https://b:8443"}', TOPIC) == "https://b:8443"
    for data in (b"", b"[]", b"{}", b"{"):
        with pytest.raises(TemporaryError):
            owning_url(data, TOPIC)


def test_owned_bundles_are_the_active_ones() -> None:
    document = {"a/b/0x0_0x1": {"is_active": True}, "a/b/0x1_0x2": {"is_active": False}, "c": json.loads("null")}
    assert owned_bundles(document, "b") == {"a/b/0x0_0x1"}
    with pytest.raises(TemporaryError):
        owned_bundles(None, "b")
