"""Pages of the dashboard on a cluster with something to show on each: axe, and the pictures for the documentation.

``PULSAR_SIDECAR_SCREENSHOTS`` names a directory for the pictures (`make screenshots`).
"""

import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.parse import quote

import pytest
from pulsar_sidecar.bootstrap.features import PAGES
from pulsar_sidecar.model.names import parse_topic_name
from pulsar_sidecar.ownership.paths import managed_ledger_path

from tests.browser.looking import looking, screenshot
from tests.cluster.acknowledging import ack_state_setup, dug
from tests.cluster.audits import Audits
from tests.cluster.cancelling import CANCELLING
from tests.cluster.delays import SHARED, DelayedTopic, now_ms
from tests.cluster.patience import until
from tests.cluster.running import ClusterUnderTest
from tests.cluster.sidecars import BASE, SidecarProcess, Sidecars
from tests.cluster.topics import Workload, unique
from tests.integration.test_leak_watch import SETTLE_SECONDS, WATCH, wait_until_reported

pytestmark = pytest.mark.browser

HOUR = 3_600_000
NAMESPACE = f"public/shop-{unique()}"
REMINDERS = f"persistent://{NAMESPACE}/reminders"
ORDERS = f"persistent://{NAMESPACE}/orders"
PICTURED = {
    "light": {
        "Overview",
        "Deletions",
        "Leaks",
        "One audit",
        "Delayed messages",
        "Subscriptions",
        "What pins a topic",
    },
    "dark": {"Overview"},
}
"""The pages whose pictures stand in docs/dashboard.md."""
_FILE_NAME = re.compile("[^a-z]+")
WINDOWS = {"light": {"viewport": {"width": 1280, "height": 900}}, "dark": {"viewport": {"width": 390, "height": 844}}}


@pytest.fixture(scope="module")
def sidecar(cluster: ClusterUnderTest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SidecarProcess]:
    """A cluster where ledgers were left, deletions wait, messages are delayed, and cursors have holes."""
    directory = tmp_path_factory.mktemp("tour")
    with closing(Workload(cluster)) as workload, closing(Sidecars(cluster.addresses, directory)) as sidecars:
        workload.create_namespace(NAMESPACE)
        _leave_ledgers(workload)
        baskets = parse_topic_name(f"persistent://{NAMESPACE}/baskets")
        workload.fill(baskets, 9)
        workload.unload(baskets)
        in_baskets = workload.ledgers(baskets).data
        audits = Audits(cluster.addresses, directory / "audits")
        audits.look()
        audits.wait_between_looks()
        audits.look()
        found = sidecars.start(
            **CANCELLING, audits_directory=audits.directory, ledger_deletion_watch_settle_in_seconds=SETTLE_SECONDS
        )
        until(lambda: found.call("GET", WATCH)["state"] == "watching", "it watches")
        workload.store.delete(managed_ledger_path(baskets.managed_ledger_name))
        wait_until_reported(found, workload.existing(in_baskets))
        found.call("POST", f"{BASE}/pause", {"reason": "maintenance of the bookies"})
        _delete(workload, found)
        _delay(cluster)
        _dig(cluster)
        _hold(workload)
        yield found
        found.call("POST", f"{BASE}/resume")


def _leave_ledgers(workload: Workload) -> None:
    for name in ("carts", "visits", "prices"):
        topic = parse_topic_name(f"persistent://{NAMESPACE}/{name}")
        workload.fill(topic, 2)
        workload.leave_ledgers_behind(topic, workload.ledgers(topic))


def _delete(workload: Workload, sidecar: SidecarProcess) -> None:
    topic = parse_topic_name(f"persistent://{NAMESPACE}/campaign-2025")
    workload.fill(topic, 2)
    sidecar.call("DELETE", f"/admin/v2/{workload.of_topic(topic)}", force="true")


def _delay(cluster: ClusterUnderTest) -> None:
    with closing(DelayedTopic(cluster.addresses, parse_topic_name(REMINDERS))) as topic:
        for name in ("mail", "push"):
            topic.subscribe(name, SHARED)
        now = now_ms()
        topic.send(2_000, [now + HOUR + (number * number % 97) * HOUR // 4 for number in range(2_000)])


def _dig(cluster: ClusterUnderTest) -> None:
    with ack_state_setup(cluster) as setup:
        holes = dug(setup, 300, NAMESPACE)
    with closing(Workload(cluster)) as workload:
        workload.unload(holes.topic)


def _hold(workload: Workload) -> None:
    """Three ledgers, each held by another choice of two subscriptions, retention and the topic that writes."""
    topic = parse_topic_name(ORDERS)
    for name in ("billing", "shipping"):
        workload.subscribe(topic, name)
    for messages in (6, 3, 1):
        workload.unload(topic)
        workload.produce(topic, [bytes(20_000)] * messages)
    workload.subscribe(topic, "shipping", acknowledge=6)


@pytest.mark.parametrize("scheme", WINDOWS)
def test_axe_finds_nothing_serious_on_any_page(launched: Any, sidecar: SidecarProcess, scheme: str) -> None:
    reminders, scope = quote(REMINDERS, safe=""), quote(NAMESPACE, safe="")
    newest = f"/ui/audits/{quote(sidecar.call('GET', '/admin/v2/audits')['audits'][0]['auditId'], safe='')}"
    addresses = {page.title: page.path for page in PAGES} | {
        "One audit": newest,
        "Findings of an audit": f"{newest}/tables/orphans",
        "Delayed messages": f"/ui/delayed?scope={scope}",
        "One topic's delayed messages": f"/ui/delayed/topic?topic={reminders}&check=yes",
        "Subscriptions": f"/ui/subscriptions?scope={scope}",
        "One topic's subscriptions": f"/ui/subscriptions/topic?topic={reminders}&ask=broker",
        "One topic's deduplication": f"/ui/deduplication?scope={reminders}",
        "What pins a namespace": f"/ui/pins?of={scope}",
        "What pins a topic": f"/ui/pins?of={quote(ORDERS, safe='')}",
    }
    found = {}
    with looking(launched, **WINDOWS[scheme], color_scheme=scheme) as look:
        for title, address in addresses.items():
            look.open(sidecar.url + address)
            found[title] = look.serious()
            assert "Could not be read" not in look.page.inner_text("main"), title
            if title in PICTURED[scheme]:
                screenshot(look, f"{_FILE_NAME.sub('-', title.lower()).strip('-')}-{scheme}")
    assert not any(found.values()), found
