"""The settings of the service: each has one name, one unit and one reason, and says so where it is defined.

`settings.loading` reads them. Invariant: settings that exist fit together. Only the composition root sees this
module's types.
"""

import socket
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from pulsar_sidecar.model.addresses import is_loopback

_LEAST_LATENCY_FACTOR = 1.1


def _split_list(value: object) -> object:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def _upper_case(value: object) -> object:
    return value.upper() if isinstance(value, str) else value


def _with_scheme(*schemes: str) -> AfterValidator:
    def check(url: str) -> str:
        if not url.startswith(tuple(f"{scheme}:" for scheme in schemes)):
            raise ValueError(f"must begin with {' or '.join(f'{scheme}:' for scheme in schemes)}")
        return url.rstrip("/")

    return AfterValidator(check)


def _check_address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 1 <= int(port) <= 65535:
        raise ValueError("must be host:port with a port from 1 to 65535, such as 127.0.0.1:8750 or [::1]:8750")
    return text


def _check_latency_factor(factor: float) -> float:
    if 0 < factor < _LEAST_LATENCY_FACTOR:
        raise ValueError(f"must be {_LEAST_LATENCY_FACTOR} or more (a store's latency varies by itself), or 0 for off")
    return factor


TextList = Annotated[tuple[str, ...], BeforeValidator(_split_list)]
HttpUrl = Annotated[str, _with_scheme("http", "https")]
Seconds = Annotated[int, Field(ge=1, le=31_536_000)]


class _Group(BaseSettings):
    model_config = SettingsConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, hide_input_in_errors=True
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        # Sources are given, never found, so that a test or an embedding program is not configured by its environment.
        return (init_settings,)


class Listening(_Group):
    """Where the service listens and how others find it."""

    listen: Annotated[str, AfterValidator(_check_address)] = "127.0.0.1:8750"
    """host:port of the REST service. Without authentication only a loopback address is accepted."""

    listen_tls_certificate_file_path: Path | None = None
    """PEM certificate chain of the REST service; with it the service speaks HTTPS."""

    listen_tls_key_file_path: Path | None = None
    """PEM private key that belongs to the certificate chain."""

    max_http_server_connections: int = Field(default=1_000, ge=1, le=30_000)
    """Connections at the same time. One more takes the place of the one that has waited longest without a request, and
    is refused (503) where every one has a request in hand. At most half of the files that the process may open."""

    advertised_url: HttpUrl | None = None
    """URL under which other sidecars and clients reach this one: the target of redirects. Default: from ``listen``."""

    instance_name: str = Field(default="", max_length=200, pattern=r"^[-.\w]*$")
    """Name of this sidecar, different for every sidecar of a cluster and the same after a restart: its registration,
    consumers and producers are named after it. Default: host name and port."""


class PulsarCluster(_Group):
    """The cluster the service works for."""

    web_service_url: HttpUrl = "http://localhost:8080"
    """URL of Pulsar's admin REST service."""

    broker_service_url: Annotated[str, _with_scheme("pulsar", "pulsar+ssl")] = "pulsar://localhost:6650"
    """URL of Pulsar's binary service."""

    metadata_store_url: Annotated[str, _with_scheme("zk")] = Field(examples=["zk:localhost:2181"])
    """The metadata store in Pulsar's own form, ``zk:host:port,host:port/chroot``. There is no default: deleting with
    the metadata of another cluster must be impossible by omission."""

    metadata_store_session_timeout_millis: int = Field(default=30_000, ge=1_000, le=600_000)
    """Milliseconds until the metadata store forgets a sidecar that died; its work is then taken over."""

    metadata_store_auth: SecretStr | None = None
    """Credential for a metadata store whose nodes have access control lists, ``digest:user:password``. Secret."""

    ledgers_root_path: str = Field(default="/ledgers", pattern=r"^/[^/].*[^/]$")
    """Where BookKeeper keeps ledgers in the metadata store (``zkLedgersRootPath``)."""

    bookkeeper_exclusive_to_cluster: bool = False
    """This BookKeeper serves only this Pulsar cluster. While false, "nothing references it" is no evidence, since
    another cluster's references cannot be seen from here: only ledgers that a topic's deletion took from this cluster's
    own lists are deleted, other records go to the dead-letter topic."""

    bookie_http_urls: TextList = ()
    """Comma-separated URLs of bookies' HTTP admin services: the fallback when the metadata store cannot delete. Such a
    deletion is unconditional: it deletes the ledger whatever has happened to it since it was judged."""

    cluster_name: str | None = None
    """Pulsar's name of the cluster, the ``cluster`` label of every metric. Default: what the broker says."""


class Connection(_Group):
    """Credentials and TLS towards Pulsar, by the names of ``client.conf``."""

    auth_plugin: str | None = None
    """Authentication plugin by its Java class name or its short name (``token``, ``tls``)."""

    auth_params: SecretStr | None = None
    """Parameters of the plugin, such as ``token:...`` or ``file:///path``. Secret."""

    tls_trust_certs_file_path: Path | None = None
    """PEM file of the certificate authorities that are trusted."""

    tls_allow_insecure_connection: bool = False
    """Accept certificates that nobody trusted signed. For experiments only."""

    tls_enable_hostname_verification: bool = True
    """Compare the certificate with the host's name. True here, unlike in ``client.conf``'s sample."""

    tls_certificate_file_path: Path | None = None
    """PEM client certificate, shown to brokers over TLS whatever ``authPlugin`` is; with ``authPlugin=tls`` and no
    ``authParams`` it is the identity too."""

    tls_key_file_path: Path | None = None
    """PEM private key of the client certificate."""


class Authentication(_Group):
    """Who may call the service, by the names of ``broker.conf``."""

    authentication_enabled: bool = False
    """Demand a Pulsar token (JWT) with every call but the probes and the metrics."""

    token_secret_key: SecretStr | None = None
    """Secret key of tokens signed with HS256, HS384 or HS512: ``file:///path`` or ``data:;base64,...``. Secret."""

    token_public_key: str | None = None
    """Public key of tokens signed with a private key: ``file:///path`` or ``data:;base64,...``, PEM or DER."""

    token_auth_claim: str = Field(default="sub", min_length=1)
    """Claim of a token that names the role; of a list, its first entry."""

    token_audience: str | None = None
    """Whom tokens must be meant for: a token whose claim ``tokenAudienceClaim`` neither is this text nor lists it is
    refused. Default: it is not looked at."""

    token_audience_claim: str = Field(default="aud", min_length=1)
    """Claim of a token that says whom it is meant for. Brokers look at it only when it is set; the sidecar does as soon
    as ``tokenAudience`` is."""

    super_user_roles: TextList = ()
    """Comma-separated roles (claim ``tokenAuthClaim`` of the token) that may call; every other role is refused."""


class LedgerDeletion(_Group):
    """Two-phase ledger deletion (PIP-186)."""

    topic_two_phase_deletion_enabled: bool = False
    """Whether ledger deletion works at all; while false nothing is consumed and nothing is recorded."""

    two_phase_deletion_ledger_deletion_parallelism: int = Field(default=4, ge=1, le=1024)
    """Partitions of the system topic. An existing topic is never shrunk."""

    two_phase_deletion_reconsume_later_in_seconds: Seconds = 600
    """Seconds until a failed deletion is tried again."""

    two_phase_deletion_max_retry_delete_count: int = Field(default=10, ge=0, le=1_000_000)
    """Failed tries until a record goes to the dead-letter topic with its reason."""

    two_phase_deletion_postpone_in_seconds: Seconds = 10
    """Seconds until a record that was merely not ready is looked at again; this does not count as a try."""

    two_phase_deletion_in_use_settle_in_seconds: Seconds = 600
    """Seconds after which "in use" is believed: a record is sent before the broker's list shrinks (PIP-186)."""

    two_phase_deletion_open_ledger_min_age_in_seconds: Seconds = 3_600
    """Seconds during which a ledger that is OPEN or IN_RECOVERY is never deleted: somebody may still write to it."""

    two_phase_deletion_unlinked_ledger_min_age_in_seconds: Seconds = 3_600
    """Seconds during which an unreferenced ledger is never deleted: brokers create schema, compacted and bucket ledgers
    before they write the reference."""

    two_phase_deletion_batch_size: int = Field(default=5_000, ge=1, le=10_000)
    """Records processed together; a batch asks every broker once, and once for each topic in it."""

    two_phase_deletion_rate_per_second: float | None = Field(default=None, gt=0, le=1e9, examples=["500"])
    """Ledgers deleted a second by this sidecar at most, until an operator sets another rate. Default: no limit."""

    two_phase_deletion_latency_factor: Annotated[float, AfterValidator(_check_latency_factor)] = Field(
        default=2.0, ge=0, le=1000, allow_inf_nan=False
    )
    """How many times its idle 99th percentile (5 ms at least) the metadata store's latency may be while ledgers are
    deleted: the sidecar slows its deletions down until this holds. A larger factor allows faster deletion; 1.1 or more;
    0 switches this limit off."""

    two_phase_deletion_outcome_retention_in_minutes: int = Field(default=10_080, ge=1)
    """Minutes the outcomes are kept, 7 days by default; a deleted ledger can be brought back only from them."""

    two_phase_deletion_outcome_retention_size_in_mb: int = Field(default=-1, ge=-1)
    """Megabytes of outcomes kept per partition; -1 leaves it to the time alone."""

    two_phase_deletion_undelete_protection_in_seconds: Seconds = 86_400
    """Seconds during which nothing deletes a ledger that ``undelete`` has brought back, 24 hours by default: the time
    to put it back into a list. Records about it wait until then."""

    two_phase_deletion_watchdog_late_in_seconds: Seconds = 60
    """Seconds a retry may be overdue before it is read past the broker's delayed delivery tracker."""

    two_phase_deletion_topic_deletion_wait_in_seconds: int = Field(default=30, ge=0, le=600)
    """Seconds a topic's deletion is waited for before the call answers 202; the sidecars finish it anyway."""


class DelayedMessages(_Group):
    """Cancelling delayed messages (PIP-423)."""

    delayed_message_cancelling_enabled: bool = False
    """Whether delayed messages can be cancelled; without it there is no log of cancellations and no loop for them."""

    delayed_message_reassert_in_seconds: Seconds = 10
    """Seconds between two looks at a subscription with cancelled messages: acknowledgements that its cursor has lost
    are made again. What is not stored yet is looked at every second."""

    delayed_message_persist_wait_in_seconds: Seconds = 15
    """Seconds a request with ``wait=persisted`` waits before it answers with what is proven by then."""


class AckStates(_Group):
    """Acknowledgement states (PIP-299)."""

    ack_state_watched_topics: TextList = ()
    """Comma-separated topics whose subscriptions are always in the metrics; others are for 5 minutes after somebody has
    asked about them. Watching a topic keeps it loaded."""

    ack_state_watch_interval_in_seconds: Seconds = 60
    """Seconds between two looks at the watched topics."""


class Offload(_Group):
    """Ledgers in tiered storage. Credentials that are not set are looked for where the provider's own tools look."""

    offload_allowed_locations: TextList = ()
    """Comma-separated places where copies may be deleted: ``s3://bucket``, ``s3://bucket@https://endpoint``,
    ``gs://bucket``, ``azure://container@endpoint``, ``file:///directory``. A record may be forged, so nothing else is
    touched; empty means that no offloaded copy is deleted."""

    s3_managed_ledger_offload_credential_id: str | None = None
    """Access key's id for S3, as in ``broker.conf``."""

    s3_managed_ledger_offload_credential_secret: SecretStr | None = None
    """Access key's secret for S3, as in ``broker.conf``. Secret."""

    gcs_managed_ledger_offload_service_account_key_file: Path | None = None
    """Google's service account key file, as in ``broker.conf``."""


class Logging(_Group):
    """What the service says while it runs."""

    log_level: Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR"], BeforeValidator(_upper_case)] = "INFO"
    """Least severity that is written."""

    log_format: Literal["auto", "json", "text"] = "auto"
    """``json`` is one object per line; ``auto`` is text on a terminal and JSON elsewhere."""

    api_docs_enabled: bool = False
    """Serve the REST reference as a page on ``/docs``; the page needs no other host."""


GROUPS: tuple[type[_Group], ...] = (
    Listening,
    PulsarCluster,
    Connection,
    Authentication,
    LedgerDeletion,
    DelayedMessages,
    AckStates,
    Offload,
    Logging,
)
"""The settings by subject, in the order in which they are documented."""


class Settings(
    Listening,
    PulsarCluster,
    Connection,
    Authentication,
    LedgerDeletion,
    DelayedMessages,
    AckStates,
    Offload,
    Logging,
):
    """All settings; see `settings.loading.load_settings`."""

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if not self.authentication_enabled and not self.listens_on_loopback:
            raise ValueError(
                f"listen={self.listen} can be reached from other machines and authenticationEnabled is false: set "
                "authenticationEnabled=true with tokenSecretKey or tokenPublicKey and superUserRoles, "
                "or listen on 127.0.0.1"
            )
        if self.authentication_enabled and (self.token_secret_key is None) == (self.token_public_key is None):
            raise ValueError("authenticationEnabled=true needs exactly one of tokenSecretKey and tokenPublicKey")
        if self.authentication_enabled and not self.super_user_roles:
            raise ValueError("authenticationEnabled=true needs superUserRoles, or nobody could call the service")
        if (self.s3_managed_ledger_offload_credential_id is None) != (
            self.s3_managed_ledger_offload_credential_secret is None
        ):
            raise ValueError("s3ManagedLedgerOffloadCredentialId and ...CredentialSecret are needed together")
        if self.token_audience is None and "token_audience_claim" in self.model_fields_set:
            raise ValueError("tokenAudienceClaim is set and tokenAudience is not: write whom tokens must be meant for")
        if (self.tls_certificate_file_path is None) != (self.tls_key_file_path is None):
            raise ValueError("tlsCertificateFilePath and tlsKeyFilePath are needed together")
        if (self.listen_tls_certificate_file_path is None) != (self.listen_tls_key_file_path is None):
            raise ValueError("listenTlsCertificateFilePath and listenTlsKeyFilePath are needed together")
        return self

    @property
    def listen_host(self) -> str:
        """The host to listen on, without brackets."""
        return self.listen.rpartition(":")[0].strip("[]")

    @property
    def listen_port(self) -> int:
        """The port to listen on."""
        return int(self.listen.rpartition(":")[2])

    @property
    def listens_on_loopback(self) -> bool:
        """Whether only this machine can connect."""
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
