"""The composition root without a cluster: settings reach those who need them, and mistakes end it early."""

import gc
import logging
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
import structlog
from prometheus_client import generate_latest
from pulsar_sidecar.bootstrap.app import serve, warnings_of
from pulsar_sidecar.bootstrap.callers import authentication_of
from pulsar_sidecar.bootstrap.cluster_access import ClusterAccess
from pulsar_sidecar.bootstrap.feature import Feature, missing_in
from pulsar_sidecar.bootstrap.features import FEATURES
from pulsar_sidecar.features.ledger_deletion.opening import configuration_of, open_feature
from pulsar_sidecar.features.ledger_deletion.second_phase.decide import DeletionPolicy
from pulsar_sidecar.features.ledger_deletion.second_phase.retry import RetryPolicy
from pulsar_sidecar.features.ledger_deletion.watch.results import WatchMode
from pulsar_sidecar.features.ledger_deletion.workflow.configuration import WatchConfiguration
from pulsar_sidecar.local_cluster.processes import free_ports
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.errors import DisabledError, InvalidInputError
from pulsar_sidecar.model.names import parse_topic_name
from pulsar_sidecar.observability.metrics import process_registry
from pulsar_sidecar.server.authentication import Authentication
from pulsar_sidecar.settings.fields import Settings, load_settings

CLOCK = SystemClock()
STORE = {"metadata_store_url": "zk:127.0.0.1:1", "cluster_name": "east"}


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def settings(**written: str) -> Settings:
    return load_settings({**STORE, **written}, {})


def test_the_settings_arrive_in_the_feature_in_its_own_units() -> None:
    written = settings(
        two_phase_deletion_open_ledger_min_age_in_seconds="1",
        two_phase_deletion_unlinked_ledger_min_age_in_seconds="2",
        two_phase_deletion_in_use_settle_in_seconds="3",
        two_phase_deletion_reconsume_later_in_seconds="4",
        two_phase_deletion_max_retry_delete_count="5",
        two_phase_deletion_watchdog_late_in_seconds="6",
        two_phase_deletion_topic_deletion_wait_in_seconds="7",
        two_phase_deletion_outcome_retention_in_minutes="8",
        two_phase_deletion_batch_size="9",
        two_phase_deletion_undelete_protection_in_seconds="11",
        two_phase_deletion_rate_per_second="10",
        ledgers_root_path="/chroot/ledgers",
        bookkeeper_exclusive_to_cluster="true",
        ledger_deletion_watch="append",
        ledger_deletion_watch_settle_in_seconds="12",
        ledger_deletion_watch_brake_references="13",
        ledger_deletion_watch_walk_interval_in_seconds="14",
        ledger_deletion_watch_nodes_per_second="15",
    )
    feature = configuration_of(written)
    assert feature.policy == DeletionPolicy(1_000, 2_000, 3_000, bookkeeper_exclusive=True)
    assert feature.retry_policy == RetryPolicy(4_000, 5)
    assert feature.watchdog_late_ms == 6_000
    assert feature.topic_deletion_wait_ms == 7_000
    assert feature.undelete_lookback_ms == 480_000
    assert feature.undelete_protection_ms == 11_000
    assert feature.batch_size == 9
    assert feature.rate_per_second == 10
    assert feature.ledgers_root == "/chroot/ledgers"
    assert feature.enabled is False
    assert feature.watch == WatchConfiguration(WatchMode.APPEND, 12_000, 13, 14_000, 15)


def test_the_watch_reports_where_nothing_is_written() -> None:
    assert configuration_of(settings()).watch == WatchConfiguration()
    assert WatchConfiguration().mode is WatchMode.REPORT


def test_a_service_that_is_off_names_the_setting_that_turns_it_on() -> None:
    with ExitStack() as stack:
        feature = open_feature(ClusterAccess(settings(), {}, CLOCK, stack, None, "east"))
        with pytest.raises(DisabledError, match="topicTwoPhaseDeletionEnabled"):
            feature.services[0].delete_topic(
                parse_topic_name("persistent://public/default/orders"),
                partitioned=False,
                force=False,
                requested_by=None,
            )


def test_every_feature_opens_and_shows_its_metrics_without_a_cluster() -> None:
    registry = process_registry(cluster="east", instance="a", version="1", ready=lambda: True)
    with ExitStack() as stack:
        cluster = ClusterAccess(settings(), {}, CLOCK, stack, None, "east")
        for entry in FEATURES:
            feature = entry.open(cluster)
            assert all(routes.routes for routes in entry.routes(feature.services))
            for collector in feature.collectors:
                registry.register(collector)
    shown = generate_latest(registry).decode()
    for prefix in (
        'pulsar_sidecar_info{cluster="east"',
        'pulsar_ledger_deletion_received_total{cluster="east"',
        'pulsar_delayed_message_cancellations_open{cluster="east"',
        "# HELP pulsar_subscription_ack_state_ranges",
        "process_resident_memory_bytes",
    ):
        assert prefix in shown


def test_features_open_in_any_order() -> None:
    with ExitStack() as stack:
        cluster = ClusterAccess(settings(), {}, CLOCK, stack, None, "east")
        assert all(entry.open(cluster) for entry in reversed(FEATURES))


def test_the_end_closes_every_pool_of_threads() -> None:
    def pools() -> list[ThreadPoolExecutor]:
        return [each for each in gc.get_objects() if type(each) is ThreadPoolExecutor]

    before = pools()
    with ExitStack() as stack:
        cluster = ClusterAccess(settings(), {}, CLOCK, stack, None, "east")
        opened = [cluster.closing(entry.open(cluster)) for entry in FEATURES]
    made = [pool for pool in pools() if not any(pool is each for each in before)]
    assert made
    for pool in made:
        with pytest.raises(RuntimeError, match="shutdown"):
            pool.submit(opened.clear)


def test_readiness_comes_from_every_feature() -> None:
    able, starting, stopping = Feature([]), Feature([], ready=lambda: "starting"), Feature([], ready=lambda: "stopping")
    assert missing_in([able, able]) is None
    assert missing_in([able, starting, stopping]) == "starting"
    assert missing_in([stopping, able]) == "stopping"


def test_authentication_follows_from_the_settings() -> None:
    assert authentication_of(settings(), CLOCK) is None
    key = "data:;base64," + "QUJD" * 11
    guarded = settings(authentication_enabled="true", token_secret_key=key, super_user_roles="admin")
    assert isinstance(authentication_of(guarded, CLOCK), Authentication)
    weak = settings(authentication_enabled="true", token_secret_key="QUJD", super_user_roles="admin")
    with pytest.raises(InvalidInputError, match="tokenSecretKey"):
        authentication_of(weak, CLOCK)


GUARDED = {
    "authentication_enabled": "true",
    "token_secret_key": "data:;base64," + "QUJD" * 11,
    "super_user_roles": "admin",
}
TOKEN = {"auth_plugin": "token", "auth_params": "token:abc"}
TLS = {"listen_tls_certificate_file_path": "c.pem", "listen_tls_key_file_path": "k.pem"}


@pytest.mark.parametrize(
    ("written", "warned"),
    [
        ({}, []),
        ({"web_service_url": "http://broker:8080"}, []),
        (TOKEN, []),
        (TOKEN | {"web_service_url": "https://broker:8443", "broker_service_url": "pulsar+ssl://broker:6651"}, []),
        (TOKEN | {"web_service_url": "http://127.0.0.1:8080,broker:8080"}, ["webServiceUrl names broker;"]),
        (TOKEN | {"broker_service_url": "pulsar://a:6650,b:6650"}, ["brokerServiceUrl names a, b;"]),
        ({"metadata_store_url": "zk:zookeeper:2181", "metadata_store_auth": "digest:a:b"}, ["metadataStoreAuth"]),
        (GUARDED, []),
        (GUARDED | {"listen": "0.0.0.0:8750"}, ["listenTlsCertificateFilePath"]),
        (GUARDED | TLS | {"listen": "0.0.0.0:8750"}, []),
    ],
)
def test_credentials_that_travel_in_clear_beyond_this_machine_are_warned_of(
    written: dict[str, str], warned: list[str]
) -> None:
    warnings = warnings_of(settings(**written))
    assert len(warnings) == len(warned)
    for warning, part in zip(warnings, warned, strict=True):
        assert part in warning
        assert "abc" not in warning


@pytest.mark.parametrize(
    ("written", "named"),
    [
        ({"tls_trust_certs_file_path": "/no/such.pem"}, "/no/such.pem"),
        ({"tls_certificate_file_path": "/no/c.pem", "tls_key_file_path": "/no/k.pem"}, "/no/c.pem"),
        ({"listen_tls_certificate_file_path": "/no/c.pem", "listen_tls_key_file_path": "/no/k.pem"}, "/no/c.pem"),
        ({"auth_params": "token:x"}, "authPlugin"),
        ({"auth_plugin": "kerberos"}, "authPlugin"),
        ({"metadata_store_auth": "nothing"}, "metadataStoreAuth"),
        ({"web_service_url": "http://"}, "web service URL"),
        ({"offload_allowed_locations": "nowhere"}, "offloadAllowedLocations"),
        (
            {"authentication_enabled": "true", "token_public_key": "file:///no/such", "super_user_roles": "a"},
            "tokenPublicKey",
        ),
    ],
)
def test_a_setting_that_cannot_work_ends_the_start(written: dict[str, str], named: str) -> None:
    (port,) = free_ports(1)
    flags: dict[str, str | None] = {**STORE, **written, "listen": f"127.0.0.1:{port}"}
    with pytest.raises(InvalidInputError, match=named):
        serve(flags, {}, None)


def test_a_taken_port_ends_the_start_before_the_cluster_is_touched() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        flags: dict[str, str | None] = {**STORE, "listen": f"127.0.0.1:{taken.getsockname()[1]}"}
        with pytest.raises(InvalidInputError, match="cannot listen"):
            serve(flags, {}, None)


def test_a_missing_configuration_file_is_named() -> None:
    with pytest.raises(InvalidInputError, match="/no/such/file"):
        serve(dict(STORE), {}, Path("/no/such/file"))
