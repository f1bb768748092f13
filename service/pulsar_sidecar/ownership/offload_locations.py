"""Locations and names of offloaded copies by their contexts, and the locations that the sidecar may access.

Of namespaces' policies only the deletion lag is read: they do not prove where a copy was put.

A record on the pending topic may be forged. Invariant: this module passes on only addresses, buckets and directories
that are in the operator's own list, letter for letter after normalisation.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from pulsar_sidecar.model.errors import DisabledError, InvalidInputError, PermanentError
from pulsar_sidecar.model.ids import MAX_LEDGER_ID, LedgerId
from pulsar_sidecar.model.ledgers import OffloadContext
from pulsar_sidecar.model.names import ManagedLedgerName

ALLOWED_LOCATIONS_SETTING = "offloadAllowedLocations"
_BUCKET = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{1,253}[A-Za-z0-9])?")
_REGION = re.compile(r"[a-z0-9-]{0,40}")
_AWS_HOST = re.compile(r"s3[.-](?:dualstack\.)?(?P<region>[a-z]{2}(?:-[a-z]+)+-\d)\.amazonaws\.com(?:\.cn)?")
_DEFAULT_REGION = "us-east-1"
_DEFAULT_PORTS = {"http": 80, "https": 443}
_HALF_RANGE = range(-(2**63), 2**63)


class OffloadDriver(Enum):
    """Pulsar's offload drivers (``JCloudBlobStoreProvider``, ``FileSystemManagedLedgerOffloader``)."""

    AWS_S3 = "aws-s3"
    S3 = "S3"
    GOOGLE_CLOUD_STORAGE = "google-cloud-storage"
    AZURE_BLOB = "azureblob"
    ALIYUN_OSS = "aliyun-oss"
    FILESYSTEM = "filesystem"


class Storage(Enum):
    """Kind of storage for copies; the value is the scheme in a location's written form."""

    S3 = "s3"
    OSS = "oss"
    GCS = "gs"
    AZURE = "azure"
    FILES = "file"


_STORAGE_OF = {
    OffloadDriver.AWS_S3: Storage.S3,
    OffloadDriver.S3: Storage.S3,
    OffloadDriver.GOOGLE_CLOUD_STORAGE: Storage.GCS,
    OffloadDriver.AZURE_BLOB: Storage.AZURE,
    OffloadDriver.ALIYUN_OSS: Storage.OSS,
    OffloadDriver.FILESYSTEM: Storage.FILES,
}


@dataclass(frozen=True, slots=True)
class OffloadLocation:
    """A bucket (container) or a base directory.

    Attributes:
        storage: kind of storage, which decides the client.
        container: bucket, container, or absolute directory.
        endpoint: URL of the service in normal form; None for the provider's own, and for directories.
    """

    storage: Storage
    container: str
    endpoint: str | None = None

    def __str__(self) -> str:
        suffix = f"@{self.endpoint}" if self.endpoint else ""
        return f"{self.storage.value}://{self.container}{suffix}"

    @property
    def place(self) -> str:
        """The location as offload contexts record it: for Azure they lack the account."""
        return str(replace(self, endpoint=None) if self.storage is Storage.AZURE else self)


@dataclass(frozen=True, slots=True)
class OffloadTarget:
    """A location as one driver reaches it; ``region`` is empty where there is none."""

    driver: OffloadDriver
    location: OffloadLocation
    region: str = ""


class ObjectRole(Enum):
    """Role of an object of a copy; the value is the ``role`` in its user metadata."""

    DATA = "data"
    INDEX = "index"


@dataclass(frozen=True, slots=True)
class OffloadedCopy:
    """Place and identity of what one offload attempt of a ledger wrote."""

    ledger_id: LedgerId
    attempt: UUID
    managed_ledger: ManagedLedgerName

    def key(self, role: ObjectRole) -> str:
        """Return the object's name (``DataBlockUtils.dataBlockOffloadKey``, ``indexBlockOffloadKey``)."""
        data_key = f"{self.attempt}-ledger-{self.ledger_id}"
        return data_key if role is ObjectRole.DATA else f"{data_key}-index"

    @property
    def directory_name(self) -> str:
        """Name of the MapFile's own directory (``FileSystemManagedLedgerOffloader.getDataFilePath``)."""
        return f"{self.ledger_id}-{self.attempt}"


def copy_of(ledger_id: LedgerId, context: OffloadContext, managed_ledger: ManagedLedgerName) -> OffloadedCopy:
    """Return the copy that a context names.

    Raises:
        InvalidInputError: an id is out of range.
        PermanentError: streaming offload wrote the context, whose objects may hold entries of other ledgers too; or
            the context names no attempt.
    """
    if context.segments:
        raise PermanentError(
            f"ledger {ledger_id} was offloaded in streaming segments, which may hold other ledgers as well; "
            "delete the objects in the object store when no ledger in them is still needed"
        )
    halves = (context.uid_msb, context.uid_lsb)
    if not 0 <= ledger_id <= MAX_LEDGER_ID or any(half not in _HALF_RANGE for half in halves):
        raise InvalidInputError(f"ledger {ledger_id} or a half of its offload UUID is out of range")
    if halves == (0, 0):
        raise PermanentError(f"the offload context of ledger {ledger_id} names no attempt, so nothing can be located")
    return OffloadedCopy(ledger_id, context.attempt, managed_ledger)


class AllowedLocations:
    """Locations that the operator allows the sidecar to access.

    ``s3://bucket`` is a bucket at Amazon itself, ``s3://bucket@https://minio.example:9000`` one at another endpoint;
    likewise ``gs://bucket[@endpoint]``, ``oss://bucket@endpoint``, ``azure://container@endpoint`` and
    ``file:///directory``.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        """Read the list.

        Raises:
            InvalidInputError: an item is not a location, or two name one Azure container at two accounts.
        """
        self._locations = frozenset(parse_location(text) for text in texts)
        azure = [item.container for item in self._locations if item.storage is Storage.AZURE]
        if len(azure) != len(set(azure)):
            raise InvalidInputError(
                f"{ALLOWED_LOCATIONS_SETTING} has one Azure container at two accounts; an offload context does not "
                "name the account, so list only one"
            )

    def permitted(self, wanted: OffloadLocation) -> OffloadLocation:
        """Return the listed location of a context; for Azure it adds the account, which contexts do not record.

        Raises:
            DisabledError: it is not listed.
        """
        azure = wanted.storage is Storage.AZURE
        for location in self._locations:
            if location == wanted or (azure and replace(location, endpoint=wanted.endpoint) == wanted):
                return location
        raise DisabledError(
            f"{wanted} is not in {ALLOWED_LOCATIONS_SETTING}; if the cluster really offloads there, add it and send "
            "the record again"
        )


def parse_location(text: str) -> OffloadLocation:
    """Read one item of the operator's list.

    Raises:
        InvalidInputError: it is not of a known form.
    """
    scheme, separator, rest = text.strip().partition("://")
    storage = next((storage for storage in Storage if storage.value == scheme), None)
    if storage is None or not separator:
        raise InvalidInputError(
            f"{text[:200]!r} in {ALLOWED_LOCATIONS_SETTING} is not a location; write s3://bucket[@endpoint], "
            "gs://bucket[@endpoint], oss://bucket@endpoint, azure://container@endpoint or file:///directory"
        )
    if storage is Storage.FILES:
        return OffloadLocation(storage, _directory(rest))
    container, _, endpoint = rest.partition("@")
    if not endpoint and storage in (Storage.OSS, Storage.AZURE):
        raise InvalidInputError(
            f"{text[:200]!r} in {ALLOWED_LOCATIONS_SETTING} needs an endpoint: {text[:200]}@https://…"
        )
    return OffloadLocation(storage, _bucket(container), _endpoint(endpoint))


def offload_target(driver_name: str, driver_metadata: Mapping[str, str]) -> OffloadTarget:
    """Return the target of a context's driver and metadata (``TieredStorageConfiguration.getOffloadDriverMetadata``).

    Raises:
        PermanentError: the driver is unknown or missing, or the metadata do not locate the copy.
    """
    driver = _driver(driver_name)
    recorded = driver_metadata.get("managedLedgerOffloadDriver")
    if recorded and recorded != driver.name:
        raise PermanentError(f"the offload context names two drivers, {driver_name!r} and {recorded[:80]!r}")
    if driver is OffloadDriver.FILESYSTEM:
        base = driver_metadata.get("storageBasePath", "")
        path = base.removeprefix("file:")
        if not path.startswith("/"):
            raise PermanentError(
                f"copies below {base[:200]!r} are out of reach: only file:/// directories are supported"
            )
        return OffloadTarget(driver, OffloadLocation(Storage.FILES, _directory(path)))
    container = _bucket(driver_metadata.get("bucket", ""))
    endpoint = _endpoint(driver_metadata.get("serviceEndpoint", ""))
    location = OffloadLocation(_STORAGE_OF[driver], container, endpoint)
    return OffloadTarget(driver, location, _region(driver, driver_metadata.get("region", ""), endpoint))


def target_at(location: OffloadLocation, region: str = "") -> OffloadTarget:
    """Return an operator's location as a target, with the driver that most brokers use for it.

    Raises:
        InvalidInputError: a bucket at Amazon itself needs its region.
    """
    drivers = {storage: driver for driver, storage in _STORAGE_OF.items()}
    driver = drivers[location.storage]
    if location.storage is Storage.S3 and location.endpoint is None:
        driver = OffloadDriver.AWS_S3
        if not region:
            raise InvalidInputError(f"{location} needs a region; name it with --region")
    return OffloadTarget(driver, location, _region(driver, region, location.endpoint))


def driver_metadata_of(driver_name: str, place: str, region: str) -> dict[str, str]:
    """Return the metadata that a driver's offload contexts have at an `OffloadLocation.place`."""
    scheme, _, rest = place.partition("://")
    if scheme == Storage.FILES.value:
        return {"storageBasePath": f"file://{rest}"}
    bucket, _, endpoint = rest.partition("@")
    name = _driver(driver_name).name
    return {"managedLedgerOffloadDriver": name, "bucket": bucket, "region": region, "serviceEndpoint": endpoint}


def own_deletion_lag_ms(policies: Mapping[str, Any]) -> int | None:
    """Return the deletion lag in a namespace's policies, negative for never; None if the brokers' applies.

    The offload policies come before the older policy (``OffloadPoliciesImpl.oldPoliciesCompatible``).
    """
    offload = policies.get("offload_policies")
    own = offload.get("managedLedgerOffloadDeletionLagInMillis") if isinstance(offload, dict) else None
    return next((each for each in (own, policies.get("offload_deletion_lag_ms")) if isinstance(each, int)), None)


def _driver(name: str) -> OffloadDriver:
    if not name:
        raise PermanentError(
            "the offload context names no driver, so its copy cannot be located; the namespace's present offload "
            "policies do not prove where it was put"
        )
    for driver in OffloadDriver:
        if driver.value.casefold() == name.casefold():
            return driver
    raise PermanentError(f"offload driver {name[:80]!r} is unknown")


def _region(driver: OffloadDriver, region: str, endpoint: str | None) -> str:
    if not _REGION.fullmatch(region):
        raise InvalidInputError(f"{region[:80]!r} is not a region's name")
    if driver not in (OffloadDriver.AWS_S3, OffloadDriver.S3, OffloadDriver.ALIYUN_OSS) or region:
        return region
    if endpoint is None:
        raise PermanentError("the offload context has neither region nor serviceEndpoint, so its bucket is not known")
    match = _AWS_HOST.fullmatch(urlsplit(endpoint).hostname or "")
    return match["region"] if match else _DEFAULT_REGION


def _bucket(name: str) -> str:
    if not _BUCKET.fullmatch(name):
        raise InvalidInputError(f"{name[:80]!r} is not the name of a bucket or container")
    return name


def _endpoint(url: str) -> str | None:
    if not url:
        return None
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InvalidInputError("an endpoint's URL cannot be read; write https://host:port") from error
    plain = not (parts.username or parts.password or parts.query or parts.fragment)
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname or not plain or not url.isprintable() or " " in url:
        raise InvalidInputError("an endpoint must be an http or https URL without user, query or fragment")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    suffix = "" if port in (None, _DEFAULT_PORTS[parts.scheme]) else f":{port}"
    return f"{parts.scheme}://{host}{suffix}{parts.path.rstrip('/')}"


def _directory(path: str) -> str:
    parts = [part for part in path.split("/") if part]
    if not path.startswith("/") or "\0" in path or any(part in (".", "..") for part in parts):
        raise InvalidInputError(f"{path[:200]!r} is not an absolute directory without . and ..")
    return "/" + "/".join(parts)
