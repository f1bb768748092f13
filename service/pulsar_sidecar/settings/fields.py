"""Settings of the service: each has one name, one unit and one reason, and its docstring is its documentation.

A setting comes from a flag, from ``PULSAR_SIDECAR_<NAME>``, from a properties file with keys as in ``broker.conf``, or
(for the connection) from Pulsar's ``client.conf``; the first of these that has it wins. Invariants: loaded settings are
consistent; loading returns them, or raises one error that names the setting, the source and a valid value; a secret is
never part of that error. Only the composition root sees this module's types.
"""

import difflib
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic.fields import FieldInfo

from pulsar_sidecar.model.addresses import is_loopback, sidecars_by_cluster
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.metadata_stores import WHERE_TO_FIND_IT, unsupported_store
from pulsar_sidecar.settings.sources import (
    ENVIRONMENT_OF_THE_COMMAND_LINE,
    client_conf_path,
    client_conf_settings,
    environment_settings,
    environment_variable,
    flag,
    properties,
    setting_key,
)

_LEAST_LATENCY_FACTOR = 1.1


def _split_list(value: object) -> object:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def _with_scheme(*schemes: str) -> AfterValidator:
    def check(url: str) -> str:
        if not url.startswith(tuple(f"{scheme}:" for scheme in schemes)):
            raise ValueError(f"must begin with {' or '.join(f'{scheme}:' for scheme in schemes)}")
        if "@" in url:
            raise ValueError("must not contain a user or a password: errors and the status show it")
        return url.rstrip("/")

    return AfterValidator(check)


def _check_store(url: str) -> str:
    if (advice := unsupported_store(url)) is not None:
        raise ValueError(advice)
    return url


def _check_address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 1 <= int(port) <= 65535:
        raise ValueError("must be host:port with a port from 1 to 65535, such as 127.0.0.1:8750 or [::1]:8750")
    return text


def _check_cluster_url(text: str) -> str:
    try:
        sidecars_by_cluster([text])
    except InvalidInputError as error:
        raise ValueError("must be NAME=URL, such as west=https://sidecar.west:8750") from error
    return text


def _check_latency_factor(factor: float) -> float:
    if 0 < factor < _LEAST_LATENCY_FACTOR:
        raise ValueError(f"must be {_LEAST_LATENCY_FACTOR} or more (a store's latency varies by itself), or 0 for off")
    return factor


def _check_issuer(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.hostname or "")):
        raise ValueError("must begin with https: (http: only for a loopback address)")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError("must be the issuer's URL as in its tokens, without user, query and fragment")
    return url


_PAIRS = (
    ("metadata_store_tls_certificate_file_path", "metadata_store_tls_key_file_path"),
    ("s3_managed_ledger_offload_credential_id", "s3_managed_ledger_offload_credential_secret"),
    ("tls_certificate_file_path", "tls_key_file_path"),
    ("listen_tls_certificate_file_path", "listen_tls_key_file_path"),
)
_NEEDS = (
    ("metadata_store_tls_certificate_file_path", "metadata_store_tls_trust_certs_file_path"),
    ("listen_tls_trust_certs_file_path", "listen_tls_certificate_file_path"),
    ("openid_client_id", "openid_allowed_token_issuers"),
    ("openid_client_secret", "openid_client_id"),
    ("listen_tls_require_trusted_client_cert_on_connect", "listen_tls_trust_certs_file_path"),
)
_Sources = Sequence[tuple[str, Mapping[str, str]]]
TextList = Annotated[tuple[str, ...], BeforeValidator(_split_list)]
HttpUrl = Annotated[str, _with_scheme("http", "https")]
IssuerList = Annotated[tuple[Annotated[str, AfterValidator(_check_issuer)], ...], BeforeValidator(_split_list)]
Seconds = Annotated[int, Field(ge=1, le=31_536_000)]


class _Group(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, hide_input_in_errors=True, validate_default=True
    )


class Listening(_Group):
    """Listener and addresses."""

    listen: Annotated[str, AfterValidator(_check_address)] = "127.0.0.1:8750"
    """host:port of the REST service. Without ``authenticationEnabled`` it must be a loopback address."""
    listen_tls_certificate_file_path: Path | None = None
    """PEM file with the certificate chain of the REST service, which then speaks HTTPS."""
    listen_tls_key_file_path: Path | None = None
    """PEM file with the private key of the certificate chain. The sidecar reads both again when they change."""
    listen_tls_min_version: Literal["TLSv1.2", "TLSv1.3"] = "TLSv1.2"
    """Lowest version of TLS that the REST service speaks."""
    listen_tls_trust_certs_file_path: Path | None = None
    """PEM file with the CA certificates that verify client certificates. With ``authenticationEnabled`` the common name
    (CN) of such a certificate is the client's role, as with Pulsar's ``AuthenticationProviderTls``; a token in the same
    request takes precedence."""
    listen_tls_require_trusted_client_cert_on_connect: bool = False
    """Refuse clients without such a certificate in the TLS handshake, probes included
    (``tlsRequireTrustedClientCertOnConnect`` of brokers)."""
    admin_pass_through_enabled: bool = True
    """Pass requests for Pulsar's admin and lookup services that the sidecar does not serve itself to the brokers, with
    the caller's own credential."""
    admin_pass_through_auth_plugin: str | None = None
    """Plugin of the sidecar's identity when it acts for callers that have only a certificate. Default: ``authPlugin``
    and ``authParams``."""
    admin_pass_through_auth_params: SecretStr | None = None
    """Parameters of that plugin. Brokers must list its role in ``proxyRoles`` and grant it every right that such a
    caller may use. The role must differ from the sidecar's own, because brokers refuse a proxy that acts for itself.
    Secret."""
    dashboard_enabled: bool = True
    """Serve the dashboard at ``/ui/``. It shows and does only what the caller's own credential allows."""
    dashboard_url: HttpUrl | None = None
    """Address under which browsers reach the dashboards of all sidecars. An issuer redirects to it after a sign-in.
    Default: ``advertisedUrl``. If it begins with ``https://``, browsers send the dashboard's cookies over TLS only,
    even if the sidecar itself serves plain HTTP behind a proxy that terminates TLS."""
    max_http_server_connections: int = Field(default=1_000, ge=1, le=30_000)
    """Maximum number of open client connections. A further connection replaces the one that has been idle longest; if
    every connection has a request in progress, the sidecar refuses it (503). Connections use at most half of the files
    that the process may open."""
    advertised_url: HttpUrl | None = None
    """URL under which clients and other sidecars reach this sidecar; redirects point to it. Default: from
    ``listen``."""
    instance_name: str = Field(default="", max_length=200, pattern=r"^[-.\w]*$")
    """Name of this sidecar. It must be unique in the cluster and the same after a restart, because the sidecar's
    registration, consumers and producers are named after it. Default: host name and port."""


class PulsarCluster(_Group):
    """The Pulsar cluster that the sidecar works for."""

    web_service_url: HttpUrl = "http://localhost:8080"
    """URL of Pulsar's admin REST service."""
    broker_service_url: Annotated[str, _with_scheme("pulsar", "pulsar+ssl")] = "pulsar://localhost:6650"
    """URL of Pulsar's binary service."""
    metadata_store_url: Annotated[str, AfterValidator(_check_store), _with_scheme("zk", "etcd")] = Field(
        examples=["zk:localhost:2181"]
    )
    """Metadata store in Pulsar's own form, ``zk:host:port,host:port/chroot`` or ``etcd:http://host:port,...``. There is
    no default, so that a missing setting can never make the sidecar delete ledgers by the metadata of another
    cluster."""
    metadata_store_session_timeout_millis: int = Field(default=30_000, ge=1_000, le=600_000)
    """Milliseconds until the metadata store ends the session of a sidecar that died; another sidecar then takes over
    its work."""
    jute_max_buffer_bytes: int = Field(default=1_048_575, ge=65_536)
    """``jute.maxbuffer`` of ZooKeeper and of the brokers: the largest node that they accept. The default is a stock
    ZooKeeper's; ``bin/pulsar`` starts both with 10485760. Acknowledgement states are compared with it."""
    metadata_store_auth: SecretStr | None = None
    """Credential for a metadata store whose nodes have access control lists: ``digest:user:password``,
    ``sasl:user:password`` (SASL's DIGEST-MD5), or ``file:///path`` of a file with one of these; for a user of etcd
    ``digest:user:password``. Secret."""
    metadata_store_tls_trust_certs_file_path: Path | None = None
    """PEM file with the CA certificates that verify the metadata store. With it the sidecar connects over TLS, to
    ZooKeeper's ``secureClientPort``, and checks the servers' names; for etcd the URL says ``https``."""
    metadata_store_tls_certificate_file_path: Path | None = None
    """PEM file with the certificate that the sidecar presents to the metadata store."""
    metadata_store_tls_key_file_path: Path | None = None
    """PEM file with the private key of that certificate."""
    ledgers_root_path: str = Field(default="/ledgers", pattern=r"^/[^/].*[^/]$")
    """Path of BookKeeper's ledgers in the metadata store (``zkLedgersRootPath``)."""
    bookkeeper_exclusive_to_cluster: bool = False
    """True if this BookKeeper serves only this Pulsar cluster. Otherwise another cluster may reference a ledger, so the
    sidecar deletes only ledgers that this cluster's own lists named (when a topic was deleted, or the watch saw the
    reference vanish), and sends other records to the dead-letter topic."""
    cluster_name: str | None = None
    """Pulsar's name of the cluster, and the ``cluster`` label of every metric. Default: the sidecar queries the
    brokers."""

    cluster_urls: Annotated[
        tuple[Annotated[str, AfterValidator(_check_cluster_url)], ...], BeforeValidator(_split_list)
    ] = ()
    """Sidecars of other clusters, ``west=https://sidecar.west:8750,north=...``. Deletions that brokers redirect to
    another cluster are redirected to its sidecar. Commands with ``--all-clusters`` read the same variable."""


class Connection(_Group):
    """Credentials and TLS for connections to Pulsar, with the names of ``client.conf``."""

    auth_plugin: str | None = None
    """Authentication plugin: its Java class name or its short name (``token``, ``oauth2``, ``basic``, ``tls``)."""
    auth_params: SecretStr | None = None
    """Parameters of the plugin, such as ``token:...``, or ``file:///path`` of a file with them. Secret."""
    tls_trust_certs_file_path: Path | None = None
    """PEM file with the trusted CA certificates."""
    tls_allow_insecure_connection: bool = False
    """Accept certificates that no trusted CA has signed. For experiments only."""
    tls_enable_hostname_verification: bool = True
    """Verify that the certificate matches the host name. True by default, unlike in the sample ``client.conf``."""
    tls_certificate_file_path: Path | None = None
    """PEM file with the client certificate, which brokers receive over TLS whatever ``authPlugin`` is. With
    ``authPlugin=tls`` and no ``authParams`` it is also the sidecar's identity."""
    tls_key_file_path: Path | None = None
    """PEM file with the private key of the client certificate."""


class Authentication(_Group):
    """Authentication and authorization of callers, with the names of ``broker.conf``."""

    authentication_enabled: bool = False
    """Require a credential for every call: a Pulsar token (``tokenSecretKey`` or ``tokenPublicKey``), a token of an
    OpenID Connect issuer (``openIDAllowedTokenIssuers``), or a client certificate (``listenTlsTrustCertsFilePath``).
    Probes and metrics need none."""
    token_secret_key: SecretStr | None = None
    """Secret key that verifies tokens signed with HS256, HS384 or HS512: ``file:///path`` or ``data:;base64,...``.
    Secret."""
    token_public_key: str | None = None
    """Public key that verifies tokens signed with a private key: ``file:///path`` or ``data:;base64,...``, PEM or
    DER."""
    token_auth_claim: str = Field(default="sub", min_length=1)
    """Claim of the token that names the role. If the claim is a list, its first entry counts."""
    token_audience: str | None = None
    """Required audience of tokens: the sidecar refuses a token whose claim ``tokenAudienceClaim`` neither equals nor
    contains it. Default: any audience."""
    token_audience_claim: str = Field(default="aud", min_length=1)
    """Claim of the token that names its audience. Brokers check the audience only if this is set; the sidecar checks it
    whenever ``tokenAudience`` is set."""
    openid_allowed_token_issuers: IssuerList = ()
    """Comma-separated URLs of OpenID Connect issuers whose tokens the sidecar accepts, exactly as in the tokens' claim
    ``iss``. The sidecar finds their keys through their discovery documents."""
    openid_allowed_audiences: TextList = ()
    """Comma-separated audiences; a token of an issuer must name one of them (claim ``aud``)."""
    openid_role_claim: str = Field(default="sub", min_length=1)
    """Claim of an issuer's token that names the role. If the claim is a list, its first entry counts."""
    openid_accepted_time_leeway_seconds: int = Field(default=0, ge=0, le=3_600)
    """Seconds by which the issuer's clock may differ."""
    openid_token_issuer_trust_certs_file_path: Path | None = None
    """PEM file with the CA certificates that verify the issuers. Default: the system's."""
    openid_cache_refresh_after_write_seconds: Seconds = 64_800
    """Seconds after which the sidecar refreshes an issuer's keys; while the issuer does not respond, the cached keys
    stay valid."""
    openid_cache_expiration_seconds: Seconds = 86_400
    """Seconds after which an issuer's cached keys expire, even if the issuer does not respond."""
    openid_key_id_cache_miss_refresh_seconds: Annotated[int, Field(ge=0, le=86_400)] = 300
    """Minimum seconds between two refreshes of an issuer's keys because a token names an unknown one, and thus the
    longest time until a new key is accepted."""
    openid_client_id: str | None = None
    """Client ID for signing in to the dashboard at the first of ``openIDAllowedTokenIssuers``, by the authorization
    code flow with PKCE. Register ``<dashboardUrl>/ui/sign-in/callback`` as its redirect URI. Default: people sign in
    with a token."""
    openid_client_secret: SecretStr | None = None
    """Secret of that client, or ``file:///path`` of a file with it; none for a public client. Secret."""
    openid_client_scope: str = Field(default="openid", min_length=1)
    """Space-separated scopes that the dashboard requests."""
    super_user_roles: TextList = ()
    """Comma-separated roles that may do everything. Other roles have the rights that brokers grant them (tenants' admin
    roles, produce and consume permissions) and those of the next two settings."""
    operator_roles: TextList = ()
    """Comma-separated roles that may make changes to the whole cluster (pause and limit deletion, dead letters, any
    ledger by its id, the watch) and see what viewers see. They may not change tenants' topics."""
    viewer_roles: TextList = ()
    """Comma-separated roles that may see the state of the cluster and of every topic, but no messages."""


class LedgerDeletion(_Group):
    """Two-phase ledger deletion (PIP-186)."""

    topic_two_phase_deletion_enabled: bool = False
    """Enable two-phase deletion of ledgers. While it is disabled, the sidecar neither consumes nor writes records."""
    two_phase_deletion_consumer_enabled: bool = True
    """Consume pending deletions. A sidecar with ``false`` serves HTTP and the first phase, and leaves the second phase
    to other sidecars, so that a backlog and its callers share no interpreter."""
    two_phase_deletion_ledger_deletion_parallelism: int = Field(default=4, ge=1, le=1024)
    """Partitions of the system topic. The sidecar never reduces those of an existing topic."""
    two_phase_deletion_reconsume_later_in_seconds: Seconds = 600
    """Seconds until the sidecar retries a failed deletion."""
    two_phase_deletion_max_retry_delete_count: int = Field(default=10, ge=0, le=1_000_000)
    """Retries of a failed deletion. After the last one fails, the record goes to the dead-letter topic with its reason:
    with 10, after eleven failures."""
    two_phase_deletion_postpone_in_seconds: Seconds = 10
    """Seconds until the sidecar checks a record again that was not ready yet. This does not count as an attempt."""
    two_phase_deletion_in_use_settle_in_seconds: Seconds = 600
    """Seconds after which the sidecar accepts that a recorded ledger is still in use. A record arrives before the
    broker removes the ledger from its list (PIP-186)."""
    two_phase_deletion_open_ledger_min_age_in_seconds: Seconds = 3_600
    """Minimum age, in seconds, of an OPEN or IN_RECOVERY ledger that may be deleted: a broker may still write to a
    younger one."""
    two_phase_deletion_unlinked_ledger_min_age_in_seconds: Seconds = 3_600
    """Minimum age, in seconds, of an unreferenced ledger that may be deleted: brokers create schema, compacted and
    bucket ledgers before they write the reference."""
    two_phase_deletion_batch_size: int = Field(default=5_000, ge=1, le=10_000)
    """Maximum number of records in a batch. For each batch the sidecar queries the owners of its topics' bundles once,
    and once more for each loaded topic in it."""
    two_phase_deletion_rate_per_second: float | None = Field(default=None, gt=0, le=1e9, examples=["500"])
    """Maximum number of ledgers that this sidecar deletes per second, until an operator sets another rate. Default: no
    limit."""
    two_phase_deletion_latency_factor: Annotated[float, AfterValidator(_check_latency_factor)] = Field(
        default=2.0, ge=0, le=1000, allow_inf_nan=False
    )
    """Maximum latency of the metadata store while ledgers are deleted, as a multiple of its idle 99th percentile (5 ms
    at least): the sidecar slows deletions down until this holds. A larger factor allows faster deletion; 1.1 or more; 0
    disables this limit."""
    two_phase_deletion_outcome_retention_in_minutes: int = Field(default=10_080, ge=1)
    """Retention of the outcome topic in minutes, 7 days by default. ``undelete`` can restore a ledger only from its
    outcome."""
    two_phase_deletion_outcome_retention_size_in_mb: int = Field(default=-1, ge=-1)
    """Retention of the outcome topic in megabytes per partition; -1 for no limit by size."""
    two_phase_deletion_undelete_protection_in_seconds: Seconds = 86_400
    """Seconds for which no sidecar deletes a ledger that ``undelete`` has restored, 24 hours by default, so that an
    operator can add it to a list again; records about it wait until then."""
    two_phase_deletion_watchdog_late_in_seconds: Seconds = 60
    """Seconds by which a retry may be overdue before the sidecar reads it itself, without the broker's delayed delivery
    tracker."""
    two_phase_deletion_topic_deletion_wait_in_seconds: int = Field(default=30, ge=0, le=600)
    """Seconds for which a call waits for the deletion of its topic before it returns 202. The sidecars finish
    the deletion in any case."""
    ledger_deletion_watch: Literal["off", "report", "append"] = "report"
    """Leak detection: the sidecar watches the metadata store for ledgers that lose their last reference and
    that no broker deletes. ``report`` counts and shows them; ``append`` also appends them to the pending-deletion
    topic, where the second phase checks each one; ``off`` disables the watch."""
    ledger_deletion_watch_settle_in_seconds: Annotated[int, Field(ge=10, le=86_400)] = 200
    """Seconds for which a ledger must have been unreferenced before the sidecar considers it leaked. After 200 seconds
    a broker has used up its own retries."""
    ledger_deletion_watch_brake_references: int = Field(default=1_000, ge=1)
    """Maximum number of references that may vanish within 10 minutes while their ledgers stay; in a small cluster 1 %
    of all references, but at least 50 (or three quarters of fewer than 67, but at least 9). Beyond it the sidecar
    appends nothing until an operator resumes the watch."""
    ledger_deletion_watch_walk_interval_in_seconds: Seconds = 21_600
    """Seconds between complete walks of all references, even if the sidecar missed no change."""
    ledger_deletion_watch_nodes_per_second: float = Field(default=20_000, gt=0, le=1e9)
    """Maximum number of metadata-store nodes per second that the watch reads, and separately the index of shadow topics
    every six hours, and each search of `delayed-index fsck --orphans`."""


class DelayedMessages(_Group):
    """Cancelling delayed messages (PIP-423)."""

    delayed_message_cancelling_enabled: bool = False
    """Enable cancellation of delayed messages. While it is disabled, the sidecar neither writes nor reads a log of
    cancellations."""
    delayed_message_reassert_in_seconds: Seconds = 10
    """Seconds between two checks of a subscription with cancelled messages, at which the sidecar repeats
    acknowledgements that the cursor has lost. Acknowledgements that the broker has not stored yet are checked every
    second."""
    delayed_message_persist_wait_in_seconds: Seconds = 15
    """Seconds for which a request with ``wait=persisted`` waits before it returns the current status."""


class AckStates(_Group):
    """Acknowledgement states (PIP-299)."""

    ack_state_in_stats_enabled: bool = False
    """Add ``blockedOnAckStatePersistent`` to each subscription in passed ``stats`` and ``partitioned-stats`` of topics,
    null where it is unknown. This costs a few calls to brokers where a subscription is full."""
    ack_state_watched_topics: TextList = ()
    """Comma-separated topics whose subscriptions are always in the metrics; those of other topics appear for 5 minutes
    after a request for their state. A watched topic stays loaded."""
    ack_state_watch_interval_in_seconds: Seconds = 60
    """Seconds between two readings of the watched topics."""


class DelayedIndex(_Group):
    """Delayed indexes (PIP-195)."""

    delayed_index_watched_topics: TextList = ()
    """Comma-separated topics whose buckets are in the metrics. This does not load the topics."""
    delayed_index_watch_interval_in_seconds: Seconds = 60
    """Seconds between two readings of the watched topics."""


class Deduplication(_Group):
    """Deduplication (PIP-6)."""

    deduplication_watched_topics: TextList = ()
    """Comma-separated topics whose snapshots are in the metrics. This does not load the topics."""
    deduplication_watch_interval_in_seconds: Seconds = 60
    """Seconds between two readings of the watched topics."""


class Audits(_Group):
    """Audits."""

    audits_directory: Path | None = None
    """Directory of audits, at most three directories deep, with their dumps and listings if these are kept. The sidecar
    shows the audits and sends a plan that an operator approves; it writes nothing there. It must run as the user who
    made them, and needs ``pulsar-sidecar[audit]``. Default: no audits are served."""


class Offload(_Group):
    """Ledgers in tiered storage. Without credentials here, the sidecar uses those of the provider's own tools."""

    offload_allowed_locations: TextList = ()
    """Comma-separated locations where the sidecar may search for offloaded copies, read and delete them: ``s3://bucket``,
    ``s3://bucket@https://endpoint``, ``gs://bucket``, ``azure://container@endpoint``, ``file:///directory``. A record
    may be forged, so the sidecar deletes nothing elsewhere. Default: no offloaded copy is deleted."""
    s3_managed_ledger_offload_credential_id: str | None = None
    """Id of the access key for S3, as in ``broker.conf``."""
    s3_managed_ledger_offload_credential_secret: SecretStr | None = None
    """Secret of the access key for S3, as in ``broker.conf``, or ``file:///path`` of a file with it. Secret."""
    gcs_managed_ledger_offload_service_account_key_file: Path | None = None
    """Key file of the Google service account, as in ``broker.conf``."""


class Logging(_Group):
    """Logging, and the REST reference."""

    log_level: Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR"], BeforeValidator(str.upper)] = "INFO"
    """Lowest severity that the sidecar logs."""
    log_format: Literal["auto", "json", "text"] = "auto"
    """``json`` writes one object per line; ``auto`` writes text to a terminal and JSON elsewhere."""
    api_docs_enabled: bool = False
    """Serve the REST reference as a page at ``/docs``. The page loads nothing from other hosts."""


class Settings(
    Listening,
    PulsarCluster,
    Connection,
    Authentication,
    LedgerDeletion,
    DelayedMessages,
    AckStates,
    DelayedIndex,
    Deduplication,
    Audits,
    Offload,
    Logging,
):
    """All settings; see `load_settings`."""

    @model_validator(mode="after")
    def _callers_can_be_verified(self) -> Self:
        if self.token_secret_key is not None and self.token_public_key is not None:
            raise ValueError("tokenSecretKey and tokenPublicKey exclude each other: set the one that signs the tokens")
        if self.authentication_enabled:
            if not (
                self.token_secret_key
                or self.token_public_key
                or self.openid_allowed_token_issuers
                or self.listen_tls_trust_certs_file_path
            ):
                raise ValueError(
                    "authenticationEnabled=true needs a way to verify callers: tokenSecretKey, tokenPublicKey, "
                    "openIDAllowedTokenIssuers or listenTlsTrustCertsFilePath"
                )
            if not self.super_user_roles:
                raise ValueError(
                    "authenticationEnabled=true needs superUserRoles: the roles that may do everything, as in "
                    "broker.conf"
                )
        if self.token_audience is None and "token_audience_claim" in self.model_fields_set:
            raise ValueError(
                "tokenAudienceClaim is set and tokenAudience is not: set tokenAudience to the audience of the tokens"
            )
        if bool(self.openid_allowed_token_issuers) != bool(self.openid_allowed_audiences):
            raise ValueError(
                "openIDAllowedTokenIssuers and openIDAllowedAudiences work only together: a token of an issuer for "
                "another service must not count here"
            )
        return self

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if not self.authentication_enabled and not self.listens_on_loopback:
            raise ValueError(
                f"other machines can reach listen={self.listen}, and authenticationEnabled is false: set "
                "authenticationEnabled=true with tokenSecretKey or tokenPublicKey and superUserRoles, "
                "or listen on 127.0.0.1"
            )
        for one, needed in _NEEDS:
            if getattr(self, one) and not getattr(self, needed):
                raise ValueError(f"{setting_key(one)} needs {setting_key(needed)}; set it as well")
        for one, other in _PAIRS:
            if (getattr(self, one) is None) != (getattr(self, other) is None):
                raise ValueError(f"{setting_key(one)} and {setting_key(other)} work only together: set both or neither")
        return self

    @property
    def listen_host(self) -> str:
        """Host of the listener, without brackets."""
        return self.listen.rpartition(":")[0].strip("[]")

    @property
    def listen_port(self) -> int:
        return int(self.listen.rpartition(":")[2])

    @property
    def listens_on_loopback(self) -> bool:
        """True if only this machine can connect."""
        return is_loopback(self.listen_host)

    @property
    def effective_advertised_url(self) -> str:
        """``advertised_url``, or the listening address with this host's name for "every interface"."""
        if self.advertised_url:
            return self.advertised_url
        scheme = "https" if self.listen_tls_certificate_file_path else "http"
        host = self.listen.rpartition(":")[0]
        return f"{scheme}://{socket.getfqdn() if self.listen_host in ('0.0.0.0', '::') else host}:{self.listen_port}"  # noqa: S104

    @property
    def effective_instance_name(self) -> str:
        """``instance_name``, or host name and port."""
        return self.instance_name or f"{socket.gethostname()}-{self.listen_port}"


GROUPS: tuple[type[_Group], ...] = Settings.__bases__
"""Settings by subject, in the order of the documentation."""


def title(group: type[_Group]) -> str:
    """Return a group's heading."""
    return " ".join((group.__doc__ or "").rstrip(".").split())


def default_text(field: FieldInfo) -> str:
    """Return a setting's default as a string; empty if there is none, or if its documentation has it."""
    if field.is_required() or field.default in (None, "", ()):
        return ""
    return str(field.default).lower() if isinstance(field.default, bool) else str(field.default)


def load_settings(
    flags: Mapping[str, str | None],
    environment: Mapping[str, str],
    config: Path | None = None,
    warn: Callable[[str], None] = lambda text: None,
) -> Settings:
    """Read the settings from all sources.

    ``flags`` are strings by the setting's Python name; None and an empty string count as unset. ``config`` is a
    properties file, which ``PULSAR_SIDECAR_CONFIG`` may name instead; ``warn`` is called for each variable that is not
    a setting.

    Raises:
        InvalidInputError: a setting is unknown, invalid or missing; the message names it, its source and a valid value.
    """
    config = config or (Path(named) if (named := environment.get("PULSAR_SIDECAR_CONFIG")) else None)
    sources: _Sources = (
        ("command line", {name: text for name, text in flags.items() if text}),
        ("environment", _known(environment_settings(environment), warn)),
        (str(config), {} if config is None else _file_settings(config)),
        (str(client_conf_path(environment)), client_conf_settings(environment)),
    )
    written = {name: text for _, values in reversed(sources) for name, text in values.items()}
    try:
        return Settings.model_validate(written)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False, include_context=False)
    lines = []
    for problem in problems:
        text = problem["msg"].removeprefix("Value error, ")
        lines.append(_explained(str(problem["loc"][0]), problem["type"], text, sources) if problem["loc"] else text)
    raise InvalidInputError("\n".join(lines))


def _known(values: Mapping[str, str], warn: Callable[[str], None]) -> Mapping[str, str]:
    for name in values:
        if name not in Settings.model_fields and name.upper() not in ENVIRONMENT_OF_THE_COMMAND_LINE:
            meant = _did_you_mean(name, Settings.model_fields, environment_variable)
            warn(f"the environment variable {environment_variable(name)} is not a setting and has no effect{meant}")
    return {name: text for name, text in values.items() if name in Settings.model_fields}


def _file_settings(path: Path) -> Mapping[str, str]:
    fields = {setting_key(field): field for field in Settings.model_fields}
    written = properties(path)
    for key in written:
        if key not in fields:
            raise InvalidInputError(f"{path}: {key!r} is not a setting{_did_you_mean(key, fields, str)}")
    return {fields[key]: text for key, text in written.items() if text}


def _did_you_mean(name: str, known: Iterable[str], written: Callable[[str], str]) -> str:
    guess = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {written(guess[0])}?" if guess else ""


def _explained(field: str, kind: str, text: str, sources: _Sources) -> str:
    definition, key = Settings.model_fields[field], setting_key(field)
    default = definition.get_default()
    if definition.examples:
        example = str(definition.examples[0])
    else:
        example = str(default).lower() if default or default is False else "..."
    if kind == "missing":
        written = f"{flag(field)} {example}, {environment_variable(field)}={example}, or {key}={example}"
        where = f"; {WHERE_TO_FIND_IT}" if field == "metadata_store_url" else ""
        return f"{key} is missing: write for example {written} in the configuration file{where}"
    source = next((name for name, values in sources if field in values), "defaults")
    return f"{key} ({source}): {text}; write for example {key}={example}"
