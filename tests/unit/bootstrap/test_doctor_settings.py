"""The doctor's findings in the sidecar's own settings, without any cluster."""

import resource
from pathlib import Path

from pulsar_sidecar.bootstrap.doctor_settings import own_facts
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.settings.fields import Settings, load_settings

from tests.cluster.certificates import write_certificate

HOUR_MS = 3_600_000
NOW_MS = SystemClock().now_ms()


def settings(**flags: str) -> Settings:
    return load_settings({"metadata_store_url": "zk:z:2181", "max_http_server_connections": "1", **flags}, {})


def with_certificate(directory: Path) -> Settings:
    certificate = write_certificate(directory, "sidecar")
    return settings(
        listen_tls_certificate_file_path=str(certificate.file), listen_tls_key_file_path=str(certificate.key_file)
    )


def test_disabled_features_name_their_settings() -> None:
    facts = own_facts(settings(), ("known",), NOW_MS)
    assert [feature.name for feature in facts.features if feature.on] == ["pass-through to brokers"]
    assert all(feature.setting and feature.purpose for feature in facts.features)
    assert (facts.warnings, facts.deletes, facts.cluster_name) == (["known"], False, None)


def test_enabled_features_are_reported() -> None:
    on = settings(topic_two_phase_deletion_enabled="true", ledger_deletion_watch="append", cluster_name="east")
    facts = own_facts(on, (), NOW_MS)
    assert [feature.name for feature in facts.features if feature.on] == [
        "two-phase deletion",
        "appending of leaked ledgers",
        "pass-through to brokers",
    ]
    assert (facts.deletes, facts.cluster_name) == (True, "east")


def test_certificates_that_end_soon_or_cannot_be_read(tmp_path: Path) -> None:
    guarded = with_certificate(tmp_path)
    (soon,) = own_facts(guarded, (), NOW_MS).warnings
    assert "sidecar.crt expires in 0 days; renew it" in soon
    (over,) = own_facts(guarded, (), NOW_MS + 2 * HOUR_MS).warnings
    assert "has expired; renew it" in over
    assert own_facts(guarded, (), NOW_MS - 20 * 24 * HOUR_MS).warnings == []
    (tmp_path / "sidecar.crt").write_text("x")
    (unread,) = own_facts(guarded, (), NOW_MS).warnings
    assert "cannot be read (ValueError)" in unread


def test_more_connections_than_files_allow() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    warnings = own_facts(settings(max_http_server_connections="30000"), (), NOW_MS).warnings
    assert any("maxHttpServerConnections=30000" in warning for warning in warnings) == (0 < hard < 60_000)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
