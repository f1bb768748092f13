"""``pulsar-sidecar doctor`` at real clusters: well, wrongly addressed, guarded by tokens and by ZooKeeper."""

import json
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from kazoo.security import OPEN_ACL_UNSAFE, make_digest_acl
from pulsar_sidecar.local_cluster.state import ClusterAddresses

from tests.cluster.patience import until
from tests.cluster.running import ClusterUnderTest
from tests.cluster.sidecars import Sidecars, run_command
from tests.cluster.tokens import token
from tests.contract.metadata_store_servers import raw_client

Line = tuple[str, str, str]


def doctor(addresses: ClusterAddresses, *flags: str) -> tuple[int, Sequence[Line]]:
    """Return the exit code, and level, subject, and finding with remedy of each line; later flags win."""
    answer = run_command(
        "--output", "json", "doctor",
        "--web-service-url", ",".join(addresses.web_service_urls),
        "--broker-service-url", addresses.broker_service_url,
        "--metadata-store-url", addresses.metadata_store_url,
        *flags,
    )  # fmt: skip
    assert "Traceback" not in answer.stderr
    assert answer.stdout, answer.stderr
    return answer.exit_code, [
        (each["level"], each["subject"], f"{each['finding']}; {each['remedy']}") for each in answer.json
    ]


def of_level(lines: Sequence[Line], *levels: str) -> list[Line]:
    return [line for line in lines if line[0] in levels]


def subjects_of_warnings(addresses: ClusterAddresses, *flags: str) -> list[str]:
    return [subject for _, subject, _ in of_level(doctor(addresses, *flags)[1], "warning")]


def test_a_healthy_cluster(cluster: ClusterUnderTest) -> None:
    code, lines = doctor(cluster.addresses)
    assert (code, of_level(lines, "failed", "warning")) == (0, [])
    good = {subject: text for level, subject, text in lines if level == "ok"}
    assert {"metadata store", "brokers", "rights", "broker settings", "bookies", "clocks"} <= set(good)
    assert cluster.addresses.version in "".join(text for _, subject, text in lines if subject == "brokers")
    assert "clocks are within" in good["clocks"], "brokers report theirs"
    assert any("two-phase deletion is off" in text for level, _, text in lines if level == "off")


def test_a_sidecar_logs_at_its_start_what_the_doctor_found(cluster: ClusterUnderTest, tmp_path: Path) -> None:
    with closing(Sidecars(cluster.addresses, tmp_path)) as sidecars:
        sidecar = sidecars.start_with_defaults(log_format="json")
        until(lambda: '"event": "doctor finished"' in sidecar.whole_log, "the doctor has looked")
        logged = [json.loads(line) for line in sidecar.whole_log.splitlines()]
        (line,) = [line for line in logged if line["event"] == "doctor finished"]
        assert line["level"] == "info", line
        assert line["result"].endswith(" off, 0 warning, 0 failed")
        until(lambda: "consuming pending deletions" in sidecar.whole_log, "its topics exist")
        code, lines = doctor(cluster.addresses)
        assert (code, of_level(lines, "failed", "warning")) == (0, [])
        assert any(subject == "topic policies" for _, subject, _ in lines)


def test_wrong_addresses(cluster: ClusterUnderTest) -> None:
    addresses = cluster.addresses
    code, lines = doctor(addresses, "--metadata-store-url", f"{addresses.metadata_store_url}/elsewhere")
    assert code == 2
    assert any("/elsewhere" in text for _, subject, text in of_level(lines, "failed") if subject == "metadata store")
    code, lines = doctor(addresses, "--ledgers-root-path", "/no-ledgers", "--cluster-name", "elsewhere")
    failed = " ".join(text for _, _, text in of_level(lines, "failed"))
    assert code == 2
    assert "has no /no-ledgers" in failed
    assert "clusterName is elsewhere" in failed
    assert "no bookie is registered" in failed
    code, lines = doctor(addresses, "--broker-service-url", "pulsar://127.0.0.1:1")
    assert code == 2
    assert [text.partition(" ")[0] for _, _, text in of_level(lines, "failed")] == ["pulsar://127.0.0.1:1"]


@contextmanager
def private(url: str, path: str) -> Iterator[None]:
    with raw_client(url) as owner:
        owner.add_auth("digest", "owner:secret")
        owner.set_acls(path, [make_digest_acl("owner", "secret", all=True)])
        try:
            yield
        finally:
            owner.set_acls(path, OPEN_ACL_UNSAFE)


def test_rights_at_brokers(guarded: ClusterUnderTest) -> None:
    for credential, level, remedy in (
        ("token:x.y.z", "failed", "authParams"),
        (f"token:{token('nobody')}", "failed", "superUserRoles"),
        (f"token:{token('admin')}", "ok", "superuser"),
    ):
        code, lines = doctor(guarded.addresses, "--auth-plugin", "token", "--auth-params", credential)
        assert code == (2 if level == "failed" else 0), lines
        assert [line for line in of_level(lines, level) if line[1] == "rights" and remedy in line[2]], lines
        assert credential.removeprefix("token:") not in str(lines)
    assert [text.partition(":")[0] for _, _, text in of_level(lines, "warning")] == ["delayedDeliveryEnabled=false"]


def test_rights_in_the_metadata_store_and_members_that_are_away(guarded: ClusterUnderTest) -> None:
    addresses = guarded.addresses
    admin = ("--auth-plugin", "token", "--auth-params", f"token:{token('admin')}", "--topic-two-phase-deletion-enabled")
    with private(addresses.metadata_store_url, "/managed-ledgers"):
        code, lines = doctor(addresses, *admin, "--metadata-store-auth", "digest:owner:secret")
        assert (code, of_level(lines, "failed")) == (0, [])
        code, lines = doctor(addresses, *admin, "--metadata-store-auth", "digest:stranger:secret")
        (failed,) = of_level(lines, "failed")
        assert (code, failed[1]) == (2, "rights")
        assert "may not delete nodes below /managed-ledgers" in failed[2]
    guarded.stop("bookie-1")
    try:
        until(lambda: "bookies" in subjects_of_warnings(addresses, *admin), "the bookie is missed")
    finally:
        guarded.cont("bookie-1")
