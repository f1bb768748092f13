"""Names of topics, managed ledgers, cursors and schemas, with Pulsar's own encodings between them.

Pulsar writes the same topic in three forms: as a URI (``persistent://t/n/topic``), as a managed-ledger name
(``t/n/persistent/<encoded topic>``) and as a schema id (``t/n/<encoded base topic>``).
"""

import re
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import NewType
from urllib.parse import quote_plus, unquote_plus

from pulsar_sidecar.model.errors import InvalidInputError

ManagedLedgerName = NewType("ManagedLedgerName", str)
"""``tenant/namespace/persistent/<encoded topic>`` (V2) or ``tenant/cluster/namespace/persistent/<encoded>`` (V1)."""

SchemaId = NewType("SchemaId", str)
"""``tenant/namespace/<encoded base topic>`` (``TopicName.getSchemaName``)."""

CursorName = NewType("CursorName", str)
"""A cursor's name as the metadata store spells it: URL-encoded."""

_SYSTEM_NAMESPACES = re.compile(r"pulsar/system|pulsar/(?:[^/]+/)?[^:]+:\d+|sla-monitor/[^/]+/[^:]+:\d+")
"""``NamespaceService.isSystemServiceNamespace``: namespaces of brokers' own topics and heartbeats."""
_SYSTEM_TOPICS = (
    "__change_events",
    "__transaction_buffer_snapshot",
    "__transaction_buffer_snapshot_segments",
    "__transaction_buffer_snapshot_indexes",
)
_SYSTEM_NAMESPACE = "pulsar/system"
_TRANSACTION_LOG_PREFIX = "__transaction_log_"
PENDING_ACKS_SUFFIX = "__transaction_pending_ack"
"""Ends the managed ledger of a subscription's acknowledgements in transactions (``MLPendingAckStore``)."""
PARTITIONED_SUFFIX = "-partition-"
_PARTITION = re.compile(r"(?P<base>.+)-partition-(?P<index>0|[1-9]\d{0,9})", re.DOTALL)
_NAMED_ENTITY = re.compile(r"[-=:.\w]+", re.ASCII)
_NO_NODE_NAMES = (".", "..")
MAX_PARTITION_INDEX = 2**31 - 1
MAX_NAME_BYTES = 4096

_REMEMBERED_NAMES = 4096
"""A backlog concerns few topics and many ledgers, so most names were read a moment ago."""


def java_url_encode(text: str) -> str:
    """Return ``java.net.URLEncoder.encode(text, UTF_8)``, which differs from Python's in ``*`` and ``~``."""
    return quote_plus(text, safe="*").replace("~", "%7E")


def java_url_decode(text: str) -> str:
    """Return ``java.net.URLDecoder.decode(text, UTF_8)``."""
    return unquote_plus(text, errors="strict")


def encode_cursor(subscription: str) -> CursorName:
    """Return the name in the metadata store of a subscription's cursor."""
    return CursorName(java_url_encode(subscription))


def decode_cursor(cursor: CursorName) -> str | None:
    """Return the subscription of a cursor (inverse of `encode_cursor`); None for a name that Pulsar never writes."""
    try:
        subscription = java_url_decode(cursor)
    except UnicodeError:
        return None
    return subscription if encode_cursor(subscription) == cursor else None


class TopicDomain(Enum):
    """``org.apache.pulsar.common.naming.TopicDomain``."""

    PERSISTENT = "persistent"
    NON_PERSISTENT = "non-persistent"


@dataclass(frozen=True, slots=True)
class TopicName:
    """A complete topic name (``org.apache.pulsar.common.naming.TopicName``).

    ``cluster`` is set only for V1 names; ``local_name`` is decoded, without domain and namespace.
    """

    domain: TopicDomain
    tenant: str
    cluster: str | None
    namespace_portion: str
    local_name: str

    def __str__(self) -> str:
        return _uri(self)

    def __hash__(self) -> int:
        # Names are keys of many mappings; the local name distinguishes most of them, and Python caches its hash.
        return hash(self.local_name)

    @property
    def namespace(self) -> str:
        """``tenant/namespace``, or ``tenant/cluster/namespace`` for V1."""
        middle = f"{self.cluster}/" if self.cluster else ""
        return f"{self.tenant}/{middle}{self.namespace_portion}"

    @property
    def managed_ledger_name(self) -> ManagedLedgerName:
        """Name of the topic's managed ledger (``TopicName.getPersistenceNamingEncoding``)."""
        return _managed_ledger_name(self)

    @property
    def partition_index(self) -> int | None:
        """The partition's number, or None for a topic that is not a partition."""
        match = _partition_match(self.local_name)
        return int(match["index"]) if match else None

    @property
    def base(self) -> "TopicName":
        """The partitioned topic this is a partition of, or the topic itself."""
        match = _partition_match(self.local_name)
        return self._renamed(match["base"]) if match else self

    @property
    def schema_id(self) -> SchemaId:
        """The id of the schema, which partitions share (``TopicName.getSchemaName``; V1 names drop the cluster)."""
        return SchemaId(f"{self.tenant}/{self.namespace_portion}/{java_url_encode(self.base.local_name)}")

    @property
    def is_system_topic(self) -> bool:
        """True if brokers treat it as their own (``BrokerService.isSystemTopic``): never deduplicated or expired."""
        if _SYSTEM_NAMESPACES.fullmatch(self.namespace) or self.base.local_name in _SYSTEM_TOPICS:
            return True
        return self.base.local_name.endswith(PENDING_ACKS_SUFFIX)

    @property
    def is_transaction_log(self) -> bool:
        """True if brokers log transactions there: it has entries, but no topic (``isTransactionInternalName``)."""
        if self.namespace == _SYSTEM_NAMESPACE and self.local_name.startswith(_TRANSACTION_LOG_PREFIX):
            return True
        return self.local_name.endswith(PENDING_ACKS_SUFFIX)

    def partition(self, index: int) -> "TopicName":
        """Return partition ``index`` of this topic, whatever its own name ends with."""
        return self._renamed(f"{self.local_name}{PARTITIONED_SUFFIX}{index}")

    def _renamed(self, local_name: str) -> "TopicName":
        return TopicName(self.domain, self.tenant, self.cluster, self.namespace_portion, local_name)


@lru_cache(_REMEMBERED_NAMES)
def parse_topic_name(text: str) -> TopicName:
    """Read a topic name in any of Pulsar's spellings: URI, ``tenant/namespace/topic``, or a short local name.

    Raises:
        InvalidInputError: the text is not a topic name; the message names the defect.
    """
    try:
        length_bytes = len(text.encode("utf-8"))
    except UnicodeEncodeError:
        raise InvalidInputError("a topic name must be a Unicode string without lone surrogates") from None
    if length_bytes > MAX_NAME_BYTES:
        raise InvalidInputError(f"a topic name must be at most {MAX_NAME_BYTES} bytes long")
    domain_text, separator, rest = text.partition("://")
    if not separator:
        domain_text, rest = TopicDomain.PERSISTENT.value, _completed(text)
    try:
        domain = TopicDomain(domain_text)
    except ValueError:
        raise InvalidInputError(
            f"topic domain {domain_text[:40]!r} is neither 'persistent' nor 'non-persistent'"
        ) from None
    return _topic_from_parts(domain, rest)


@lru_cache(_REMEMBERED_NAMES)
def topic_of_managed_ledger(name: str) -> TopicName | None:
    """Return the topic that a managed-ledger name belongs to, or None if it does not have a topic's shape."""
    parts = name.split("/")
    if len(parts) not in (4, 5) or parts[-2] not in (domain.value for domain in TopicDomain):
        return None
    cluster = parts[1] if len(parts) == 5 else None
    try:
        topic = TopicName(TopicDomain(parts[-2]), parts[0], cluster, parts[-3], java_url_decode(parts[-1]))
        # An encoding that Pulsar does not write ("%2f", "%zz", a bare "~") names no topic, even if it can be decoded.
        is_pulsars = topic.managed_ledger_name == name
    except UnicodeError:
        return None
    return topic if is_pulsars else None


@lru_cache(_REMEMBERED_NAMES)
def _uri(topic: TopicName) -> str:
    return f"{topic.domain.value}://{topic.namespace}/{topic.local_name}"


@lru_cache(_REMEMBERED_NAMES)
def _managed_ledger_name(topic: TopicName) -> ManagedLedgerName:
    return ManagedLedgerName(f"{topic.namespace}/{topic.domain.value}/{java_url_encode(topic.local_name)}")


def _partition_match(local_name: str) -> re.Match[str] | None:
    match = _PARTITION.fullmatch(local_name)
    return match if match and int(match["index"]) <= MAX_PARTITION_INDEX else None


def _completed(text: str) -> str:
    slashes = text.count("/")
    if slashes == 0:
        return f"public/default/{text}"
    if slashes == 2:
        return text
    raise InvalidInputError(
        "write a topic as persistent://tenant/namespace/topic, tenant/namespace/topic or a plain topic name"
    )


def _topic_from_parts(domain: TopicDomain, rest: str) -> TopicName:
    parts = rest.split("/", 3)
    if len(parts) == 3:
        tenant, namespace_portion, local_name = parts
        cluster = None
    elif len(parts) == 4:
        tenant, cluster, namespace_portion, local_name = parts
    else:
        raise InvalidInputError(
            "a topic name needs a tenant, a namespace and a topic: persistent://tenant/namespace/topic"
        )
    for entity in (tenant, namespace_portion) if cluster is None else (tenant, cluster, namespace_portion):
        if not _NAMED_ENTITY.fullmatch(entity) or entity in _NO_NODE_NAMES:
            raise InvalidInputError(f"{entity[:80]!r} is not a valid tenant, cluster or namespace name")
    if not local_name or local_name in _NO_NODE_NAMES:
        raise InvalidInputError("the topic's own name is empty, or one that no metadata store can hold")
    return TopicName(domain, tenant, cluster, namespace_portion, local_name)
