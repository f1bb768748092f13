"""The Java admin client's calls that delete: what they raise, and that the ledgers were recorded first."""

from tests.admin_clients.comparing import SIDES
from tests.admin_clients.java_admin import Caller, JavaAdmin
from tests.admin_clients.preparing import Preparing
from tests.cluster.sidecars import SidecarProcess
from tests.cluster.tokens import token

_DELETIONS = (
    ("topic", "persistent://{tenant}/ready/none", False),
    ("topic", "persistent://{tenant}/ready/parted", False),
    ("partitionedTopic", "persistent://{tenant}/ready/none", False),
    ("namespace", "{tenant}/ready", False),
    ("namespace", "{tenant}/none", False),
    ("tenant", "{tenant}", False),
    ("schema", "persistent://{tenant}/ready/none", False),
    ("topic", "persistent://{tenant}/ready/plain", False),
    ("topicWithItsSchema", "persistent://{tenant}/ready/plain", True),
    ("topicLater", "persistent://{tenant}/ready/plain", True),
    ("topicLater", "persistent://{tenant}/ready/parted-partition-0", True),
    ("partitionedTopic", "persistent://{tenant}/ready/parted", True),
    ("partitionedTopicLater", "persistent://{tenant}/ready/parted", False),
    ("namespaceLater", "{tenant}/ready", False),
    ("namespace", "{tenant}/ready", True),
    ("tenant", "{tenant}", False),
)


def test_deletions_end_the_same(broker: str, sidecar: SidecarProcess, java: JavaAdmin, preparing: Preparing) -> None:
    secret = token("admin")
    ended = []
    for url, side in zip((broker, sidecar.url), SIDES, strict=True):
        scene, caller = preparing.scene("java", side), Caller(url, secret)
        ended.append(
            [
                (what, name, java.deletion(caller, what, name.format(tenant=scene.tenant), force=force))
                for what, name, force in _DELETIONS
            ]
        )
    assert ended[0] == ended[1]


def test_a_deletion_by_the_java_client_records_the_ledgers(
    sidecar: SidecarProcess, java: JavaAdmin, preparing: Preparing
) -> None:
    scene = preparing.scene("recorded", SIDES[0])
    before = sidecar.metrics()["pulsar_ledger_deletion_sent_total"]
    topic = f"persistent://{scene.tenant}/ready/plain"
    assert java.deletion(Caller(sidecar.url, token("admin")), "topic", topic) == ("", 0)
    assert sidecar.metrics()["pulsar_ledger_deletion_sent_total"] > before
