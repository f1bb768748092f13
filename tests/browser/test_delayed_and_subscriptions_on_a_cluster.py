"""Delayed messages and subscriptions of a real cluster in a browser, and each act to its effect in the cluster."""

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from pulsar_sidecar.adapters.pulsar_rest.live_owners import BrokerLiveOwners
from pulsar_sidecar.adapters.pulsar_rest.topic_admin import BrokerTopicAdmin
from pulsar_sidecar.bootstrap.features import PAGES
from pulsar_sidecar.model.names import parse_topic_name

from tests.browser.looking import Look
from tests.cluster.acknowledging import SUBSCRIPTION, AckStateSetup, ack_state_setup, dug
from tests.cluster.cancelling import Setup, set_up
from tests.cluster.delays import SHARED, DelayedTopic, now_ms
from tests.cluster.patience import until
from tests.cluster.running import ClusterUnderTest
from tests.cluster.topics import unique

pytestmark = pytest.mark.browser

MINUTE = 60_000


@pytest.fixture(scope="module")
def setup(cluster: ClusterUnderTest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    with set_up(cluster, tmp_path_factory.mktemp("sidecars")) as opened:
        yield opened


@pytest.fixture(scope="module")
def acks(cluster: ClusterUnderTest) -> Iterator[AckStateSetup]:
    with ack_state_setup(cluster) as opened:
        yield opened


@pytest.fixture
def topic(setup: Setup) -> Iterator[DelayedTopic]:
    name = parse_topic_name(f"persistent://public/default/<b>\"orders\" & 'bills'<b>-{unique()}")
    topic = DelayedTopic(setup.cluster.addresses, name)
    yield topic
    topic.close()


def in_utc(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M")


def tile(look: Look, label: str) -> str:
    """Return the figure below a label."""
    return str(look.page.inner_text(f"dl div:has(dt:text-is({label!r})) dd >> nth=0")).strip()


def opened(look: Look, label: str) -> str:
    """Open the form with this label, and return its selector."""
    look.page.click(f"summary:text-is({label!r})")
    return f"form[aria-label={label!r}]"


def press(look: Look, selector: str) -> None:
    """Click, and wait for the next page; an act may take some seconds."""
    with look.page.expect_navigation(timeout=60_000):
        look.page.locator(selector).first.click()


def done(look: Look) -> str:
    """Return the page's answer to an action."""
    return str(look.page.inner_text("p.message[role=status]"))


def waiting_are(look: Look, count: int) -> bool:
    look.page.reload()
    return tile(look, "waiting").endswith(str(count))


def test_delayed_messages_are_seen_cancelled_expedited_and_rescheduled(
    look: Look, setup: Setup, topic: DelayedTopic
) -> None:
    topic.subscribe("workers", SHARED)
    soon, later = now_ms() + 30 * MINUTE, now_ms() + 90 * MINUTE
    sent = topic.send(20, [soon] * 10 + [later] * 10)
    name = str(topic.topic)

    look.open(f"{setup.sidecar.url}/ui/delayed?scope=public%2Fdefault")
    with look.page.expect_navigation():
        look.page.locator("a", has_text=name).first.click()
    assert tile(look, "waiting").endswith("20")
    assert look.serious() == []

    form = opened(look, "Preview a selection to cancel")
    look.page.fill(f"{form} [name=due_from]", in_utc(later - 5 * MINUTE))
    press(look, f"{form} button")
    assert tile(look, "selected messages") == "10"
    assert topic.backlogs() == {"workers": 20}, "a preview changes nothing"
    assert look.serious() == []
    form = opened(look, "Cancel these 10 messages")
    press(look, f"{form} button")
    assert "cancelled 10 of 10 messages" in done(look)
    assert topic.backlogs() == {"workers": 10}
    until(lambda: waiting_are(look, 10), "the page shows what the broker has stored")

    form = opened(look, "Reschedule a message")
    look.page.fill(f"{form} [name=message]", f"{sent[0].ledger_id}:{sent[0].entry_id}")
    look.page.fill(f"{form} [name=due]", in_utc(later))
    press(look, f"{form} button")
    assert "published again as" in done(look)
    with topic.consuming("workers", SHARED) as deliveries:
        form = opened(look, "Expedite a message")
        look.page.fill(f"{form} [name=message]", f"{sent[1].ledger_id}:{sent[1].entry_id}")
        press(look, f"{form} button")
        assert "published again as" in done(look)
        until(lambda: 1 in deliveries.numbers, "the expedited message is delivered")
        assert deliveries.numbers == {1}
    until(lambda: topic.backlogs() == {"workers": 9}, "eight that wait as before, and the one with another due time")
    assert name in look.page.inner_text("main"), "a hostile name is text"


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
        press(look, f"a:text-is({str(holes.topic)!r})")
        look.page.wait_for_selector("text=Ask the broker")
        assert owners.loaded_by(holes.topic) is None, "what is shown comes from what is stored"
        press(look, "button:text-is('Ask the broker')")
        look.page.wait_for_selector("text=40 of 10,000")
        assert look.serious() == []
        assert owners.loaded_by(holes.topic) is not None
    finally:
        owners.close()


def test_brokers_that_are_killed_while_one_looks_make_pages_old_and_not_wrong(
    look: Look, setup: Setup, topic: DelayedTopic
) -> None:
    topic.subscribe("workers", SHARED)
    topic.send(5, now_ms() + 30 * MINUTE)
    url = setup.sidecar.url
    address = f"{url}/ui/subscriptions?scope=public%2Fdefault"
    look.open(address)
    assert "As of" in look.page.inner_text("#states")
    brokers = [f"broker-{number + 1}" for number in range(len(setup.cluster.addresses.web_service_urls))]
    for broker in brokers:
        setup.cluster.kill(broker)
    try:
        # The sidecar knows brokers' limits for half a minute.
        look.page.wait_for_selector("#states :text('Not up to date')", timeout=90_000)
        assert "workers" in look.page.inner_text("#states"), "what was read before is still shown"
        for page in PAGES:
            look.open(url + page.path)
            assert look.page.inner_text("h1") == page.title
        look.open(f"{url}/ui/delayed?scope=public%2Fdefault")
        assert "Could not be read" not in look.page.inner_text("main"), "the calendar needs no broker"
    finally:
        for broker in brokers:
            setup.cluster.restart(broker)
    look.open(address)
    look.page.wait_for_function(
        "!document.querySelector('#states').innerText.includes('Not up to date')", timeout=90_000
    )
