"""Record of PIP-186: one ledger to delete, as ``__ledger_deletion`` carries it.

The JSON has PIP-186's fields under the PIP's names. This project's additions are in one optional object, ``sidecar``,
so records of other writers work, and other consumers can ignore the object. Reading is strict: a field that is unknown,
missing, or of the wrong type makes the record malformed, and a malformed record deletes nothing.

A record of a topic's deletion is signed: proof that this Pulsar cluster's own lists named the ledger. It outlives the
operation that wrote it, so the operation's node cannot authenticate it, and every client that may produce to
``pulsar/system`` can write any operation's id. The key is in the metadata store, in a node that every client of
ZooKeeper may read, even where an ACL protects ``/ledgers``. Every sidecar of a cluster uses the same key.
"""

import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeVar

from pulsar_sidecar.features.ledger_deletion.steps import Step, Steps
from pulsar_sidecar.model.errors import AlreadyExistsError, InvalidInputError, TemporaryError
from pulsar_sidecar.model.ids import MAX_LEDGER_ID, LedgerId, NodeVersion, OperationId
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerType, OffloadContext
from pulsar_sidecar.model.metadata import UNKNOWN_BIRTH, Birth, MetadataStore, Node
from pulsar_sidecar.model.names import TopicDomain, TopicName, parse_topic_name, topic_of_managed_ledger

SIGNING_KEY = "/pulsar-sidecar/ledger-deletion/signing-key"
_KEY_BYTES = 32
MAX_RECORD_BYTES = 256 * 1024
_MAX_TEXT = 8192
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_OPERATION_ID = re.compile(r"[0-9A-Za-z_-]{1,128}")

_COMPONENT_SPELLINGS = {
    "Managed-Ledger": LedgerComponent.MANAGED_LEDGER,
    "Managed-Cursor": LedgerComponent.MANAGED_CURSOR,
    "Managed-Corsor": LedgerComponent.MANAGED_CURSOR,
    "Schema-Storage": LedgerComponent.SCHEMA_STORAGE,
}
"""Spellings of the PIP's prose, its misprint included; the enum's names are what Pulsar's JSON would carry."""

_TYPE_SPELLINGS = {"Ledger": LedgerType.LEDGER, "Offload-Ledger": LedgerType.OFFLOAD_LEDGER}


@dataclass(frozen=True, slots=True)
class Mark:
    """Knowledge of the first phase when it wrote the record; every field is optional.

    Attributes:
        operation_id: two-phase topic deletion that wrote it; while it runs, "in use" is not final.
        marked_version: version of the referencing node from which the shrunken list will be computed.
        unreferenced: True if the writer found no reference, so that no list will shrink and "in use" is final at once.
        instance_id: BookKeeper's instance id of the cluster the record is about.
        created_ms: creation time of the ledger's node; another time under the same id is another ledger.
        length_bytes: size of the ledger, for the estimate of waiting bytes.
        requested_by: identity of the requester, for the outcome log.
        dereferenced_ms: time at which the watch saw the last reference vanish, on the store's clock. It counts only in
            a signed record: the ledger had been linked, so no broker is about to link it.
        signature: proof that a list of this cluster named the ledger (`signed`).
        created_order: order of creation of the ledger's node, instead of the time in a store that keeps none.
    """

    operation_id: OperationId | None = None
    marked_version: NodeVersion | None = None
    unreferenced: bool = False
    instance_id: str | None = None
    created_ms: int | None = None
    length_bytes: int | None = None
    requested_by: str | None = None
    dereferenced_ms: int | None = None
    signature: str | None = None
    created_order: int | None = None

    @property
    def birth(self) -> Birth:
        """Identity of the ledger's node, if it is known."""
        return Birth(self.created_ms, self.created_order)


@dataclass(frozen=True, slots=True)
class PendingDeleteLedgerInfo:
    """PIP-186 ``PendingDeleteLedgerInfo``.

    ``schema_id`` is the schema's id in Pulsar's storage (``tenant/namespace/topic``); the PIP types it as a number,
    which no Pulsar has, so a number is accepted and not compared. ``cursor_name`` is a subscription's decoded name or
    the cursor's encoded one; a bucket's ledger carries the subscription's.
    """

    topic: TopicName
    component: LedgerComponent
    ledger_type: LedgerType
    ledger_id: LedgerId
    cursor_name: str | None = None
    schema_id: str | int | None = None
    offload_context: OffloadContext | None = None
    mark: Mark = Mark()

    def marked(self, mark: Mark) -> "PendingDeleteLedgerInfo":
        return replace(self, mark=mark)


def record_key(record: PendingDeleteLedgerInfo) -> str:
    """Return the key that two records of the same copy of the same ledger share."""
    return copy_key(
        record.ledger_id, record.offload_context if record.ledger_type is LedgerType.OFFLOAD_LEDGER else None
    )


def copy_key(ledger_id: LedgerId, offload: OffloadContext | None) -> str:
    """Return a key, usable as a node's name, for BookKeeper's copy or the copy of an offload attempt."""
    if offload is None:
        return str(ledger_id)
    # Brokers retry a failed offload under another id, and each attempt leaves a copy of its own.
    return f"{ledger_id}o{offload.uid_msb:x}.{offload.uid_lsb:x}"


# --- writing -------------------------------------------------------------------------------------------------------


def encode_record(record: PendingDeleteLedgerInfo) -> bytes:
    """Return the record as UTF-8 JSON."""
    return json.dumps(record_document(record), separators=(",", ":"), ensure_ascii=False).encode()


def record_document(record: PendingDeleteLedgerInfo) -> dict[str, object]:
    """Return the record as a JSON object with PIP-186's field names; absent fields are omitted."""
    document: dict[str, object | None] = {
        "topicName": str(record.topic),
        "ledgerComponent": record.component.value,
        "cursorName": record.cursor_name,
        "schemaId": record.schema_id,
        "ledgerType": record.ledger_type.value,
        "ledgerId": record.ledger_id,
        "offloadContext": _offload_document(record.offload_context) if record.offload_context else None,
        "sidecar": _mark_document(record.mark) or None,
    }
    return {name: value for name, value in document.items() if value is not None}


def _offload_document(context: OffloadContext) -> dict[str, object]:
    return {
        "msb": context.uid_msb,
        "lsb": context.uid_lsb,
        "driverName": context.driver_name,
        "metadata": dict(context.driver_metadata),
    }


def _mark_document(mark: Mark) -> dict[str, object]:
    document: dict[str, object | None] = {
        "operationId": mark.operation_id,
        "markedVersion": mark.marked_version,
        "unreferenced": mark.unreferenced or None,
        "instanceId": mark.instance_id,
        "createdMs": mark.created_ms,
        "createdOrder": mark.created_order,
        "lengthBytes": mark.length_bytes,
        "requestedBy": mark.requested_by,
        "dereferencedMs": mark.dereferenced_ms,
        "signature": mark.signature,
    }
    return {name: value for name, value in document.items() if value is not None}


# --- reading -------------------------------------------------------------------------------------------------------


def parse_record(payload: bytes) -> PendingDeleteLedgerInfo:
    """Parse a record from the topic.

    Raises:
        InvalidInputError: it is malformed; the message names the field.
    """
    if len(payload) > MAX_RECORD_BYTES:
        raise InvalidInputError(f"a record must be at most {MAX_RECORD_BYTES} bytes long; this one has {len(payload)}")
    try:
        document = _DECODER.decode(payload.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"the record is not a JSON document: {type(error).__name__}") from error
    return parse_record_document(document)


def parse_record_document(document: object) -> PendingDeleteLedgerInfo:
    """Parse a record from a JSON object, as `parse_record` does."""
    fields = _Fields(document, "the record")
    component_text, type_text = fields.text("ledgerComponent"), fields.text("ledgerType")
    offload = fields.nested("offloadContext")
    mark = fields.nested("sidecar")
    record = PendingDeleteLedgerInfo(
        topic=_parse_topic(fields.text("topicName")),
        component=_enum(component_text, "ledgerComponent", LedgerComponent, _COMPONENT_SPELLINGS),
        ledger_type=_enum(type_text, "ledgerType", LedgerType, _TYPE_SPELLINGS),
        ledger_id=LedgerId(fields.integer("ledgerId", 0, MAX_LEDGER_ID)),
        cursor_name=fields.optional_text("cursorName"),
        schema_id=fields.text_or_integer("schemaId"),
        offload_context=_parse_offload(offload) if offload else None,
        mark=_parse_mark(mark) if mark else Mark(),
    )
    fields.refuse_unknown()
    _check_essentials(record)
    return record


def _check_essentials(record: PendingDeleteLedgerInfo) -> None:
    if record.topic.domain is not TopicDomain.PERSISTENT:
        raise InvalidInputError("topicName must be persistent: other topics have no ledgers")
    if record.component is LedgerComponent.MANAGED_CURSOR and not record.cursor_name:
        raise InvalidInputError("cursorName is missing: a cursor's ledger needs the cursor's name")
    if record.ledger_type is LedgerType.OFFLOAD_LEDGER:
        if record.component is not LedgerComponent.MANAGED_LEDGER:
            raise InvalidInputError("only a MANAGED_LEDGER can be an OFFLOAD_LEDGER")
        if record.offload_context is None:
            raise InvalidInputError("offloadContext is missing: an OFFLOAD_LEDGER is found by it")


def _parse_topic(text: str) -> TopicName:
    # The draft implementation of PIP-186 writes managed-ledger names in one place, so both spellings occur.
    if "://" not in text and text.count("/") >= 3:
        topic = topic_of_managed_ledger(text)
        if topic is not None:
            return topic
    return parse_topic_name(text)


def _parse_offload(fields: "_Fields") -> OffloadContext:
    context = OffloadContext(
        uid_msb=fields.integer("msb", _INT64_MIN, _INT64_MAX),
        uid_lsb=fields.integer("lsb", _INT64_MIN, _INT64_MAX),
        driver_name=fields.optional_text("driverName") or "",
        driver_metadata=fields.text_map("metadata"),
    )
    fields.refuse_unknown()
    return context


def _parse_mark(fields: "_Fields") -> Mark:
    operation_id = fields.optional_text("operationId")
    marked_version = fields.optional_integer("markedVersion", 0, _INT64_MAX)
    mark = Mark(
        operation_id=None if operation_id is None else OperationId(operation_id),
        marked_version=None if marked_version is None else NodeVersion(marked_version),
        unreferenced=fields.boolean("unreferenced"),
        instance_id=fields.optional_text("instanceId"),
        created_ms=fields.optional_integer("createdMs", 0, _INT64_MAX),
        created_order=fields.optional_integer("createdOrder", 0, _INT64_MAX),
        length_bytes=fields.optional_integer("lengthBytes", 0, _INT64_MAX),
        requested_by=fields.optional_text("requestedBy"),
        dereferenced_ms=fields.optional_integer("dereferencedMs", 0, _INT64_MAX),
        signature=fields.optional_text("signature"),
    )
    fields.refuse_unknown()
    # The id becomes a node's name, and a name that the store refuses would stop a whole batch.
    if mark.operation_id is not None and not _OPERATION_ID.fullmatch(mark.operation_id):
        raise InvalidInputError("operationId is not an operation's id")
    return mark


Chosen = TypeVar("Chosen", bound=Enum)


def _enum(text: str, field: str, kind: type[Chosen], spellings: Mapping[str, Chosen]) -> Chosen:
    if text in spellings:
        return spellings[text]
    try:
        return kind(text)
    except ValueError:
        known = ", ".join(member.value for member in kind)
        raise InvalidInputError(f"{field} {text[:60]!r} is unknown; known are {known}") from None


def _refuse_constant(name: str) -> object:
    raise ValueError(name)


def _refuse_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    # JSON readers disagree about duplicate names, so such a document is ambiguous.
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("a name occurs twice in one object")
    return document


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_refuse_duplicates)


class _Fields:
    """JSON object that is consumed field by field, each with its type, until no unknown field is left."""

    def __init__(self, document: object, name: str) -> None:
        if not isinstance(document, dict):
            raise InvalidInputError(f"{name} is not a JSON object")
        self._name = name
        self._left = {str(key): value for key, value in document.items() if value is not None}

    def text(self, field: str) -> str:
        value = self.optional_text(field)
        if not value:
            raise InvalidInputError(f"{field} is missing")
        return value

    def optional_text(self, field: str) -> str | None:
        value = self._left.pop(field, None)
        if value is None:
            return None
        if not isinstance(value, str):
            raise InvalidInputError(f"{field} must be a string")
        return _checked_text(value, field)

    def integer(self, field: str, low: int, high: int) -> int:
        value = self.optional_integer(field, low, high)
        if value is None:
            raise InvalidInputError(f"{field} is missing")
        return value

    def optional_integer(self, field: str, low: int, high: int) -> int | None:
        value = self._left.pop(field, None)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool):
            raise InvalidInputError(f"{field} must be an integer")
        if not low <= value <= high:
            raise InvalidInputError(f"{field} must lie between {low} and {high}")
        return value

    def text_or_integer(self, field: str) -> str | int | None:
        if isinstance(self._left.get(field), str):
            return self.optional_text(field)
        return self.optional_integer(field, _INT64_MIN, _INT64_MAX)

    def boolean(self, field: str) -> bool:
        value = self._left.pop(field, False)
        if not isinstance(value, bool):
            raise InvalidInputError(f"{field} must be true or false")
        return value

    def text_map(self, field: str) -> dict[str, str]:
        value = self._left.pop(field, {})
        if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
            raise InvalidInputError(f"{field} must be an object of strings")
        return {_checked_text(key, field): _checked_text(item, field) for key, item in value.items()}

    def nested(self, field: str) -> "_Fields | None":
        value = self._left.pop(field, None)
        return None if value is None else _Fields(value, field)

    def refuse_unknown(self) -> None:
        if self._left:
            unknown = ", ".join(sorted(ascii(name[:60]) for name in self._left))[:500]
            raise InvalidInputError(f"{self._name} has unknown fields: {unknown}")


def _checked_text(value: str, field: str) -> str:
    if len(value) > _MAX_TEXT:
        raise InvalidInputError(f"{field} is longer than {_MAX_TEXT} characters")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidInputError(f"{field} is not valid Unicode text") from None
    return value


# --- signing -------------------------------------------------------------------------------------------------------


def signing_key(store: MetadataStore, steps: Steps, node: Node | None = None) -> bytes:
    """Return the cluster's key, which the first sidecar that needs it creates; ``node`` is its node if already read.

    Raises:
        TemporaryError: the node exists and holds no key.
    """
    node = node or store.read(SIGNING_KEY)
    if node is None:
        try:
            with steps.taking(Step.SIGNING_KEY_CREATED):
                node = store.create(SIGNING_KEY, secrets.token_bytes(_KEY_BYTES))
        except AlreadyExistsError:
            node = store.read(SIGNING_KEY)
    if node is None or len(node.data) != _KEY_BYTES:
        raise TemporaryError(f"{SIGNING_KEY} does not hold a key of {_KEY_BYTES} bytes; delete the node")
    return node.data


def signed(record: PendingDeleteLedgerInfo, key: bytes) -> PendingDeleteLedgerInfo:
    """Return the record with its signature; unsigned where a later ledger with its id would look the same."""
    if record.ledger_type is LedgerType.LEDGER and record.mark.birth == UNKNOWN_BIRTH:
        return record
    return record.marked(replace(record.mark, signature=_signature(record, key)))


def is_signed(record: PendingDeleteLedgerInfo, key: bytes | None) -> bool:
    """Return True if a sidecar of this cluster signed exactly this record."""
    given = record.mark.signature
    if key is None or len(key) != _KEY_BYTES or given is None or not given.isascii():
        return False
    return hmac.compare_digest(given, _signature(record, key))


def _signature(record: PendingDeleteLedgerInfo, key: bytes) -> str:
    unsigned = record.marked(replace(record.mark, signature=None))
    return hmac.new(key, encode_record(unsigned), hashlib.sha256).hexdigest()
