"""Settings in the words of those who need them: each type of an adapter, a room or a door that settings decide.

Invariant: units are turned here and nowhere else; a setting that cannot be used ends in one error that names it.
"""

from collections.abc import Mapping
from urllib.parse import urlsplit

from pulsar_sidecar.adapters.metadata.session import ZooKeeperCredential, parse_credential
from pulsar_sidecar.adapters.metadata.url import parse_metadata_store_url
from pulsar_sidecar.adapters.offload.credentials import AccessKey, OffloadCredentials, credentials_from_environment
from pulsar_sidecar.adapters.pulsar.credentials import (
    ClientCertificate,
    ClientCredentials,
    TlsOptions,
    parse_credentials,
)
from pulsar_sidecar.adapters.pulsar.topics.pending_consumer import ConsumerSettings
from pulsar_sidecar.adapters.pulsar.topics.topics_setup import TopicsSettings
from pulsar_sidecar.api.authentication import Authenticator, NoAuthentication, TokenAuthentication, TokenClaims
from pulsar_sidecar.api.server import Endpoint
from pulsar_sidecar.api.token_keys import public_key, secret_key
from pulsar_sidecar.delayed_delivery.ports import Configuration as CancellingConfiguration
from pulsar_sidecar.ledger_deletion.second_phase.decide import Policy
from pulsar_sidecar.ledger_deletion.second_phase.retry import RetryPolicy
from pulsar_sidecar.ledger_deletion.service import SidecarInstance
from pulsar_sidecar.ledger_deletion.workflow.runtime import Configuration
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.tls import is_loopback
from pulsar_sidecar.settings.fields import Settings


def configuration_of(settings: Settings) -> Configuration:
    """The room's settings, in its own units."""
    return Configuration(
        enabled=settings.topic_two_phase_deletion_enabled,
        ledgers_root=settings.ledgers_root_path,
        policy=Policy(
            open_min_age_ms=settings.two_phase_deletion_open_ledger_min_age_in_seconds * 1000,
            unlinked_min_age_ms=settings.two_phase_deletion_unlinked_ledger_min_age_in_seconds * 1000,
            in_use_wait_ms=settings.two_phase_deletion_in_use_settle_in_seconds * 1000,
            bookkeeper_exclusive=settings.bookkeeper_exclusive_to_cluster,
        ),
        retry_policy=RetryPolicy(
            reconsume_later_ms=settings.two_phase_deletion_reconsume_later_in_seconds * 1000,
            max_redeliver_count=settings.two_phase_deletion_max_retry_delete_count,
        ),
        rate_per_second=settings.two_phase_deletion_rate_per_second,
        watchdog_late_ms=settings.two_phase_deletion_watchdog_late_in_seconds * 1000,
        topic_deletion_wait_ms=settings.two_phase_deletion_topic_deletion_wait_in_seconds * 1000,
        undelete_lookback_ms=settings.two_phase_deletion_outcome_retention_in_minutes * 60_000,
        undelete_protection_ms=settings.two_phase_deletion_undelete_protection_in_seconds * 1000,
        batch_size=settings.two_phase_deletion_batch_size,
    )


def cancelling_configuration_of(settings: Settings) -> CancellingConfiguration:
    return CancellingConfiguration(
        enabled=settings.delayed_message_cancelling_enabled,
        reconcile_interval_ms=settings.delayed_message_reassert_in_seconds * 1000,
        persist_patience_ms=settings.delayed_message_persist_wait_in_seconds * 1000,
    )


def instance_of(settings: Settings, clock: Clock) -> SidecarInstance:
    # With several brokers in one setting, this sidecar stands beside none of them in particular.
    one_broker = "," not in settings.web_service_url
    return SidecarInstance(
        name=settings.effective_instance_name,
        advertised_url=settings.effective_advertised_url,
        broker_url=settings.web_service_url if one_broker else None,
        started_ms=clock.now_ms(),
    )


def topics_settings_of(settings: Settings) -> TopicsSettings:
    return TopicsSettings(
        parallelism=settings.two_phase_deletion_ledger_deletion_parallelism,
        outcome_retention_minutes=settings.two_phase_deletion_outcome_retention_in_minutes,
        outcome_retention_mebibytes=settings.two_phase_deletion_outcome_retention_size_in_mb,
    )


def consumer_settings_of(settings: Settings) -> ConsumerSettings:
    return ConsumerSettings(
        max_messages=settings.two_phase_deletion_batch_size,
        postpone_ms=settings.two_phase_deletion_postpone_in_seconds * 1000,
        consumer_name=settings.effective_instance_name,
    )


def credentials_of(settings: Settings) -> ClientCredentials:
    if settings.auth_params is not None and settings.auth_plugin is None:
        raise InvalidInputError("authParams are set and authPlugin is not; write for example authPlugin=token")
    params = settings.auth_params.get_secret_value() if settings.auth_params else None
    return parse_credentials(settings.auth_plugin, params, _client_certificate(settings))


def tls_of(settings: Settings) -> TlsOptions:
    return TlsOptions(
        trust_certs_file=settings.tls_trust_certs_file_path,
        allow_insecure_connection=settings.tls_allow_insecure_connection,
        hostname_verification=settings.tls_enable_hostname_verification,
        client_certificate=_client_certificate(settings),
    )


def _client_certificate(settings: Settings) -> ClientCertificate | None:
    file, key_file = settings.tls_certificate_file_path, settings.tls_key_file_path
    return ClientCertificate(file, key_file) if file and key_file else None


def offload_credentials_of(settings: Settings, environment: Mapping[str, str]) -> OffloadCredentials:
    found = credentials_from_environment(environment)
    secret = settings.s3_managed_ledger_offload_credential_secret
    key_id = settings.s3_managed_ledger_offload_credential_id
    return OffloadCredentials(
        aws_s3=AccessKey(key_id, secret.get_secret_value()) if key_id and secret else None,
        s3=found.s3,
        aliyun_oss=found.aliyun_oss,
        azureblob=found.azureblob,
        gcs_service_account_key_file=settings.gcs_managed_ledger_offload_service_account_key_file,
    )


def endpoint_of(settings: Settings) -> Endpoint:
    return Endpoint(
        settings.listen_host,
        settings.listen_port,
        settings.listen_tls_certificate_file_path,
        settings.listen_tls_key_file_path,
    )


def authenticator_of(settings: Settings, clock: Clock) -> Authenticator:
    """Who may call.

    Raises:
        InvalidInputError: the key cannot be read.
    """
    if not settings.authentication_enabled:
        return NoAuthentication()
    if settings.token_secret_key is not None:
        key = secret_key(settings.token_secret_key.get_secret_value())
    else:
        key = public_key(settings.token_public_key or "")
    claims = TokenClaims(settings.token_auth_claim, settings.token_audience, settings.token_audience_claim)
    return TokenAuthentication(key, settings.super_user_roles, clock, claims)


def warnings_of(settings: Settings) -> list[str]:
    """What works and lets others on the network read a credential."""
    found = []
    if credentials_of(settings).is_secret:
        found += [
            f"the sidecar's credentials for brokers travel in clear: {name} names {hosts}; use {secure}"
            for name, url, plain, secure in (
                ("webServiceUrl", settings.web_service_url, "http://", "https://"),
                ("brokerServiceUrl", settings.broker_service_url, "pulsar://", "pulsar+ssl://"),
            )
            if url.startswith(plain) and (hosts := _hosts_beyond_loopback(url.removeprefix(plain)))
        ]
    servers = parse_metadata_store_url(settings.metadata_store_url).servers
    if settings.metadata_store_auth is not None and (hosts := _hosts_beyond_loopback(",".join(servers))):
        found.append(f"metadataStoreAuth travels in clear to {hosts}; keep that network to the cluster's own machines")
    if settings.authentication_enabled and not (
        settings.listens_on_loopback or settings.listen_tls_certificate_file_path
    ):
        found.append(
            f"callers' tokens travel in clear to {settings.listen}; set listenTlsCertificateFilePath and "
            "listenTlsKeyFilePath, or let something on this machine that speaks TLS pass calls on to 127.0.0.1"
        )
    return found


def _hosts_beyond_loopback(addresses: str) -> str:
    hosts = [urlsplit(f"//{address.rpartition('://')[2]}").hostname or "" for address in addresses.split(",")]
    return ", ".join(host for host in hosts if host and not is_loopback(host))


def store_credential_of(settings: Settings) -> ZooKeeperCredential | None:
    auth = settings.metadata_store_auth
    return parse_credential(None if auth is None else auth.get_secret_value())
