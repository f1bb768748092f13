"""Deduplication as real brokers do it, and what the sidecar finds of it; duplicates are made by the test."""

import re
from pathlib import Path

import pytest
from pulsar_sidecar.model.names import parse_topic_name

from tests.cluster.deduplication import Setup
from tests.cluster.patience import until


@pytest.mark.parametrize(
    ("policy", "outcome", "status", "level", "code"),
    [
        (True, "refused as duplicate", "Enabled", "namespace", 0),
        (False, "stored twice", "Disabled", "namespace", 2),
        (None, "stored twice", "Disabled", "broker", 2),
    ],
)
def test_a_check_reports_the_brokers_behaviour_and_leaves_nothing(
    setup: Setup, policy: bool | None, outcome: str, status: str, level: str, code: int
) -> None:
    with setup.namespace(policy) as namespace:
        mine = setup.topic(namespace)
        found = setup.call("POST", f"namespaces/{namespace}/deduplication/check")
        assert (found["outcome"], found["status"], found["asConfigured"]) == (outcome, status, True), found
        assert (found["policy"]["decidedBy"], found["leftBehind"]) == (level, None)
        assert setup.topics_in(namespace) == [str(mine)]
        ran = setup.sidecar.command("deduplication", "check", namespace)
        assert (ran.exit_code, ran.stdout.splitlines()[0]) == (code, f"{namespace}: {outcome}")


def test_policies_are_changed_with_their_effect(setup: Setup) -> None:
    with setup.namespace() as namespace:
        topic = setup.topic(namespace)
        own, of_namespace = (
            setup.workload.of_topic(topic, "deduplicationEnabled"),
            f"namespaces/{namespace}/deduplication",
        )
        found = setup.call("POST", own, True)
        assert (found["stored"], found["values"]["decidedBy"]) == (True, "topic"), found
        assert found["statuses"] == [{"topic": str(topic), "status": "Enabled"}]
        assert setup.call("GET", own, applied="true") is True
        found = setup.call("POST", of_namespace, False)
        assert found["stored"] is False
        assert any("a policy of their own" in remark for remark in found["remarks"]), found
        found = setup.call("DELETE", own)
        assert (found["stored"], found["values"]["decidedBy"]) == (None, "namespace"), found
        assert found["statuses"] == [{"topic": str(topic), "status": "Disabled"}]
        assert setup.call("DELETE", of_namespace)["values"]["decidedBy"] == "broker"

        interval = "deduplicationSnapshotInterval"
        for path in (setup.workload.of_topic(topic, interval), f"namespaces/{namespace}/{interval}"):
            assert setup.call("POST", path, 30)["stored"] == 30
            assert setup.call("GET", path) == 30
            removed = setup.call("DELETE", path)
            assert removed["stored"] is None
            assert setup.workload.admin("GET", path) is None
        assert any("timer is off" in remark for remark in removed["remarks"])


def test_a_system_topic_takes_a_policy_and_ignores_it(setup: Setup) -> None:
    with setup.namespace() as namespace:
        topic = setup.topic(namespace)
        setup.call("POST", setup.workload.of_topic(topic, "deduplicationEnabled"), False)
        events = parse_topic_name(f"persistent://{namespace}/__change_events")
        found = setup.call("POST", setup.workload.of_topic(events, "deduplicationEnabled"), True)
        assert any("brokers never deduplicate a system topic" in remark for remark in found["remarks"]), found
        assert setup.status(events) == "Disabled"


def test_a_cursor_that_is_left_over_is_found_and_its_remedy_frees_what_it_promises(
    setup: Setup, tmp_path: Path
) -> None:
    with setup.namespace(True) as namespace:
        topic = setup.filled(namespace, 90)
        assert setup.stuck(namespace)["found"] == 0
        setup.workload.admin("POST", f"namespaces/{namespace}/deduplication", False)
        found = setup.stuck(namespace)
        (stuck,) = found["stuck"]
        assert (stuck["topic"], stuck["reason"], stuck["status"]) == (str(topic), "left over", None), stuck
        assert (stuck["because"], stuck["certain"]) == ("off by the namespace", True)
        ledgers = sorted(setup.workload.ledgers(topic).data)
        assert stuck["heldLedgers"] == len(ledgers) - 1 >= 4
        assert stuck["since"]["entries"] == 90
        assert stuck["freedBytes"] == stuck["heldBytes"] > 80 * 100

        dump = tmp_path / "dump"
        source = f"zk://{setup.cluster.addresses.metadata_store_url.removeprefix('zk:')}"
        made = setup.sidecar.command("metadata", "dump", "--source", source, "--output", str(dump))
        assert made.exit_code == 0, made.stderr
        ran = setup.sidecar.command("deduplication", "stuck", namespace, "--dump", str(dump), "--output", "json")
        assert ran.exit_code == 2, ran.stderr
        (dumped,) = ran.json["stuck"]
        same = ("topic", "reason", "position", "heldLedgers", "heldBytes", "freedBytes")
        assert {name: dumped[name] for name in same} == {name: stuck[name] for name in same}
        assert not dumped["certain"]

        everywhere = setup.call("GET", "deduplication/stuck")["stuck"]
        assert str(topic) in [each["topic"] for each in everywhere]
        assert setup.has_cursor(topic), "looking for stuck cursors has loaded the topic"
        assert stuck["remedy"].endswith(f"pulsar-admin topics stats {topic}")
        setup.status(topic)
        until(lambda: not setup.has_cursor(topic), "the load deletes the cursor")
        assert setup.stuck(namespace)["found"] == 0
        until(lambda: not setup.workload.ledgers(topic).data & set(ledgers[:-1]), "what it held is trimmed")


def test_lag_and_replay_forecast_match_the_broker(setup: Setup) -> None:
    with setup.namespace(True) as namespace:
        slow, quick = setup.filled(namespace, 90), setup.filled(namespace, 30)
        late = setup.filled(namespace, 130)
        found = {each["topic"]: each for each in setup.stuck(namespace, entries=50)["stuck"]}
        assert found.keys() == {str(slow)}
        assert (found[str(slow)]["reason"], found[str(slow)]["certain"]) == ("lags", True)
        assert "brokerDeduplicationEntriesInterval is 100" in found[str(slow)]["remedy"]

        forecast = setup.call("GET", f"namespaces/{namespace}/deduplication/forecast")
        entries = {each["topic"]: each["replay"]["entries"] for each in forecast["slowest"]}
        assert entries == {str(slow): 90, str(quick): 30, str(late): 30}
        assert forecast["slowest"][0]["topic"] == str(slow)
        for topic in (slow, quick, late):
            setup.status(topic)
            assert setup.replayed(topic)[-1] == entries[str(topic)]


def test_a_watched_topic_is_in_the_metrics(setup: Setup) -> None:
    with setup.namespace(True) as namespace:
        topic = setup.filled(namespace, 90)
        watching = setup.sidecars.start(
            deduplication_watched_topics=str(topic), deduplication_watch_interval_in_seconds=1
        )

        def value(name: str) -> float | None:
            pattern = rf'pulsar_sidecar_deduplication_{name}{{.*topic="{topic}".*}} (\S+)'
            found = re.search(pattern, watching.request("GET", "/metrics").text)
            return None if found is None else float(found[1])

        until(lambda: value("snapshot_lag_entries") == 90, "the lag is in the metrics")
        assert value("cursor_left_over") == 0
        assert value("pinned_bytes") == value("pinned_alone_bytes") != 0
        lag_seconds = value("snapshot_lag_seconds")
        assert lag_seconds is not None
        assert lag_seconds > 0, "no message is covered, so it is the first one's age"
        setup.workload.admin("POST", f"namespaces/{namespace}/deduplication", False)
        until(lambda: value("cursor_left_over") == 1, "the cursor is left over")


def test_inspection_loads_no_topic(setup: Setup) -> None:
    with setup.namespace(True) as namespace:
        topic = setup.filled(namespace, 5)
        before = setup.replayed(topic)
        setup.stuck(namespace, entries=0)
        setup.call("GET", f"namespaces/{namespace}/deduplication/forecast")
        setup.call("GET", f"namespaces/{namespace}/deduplication")
        assert setup.replayed(topic) == before
