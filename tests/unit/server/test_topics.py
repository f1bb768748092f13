import json

import pytest
from pulsar_sidecar.features.ledger_deletion.record import PendingDeleteLedgerInfo
from pulsar_sidecar.features.ledger_deletion.results import (
    LedgerDeletionAnswer,
    OperationState,
    Redirect,
    ShadowDeletionStage,
)
from pulsar_sidecar.model.errors import ConflictError, InvalidInputError, TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerType
from pulsar_sidecar.model.names import TopicDomain, TopicName, parse_topic_name
from pulsar_sidecar.server.answers import as_json
from pulsar_sidecar.server.guard import guarded_router
from pulsar_sidecar.server.rights import Right, takes
from pulsar_sidecar.server.warnings import WARNING_HEADER

from tests.fakes.deletion_service import FakeDeletionService
from tests.unit.cli.running import Terminal
from tests.unit.server.serving import Served, served

V2 = "/admin/v2/persistent/public/default"
PAYLOAD = {
    "ledgerId": 7,
    "topicName": "persistent://public/default/orders",
    "ledgerType": "LEDGER",
    "ledgerComponent": "MANAGED_LEDGER",
}


def topic(local_name: str, tenant: str = "public", cluster: str | None = None, namespace: str = "default") -> TopicName:
    return TopicName(TopicDomain.PERSISTENT, tenant, cluster, namespace, local_name)


@pytest.mark.parametrize(
    ("path", "name", "partitioned", "force"),
    [
        (f"{V2}/orders", topic("orders"), False, False),
        (f"{V2}/orders?force=true", topic("orders"), False, True),
        (f"{V2}/orders?force=false&authoritative=true&deleteSchema=true", topic("orders"), False, False),
        (f"{V2}/orders/partitions?force=true", topic("orders"), True, True),
        (f"{V2}/orders-partition-3", topic("orders-partition-3"), False, False),
        (f"{V2}/a%20b%25c", topic("a b%c"), False, False),
        (f"{V2}/a+b", topic("a b"), False, False),
        (f"{V2}/a%2Bb", topic("a+b"), False, False),
        (f"{V2}/%C3%A4%F0%9F%98%80", topic("ä😀"), False, False),
        (f"{V2}/a%252Fb", topic("a%2Fb"), False, False),
        (f"{V2}/%252e%252e", topic("%2e%2e"), False, False),
        (f"{V2}/...", topic("..."), False, False),
        (f"{V2}/a%00b", topic("a\0b"), False, False),
        (f"{V2}/a%0D%0Ab", topic("a\r\nb"), False, False),
        (f"{V2}/a%5C..%5Cb", topic("a\\..\\b"), False, False),
        (f"{V2}/orders;jsessionid=1", topic("orders;jsessionid=1"), False, False),
        (f"{V2}/orders%3Fforce=true", topic("orders?force=true"), False, False),
        (f"{V2}/orders%23x", topic("orders#x"), False, False),
        (f"{V2}/{'a' * 4_000}", topic("a" * 4_000), False, False),
        (f"{V2}/partitions", topic("partitions"), False, False),
        ("/admin/persistent/p/c/n/orders", topic("orders", "p", "c", "n"), False, False),
        ("/admin/persistent/p/c/n/a%2Fb", topic("a/b", "p", "c", "n"), False, False),
        ("/admin/persistent/p/c/n/a%2Fpartitions", topic("a/partitions", "p", "c", "n"), False, False),
        ("/admin/persistent/p/c/n/orders/partitions", topic("orders", "p", "c", "n"), True, False),
    ],
)
def test_the_path_names_exactly_one_topic(
    path: str, name: TopicName, partitioned: bool, force: bool, service: FakeDeletionService, server: Served
) -> None:
    answer = server.ask("DELETE", path)
    assert (answer.status, answer.body) == (204, b"")
    assert service.calls("delete_topic") == [(name, partitioned, force, None)]


@pytest.mark.parametrize("path", [f"{V2}/orders", f"{V2}/orders/partitions", "/admin/persistent/p/c/n/orders"])
def test_the_confirmation_of_a_source_s_loss_goes_on_as_it_is(
    path: str, service: FakeDeletionService, server: Served
) -> None:
    for query, confirmed in (("", None), ("?confirmSourceDataLoss=persistent%3A%2F%2Fp%2Fn%2Ft", "persistent://p/n/t")):
        assert server.ask("DELETE", path + query).status == 204
        assert service.confirmed.pop() == confirmed


@pytest.mark.parametrize(
    "path",
    [
        f"{V2}/a%2Fb",
        f"{V2}/..",
        f"{V2}/.",
        f"{V2}/%2e%2e",
        f"{V2}/%2E",
        "/admin/v2/persistent/../default/orders",
        "/admin/v2/persistent/%2e%2e/default/orders",
        "/admin/v2/persistent/pub%2Flic/default/orders",
        "/admin/v2/persistent/public/def%20ault/orders",
        f"{V2}/%zz",
        f"{V2}/%",
        f"{V2}/%2",
        f"{V2}/%C3%28",
        f"{V2}/%FF",
        f"{V2}/" + "a" * 4_100,
        f"{V2}/" + "%C3%A4" * 2_100,
        f"{V2}/orders?forse=true",
        f"{V2}/orders?force=perhaps",
        f"{V2}/orders?force=",
        f"{V2}/orders?force=true&x",
        f"{V2}/" + "a" * 60_000,
        f"{V2}/" + "%2E" * 20_000,
        f"{V2}/%C0%AF",
        f"{V2}/%ED%A0%80",
        f"{V2}/%u002f",
        f"{V2}/orders%2Fpartitions",
        f"{V2}/..%2F..%2Forders",
        f"{V2}/%2e%2e%2forders",
        "/admin/v2/persistent/public%00/default/orders",
        "/admin/v2/persistent/public/%2e%2e/orders",
        "/admin/v2/persistent/public/default%2F../orders",
        "/admin/v2/persistent/public;x=1/default/orders",
        "/admin/persistent/p/../n/orders",
        "/admin/persistent/p/%2e/n/orders",
        "/admin/persistent/p/c/n/%2e%2e",
        "/admin/persistent/p/c/n/" + "a" * 60_000,
    ],
)
def test_invalid_topic_path_is_refused(path: str, service: FakeDeletionService, server: Served) -> None:
    answer = server.ask("DELETE", path)
    if answer.status != 204:
        assert answer.status == 400, answer
        assert answer.reason
    else:
        assert path.endswith("&x")  # an empty parameter is no parameter to any reader
    assert bool(service.asked) == (answer.status == 204)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("DELETE", f"{V2}/orders/", 404),
        ("DELETE", f"{V2}//", 404),
        ("DELETE", "/admin/v2/persistent//default/orders", 404),
        ("DELETE", "/admin/v2/non-persistent/public/default/orders", 404),
        ("DELETE", f"{V2}/orders/partitions/", 404),
        ("DELETE", f"{V2}/../../../v2/persistent/a/b/c", 404),
        ("GET", f"{V2}/orders", 405),
        ("POST", f"{V2}/orders", 405),
        ("GET", f"{V2}/orders/deleteLedger", 405),
    ],
)
def test_other_paths_and_methods_find_nothing(
    method: str, path: str, status: int, service: FakeDeletionService, server: Served
) -> None:
    answer = server.ask(method, path)
    assert answer.status == status
    assert answer.reason
    assert service.asked == []


def test_a_deletion_that_goes_on_is_answered_with_its_state(service: FakeDeletionService, server: Served) -> None:
    service.deletion_state = OperationState.RUNNING
    service.deletion_reason = "the broker does not respond"
    answer = server.ask("DELETE", f"{V2}/orders")
    assert answer.status == 202
    deletion = service.delete_topic(topic("orders"), partitioned=False, force=False, requested_by=None)
    assert answer.json == as_json(deletion)
    assert answer.headers["location"] == "/admin/v2/ledger-deletion/topic-deletions/op-1"


def test_a_deletion_that_is_done_warns_of_what_it_left(service: FakeDeletionService, server: Served) -> None:
    service.deletion_reason = "its replicators create it again"
    answer = server.ask("DELETE", f"{V2}/orders")
    assert (answer.status, answer.headers[WARNING_HEADER.lower()]) == (204, "its replicators create it again")


def test_a_deletion_that_was_refused_is_an_error(service: FakeDeletionService, server: Served) -> None:
    service.deletion_state, service.deletion_reason = OperationState.REFUSED, "it has subscriptions"
    answer = server.ask("DELETE", f"{V2}/orders")
    assert answer.status == 409
    assert "it has subscriptions" in answer.reason


@pytest.mark.parametrize("outcome", list(LedgerDeletionAnswer))
def test_delete_ledger(outcome: LedgerDeletionAnswer, service: FakeDeletionService, server: Served) -> None:
    service.ledger_answer = outcome
    answer = server.ask("POST", f"{V2}/orders/deleteLedger", PAYLOAD)
    assert (answer.status, answer.body) == (204, b"")
    ((record, authoritative),) = service.judged
    assert record == PendingDeleteLedgerInfo(
        topic("orders"), LedgerComponent.MANAGED_LEDGER, LedgerType.LEDGER, LedgerId(7)
    )
    assert authoritative is False


def test_delete_ledger_takes_every_field_of_the_pip(service: FakeDeletionService, server: Served) -> None:
    payload = PAYLOAD | {
        "ledgerType": "Offload-Ledger",
        "ledgerComponent": "Managed-Ledger",
        "schemaId": "public/default/orders",
        "cursorName": "sub",
        "offloadContext": {"lsb": -5, "msb": 2**63 - 1, "driverName": "aws-s3", "metadata": {"bucket": "b"}},
    }
    assert server.ask("POST", f"{V2}/orders/deleteLedger?authoritative=true", payload).status == 204
    ((record, authoritative),) = service.judged
    assert authoritative is True
    assert record.offload_context is not None
    assert record.offload_context.uid_msb == 2**63 - 1
    assert record.offload_context.driver_metadata == {"bucket": "b"}
    assert record.cursor_name == "sub"


def test_delete_ledger_of_a_v1_topic(service: FakeDeletionService, server: Served) -> None:
    payload = PAYLOAD | {"topicName": "persistent://t/c/n/orders"}
    assert server.ask("POST", "/admin/persistent/t/c/n/orders/deleteLedger", payload).status == 204
    ((record, _),) = service.judged
    assert str(record.topic) == "persistent://t/c/n/orders"


def test_a_redirect_keeps_the_path_as_it_was_sent(service: FakeDeletionService, server: Served) -> None:
    service.ledger_answer = Redirect("http://other:8750/")
    payload = PAYLOAD | {"topicName": "persistent://public/default/a b%"}
    answer = server.ask("POST", f"{V2}/a%20b%25/deleteLedger", payload)
    assert answer.status == 307
    assert answer.headers["location"] == f"http://other:8750{V2}/a%20b%25/deleteLedger?authoritative=true"
    assert server.ask("POST", f"{V2}/a%20b%25/deleteLedger?authoritative=true", payload).status == 204


def test_in_use_and_mismatch_are_distinguished(service: FakeDeletionService, server: Served) -> None:
    service.failure = ConflictError("ledger still in use")
    answer = server.ask("POST", f"{V2}/orders/deleteLedger", PAYLOAD)
    assert (answer.status, answer.reason) == (409, "ledger still in use")
    service.failure = InvalidInputError("the ledger belongs to another topic")
    answer = server.ask("POST", f"{V2}/orders/deleteLedger", PAYLOAD)
    assert (answer.status, answer.reason) == (412, "the ledger belongs to another topic")


@pytest.mark.parametrize(
    "named", ["persistent://public/default/other", "persistent://a/b/orders", "persistent://public/default/orders/x"]
)
def test_a_payload_must_name_the_topic_of_its_path(named: str, service: FakeDeletionService, server: Served) -> None:
    answer = server.ask("POST", f"{V2}/orders/deleteLedger", PAYLOAD | {"topicName": named})
    assert answer.status == 412
    assert "topicName" in answer.reason
    assert service.asked == []


def test_a_wrong_method_is_answered_with_all_the_right_ones(service: FakeDeletionService) -> None:
    router = guarded_router("test")
    for method in ("GET", "DELETE"):
        router.add_api_route("/switch", takes(Right.ROLE)(lambda: "off"), methods=[method])
    with served(service, routers=[router]) as server:
        answer = server.ask("PATCH", "/switch")
    assert answer.status == 405
    assert answer.headers["allow"] == "DELETE, GET"


# --- shadow topics ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/admin/v2/persistent/public/default/orders%20shadow", "persistent://public/default/orders shadow"),
        ("/admin/persistent/p/c/n/orders", "persistent://p/c/n/orders"),
    ],
)
def test_a_shadow_that_waits_is_202(path: str, name: str, service: FakeDeletionService, server: Served) -> None:
    service.shadow_answers = [(ShadowDeletionStage.REMOVING, "a broker still has it loaded")] * 2
    answer = server.ask("POST", f"{path}/deleteShadow")
    topic: TopicName = parse_topic_name(name)
    assert service.calls("delete_shadow") == [(topic, None)]
    assert answer.status == 202
    assert answer.json == as_json(service.delete_shadow(topic, requested_by=None))


def test_command_repeats_the_call_until_done_and_shows_stages(shell: Terminal, service: FakeDeletionService) -> None:
    waiting = (ShadowDeletionStage.DISCONNECTING, "the replicator is still connected")
    service.shadow_answers = [
        *((stage, None) for stage in ShadowDeletionStage if stage is not ShadowDeletionStage.DONE),
        (ShadowDeletionStage.DONE, None),
    ]
    service.shadow_answers[2:2] = [waiting, waiting, TemporaryError("the metadata store does not respond")]
    ran = shell.run("topics", "delete-shadow", "orders-shadow", "--output", "json")
    assert (ran.code, json.loads(ran.out)["stage"]) == (0, "done")
    assert service.calls("delete_shadow") == [(parse_topic_name("orders-shadow"), None)] * 9
    assert ran.err.splitlines() == [
        "next: set infinite retention, so that brokers trim none of the source's ledgers",
        "next: remove it from the source's shadow topics, and unload the source",
        "waiting: the replicator is still connected",
        "waiting: the metadata store does not respond (HTTP 503)",
        "next: remove the source's ledgers from the shadow's list",
        "next: have the broker delete the shadow",
        "next: check that every ledger of the source exists",
    ]


def test_a_refusal_ends_it(shell: Terminal, service: FakeDeletionService) -> None:
    service.shadow_answers = [
        (ShadowDeletionStage.PROTECTING, None),
        ConflictError("2 consumers or readers are connected"),
    ]
    ran = shell.run("topics", "delete-shadow", "orders-shadow")
    assert (ran.code, ran.out) == (1, "")
    assert "2 consumers or readers are connected (HTTP 409)" in ran.err


def test_a_first_call_that_fails_ends_it(shell: Terminal, service: FakeDeletionService) -> None:
    service.shadow_answers = [TemporaryError("the brokers do not respond")]
    ran = shell.run("topics", "delete-shadow", "orders-shadow")
    assert (ran.code, "the brokers do not respond" in ran.err) == (1, True)


def test_when_the_time_is_over_it_names_the_next_step(shell: Terminal, service: FakeDeletionService) -> None:
    service.shadow_answers = [(ShadowDeletionStage.REMOVING, "a broker still has it loaded")]
    ran = shell.run("topics", "delete-shadow", "orders-shadow", "--wait-seconds", "0")
    assert (ran.code, ran.out) == (4, "")
    assert ran.err.splitlines()[-1] == "orders-shadow is not deleted yet; run the same command again to continue"


def test_a_ledger_that_is_lost_is_a_failure(shell: Terminal, service: FakeDeletionService) -> None:
    service.shadow_answers = [(ShadowDeletionStage.DONE, None, 7)]
    ran = shell.run("topics", "delete-shadow", "orders-shadow", "--output", "json")
    assert (ran.code, json.loads(ran.out)["missingLedgers"]) == (1, [7])
    assert "the source lacks 1 ledger that it had before" in ran.err


def test_unchecked_source_exits_with_1(shell: Terminal, service: FakeDeletionService) -> None:
    service.missing_sources = ("persistent://public/default/source",)
    ran = shell.run("topics", "delete-shadow", "orders-shadow", "--output", "json")
    assert (ran.code, json.loads(ran.out)["stage"]) == (1, "done")
    assert "persistent://public/default/source does not exist, so its ledgers could not be checked" in ran.err
