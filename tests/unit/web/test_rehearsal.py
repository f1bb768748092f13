"""A rehearsal, as a browser shows it."""

from pulsar_sidecar.features.rehearsal.results import (
    Consequence,
    Rehearsal,
    RehearsedDeletion,
    RehearsedTopic,
    Times,
    Total,
)

from tests.fakes.rest_api import FakeBrowser

PATH = "GET /admin/v2/rehearsal/brokers/broker-1%3A8080?seconds=15"
HOSTILE = "<script>alert(1)</script>"
FOUND = Rehearsal(
    broker="broker-1:8080",
    as_of_ms=0,
    bundles=1,
    topics=3,
    examined=2,
    totals=(
        Total(Consequence.IN_FLIGHT, 1_234, 2, 0, "unackedMessages"),
        Total(Consequence.REPLAYED, None, 0, 3, "snapshots"),
    ),
    times=Times(30.0, 1.25, 7.0, 0.0, 0.0, ("a stopwatch",)),
    deletions=(RehearsedDeletion(HOSTILE, "op-1", "running"),),
    warnings=("persistent://t/n/x: the replay takes 70 s",),
    worst=(RehearsedTopic("persistent://t/n/x", None, None, 0, 5, None, None, None, 7, 8, 0.1, (), (), ("no",)),),
    not_known=("persistent://t/n/x: no",),
    assumptions=("the weather stays",),
)


def test_totals_with_sources_times_and_topics(browser: FakeBrowser) -> None:
    browser.api.answers[PATH] = FOUND
    page = browser.get("/ui/rehearsal?broker=http%3A%2F%2Fbroker-1%3A8080%2F")
    for words in (
        "1 bundle, 3 loaded topics, 2 looked at",
        "1,234",
        "unackedMessages",
        "not known",
        "1.2 to 7.0 s",
        "the replay takes 70 s",
    ):
        assert words in page.text, words
    for words in ("at most 30.0 s without an owner", "op-1", "From a stopwatch.", "Assumption: the weather stays."):
        assert words in page.text, words
    assert HOSTILE not in page.text
    assert "pulsar-sidecar rehearse broker broker-1:8080" in page.text


def test_a_broker_that_hangs_is_a_problem_of_the_page(browser: FakeBrowser) -> None:
    browser.api.answers[PATH] = (503, {"reason": "it hangs"})
    assert "it hangs" in browser.get("/ui/rehearsal?broker=broker-1:8080").text


def test_without_a_broker_nothing_is_asked(browser: FakeBrowser) -> None:
    page = browser.get("/ui/rehearsal")
    assert "host:port of its web service" in page.text
    assert not [request for request in browser.api.asked if "rehearsal" in request.target]
