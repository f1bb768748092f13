"""Configuration files keep the distribution's settings, listen on loopback only, and let the user win."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.local_cluster.planning import (
    bookie_settings,
    broker_settings,
    render,
    zookeeper_settings,
)
from pulsar_sidecar.local_cluster.spec import ClusterSpec, parse_settings, role_of
from pulsar_sidecar.model.errors import InvalidInputError

KEYS = st.text(st.characters(categories=("Lu", "Ll", "Nd")), min_size=1)
VALUES = st.text(st.characters(min_codepoint=32, max_codepoint=126))
PORTS = {"bookie": 1, "broker": 2, "http": 3}


def as_properties(text: str) -> dict[str, str]:
    pairs = (line.partition("=") for line in text.splitlines() if not line.startswith("#"))
    return {key.strip(): value for key, equals, value in pairs if equals}


def test_a_setting_is_replaced_where_it_stands_and_comments_stay() -> None:
    original = "# how long\ngcWaitTime=900000\n#httpServerPort=1\nmaxUnload = 0.2\n"
    rendered = render(original, {"gcWaitTime": "1000", "maxUnload": "0.5", "httpServerPort": "8000"})
    assert rendered == "# how long\ngcWaitTime=1000\n#httpServerPort=1\nmaxUnload=0.5\nhttpServerPort=8000\n"


@given(st.dictionaries(KEYS, VALUES), st.dictionaries(KEYS, VALUES))
def test_rendering_is_the_original_with_the_settings_over_it(
    original: dict[str, str], settings: dict[str, str]
) -> None:
    text = "".join(f"{key}={value}\n" for key, value in original.items())
    assert as_properties(render(text, settings)) == original | settings


@pytest.mark.parametrize(("bookies", "quorum"), [(1, "1"), (2, "2"), (5, "2")])
def test_quorums_never_ask_for_more_bookies_than_there_are(bookies: int, quorum: str) -> None:
    settings = broker_settings(ClusterSpec(Path("/c"), bookies=bookies), "broker-1", PORTS, "zk:h:1")
    assert settings["managedLedgerDefaultEnsembleSize"] == quorum
    assert settings["managedLedgerDefaultWriteQuorum"] == quorum
    assert settings["managedLedgerDefaultAckQuorum"] == quorum


def test_everything_listens_on_loopback_only() -> None:
    spec = ClusterSpec(Path("/c"))
    assert zookeeper_settings(spec, "zookeeper", {"client": 7})["clientPortAddress"] == "127.0.0.1"
    bookie = bookie_settings(spec, "bookie-1", PORTS, "zk:h:1")
    assert bookie["httpServerHost"] == "127.0.0.1"
    assert bookie["listeningInterface"] in ("lo", "lo0")
    broker = broker_settings(spec, "broker-1", PORTS, "zk:h:1")
    assert (broker["bindAddress"], broker["advertisedAddress"]) == ("127.0.0.1", "127.0.0.1")


def test_a_members_own_setting_wins_over_its_roles_and_over_ours() -> None:
    spec = ClusterSpec(
        Path("/c"),
        broker_conf={"managedLedgerCacheSizeMB": "64", "managedLedgerMaxEntriesPerLedger": "5"},
        bookie_conf={"gcWaitTime": "1000"},
        zookeeper_conf={"tickTime": "500"},
        member_conf={"broker-2": {"managedLedgerMaxEntriesPerLedger": "7"}},
    )
    first, second = (broker_settings(spec, name, PORTS, "zk:h:1") for name in ("broker-1", "broker-2"))
    assert [first[key] for key in ("managedLedgerCacheSizeMB", "managedLedgerMaxEntriesPerLedger")] == ["64", "5"]
    assert [second[key] for key in ("managedLedgerCacheSizeMB", "managedLedgerMaxEntriesPerLedger")] == ["64", "7"]
    assert bookie_settings(spec, "bookie-1", PORTS, "zk:h:1")["gcWaitTime"] == "1000"
    assert zookeeper_settings(spec, "zookeeper", {"client": 7})["tickTime"] == "500"


def test_a_setting_for_a_member_that_will_not_exist_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="broker-3"):
        ClusterSpec(Path("/c"), brokers=2, member_conf={"broker-3": {"a": "b"}})


@pytest.mark.parametrize("counts", [{"bookies": 0}, {"bookies": -1, "brokers": 0}, {"brokers": -1}])
def test_impossible_counts_are_refused(counts: dict[str, int]) -> None:
    with pytest.raises(InvalidInputError):
        ClusterSpec(Path("/c"), **counts)


def test_settings_are_read_from_key_value_texts() -> None:
    assert parse_settings(["a=1", "b=", "c=x=y", "a=2"]) == {"a": "2", "b": "", "c": "x=y"}


@pytest.mark.parametrize("text", ["", "a", "=1", " =1"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="key=value"):
        parse_settings([text])


def test_a_member_name_contains_its_role() -> None:
    spec = ClusterSpec(Path("/c"), brokers=1, bookies=1)
    assert [role_of(name).value for name in spec.member_names()] == ["zookeeper", "bookie", "broker"]
