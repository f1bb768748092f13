import pytest
from pulsar_sidecar.ledger_deletion.service import ShadowDeletionStage
from pulsar_sidecar.model.errors import ConflictError
from pulsar_sidecar.model.names import TopicName, parse_topic_name

from tests.fakes.deletion_service import FakeDeletionService
from tests.unit.api.serving import Served


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/admin/v2/persistent/public/default/orders%20shadow", "persistent://public/default/orders shadow"),
        ("/admin/persistent/p/c/n/orders", "persistent://p/c/n/orders"),
    ],
)
def test_a_deletion_that_waits_is_202(path: str, name: str, service: FakeDeletionService, server: Served) -> None:
    service.shadow_answers = [(ShadowDeletionStage.REMOVING, "a broker still has it loaded")]
    answer = server.ask("POST", f"{path}/deleteShadow")
    topic: TopicName = parse_topic_name(name)
    assert service.calls("delete_shadow") == [(topic, None)]
    assert answer.status == 202
    assert answer.json == {
        "operationId": "op-1",
        "topic": name,
        "source": "persistent://public/default/source",
        "stage": "removing",
        "requestedMs": 1_700_000_000_000,
        "waitsFor": "a broker still has it loaded",
        "sourceLedgers": 5,
        "missingLedgers": [],
        "missingBefore": [3],
        "missingSources": [],
    }


def test_done_is_200_and_names_what_is_lost(service: FakeDeletionService, server: Served) -> None:
    service.shadow_answers = [(ShadowDeletionStage.DONE, None, 7)]
    answer = server.ask("POST", "/admin/v2/persistent/public/default/shadow/deleteShadow")
    assert (answer.status, answer.json["stage"]) == (200, "done")
    assert (answer.json["missingLedgers"], answer.json["missingBefore"]) == ([7], [3])


def test_a_refusal_is_409(service: FakeDeletionService, server: Served) -> None:
    service.shadow_answers = [ConflictError("it is not a shadow topic")]
    answer = server.ask("POST", "/admin/v2/persistent/public/default/shadow/deleteShadow")
    assert (answer.status, answer.reason) == (409, "it is not a shadow topic")
