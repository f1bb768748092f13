"""Pins in a real browser against a real cluster whose brokers are killed meanwhile."""

import pytest
from pulsar_sidecar.model.names import java_url_encode

from tests.browser.looking import Look
from tests.cluster.deletion import Scene
from tests.cluster.patience import until

pytestmark = pytest.mark.browser


def test_a_slow_subscription_and_a_topic_that_is_not_loaded_on_a_real_cluster(scene: Scene, look: Look) -> None:
    """Brokers are killed while it is looked at: what was read stays, with its time."""
    slow, workload = scene.topic("slow"), scene.workload
    workload.subscribe(slow, "billing")
    workload.fill(slow, ledgers=3)
    sidecar = scene.start_alone()
    address = f"{sidecar.url}/ui/pins?of={java_url_encode(str(slow))}"
    look.open(address)
    text = look.page.inner_text("main")
    assert "backlog billing" in text
    assert "loaded by" in text
    assert f"pulsar-admin topics unsubscribe -s billing {slow}" in text
    assert look.serious() == []
    workload.unload(slow)
    until(lambda: _shown(look, address, "not loaded"), "no broker has the topic loaded", pause_seconds=2)
    brokers = [name for name in scene.cluster.addresses.members if name.startswith("broker-")]
    for name in brokers:
        scene.cluster.kill(name)
    try:
        until(lambda: _shown(look, address, "Not up to date"), "the page names its age", pause_seconds=2)
        assert "backlog billing" in look.page.inner_text("main")
    finally:
        for name in brokers:
            scene.cluster.restart(name)


def _shown(look: Look, address: str, text: str) -> bool:
    look.open(address)
    return text in look.page.inner_text("main")
