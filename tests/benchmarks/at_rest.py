"""Cost of a sidecar that is left alone, with nothing to do but to wait.

It waits beside nothing, beside open cancellations, whose acknowledgements it watches, or beside retries that are not
due yet, among which the watchdog looks for those that a broker forgot. Due times are long after the measurement.
"""

import argparse
import json
import time
from collections.abc import Iterator
from contextlib import closing

import requests
from pulsar_sidecar.adapters.pulsar_client.publisher import PublisherSettings, TopicPublisher
from pulsar_sidecar.adapters.pulsar_topics.deletion_topics import topic_name
from pulsar_sidecar.features.ledger_deletion.ports import DeletionTopic, Delivery, OutgoingMessage
from pulsar_sidecar.features.ledger_deletion.record import PendingDeleteLedgerInfo, encode_record
from pulsar_sidecar.features.ledger_deletion.second_phase.retry import RetryPolicy, reconsume
from pulsar_sidecar.local_cluster.state import ClusterAddresses
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerType
from pulsar_sidecar.model.names import parse_topic_name

from tests.benchmarks.cancel import SETTINGS as CANCELLING
from tests.benchmarks.clusters import (
    ProcessorTime,
    add_cluster_argument,
    add_control_argument,
    benchmark_sidecars,
    resident_mb,
    versions,
)
from tests.cluster.clients import PatientClient
from tests.cluster.delays import SHARED, DelayedTopic, now_ms
from tests.cluster.sidecars import SidecarProcess, Sidecars
from tests.cluster.topics import unique
from tests.reporting import Table

NAME = "at-rest"
_TOPIC = parse_topic_name("persistent://public/default/orders-of-the-shop")
_DELAY_MS = 7_200_000
_RUN = 20
"""Messages side by side that are cancelled, so that a cursor has few holes."""
_POLICY = RetryPolicy(reconsume_later_ms=_DELAY_MS, max_redeliver_count=10)
_FIRST_LEDGER = 3_000_000_000
_AT_ONCE = 20_000
_START_SECONDS = 60
"""Time for reading the log of cancellations and all topics' nodes, which a start costs once."""
_PARTS = ("sidecar", "zookeeper", "bookie", "broker")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cancellations", type=int, default=100_000, help="open ones; 0 leaves them out")
    parser.add_argument("--retries", type=int, default=1_000_000, help="not due yet; 0 leaves them out")
    parser.add_argument("--seconds", type=int, default=180, help="how long each sidecar is left alone")
    add_cluster_argument(parser)
    add_control_argument(parser)


def run(arguments: argparse.Namespace) -> Iterator[Table]:
    with benchmark_sidecars(arguments.cluster) as (addresses, sidecars):
        sidecars.start_with_defaults(**CANCELLING)  # it makes the topics
        sidecars.end_all()
        for what, count, prepare in (
            ("nothing", None, _nothing),
            ("open cancellations", arguments.cancellations, _cancel),
            ("waiting retries", arguments.retries, _publish),
        ):
            if count == 0:
                continue
            prepare(addresses, sidecars, count or 0)
            sidecars.end_all()
            rows = []
            for version, environment in versions(arguments.control if count else None).items():
                sidecar = sidecars.start_with_defaults_in(environment, **CANCELLING)
                time.sleep(_START_SECONDS)
                rows.append((version, *_left_alone(addresses, sidecar, arguments.seconds)))
                sidecars.end_all()
            header = ("", "% of a core", "ZooKeeper", "bookies", "brokers", "resident MiB")
            yield Table(f"A sidecar left alone for {arguments.seconds} s beside {what}: {count or 0:,}", header, rows)


def _nothing(*_: object) -> None:
    """Nothing is to be prepared."""


def _cancel(addresses: ClusterAddresses, sidecars: Sidecars, count: int) -> None:
    sidecar = sidecars.start_with_defaults(**CANCELLING)
    with closing(DelayedTopic(addresses, parse_topic_name(f"persistent://public/default/rest-{unique()}"))) as topic:
        topic.subscribe("billing", SHARED)
        sent = topic.send(2 * count, now_ms() + _DELAY_MS)
        for start in range(0, 2 * count, _AT_ONCE):
            chosen = [each for each in sent[start : start + _AT_ONCE] if each.number // _RUN % 2]
            lines = "\n".join(json.dumps({**each.line, "subscriptionNames": ["billing"]}) for each in chosen)
            answer = requests.post(f"{sidecar.url}{topic.path}/cancelDelayedMessages", data=lines, timeout=300)
            if answer.content.count(b'"cancelled":true') != len(chosen):
                raise RuntimeError(f"not all were cancelled: {answer.text[:500]}")


def _publish(addresses: ClusterAddresses, _: Sidecars, count: int) -> None:
    client = PatientClient(addresses)
    topic = str(topic_name(DeletionTopic.RETRY))
    with closing(
        TopicPublisher(client, topic, "benchmark", PublisherSettings(batching=False), SystemClock(), first_use=True)
    ) as publisher:
        for start in range(0, count, _AT_ONCE):
            messages = [_retry(_FIRST_LEDGER + each) for each in range(start, min(count, start + _AT_ONCE))]
            if not all(result.stored for result in publisher.publish(messages)):
                raise RuntimeError("retries could not be published; the figures are worthless")
    client.close()


def _retry(ledger_id: int) -> OutgoingMessage:
    record = PendingDeleteLedgerInfo(_TOPIC, LedgerComponent.MANAGED_LEDGER, LedgerType.LEDGER, LedgerId(ledger_id))
    delivery = Delivery(None, encode_record(record), str(_TOPIC), {}, "812:4711:0:17", "", 0)
    return reconsume(delivery, _POLICY, "in-use: its list references it").message


def _left_alone(addresses: ClusterAddresses, sidecar: SidecarProcess, seconds: int) -> tuple[str, ...]:
    began, used = time.monotonic(), ProcessorTime({**addresses.members, "sidecar": sidecar.pid})
    time.sleep(seconds)
    spent, passed = used.used(), time.monotonic() - began
    shares = (sum(s for name, s in spent.items() if name.startswith(part)) for part in _PARTS)
    return (*(f"{100 * share / passed:.1f}" for share in shares), f"{resident_mb(sidecar.pid):,.0f}")
