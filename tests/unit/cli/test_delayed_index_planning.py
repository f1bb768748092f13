"""``delayed-index overdue|forecast|simulate`` as a person runs them, over the service's routes."""

import json
from collections.abc import Iterator

import pytest
from pulsar_sidecar.features.delayed_index import http
from pulsar_sidecar.features.delayed_index.inspection.forecast import Forecaster
from pulsar_sidecar.features.delayed_index.inspection.overdue import OverdueReader
from pulsar_sidecar.features.delayed_index.inspection.simulate import Simulator
from pulsar_sidecar.features.delayed_index.service import IndexPlanning
from pulsar_sidecar.features.delayed_index.settings import BUCKET_TRACKER_FACTORY, BrokerTracker, TrackerSettings
from pulsar_sidecar.model.lookups import Unreadable

from tests.fakes.clock import FakeClock
from tests.fakes.delayed_index import TOPIC, FakeBucketEntries, FakeLedgerLengths, IndexedTopic, stored_indexes
from tests.fakes.delayed_messages import FakeCluster, at
from tests.fakes.metadata import FakeMetadataStore
from tests.unit.cli.running import Terminal
from tests.unit.server.serving import Served, served

PATH = "/admin/v2/persistent/public/default/orders/delayedIndex"


@pytest.fixture(scope="module")
def cluster() -> FakeCluster:
    return FakeCluster(FakeClock())


@pytest.fixture(scope="module")
def server(cluster: FakeCluster) -> Iterator[Served]:
    """Ten messages of ledger 7, three of which are due, on a subscription without consumers; one bucket."""
    cluster.publish(3, 1_000)
    cluster.publish(7, 600_000)
    cluster.subscribe("billing", consumers=0)
    cluster.clock.advance_ms(60_000)
    store, payloads = FakeMetadataStore(), FakeBucketEntries()
    topic = IndexedTopic(store, payloads)
    topic.ledgers(7)
    topic.seal("billing", 90, 7, 7, [(cluster.clock.now_ms() + 540_000, 7, entry) for entry in range(3, 7)])
    topic.cursor("billing", (7, -1))
    stored, lengths = stored_indexes(store, payloads), FakeLedgerLengths()

    def configuration() -> BrokerTracker:
        return BrokerTracker(BUCKET_TRACKER_FACTORY, TrackerSettings())

    planning = IndexPlanning(
        OverdueReader(cluster, cluster, cluster, lambda topic: 10_000, cluster.clock),
        Forecaster(stored, lengths, configuration, cluster.clock),
        Simulator(stored, lengths, cluster, configuration, cluster.clock),
    )
    with served(routers=[http.planning_router(planning)]) as opened:
        yield opened


def test_overdue_names_the_cause_and_the_remedy(shell: Terminal) -> None:
    ran = shell.run("delayed-index", "overdue", str(TOPIC))
    assert ran.code == 0, ran.err
    lines = ran.out.splitlines()
    assert lines[0].endswith("billing: 3 messages overdue")
    assert lines[2] == "  the first 7:0, 7:1, 7:2"
    assert lines[3] == "  reason    no consumer: connect a consumer, or delete the subscription"
    assert "nothing is overdue" in shell.run("delayed-index", "overdue", str(TOPIC), "--late-seconds", "600").out
    cut = shell.run("delayed-index", "overdue", str(TOPIC), "--limit", "2", "--late-seconds", "600")
    assert (cut.code, "has more than 2 entries" in cut.err) == (4, True)
    assert cut.out.splitlines() == ["nothing is overdue in the first 2 entries"]


def test_unreadable_topics_are_reported_and_exit_with_4(
    shell: Terminal, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(cluster.entries, at(4), Unreadable("no bookie"))
    late = shell.run("delayed-index", "overdue", str(TOPIC), "--late-seconds", "600")
    assert late.code == 4
    assert late.out.splitlines() == [f"{TOPIC}  billing: 0 messages overdue", "  1 entry could not be read"]
    simulated = shell.run("delayed-index", "simulate", str(TOPIC))
    assert simulated.code == 4
    assert "6 delayed messages, 4 other entries, 1 of them unreadable" in simulated.out
    monkeypatch.setattr(FakeLedgerLengths, "measured", lambda *_: Unreadable("no bookie answers"))
    forecast = shell.run("delayed-index", "forecast", str(TOPIC))
    assert (forecast.code, f"not in these figures: {TOPIC}: no bookie answers" in forecast.out) == (4, True)


def test_a_forecast_of_a_topic_and_of_a_namespace(shell: Terminal) -> None:
    of_topic = shell.run("delayed-index", "forecast", str(TOPIC))
    assert of_topic.code == 0, of_topic.err
    assert "billing: 10 entries waiting, 4 of them in 1 bucket; 12 entries to read" in of_topic.out
    assert "assumed: " in of_topic.out
    found = json.loads(shell.run("delayed-index", "forecast", "public/default", "--output", "json").out)
    (worst,) = found["worst"]
    assert (found["topics"], worst["topic"], worst["withoutBuckets"]["entries"]) == (1, str(TOPIC), 10)
    assert found["total"] == worst["asConfigured"]
    assert shell.run("delayed-index", "forecast", "public/").code == 1
    assert shell.run("delayed-index", "forecast", "public/nothing").code == 1


def test_a_simulation_stands_beside_today(shell: Terminal) -> None:
    ran = shell.run("delayed-index", "simulate", str(TOPIC), "--min-index-count", "5", "--max-num-buckets", "3")
    assert ran.code == 0, ran.err
    assert "7 delayed messages, 3 other entries" in ran.out
    rows = {line.split("  ")[1]: line.split()[-2:] for line in ran.out.splitlines() if "IndexCount" in line}
    assert rows["minIndexCount"] == ["50,000", "5"]
    assert "stops a broker of 4.0.8" in ran.out
    found = json.loads(shell.run("delayed-index", "simulate", str(TOPIC), "--time-step", "60", "--output", "json").out)
    assert found[0]["simulated"]["settings"]["timeStepSeconds"] == 60
    assert found[0]["today"]["load"]["entries"] == 10
    assert shell.run("delayed-index", "simulate", str(TOPIC), "--limit", "2").code == 4


def test_a_simulation_of_what_brokers_do_not_have(shell: Terminal) -> None:
    shared = shell.run("delayed-index", "simulate", str(TOPIC), "--shared-index")
    assert (shared.code, "pulsar.delayed.index: 7 delayed messages" in shared.out) == (0, True), shared
    assert "it gives 0 positions to subscriptions that acknowledged them" in shared.out
    ran = shell.run("delayed-index", "simulate", str(TOPIC), "--cancelled", "7:5", "--cancelled", "9:1")
    assert ran.code == 0, ran.err
    assert "1 cancellation in memory only: forgotten at a restart, and delivered: 7:5" in ran.out
    assert "1 cancellation of no delayed message that waits: 9:1" in ran.out


@pytest.mark.parametrize(
    ("verb", "status"),
    [
        ("overdue?subscription=nobody", 404),
        ("overdue?limit=0", 400),
        ("simulate?subscription=nobody", 404),
        ("simulate?maxNumBuckets=0", 400),
        ("simulate?timeStepSeconds=0", 400),
        ("simulate?cancelled=7", 400),
        ("simulate?sharedIndex=true&subscription=billing", 400),
        ("simulate?sharedIndex=true&cancelled=7:5", 400),
        ("forecast?x=1", 200),
    ],
)
def test_mistakes_are_reported(server: Served, verb: str, status: int) -> None:
    assert server.ask("GET", f"{PATH}/{verb}").status == status
