from collections.abc import Mapping
from pathlib import Path

import pytest
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.settings.fields import GROUPS, Settings, load_settings
from pulsar_sidecar.settings.sources import environment_variable, setting_key

STORE = {"metadata_store_url": "zk:localhost:2181"}
SECRET = "data:;base64,c2VjcmV0LW9mLXRoZS1zaWRlY2Fy"


def load(
    flags: Mapping[str, str | None] | None = None,
    environment: Mapping[str, str] | None = None,
    config: Path | None = None,
    warnings: list[str] | None = None,
) -> Settings:
    messages = [] if warnings is None else warnings
    return load_settings({**STORE, **(flags or {})}, environment or {}, config, messages.append)


def refused(flags: Mapping[str, str | None], environment: Mapping[str, str] | None = None) -> str:
    with pytest.raises(InvalidInputError) as raised:
        load(flags, environment)
    return str(raised.value)


def test_the_pips_defaults() -> None:
    settings = load()
    assert settings.topic_two_phase_deletion_enabled is False
    assert settings.two_phase_deletion_ledger_deletion_parallelism == 4
    assert settings.two_phase_deletion_reconsume_later_in_seconds == 600
    assert settings.two_phase_deletion_max_retry_delete_count == 10
    assert settings.listen == "127.0.0.1:8750"


def test_the_nearest_source_wins(tmp_path: Path) -> None:
    config = tmp_path / "sidecar.conf"
    client_conf = tmp_path / "client.conf"
    config.write_text(
        "webServiceUrl=http://file:1\nbrokerServiceUrl=pulsar://file:1\nlogLevel=ERROR\nlisten=127.0.0.1:3\n"
    )
    client_conf.write_text(
        "webServiceUrl=http://client:1/\nbrokerServiceUrl=pulsar://client:1/\nauthPlugin=token\nproxyServiceUrl=x\n"
    )
    environment = {
        "PULSAR_CLIENT_CONF": str(client_conf),
        "PULSAR_SIDECAR_WEB_SERVICE_URL": "http://environment:1",
        "PULSAR_SIDECAR_LISTEN": "127.0.0.1:2",
    }
    settings = load({"listen": "127.0.0.1:1"}, environment, config)
    assert settings.listen == "127.0.0.1:1"
    assert settings.web_service_url == "http://environment:1"
    assert settings.broker_service_url == "pulsar://file:1"
    assert settings.auth_plugin == "token"
    assert settings.log_level == "ERROR"


def test_the_file_may_be_named_by_the_environment(tmp_path: Path) -> None:
    config = tmp_path / "sidecar.conf"
    config.write_text("twoPhaseDeletionBatchSize = 17\n")
    assert load(environment={"PULSAR_SIDECAR_CONFIG": str(config)}).two_phase_deletion_batch_size == 17


def test_empty_value_counts_as_unset(tmp_path: Path) -> None:
    config = tmp_path / "sidecar.conf"
    config.write_text("authPlugin=\nlisten=\n")
    settings = load({"log_level": ""}, {"PULSAR_SIDECAR_LISTEN": ""}, config)
    assert (settings.auth_plugin, settings.listen, settings.log_level) == (None, "127.0.0.1:8750", "INFO")


def test_the_distributions_client_conf_is_read_if_it_is_there(tmp_path: Path) -> None:
    assert load(environment={"PULSAR_HOME": str(tmp_path)}).web_service_url == "http://localhost:8080"
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "client.conf").write_text("webServiceUrl=http://broker:8080/\n")
    assert load(environment={"PULSAR_HOME": str(tmp_path)}).web_service_url == "http://broker:8080"


def test_a_client_conf_that_is_named_must_exist() -> None:
    assert "/no/such/client.conf" in refused({}, {"PULSAR_CLIENT_CONF": "/no/such/client.conf"})


def test_the_process_environment_is_not_read_behind_the_callers_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULSAR_SIDECAR_LISTEN", "127.0.0.1:9")
    monkeypatch.setenv("LISTEN", "127.0.0.1:9")
    assert load().listen == "127.0.0.1:8750"
    assert Settings(metadata_store_url="zk:h").listen == "127.0.0.1:8750"


def test_an_unknown_key_is_refused_with_the_nearest_one(tmp_path: Path) -> None:
    config = tmp_path / "sidecar.conf"
    config.write_text("topicTwoPhaseDeletionEnable=true\n")
    with pytest.raises(InvalidInputError, match="did you mean topicTwoPhaseDeletionEnabled"):
        load(config=config)


@pytest.mark.parametrize(
    ("variable", "meant"),
    [("PULSAR_SIDECAR_LISEN", "; did you mean PULSAR_SIDECAR_LISTEN?"), ("PULSAR_SIDECAR_PORT", "")],
)
def test_an_unknown_variable_is_warned_about(variable: str, meant: str) -> None:
    warnings: list[str] = []
    others = ("PULSAR_SIDECAR_ADMIN_URL", "PULSAR_SIDECAR_CACHE", "PULSAR_OTHER")
    load(environment=dict.fromkeys((variable, *others), "x"), warnings=warnings)
    assert warnings == [f"the environment variable {variable} is not a setting and has no effect{meant}"]


def test_missing_setting_is_named_in_every_spelling() -> None:
    with pytest.raises(InvalidInputError) as raised:
        load_settings({}, {})
    for spelling in ("metadataStoreUrl", "--metadata-store-url", "PULSAR_SIDECAR_METADATA_STORE_URL", "zk:"):
        assert spelling in str(raised.value)


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("listen", "8750"),
        ("listen", "127.0.0.1:0"),
        ("listen", "127.0.0.1:65536"),
        ("listen", ":8750"),
        ("listen", "127.0.0.1:x"),
        ("web_service_url", "localhost:8080"),
        ("broker_service_url", "http://localhost:6650"),
        ("metadata_store_url", "localhost:2181"),
        ("metadata_store_session_timeout_millis", "10"),
        ("ledgers_root_path", "ledgers"),
        ("ledgers_root_path", "/ledgers/"),
        ("instance_name", "a/b"),
        ("topic_two_phase_deletion_enabled", "perhaps"),
        ("two_phase_deletion_ledger_deletion_parallelism", "0"),
        ("two_phase_deletion_batch_size", "many"),
        ("two_phase_deletion_reconsume_later_in_seconds", "-1"),
        ("two_phase_deletion_rate_per_second", "0"),
        ("two_phase_deletion_rate_per_second", "nan"),
        ("two_phase_deletion_latency_factor", "0.5"),
        ("two_phase_deletion_latency_factor", "inf"),
        ("log_level", "LOUD"),
        ("log_format", "xml"),
    ],
)
def test_a_wrong_setting_is_named_with_its_source_and_what_to_write(field: str, text: str) -> None:
    environment = {environment_variable("metadata_store_url"): "zk:h", environment_variable(field): text}
    with pytest.raises(InvalidInputError) as raised:
        load_settings({}, environment)
    messages = str(raised.value)
    assert messages.startswith(f"{setting_key(field)} (environment): ")
    assert f"write for example {setting_key(field)}=" in messages


def test_all_invalid_settings_are_reported_together() -> None:
    messages = refused({"listen": "x", "log_level": "y"})
    assert "listen" in messages
    assert "logLevel" in messages


@pytest.mark.parametrize("listen", ["0.0.0.0:8750", "[::]:8750", "10.1.2.3:8750", "sidecar.example:8750"])
def test_other_machines_only_with_authentication(listen: str) -> None:
    messages = refused({"listen": listen})
    assert listen in messages
    assert "authenticationEnabled" in messages
    settings = load(
        {"listen": listen, "authentication_enabled": "true", "token_secret_key": SECRET, "super_user_roles": "admin"}
    )
    assert settings.listen == listen


@pytest.mark.parametrize("listen", ["127.0.0.1:1", "127.8.8.8:1", "[::1]:1", "localhost:1"])
def test_loopback_needs_no_authentication(listen: str) -> None:
    assert load({"listen": listen}).listens_on_loopback


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"token_secret_key": SECRET},
        {"super_user_roles": "a"},
        {"token_secret_key": SECRET, "super_user_roles": " , "},
    ],
)
def test_authentication_needs_a_credential_and_one_role_that_may_call(flags: dict[str, str]) -> None:
    assert "authenticationEnabled=true needs" in refused({"authentication_enabled": "true", **flags})


OPEN_ID = {"openid_allowed_token_issuers": "https://id.example", "openid_allowed_audiences": "sidecar"}
LISTENER_TLS = {"listen_tls_certificate_file_path": "c.pem", "listen_tls_key_file_path": "k.pem"}
CLIENTS = LISTENER_TLS | {"listen_tls_trust_certs_file_path": "clients.pem"}


@pytest.mark.parametrize("way", [{"token_public_key": SECRET}, OPEN_ID, CLIENTS, OPEN_ID | CLIENTS])
def test_each_credential_is_enough(way: dict[str, str]) -> None:
    assert load({"authentication_enabled": "true", "super_user_roles": "a", **way}).authentication_enabled


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ({"token_secret_key": SECRET, "token_public_key": SECRET}, "tokenSecretKey and tokenPublicKey exclude"),
        ({"openid_allowed_token_issuers": "https://id.example"}, "openIDAllowedAudiences"),
        ({"openid_allowed_audiences": "sidecar"}, "openIDAllowedTokenIssuers"),
        (OPEN_ID | {"openid_allowed_token_issuers": "http://id.example"}, "must begin with https:"),
        (OPEN_ID | {"openid_allowed_token_issuers": "https://me:secret@id.example"}, "without user"),
        ({"listen_tls_trust_certs_file_path": "clients.pem"}, "needs listenTlsCertificateFilePath"),
        (
            LISTENER_TLS | {"listen_tls_require_trusted_client_cert_on_connect": "true"},
            "listenTlsRequireTrustedClientCertOnConnect needs listenTlsTrustCertsFilePath",
        ),
        ({"listen_tls_min_version": "TLSv1.1"}, "listenTlsMinVersion"),
        ({"listen_tls_certificate_file_path": "c.pem"}, "together"),
        ({"tls_certificate_file_path": "c.pem"}, "together"),
        ({"tls_key_file_path": "k.pem"}, "together"),
        ({"s3_managed_ledger_offload_credential_id": "id"}, "together"),
        ({"token_audience_claim": "aud"}, "tokenAudience is not"),
    ],
)
def test_credentials_that_do_not_fit_together_are_refused(flags: dict[str, str], problem: str) -> None:
    assert problem in refused(flags)


def test_an_audience_has_brokers_default_claim() -> None:
    assert load({"token_audience": "east"}).token_audience_claim == "aud"


def test_lists_are_separated_by_commas() -> None:
    settings = load({"super_user_roles": " admin, ops ,"})
    assert settings.super_user_roles == ("admin", "ops")


@pytest.mark.parametrize("setting", ["web_service_url", "advertised_url"])
def test_an_address_that_errors_and_the_status_show_takes_no_password(setting: str) -> None:
    problem = refused({setting: "http://me:s3cret@a:8080"})
    assert "must not contain a user or a password" in problem
    assert "s3cret" not in problem
    assert "must begin with" in refused({setting: "a:8080"})


def test_a_metadata_store_that_cannot_be_read_or_is_not_named_is_answered_with_what_to_do() -> None:
    for url in ("rocksdb:///pulsar/data/metadata", "memory:local"):
        assert "PULSAR_STANDALONE_USE_ZOOKEEPER=1 bin/pulsar standalone" in refused({"metadata_store_url": url})
    assert "supports only clusters that keep their metadata in ZooKeeper or etcd" in refused(
        {"metadata_store_url": "oxia://o:6648/n"}
    )
    with pytest.raises(InvalidInputError, match=r"is missing.*brokers' own metadataStoreUrl, in broker\.conf"):
        load_settings({}, {})


def test_secrets_are_not_shown() -> None:
    settings = load(
        {"auth_params": "token:abcdef", "token_secret_key": SECRET, "metadata_store_auth": "digest:u:abcdef"}
    )
    assert "abcdef" not in repr(settings)
    assert "c2Vj" not in repr(settings)
    assert settings.auth_params is not None
    assert settings.auth_params.get_secret_value() == "token:abcdef"
    messages = refused({"auth_params": "token:abcdef", "listen": "0.0.0.0:1"})
    assert "abcdef" not in messages


def test_effective_advertised_url_is_derived_from_listen() -> None:
    assert load({"listen": "127.0.0.1:99"}).effective_advertised_url == "http://127.0.0.1:99"
    assert load({"listen": "[::1]:99"}).effective_advertised_url == "http://[::1]:99"
    assert load({"advertised_url": "https://sidecar.example/"}).effective_advertised_url == "https://sidecar.example"
    secured = {"listen_tls_certificate_file_path": "c.pem", "listen_tls_key_file_path": "k.pem"}
    assert load(secured).effective_advertised_url == "https://127.0.0.1:8750"
    everywhere = load(
        {
            "listen": "0.0.0.0:99",
            "authentication_enabled": "true",
            "token_secret_key": SECRET,
            "super_user_roles": "a",
        }
    )
    assert "0.0.0.0" not in everywhere.effective_advertised_url


def test_two_sidecars_of_one_machine_have_two_names() -> None:
    names = {load({"listen": f"127.0.0.1:{port}"}).effective_instance_name for port in (1, 2)}
    assert len(names) == 2
    assert load({"instance_name": "east-1"}).effective_instance_name == "east-1"


@pytest.mark.parametrize("level", ["info", "Info", "INFO"])
def test_a_log_level_may_be_written_in_any_case(level: str) -> None:
    assert load({"log_level": level}).log_level == "INFO"


def test_every_setting_is_described_and_belongs_to_one_group() -> None:
    grouped = [field for group in GROUPS for field in group.model_fields]
    assert sorted(grouped) == sorted(Settings.model_fields)
    for name, field in Settings.model_fields.items():
        assert field.description, name
        if name.endswith(("_in_seconds", "_in_minutes", "_millis")):
            assert any(unit in field.description for unit in ("econds", "inutes", "illiseconds")), name
