"""A subscription with holes on a real cluster, as an operator sees it in a browser."""

from collections.abc import Iterator

import pytest
from pulsar_sidecar.adapters.pulsar.rest.live_owners import BrokerLiveOwners
from pulsar_sidecar.adapters.pulsar.rest.topic_admin import BrokerTopicAdmin

from tests.browser.looking import Look
from tests.cluster.acknowledging import SUBSCRIPTION, AckStateSetup, ack_state_setup, dug
from tests.cluster.cancelling import Setup, set_up
from tests.cluster.patience import until
from tests.cluster.running import ClusterUnderTest

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def setup(cluster: ClusterUnderTest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    with set_up(cluster, tmp_path_factory.mktemp("sidecars")) as opened:
        yield opened


@pytest.fixture(scope="module")
def acks(cluster: ClusterUnderTest) -> Iterator[AckStateSetup]:
    with ack_state_setup(cluster) as opened:
        yield opened


def test_a_subscription_with_holes_is_seen_without_loading_its_topic(
    look: Look, setup: Setup, acks: AckStateSetup
) -> None:
    holes = dug(acks, 40)
    BrokerTopicAdmin(acks.rest).unload(holes.topic)
    owners = BrokerLiveOwners(acks.rest, acks.store)
    try:
        until(lambda: owners.loaded_by(holes.topic) is None, "the topic is unloaded")
        look.open(f"{setup.sidecar.url}/ui/subscriptions?show=holes&contains={holes.topic.local_name}")
        row = look.page.inner_text(f"tr:has-text({str(holes.topic)!r})").split("\t")
        assert row[1:6] == [SUBSCRIPTION, "✓ fits", "40", "9,960", "40"]
        assert look.serious() == []
        look.page.click(f"a:text-is({str(holes.topic)!r})")
        look.page.wait_for_selector("text=Ask the broker")
        assert owners.loaded_by(holes.topic) is None, "what is shown comes from what is stored"
        look.page.click("button:text-is('Ask the broker')")
        look.page.wait_for_selector("text=40 of 10,000")
        assert look.serious() == []
        assert owners.loaded_by(holes.topic) is not None
    finally:
        owners.close()
