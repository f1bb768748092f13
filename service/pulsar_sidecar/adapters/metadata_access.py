"""Access to the metadata store, the same for each driver: credential, TLS, timeouts and rates, and the store's time."""

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pulsar_sidecar.model.clocks import Clock, StopSignal
from pulsar_sidecar.model.errors import InvalidInputError, SidecarError
from pulsar_sidecar.model.file_urls import content_of
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.model.tls import load_certificate, trusting

CLOCK_PATH = "/pulsar-sidecar/clock"
_SASL = "sasl"


@dataclass(frozen=True, slots=True)
class StoreCredential:
    """Credential for ``addauth``, such as scheme ``digest`` and ``user:password``; or, as scheme ``sasl``, a login."""

    scheme: str
    secret: str = field(repr=False)

    @property
    def sasl(self) -> tuple[str, str] | None:
        """User and password for SASL's DIGEST-MD5, if that is the scheme."""
        user, _, password = self.secret.partition(":")
        return (user, password) if self.scheme == _SASL else None


@dataclass(frozen=True, slots=True)
class StoreTls:
    """TLS of connections to ZooKeeper: PEM files with trusted CA certificates and with the client's certificate."""

    trusted: Path
    certificate: Path | None = None
    key: Path | None = None

    def context(self) -> ssl.SSLContext:
        """Return the context for a connection; raise `InvalidInputError` if a file cannot be used."""
        context = trusting(self.trusted)
        if self.certificate is not None and self.key is not None:
            load_certificate(context, self.certificate, self.key)
        return context


def parse_credential(text: str | None) -> StoreCredential | None:
    """Parse the setting ``metadataStoreAuth``: ``scheme:credential``, or ``file:`` and its path; None for none.

    Raises:
        InvalidInputError: it has another form, or the file cannot be read; the message does not repeat it.
    """
    if text is None:
        return None
    scheme, colon, secret = content_of(text, "metadataStoreAuth").partition(":")
    if not colon or not secret or (scheme == _SASL and ":" not in secret):
        raise InvalidInputError(
            "metadataStoreAuth must be scheme:credential, such as digest:user:password or sasl:user:password, or "
            "file:///path of a file that contains it"
        )
    return StoreCredential(scheme, secret)


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """Timeouts, credential and TLS of a session.

    Attributes:
        timeout_ms: time without contact after which the server drops our ephemeral nodes; Pulsar's
            ``metadataStoreSessionTimeoutMillis``.
        call_timeout_seconds: longest wait of a call without progress, after which it raises `TemporaryError`.
        credential: credential for clusters whose nodes have access control lists.
        tls: TLS for servers whose port requires it (``secureClientPort``).
    """

    timeout_ms: int = 30_000
    call_timeout_seconds: float = 10.0
    credential: StoreCredential | None = None
    tls: StoreTls | None = None


DEFAULT_OPTIONS: Final = SessionOptions()


@dataclass(frozen=True, slots=True)
class WalkOptions:
    """Options of a walk: credential, TLS, and most nodes per second (None for no limit) unless ``hurry`` is set."""

    credential: StoreCredential | None = None
    nodes_per_second: float | None = None
    tls: StoreTls | None = None
    hurry: StopSignal | None = None


UNLIMITED = WalkOptions()


class StoreTime:
    """`model.clocks.Clock` by the metadata store's time, which all machines of a cluster share.

    While the store does not respond, the time runs on from its last response; before the first one, the machine's clock
    is used.
    """

    def __init__(self, store: MetadataStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._offset_ms: float | None = None

    def now_ms(self) -> int:
        try:
            now_ms = self._store.now_ms()
        except SidecarError:
            offset_ms = self._offset_ms
            return self._clock.now_ms() if offset_ms is None else round(offset_ms + self.monotonic_seconds() * 1000)
        self._offset_ms = now_ms - self.monotonic_seconds() * 1000
        return now_ms

    def monotonic_seconds(self) -> float:
        return self._clock.monotonic_seconds()

    def wait_seconds(self, seconds: float, stop: StopSignal | None = None) -> bool:
        return self._clock.wait_seconds(seconds, stop)
