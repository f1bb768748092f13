"""Checks of brokers' settings that matter to the sidecar, in one table.

A setting that a broker does not know has the default of the version that added it, so the checks skip it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pulsar_sidecar.features.doctor.findings import Finding, Level
from pulsar_sidecar.model.entry_sizes import DEFAULT_MAX_MESSAGE_SIZE, max_entry_bytes, max_node_bytes

SUBJECT: Final = "broker settings"
_RANGES: Final = "managedLedgerMaxUnackedRangesToPersist"
_RANGE_BYTES: Final = 32
"""Bytes of a range by PIP-299; a range of ledgers below 2^28 and entries below 2^21 takes at most 24."""
_BUCKETS: Final = "org.apache.pulsar.broker.delayed.BucketDelayedDeliveryTrackerFactory"


@dataclass(frozen=True, slots=True)
class _Expected:
    """Expected value of a broker setting, and the consequence of other values."""

    name: str
    value: str
    level: Level
    otherwise: str

    def unmet_on(self, settings: Mapping[str, Mapping[str, object]]) -> Sequence[str]:
        """Return the brokers that know the setting and have another value, sorted."""
        found = {broker: written.get(self.name) for broker, written in settings.items()}
        return sorted(
            broker for broker, value in found.items() if value is not None and str(value).lower() != self.value.lower()
        )


_WANTED: Final = (
    _Expected(
        "systemTopicEnabled", "true", Level.FAILED, "topics have no policies, which the sidecar's own topics need"
    ),
    _Expected(
        "topicLevelPoliciesEnabled",
        "true",
        Level.FAILED,
        "topics have no policies, which the sidecar's own topics need",
    ),
    _Expected("delayedDeliveryEnabled", "true", Level.WARNING, "brokers deliver delayed messages immediately"),
    _Expected(
        "delayedDeliveryTrackerFactoryClassName",
        _BUCKETS,
        Level.OFF,
        "delayed indexes are in memory only, and `delayed-index` commands find no buckets",
    ),
    _Expected(
        "acknowledgmentAtBatchIndexLevelEnabled",
        "true",
        Level.OFF,
        "brokers redeliver a partially acknowledged batch as a whole",
    ),
    _Expected(
        "dispatcherPauseOnAckStatePersistentEnabled",
        "true",
        Level.OFF,
        "brokers keep dispatching after a subscription's acknowledgement state exceeds what they can store (PIP-299)",
    ),
    _Expected(
        "brokerDeduplicationEnabled",
        "true",
        Level.OFF,
        "brokers drop duplicates only on topics whose policy enables deduplication",
    ),
    _Expected("authorizationEnabled", "true", Level.OFF, "every client may perform every operation"),
)


def settings_findings(
    settings: Mapping[str, Mapping[str, object]], cluster_name: str | None, jute_max_buffer: int
) -> Iterator[Finding]:
    """Yield the findings about each broker's configuration, by its name; none if no broker reported one.

    ``jute_max_buffer`` is the metadata store's limit in bytes.
    """
    if not settings:
        return
    yield from _cluster(settings, cluster_name)
    unmet = {wanted: where for wanted in _WANTED if (where := wanted.unmet_on(settings))}
    for wanted, where in unmet.items():
        on = "" if len(where) == len(settings) else f" on {', '.join(where)}"
        written = str(settings[where[0]][wanted.name]).rpartition(".")[2]  # of a class its own name
        remedy = f"set {wanted.name}={wanted.value} in broker.conf and restart the brokers"
        yield Finding(wanted.level, SUBJECT, f"{wanted.name}={written}{on}: {wanted.otherwise}", remedy)
    too_many = list(_too_many_ranges(settings, jute_max_buffer))
    yield from too_many
    if not too_many and all(wanted.level is Level.OFF for wanted in unmet):
        yield Finding(Level.OK, SUBJECT, "brokers have the settings that the sidecar needs")


def _cluster(settings: Mapping[str, Mapping[str, object]], cluster_name: str | None) -> Iterator[Finding]:
    names = sorted({str(each.get("clusterName")) for each in settings.values()})
    expected = cluster_name or names[0]
    if names == [expected]:
        yield Finding(Level.OK, SUBJECT, f"the cluster's name is {expected}")
    else:
        remedy = "set clusterName to the brokers' own, or leave it out; check metadataStoreUrl"
        yield Finding(Level.FAILED, SUBJECT, f"clusterName is {expected}, the brokers' is {', '.join(names)}", remedy)


def _too_many_ranges(settings: Mapping[str, Mapping[str, object]], jute_max_buffer: int) -> Iterator[Finding]:
    """Yield findings about numbers of ranges that do not fit a cursor's entry, or its node (PIP-299)."""
    node = max_node_bytes(jute_max_buffer) // _RANGE_BYTES
    found: dict[tuple[str, int, int, str, str], list[str]] = {}
    for broker, written in sorted(settings.items()):
        size = int(str(written.get("maxMessageSize", DEFAULT_MAX_MESSAGE_SIZE)))
        entry = max_entry_bytes(size) // _RANGE_BYTES
        raise_entry = "maxMessageSize and bookies' nettyMaxFrameSizeBytes"
        raise_node = "jute.maxbuffer of ZooKeeper and brokers, and juteMaxBufferBytes"
        for name, most, place, larger in (
            (_RANGES, entry, f"an entry (maxMessageSize={size})", raise_entry),
            (f"{_RANGES}InMetadataStore", node, f"a node (juteMaxBufferBytes={jute_max_buffer})", raise_node),
        ):
            value = int(str(written.get(name, 0)))
            if value > most and not (name == _RANGES and _as_long_array(written)):
                found.setdefault((name, value, most, place, larger), []).append(broker)
    for (name, value, most, place, larger), brokers in found.items():
        on = "" if len(brokers) == len(settings) else f" on {', '.join(brokers)}"
        text = f"{name}={value}{on}: {place} has room for {most:,} ranges of {_RANGE_BYTES} bytes (PIP-299)"
        yield Finding(Level.WARNING, SUBJECT, text, f"set {name}={most} at most, or raise {larger}")


def _as_long_array(settings: Mapping[str, object]) -> bool:
    """Return True if brokers store acknowledgements as bits, so that the setting counts entries."""
    switches = ("managedLedgerPersistIndividualAckAsLongArray", "managedLedgerUnackedRangesOpenCacheSetEnabled")
    return all(str(settings.get(name)).lower() == "true" for name in switches)
