"""The doctor's conclusions about a healthy cluster with one change at a time."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from pulsar_sidecar.features.doctor.checks import examine
from pulsar_sidecar.features.doctor.facts import (
    BookieFacts,
    BrokerFacts,
    BrokersFacts,
    Facts,
    Feature,
    OwnFacts,
    StoreFacts,
    StoreServer,
)
from pulsar_sidecar.features.doctor.findings import Finding, Level, counted
from pulsar_sidecar.model.errors import NotAuthenticatedError, NotAuthorizedError, TemporaryError, UnreachableError

AWAY = UnreachableError("not a word from it; check that it runs")
REFUSED = NotAuthorizedError("no; grant the sidecar's role this operation")
SETTINGS: Mapping[str, object] = {
    "clusterName": "east",
    "systemTopicEnabled": "true",
    "topicLevelPoliciesEnabled": "true",
    "delayedDeliveryEnabled": "true",
}
BROKER = BrokerFacts("broker-1:8080", "4.0.8", SETTINGS, 0.4)
OTHER = replace(BROKER, name="broker-2:8080")
WELL = Facts(
    OwnFacts((Feature("deleting", True, "it deletes", "x=true"),), (), True, None),
    StoreFacts("zk:z:2181", {"z:2181": StoreServer("3.9.4", "leader")}, (), (), 0.01),
    BrokersFacts({"http://broker-1:8080": None, "pulsar://broker-1:6650": None}, (BROKER, OTHER), None, ()),
    (BookieFacts("bookie-1:3181", False, None),),
)


def with_store(**changed: Any) -> Facts:
    return replace(WELL, store=replace(WELL.store, **changed))


def with_brokers(**changed: Any) -> Facts:
    return replace(WELL, brokers=replace(WELL.brokers, **changed))


def with_broker(**changed: Any) -> Facts:
    return with_brokers(registered=(BROKER, replace(OTHER, **changed)))


def with_settings(**changed: object) -> Facts:
    return with_broker(settings={**SETTINGS, **changed})


def wrong(facts: Facts) -> list[Finding]:
    return [finding for finding in examine(facts) if finding.level is not Level.OK]


def test_as_many_ranges_as_fit_are_well_and_so_are_more_entries_of_long_arrays() -> None:
    most = {"managedLedgerMaxUnackedRangesToPersist": "164158", "maxMessageSize": "5242880"}
    as_bits = {"managedLedgerMaxUnackedRangesToPersist": "1000000"} | dict.fromkeys(
        ("managedLedgerPersistIndividualAckAsLongArray", "managedLedgerUnackedRangesOpenCacheSetEnabled"), "true"
    )
    for settings in (most, as_bits):
        assert wrong(with_settings(**settings)) == []


def test_a_cluster_that_is_well_has_nothing_but_good_findings() -> None:
    findings = examine(WELL)
    assert wrong(WELL) == []
    assert {finding.subject for finding in findings} == {
        "metadata store", "rights", "brokers", "broker settings", "topic policies", "bookies", "clocks", "settings",
    }  # fmt: skip
    assert all(finding.remedy is None for finding in findings)
    assert counted(findings) == f"{len(findings)} ok, 0 off, 0 warning, 0 failed"


@pytest.mark.parametrize(
    ("facts", "level", "subject", "text", "remedy"),
    [
        (
            with_settings(managedLedgerMaxUnackedRangesToPersist="164159", maxMessageSize="5242880"),
            "warning", "broker settings", "164159 on broker-2:8080: an entry (maxMessageSize=5242880) has room for "
            "164,158 ranges", "set managedLedgerMaxUnackedRangesToPersist=164158 at most",
        ),
        (
            with_settings(managedLedgerMaxUnackedRangesToPersistInMetadataStore="32737"),
            "warning", "broker settings", "a node (juteMaxBufferBytes=1048575) has room for 32,735 ranges",
            "jute.maxbuffer",
        ),
        (with_store(servers={"z:2181": AWAY}), "warning", "metadata store", "z:2181 does not respond", "start it"),
        (
            with_store(servers={"z:2181": StoreServer("3.5.9", "leader")}),
            "failed", "metadata store", "ZooKeeper 3.5.9", "upgrade",
        ),
        (with_store(missing=AWAY), "failed", "metadata store", "cannot be read: not a word", "metadataStoreUrl"),
        (with_store(missing=["/a", "/b"]), "failed", "metadata store", "no /a and no /b", "chroot"),
        (with_store(undeletable=["/ledgers"]), "failed", "rights", "may not delete nodes below /ledgers", "DELETE"),
        (
            replace(with_store(undeletable=["/ledgers"]), own=replace(WELL.own, deletes=False)),
            "warning", "rights", "may not delete nodes below /ledgers", "DELETE",
        ),
        (with_store(undeletable=AWAY), "warning", "metadata store", "the sidecar's permissions: not a", "run this"),
        (with_store(ahead_seconds=-90.2), "warning", "clocks", "this machine's clock is 90 s behind", "chrony"),
        (with_store(ahead_seconds=AWAY), "warning", "clocks", "could not examine", "run this again"),
        (with_broker(ahead_seconds=5.0), "warning", "clocks", "broker-2:8080 is 5 s ahead of", "chrony"),
        (with_brokers(addresses={"http://b": AWAY}), "failed", "brokers", "http://b does not respond", "webServiceUrl"),
        (with_brokers(registered=()), "failed", "brokers", "no broker is registered", "start the brokers"),
        (with_brokers(registered=AWAY), "warning", "brokers", "could not examine the list", "run this again"),
        (with_broker(version=AWAY), "warning", "brokers", "broker-2:8080 does not respond", "start it again"),
        (with_broker(version="2.10.6"), "warning", "brokers", "broker-2:8080 runs Pulsar 2.10.6", "test cluster"),
        (with_broker(version=None), "warning", "brokers", "runs Pulsar an unknown version", "test cluster"),
        (with_brokers(mismatch="theirs is x; set y"), "failed", "brokers", "theirs is x", "set y"),
        (with_brokers(mismatch=AWAY), "warning", "brokers", "metadata store", "run this again"),
        (with_broker(settings=REFUSED), "failed", "rights", "brokers refuse the sidecar: no", "superUserRoles"),
        (
            with_brokers(addresses={"http://b": NotAuthenticatedError("who?")}),
            "failed", "rights", "brokers do not authenticate the sidecar", "authParams",
        ),
        (with_brokers(own_topics=["they expire"]), "warning", "topic policies", "they expire", None),
        (with_brokers(own_topics=["no delay; lift it"]), "warning", "topic policies", "no delay", "lift it"),
        (with_brokers(own_topics=TemporaryError("busy")), "warning", "topic policies", "busy", "run this again"),
        (with_settings(clusterName="west"), "failed", "broker settings", "is east, west", "clusterName"),
        (with_settings(systemTopicEnabled="false"), "failed", "broker settings", "topics have no policies", "=true"),
        (
            with_settings(delayedDeliveryEnabled=False),
            "warning", "broker settings", "delayedDeliveryEnabled=False on broker-2:8080", "restart the brokers",
        ),
        (with_settings(brokerDeduplicationEnabled="false"), "off", "broker settings", "duplicates", "set brokerDedup"),
        (replace(WELL, bookies=()), "failed", "bookies", "no bookie is registered", "ledgersRootPath"),
        (replace(WELL, bookies=AWAY), "warning", "bookies", "the list of bookies", "run this again"),
        (
            replace(WELL, bookies=[BookieFacts("b:1", False, AWAY)]),
            "warning", "bookies", "b:1 does not respond", "reach its port",
        ),
        (replace(WELL, bookies=[BookieFacts("b:1", True, None)]), "warning", "bookies", "read-only", "free space"),
        (
            replace(WELL, own=replace(WELL.own, warnings=["in clear; use TLS"])),
            "warning", "settings", "in clear", "use TLS",
        ),
        (
            replace(WELL, own=replace(WELL.own, features=(Feature("deleting", False, "it deletes", "x=true"),))),
            "off", "settings", "deleting is off: it deletes", "set x=true",
        ),
        (replace(WELL, own=replace(WELL.own, cluster_name="west")), "failed", "broker settings", "is west", "leave it"),
    ],
)  # fmt: skip
def test_each_thing_that_is_not_well_has_its_line_and_its_remedy(
    facts: Facts, level: str, subject: str, text: str, remedy: str | None
) -> None:
    (finding,) = wrong(facts)
    assert (finding.level, finding.subject) == (Level(level), subject)
    assert text in finding.text
    assert (finding.remedy is None) if remedy is None else (remedy in (finding.remedy or ""))


def test_while_the_metadata_store_is_away_its_rights_and_clock_are_left_out() -> None:
    facts = with_store(missing=AWAY, undeletable=AWAY, ahead_seconds=AWAY)
    assert [finding.subject for finding in wrong(facts)] == ["metadata store"]


def test_topics_that_do_not_exist_yet_are_no_fault() -> None:
    assert wrong(with_brokers(own_topics=None)) == []
    assert any("`serve` creates them" in finding.text for finding in examine(with_brokers(own_topics=None)))


def test_a_setting_that_differs_on_all_brokers_names_none() -> None:
    same = {**SETTINGS, "delayedDeliveryEnabled": "false"}
    (finding,) = wrong(with_brokers(registered=[replace(BROKER, settings=same), replace(OTHER, settings=same)]))
    assert finding.text == "delayedDeliveryEnabled=false: brokers deliver delayed messages immediately"
