"""The admin REST API over real sockets: fail-over, redirects by hand, answers as errors."""

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from pulsar_sidecar.adapters.pulsar_rest.admin_rest import MAX_REDIRECTS, AdminRest, live_brokers, topic_path
from pulsar_sidecar.adapters.pulsar_rest.topic_admin import BrokerTopicAdmin
from pulsar_sidecar.identity.credentials import parse_credentials
from pulsar_sidecar.local_cluster.processes import free_ports
from pulsar_sidecar.model.errors import (
    BrokerRefusedError,
    InvalidInputError,
    NotAuthenticatedError,
    NotAuthorizedError,
    NotFoundError,
    OutcomeUnknownError,
    PermanentError,
    SidecarError,
    TemporaryError,
)
from pulsar_sidecar.model.names import TopicName, parse_topic_name

from tests.fakes.http_servers import Answer, Arrived, HttpServer, http_server, json_answer, refusing, register_broker
from tests.fakes.metadata import FakeMetadataStore

OK = Answer(200, b'{"ok": true}')
CREDENTIALS = parse_credentials("token", "token:abc")


def always(answer: Answer) -> Callable[[Arrived], Answer]:
    return lambda arrived: answer


def redirect_to(url: str, status: int = 307) -> Answer:
    return Answer(status, headers={"Location": url})


@pytest.fixture
def brokers() -> Iterator[list[HttpServer]]:
    with ExitStack() as stack:
        yield [stack.enter_context(http_server(lambda arrived: OK)) for _ in range(2)]


def rest(*urls: str, store: FakeMetadataStore | None = None) -> AdminRest:
    return AdminRest(urls, CREDENTIALS, store=store, read_seconds=1.0)


def reading_and_changing(asked: AdminRest) -> list[Callable[[], object]]:
    return [lambda: asked.get("/x"), lambda: asked.change("DELETE", "/x")]


def closed_port() -> str:
    (port,) = free_ports(1)
    return f"http://127.0.0.1:{port}"


# Requests --------------------------------------------------------------------------------------------------------


def test_a_request_carries_method_path_query_body_and_credentials(brokers: list[HttpServer]) -> None:
    answer = rest(brokers[0].url).change("POST", "/admin/v2/x", {"a": ["ü"]}, {"force": "true"})
    assert answer == {"ok": True}
    [arrived] = brokers[0].arrived
    assert (arrived.method, arrived.target) == ("POST", "/admin/v2/x?force=true")
    assert json.loads(arrived.body) == {"a": ["ü"]}
    assert arrived.authorization == "Bearer abc"


def test_answers_are_json_text_or_nothing(brokers: list[HttpServer]) -> None:
    nested = "[" * 100_000
    for body, expected in ((b"[1]", [1]), (b"0x0_0x1", "0x0_0x1"), (b"", None), (nested.encode(), nested)):
        answer = Answer(200, body)
        brokers[0].answer = always(answer)
        assert rest(brokers[0].url).get("/x") == expected


@pytest.mark.parametrize("urls", [[], [""], ["pulsar://h:6650"], ["h:8080"], ["http://"], ["http://h:notaport"]])
def test_unusable_urls_are_refused(urls: list[str]) -> None:
    with pytest.raises(InvalidInputError, match="http://host:port"):
        AdminRest(urls)


def test_a_url_in_an_error_shows_no_password() -> None:
    with pytest.raises(InvalidInputError) as caught:
        AdminRest(["ftp://user:s3cr3t@host:21/x"])
    assert "s3cr3t" not in str(caught.value)


def test_the_next_broker_is_asked_when_one_does_not_listen(brokers: list[HttpServer]) -> None:
    asked = rest(f"{closed_port()}, {brokers[0].url}/")
    assert asked.get("/x") == {"ok": True}
    assert asked.change("PUT", "/x") == {"ok": True}
    assert [arrived.method for arrived in brokers[0].arrived] == ["GET", "PUT"]


def test_the_multi_host_form_names_the_scheme_once(brokers: list[HttpServer]) -> None:
    assert rest(f"{closed_port()},{brokers[0].address}").get("/x") == {"ok": True}


def test_without_any_broker_everything_is_temporary() -> None:
    asked = rest(closed_port(), closed_port())
    for call in reading_and_changing(asked):
        with pytest.raises(TemporaryError):
            call()


# Failures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Answer(401, b"<html>Authentication required</html>"), NotAuthenticatedError),
        (refusing(401, "This operation requires super-user access"), NotAuthorizedError),
        (refusing(403, "no"), NotAuthorizedError),
        (refusing(404, "Topic x not found"), NotFoundError),
        (Answer(404, b"<html>Not Found</html>"), BrokerRefusedError),
        (refusing(409, "already"), BrokerRefusedError),
        (Answer(409, b"[" * 100_000), BrokerRefusedError),
        (refusing(412, "has subscriptions"), BrokerRefusedError),
        (refusing(412, "Can't find owner for topic persistent://a/b/c"), TemporaryError),
        (refusing(412, "Failed to find ownership for topic:persistent://a/b/c"), TemporaryError),
        (refusing(429, "too many"), TemporaryError),
    ],
)
def test_refusals(brokers: list[HttpServer], answer: Answer, expected: type[SidecarError]) -> None:
    brokers[0].answer = lambda arrived: answer
    asked = rest(brokers[0].url, brokers[1].url)
    for call in reading_and_changing(asked):
        with pytest.raises(SidecarError) as caught:
            call()
        assert type(caught.value) is expected
    assert not brokers[1].arrived


def test_internal_404_of_a_broker_is_not_treated_as_missing(brokers: list[HttpServer]) -> None:
    """4.0.8 answers so when the bundle of a namespace that it unloads has moved meanwhile."""
    text = "org.apache.zookeeper.KeeperException$NoNodeException: KeeperErrorCode = NoNode for /namespace/a/b/0x00_0x40"
    brokers[0].answer = lambda arrived: refusing(404, text)
    get, change = reading_and_changing(rest(brokers[0].url))
    with pytest.raises(TemporaryError, match="NoNode"):
        get()
    with pytest.raises(OutcomeUnknownError, match="NoNode"):
        change()


def test_a_refusal_keeps_the_broker_s_own_words(brokers: list[HttpServer]) -> None:
    brokers[0].answer = lambda arrived: refusing(412, "Topic has active producers/subscriptions")
    with pytest.raises(BrokerRefusedError) as caught:
        rest(brokers[0].url).change("DELETE", "/x")
    assert (caught.value.status, caught.value.reason) == (412, "Topic has active producers/subscriptions")


@pytest.mark.parametrize(
    ("topic", "remedy"),
    [
        ("persistent://tenant/east/ns/t", "Brokers from 4.2 on have no names with a cluster"),
        ("persistent://tenant/ns/t", "check that webServiceUrl leads to brokers"),
    ],
)
def test_a_404_without_words_names_what_was_asked_and_what_to_do(
    brokers: list[HttpServer], topic: str, remedy: str
) -> None:
    brokers[0].answer = always(Answer(404, b"<html>Not Found</html>"))
    path = topic_path(parse_topic_name(topic), "/stats")
    with pytest.raises(BrokerRefusedError, match=remedy) as caught:
        rest(brokers[0].url).get(path)
    assert caught.value.status == 404
    assert f"GET {path}" in str(caught.value)


@pytest.mark.parametrize("answer", [Answer(500, b"oops"), refusing(503, "not ready"), Answer(0)])
def test_a_read_goes_on_to_the_next_broker_and_a_change_does_not(brokers: list[HttpServer], answer: Answer) -> None:
    brokers[0].answer = lambda arrived: answer
    asked = rest(brokers[0].url, brokers[1].url)
    assert asked.get("/x") == {"ok": True}
    with pytest.raises(OutcomeUnknownError):
        asked.change("DELETE", "/x")
    assert [arrived.method for arrived in brokers[1].arrived] == ["GET"]
    with pytest.raises(TemporaryError):
        rest(brokers[0].url).get("/x")


def test_a_topic_of_other_clusters_is_refused_although_its_deletion_gets_a_500(brokers: list[HttpServer]) -> None:
    quoted = "Namespace missing local cluster name in clusters list: local_cluster=east ns=geo/moved"
    brokers[0].answer = lambda arrived: refusing(
        500, f'topic_name=t error_message={{"errorMsg":"{quoted} clusters=[]"}}'
    )
    with pytest.raises(BrokerRefusedError) as caught:
        rest(brokers[0].url).change("DELETE", "/x")
    assert (caught.value.status, caught.value.reason) == (412, quoted)


def test_a_silent_broker_leaves_a_change_open(brokers: list[HttpServer]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        asked = rest(f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(OutcomeUnknownError):
            asked.change("DELETE", "/x")
        with pytest.raises(TemporaryError):
            asked.get("/x")


# Redirects -------------------------------------------------------------------------------------------------------


def test_a_redirect_to_a_configured_broker_is_followed_with_body_and_credentials(brokers: list[HttpServer]) -> None:
    first, second = brokers
    first.answer = lambda arrived: redirect_to(f"{second.url}{arrived.target}&authoritative=false")
    rest(first.url, second.url).change("PUT", "/x", [1], {"force": "true"})
    assert second.arrived == [Arrived("PUT", "/x?force=true&authoritative=false", b"[1]", "Bearer abc")]


@pytest.mark.parametrize(
    "target", ["/y?force=true", "/x/?force=true", "/x", "/x?force=true&deleteSchema=true", "/a/../y?force=true"]
)
def test_a_redirect_that_changes_what_a_change_asks_for_is_refused(brokers: list[HttpServer], target: str) -> None:
    first, second = brokers
    first.answer = lambda arrived: redirect_to(f"{second.url}{target}")
    with pytest.raises(PermanentError, match="another path or query"):
        rest(first.url, second.url).change("DELETE", "/x", params={"force": "true"})
    assert second.arrived == []


def test_a_redirect_to_a_registered_broker_is_followed(brokers: list[HttpServer]) -> None:
    first, second = brokers
    store = FakeMetadataStore()
    asked = rest(first.url, store=store)
    first.answer = lambda arrived: redirect_to(f"{second.url}/x") if arrived.target == "/x" else refusing(403, "no")
    with pytest.raises(PermanentError, match="unknown host"):
        asked.get("/x")
    register_broker(store, second.url)
    assert asked.get("/x") == {"ok": True}


def test_a_redirect_to_a_broker_that_the_cluster_lists_is_followed(brokers: list[HttpServer]) -> None:
    first, second = brokers
    listed = json_answer([second.address])
    first.answer = lambda arrived: listed if arrived.target == "/admin/v2/brokers" else redirect_to(f"{second.url}/x")
    assert rest(first.url).get("/x") == {"ok": True}


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff", b"[" * 100_000, b'{"webServiceUrl": 7}'])
def test_unreadable_registration_is_an_error(data: bytes) -> None:
    store = FakeMetadataStore()
    store.put("/loadbalance/brokers/b:8080", data)
    with pytest.raises(TemporaryError, match="broker b:8080"):
        live_brokers(store)


STATS = "/admin/v2/persistent/public/default/orders/stats"


def test_a_question_about_a_topic_goes_to_its_owner_first(brokers: list[HttpServer]) -> None:
    first, second = brokers
    asked = rest(first.url, second.url)
    first.answer = lambda arrived: redirect_to(f"{second.url}{arrived.target}")
    for path in (STATS, STATS.replace("stats", "internalStats")):
        assert asked.get(path) == {"ok": True}
    assert [len(broker.arrived) for broker in brokers] == [1, 2]
    asked.get(STATS.replace("orders", "others"))
    asked.change("POST", STATS)
    assert [len(broker.arrived) for broker in brokers] == [3, 4], "another topic, and changes, begin at the beginning"


@pytest.mark.parametrize("status", [0, 503])
def test_unresponsive_owner_is_forgotten(brokers: list[HttpServer], status: int) -> None:
    first, second = brokers
    asked = rest(first.url, second.url)
    first.answer = lambda arrived: redirect_to(f"{second.url}{arrived.target}")
    asked.get(STATS)
    first.answer = lambda arrived: Answer(200, b"[]")
    second.answer = lambda arrived: Answer(status)
    assert asked.get(STATS) == []
    assert asked.get(STATS) == []
    assert len(second.arrived) == 2


@pytest.mark.parametrize("scheme", ["http", "ftp", "file", "gopher"])
def test_credentials_go_to_no_unknown_host(brokers: list[HttpServer], scheme: str) -> None:
    first, second = brokers
    target = f"{scheme}://{second.address}/x"
    first.answer = lambda arrived: redirect_to(target) if arrived.target == "/x" else Answer(200, b"[]")
    asked = rest(first.url, store=FakeMetadataStore())
    for call in reading_and_changing(asked):
        with pytest.raises(PermanentError, match="redirect to an unknown host"):
            call()
    assert not second.arrived


def test_redirect_without_location_ends_at_the_limit(brokers: list[HttpServer]) -> None:
    brokers[0].answer = lambda arrived: Answer(307)
    with pytest.raises(TemporaryError, match="redirected more than"):
        rest(brokers[0].url).change("DELETE", "/x")
    assert len(brokers[0].arrived) == MAX_REDIRECTS + 1


def test_a_change_does_not_follow_a_redirect_that_may_drop_its_method(brokers: list[HttpServer]) -> None:
    first, second = brokers
    first.answer = lambda arrived: redirect_to(f"{second.url}/x", 302)
    with pytest.raises(OutcomeUnknownError):
        rest(first.url, second.url).change("DELETE", "/x")
    assert not second.arrived
    assert rest(first.url, second.url).get("/x") == {"ok": True}


def test_a_change_redirected_to_a_dead_broker_is_tried_at_the_next(brokers: list[HttpServer]) -> None:
    first, second = brokers
    dead = closed_port()
    first.answer = lambda arrived: redirect_to(f"{dead}/x")
    assert rest(first.url, second.url, dead).change("DELETE", "/x") == {"ok": True}


# Exactly one broker ----------------------------------------------------------------------------------------------


def test_asking_exactly_one_broker_follows_nothing(brokers: list[HttpServer]) -> None:
    first, second = brokers
    asked = rest(first.url, second.url)
    assert asked.get_exactly(second.url, "/x") == {"ok": True}
    first.answer = lambda arrived: redirect_to(f"{second.url}/x")
    with pytest.raises(TemporaryError, match="no longer the owner"):
        asked.get_exactly(first.url, "/x")
    assert len(second.arrived) == 1


def test_an_unknown_broker_is_not_asked(brokers: list[HttpServer]) -> None:
    first, second = brokers
    with pytest.raises(PermanentError, match="not a broker of this cluster"):
        rest(first.url, store=FakeMetadataStore()).get_exactly(second.url, "/x")
    assert not second.arrived


def test_a_plain_address_is_not_used_where_tls_is_configured() -> None:
    secure = AdminRest(["https://broker:8443"])
    assert secure.reachable(["http://broker:8080", "https://broker:8443"]) == ["https://broker:8443"]
    assert secure.reachable(["http://broker:8080"]) == []
    plain = AdminRest(["http://broker:8080"])
    assert plain.reachable(["http://broker:8080", "https://broker:8443"]) == ["http://broker:8080"]
    assert plain.reachable(["https://broker:8443"]) == ["https://broker:8443"]


# Topics ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("persistent://t/n/a b%+ü", "/admin/v2/persistent/t/n/a+b%25%2B%C3%BC"),
        ("non-persistent://t/n/a", "/admin/v2/non-persistent/t/n/a"),
        ("persistent://t/c/n/a/b", "/admin/persistent/t/c/n/a%2Fb"),
    ],
)
def test_topic_paths(topic: str, expected: str) -> None:
    assert topic_path(parse_topic_name(topic)) == expected


def test_an_encoded_path_reaches_the_broker_as_it_is(brokers: list[HttpServer]) -> None:
    topic = parse_topic_name("persistent://t/n/a b%+ü~*%2F")
    BrokerTopicAdmin(rest(brokers[0].url)).delete_topic(topic, partitioned=False, force=True)
    [arrived] = brokers[0].arrived
    assert arrived.target.replace("~", "%7E") == "/admin/v2/persistent/t/n/a+b%25%2B%C3%BC%7E*%252F?force=true"


def test_deleting_a_part_of_a_topic(brokers: list[HttpServer]) -> None:
    admin = BrokerTopicAdmin(rest(brokers[0].url))
    for name in ("persistent://t/n/a b", "persistent://t/c/n/a/b"):
        admin.delete_subscription(parse_topic_name(name), "x/y z", force=True)
        admin.delete_schema(parse_topic_name(name))
    assert [arrived.target for arrived in brokers[0].arrived] == [
        "/admin/v2/persistent/t/n/a+b/subscription/x%2Fy+z?force=true",
        "/admin/v2/schemas/t/n/a+b/schema?force=true",
        "/admin/persistent/t/c/n/a%2Fb/subscription/x%2Fy+z?force=true",
        "/admin/schemas/t/c/n/a%2Fb/schema?force=true",
    ]


SHADOW = "persistent://public/default/shadow"


@pytest.mark.parametrize(
    ("answer", "shadows"),
    [
        (json_answer([SHADOW]), [parse_topic_name(SHADOW)]),
        (Answer(200, b"[]"), []),
        (Answer(200, b""), []),
        (refusing(404, "Topic not found"), []),
        # Where topics have no policies of their own there is no list.
        (refusing(405, "Topic level policies is disabled"), []),
    ],
)
def test_the_shadows_that_brokers_list(brokers: list[HttpServer], answer: Answer, shadows: list[TopicName]) -> None:
    brokers[0].answer = lambda arrived: answer
    assert list(BrokerTopicAdmin(rest(brokers[0].url)).shadow_topics(parse_topic_name("a"))) == shadows
    assert brokers[0].arrived[0].target == "/admin/v2/persistent/public/default/a/shadowTopics"


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Answer(500, b"broken"), TemporaryError),
        (Answer(200, b'{"not":"a list"}'), TemporaryError),
        (Answer(200, b"[7]"), TemporaryError),
        (Answer(404, b"<html>a proxy's</html>"), BrokerRefusedError),
        (refusing(403, "no"), NotAuthorizedError),
    ],
)
def test_a_list_of_shadows_that_cannot_be_had_is_not_taken_for_an_empty_one(
    brokers: list[HttpServer], answer: Answer, error: type[Exception]
) -> None:
    brokers[0].answer = lambda arrived: answer
    with pytest.raises(error):
        BrokerTopicAdmin(rest(brokers[0].url)).shadow_topics(parse_topic_name("a"))
