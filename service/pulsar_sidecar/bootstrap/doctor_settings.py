"""The doctor's checks of the sidecar's own settings: disabled features, and files that will soon stop working."""

from collections.abc import Iterator, Sequence
from typing import Final

from cryptography.x509 import load_pem_x509_certificates

from pulsar_sidecar.bootstrap.process import connections_for_callers
from pulsar_sidecar.features.doctor.facts import Feature, OwnFacts
from pulsar_sidecar.reports.formatting import format_count
from pulsar_sidecar.settings.fields import Settings

_DAY_MS: Final = 86_400_000
_RENEW_DAYS: Final = 14


def own_facts(settings: Settings, warnings: Sequence[str], now_ms: int) -> OwnFacts:
    """Return the doctor's facts about the sidecar's settings, including the ``warnings`` known already."""
    found = [*warnings, *_certificate_warnings(settings, now_ms), *_file_warnings(settings)]
    features = (
        Feature(
            "two-phase deletion",
            settings.topic_two_phase_deletion_enabled,
            "it deletes ledgers that brokers would leave behind",
            "topicTwoPhaseDeletionEnabled=true",
        ),
        Feature(
            "appending of leaked ledgers",
            settings.topic_two_phase_deletion_enabled and settings.ledger_deletion_watch == "append",
            "two-phase deletion checks and deletes what the watch finds leaked",
            "ledgerDeletionWatch=append and topicTwoPhaseDeletionEnabled=true",
        ),
        Feature(
            "deletion of unnamed ledgers",
            settings.bookkeeper_exclusive_to_cluster,
            "ledgers that no list of this cluster named may be deleted",
            "bookkeeperExclusiveToCluster=true where no other cluster uses this BookKeeper",
        ),
        Feature(
            "deletion of offloaded copies",
            bool(settings.offload_allowed_locations),
            "copies in tiered storage are deleted with their ledgers",
            "offloadAllowedLocations to the buckets",
        ),
        Feature(
            "cancelling delayed messages",
            settings.delayed_message_cancelling_enabled,
            "it cancels delayed messages before they are due",
            "delayedMessageCancellingEnabled=true",
        ),
        Feature(
            "pass-through to brokers",
            settings.admin_pass_through_enabled,
            "requests that the sidecar does not serve itself go to the brokers",
            "adminPassThroughEnabled=true",
        ),
        Feature(
            "authentication of callers",
            settings.authentication_enabled,
            "other machines may call, with a credential",
            "authenticationEnabled=true with superUserRoles and a way to verify roles, such as tokenPublicKey",
        ),
    )
    deletes, buffer = settings.topic_two_phase_deletion_enabled, settings.jute_max_buffer_bytes
    return OwnFacts(features, found, deletes, settings.cluster_name, buffer)


def _certificate_warnings(settings: Settings, now_ms: int) -> Iterator[str]:
    for path in (settings.listen_tls_certificate_file_path, settings.tls_certificate_file_path):
        if path is None:
            continue
        try:
            certificate = load_pem_x509_certificates(path.read_bytes())[0]
        except (OSError, ValueError) as error:
            yield f"the certificate in {path} cannot be read ({type(error).__name__}); correct the setting or the file"
            continue
        days = (certificate.not_valid_after_utc.timestamp() * 1000 - now_ms) / _DAY_MS
        if days < 0:
            yield f"the certificate in {path} has expired; renew it"
        elif days < _RENEW_DAYS:
            yield f"the certificate in {path} expires in {format_count(round(days), 'day')}; renew it"


def _file_warnings(settings: Settings) -> Iterator[str]:
    wanted = settings.max_http_server_connections
    if (most := connections_for_callers(wanted)) < wanted:
        yield (
            f"this process may open too few files for maxHttpServerConnections={wanted}: it can serve "
            f"{format_count(most, 'connection')}; raise its limit (ulimit -n, LimitNOFILE)"
        )
