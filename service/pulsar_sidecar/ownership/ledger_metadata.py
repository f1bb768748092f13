"""Codec of BookKeeper's ledger metadata, the bytes of a ledger's node (BookKeeper ``LedgerMetadataSerDe``).

Formats 1 (text), 2 (protobuf text) and 3 (protobuf, what Pulsar writes) are understood exactly; anything else is
undecodable, so that a ledger is never judged by half of its metadata. Only format 3 is written.
"""

import re
from collections.abc import Iterable

from google.protobuf import text_format

from pulsar_sidecar.model.errors import UndecodableError
from pulsar_sidecar.model.ids import BookieId, EntryId
from pulsar_sidecar.model.ledgers import DigestType, LedgerMetadata, LedgerSegment, LedgerState
from pulsar_sidecar.ownership.exact_decoding import decode_exactly, exact_text
from pulsar_sidecar.protobuf import DataFormats_pb2 as bookkeeper
from pulsar_sidecar.reports.formatting import format_count

_HEADER = re.compile(rb"BookieMetadataFormatVersion\t(?P<format>\d{1,9})\n")
_NO_ENTRY = EntryId(-1)
_STATES = {state.value: state for state in LedgerState}
_DIGEST_TYPES = {digest_type.value: digest_type for digest_type in DigestType}
_CLOSED = bookkeeper.LedgerMetadataFormat.CLOSED
_V1_CLOSED = "CLOSED"
_V1_IN_RECOVERY_ENTRY_ID = -102
_V1_COUNTS = 3
_VARINT_BYTES = 5


def decode_ledger_metadata(data: bytes) -> LedgerMetadata:
    """Return the metadata in a ledger's node; `UndecodableError` if it is not understood whole or is inconsistent."""
    header = _HEADER.match(data)
    if header is None:
        raise UndecodableError("a ledger's node does not start with BookKeeper's header; read it again")
    body = data[header.end() :]
    match int(header["format"]):
        case 1:
            return _checked(_from_lines(_lines(body)))
        case 2:
            return _checked(_from_message(_text_message(body)))
        case 3:
            return _checked(_from_message(decode_exactly(bookkeeper.LedgerMetadataFormat, _undelimited(body))))
        case unknown:
            raise UndecodableError(f"ledger metadata format {unknown} is not known to this version; upgrade first")


def encode_ledger_metadata(metadata: LedgerMetadata) -> bytes:
    """Return a ledger's node in format 3, as Pulsar's clients write it (inverse of `decode_ledger_metadata`).

    The metadata must name a digest. Custom metadata comes in the order of the mapping, which Java leaves open.
    """
    if metadata.digest_type is None:
        raise ValueError("format 3 names a digest, and this metadata has none")
    message = bookkeeper.LedgerMetadataFormat(
        quorumSize=metadata.write_quorum_size,
        ensembleSize=metadata.ensemble_size,
        length=metadata.length_bytes,
        lastEntryId=metadata.last_entry_id,
        state=bookkeeper.LedgerMetadataFormat.State.ValueType(metadata.state.value),
        digestType=bookkeeper.LedgerMetadataFormat.DigestType.ValueType(metadata.digest_type.value),
        password=metadata.password,
        ackQuorumSize=metadata.ack_quorum_size,
        cToken=0,
    )
    for segment in metadata.segments:
        message.segment.add(ensembleMember=segment.ensemble, firstEntryId=segment.first_entry_id)
    for key, value in metadata.custom_metadata.items():
        message.customMetadata.add(key=key, value=value)
    return b"BookieMetadataFormatVersion\t3\n" + _delimited(message.SerializeToString())


def length_bytes(metadata: LedgerMetadata) -> int | None:
    """Return the bytes in a ledger; None until it is closed."""
    return metadata.length_bytes if metadata.state is LedgerState.CLOSED else None


def ledger_length(metadata: bytes | None) -> int | None:
    """Return the bytes in a ledger by its node; None until it is closed, or if the node cannot be decoded."""
    try:
        return None if metadata is None else length_bytes(decode_ledger_metadata(metadata))
    except UndecodableError:
        return None


def _undelimited(body: bytes) -> bytes:
    length = 0
    for index, byte in enumerate(body[:_VARINT_BYTES]):
        length |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            message = body[index + 1 :]
            if len(message) != length:
                raise UndecodableError(
                    f"a ledger's node holds {format_count(len(message), 'byte')}, not {length}; read it again"
                )
            return message
    raise UndecodableError("a ledger's node ends inside its length; read it again")


def _delimited(message: bytes) -> bytes:
    rest, prefix = len(message), bytearray()
    while rest > 0x7F:
        prefix.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes(prefix) + bytes([rest]) + message


def _text_message(body: bytes) -> bookkeeper.LedgerMetadataFormat:
    try:
        message = text_format.Parse(body.decode("utf-8"), bookkeeper.LedgerMetadataFormat())
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise UndecodableError(f"a ledger's node is not text metadata ({error}); read it again") from error
    if not message.IsInitialized():
        raise UndecodableError("a ledger's metadata lacks a required field; read it again")
    return message


def _from_message(message: bookkeeper.LedgerMetadataFormat) -> LedgerMetadata:
    closed = message.state == _CLOSED
    if closed and not message.HasField("lastEntryId"):
        raise UndecodableError("a closed ledger's metadata names no last entry; read it again")
    return LedgerMetadata(
        state=_STATES[message.state],
        ensemble_size=message.ensembleSize,
        write_quorum_size=message.quorumSize,
        ack_quorum_size=message.ackQuorumSize if message.HasField("ackQuorumSize") else message.quorumSize,
        length_bytes=message.length if closed else 0,
        last_entry_id=EntryId(message.lastEntryId) if closed else _NO_ENTRY,
        segments=tuple([LedgerSegment(EntryId(s.firstEntryId), _ensemble(s.ensembleMember)) for s in message.segment]),
        custom_metadata=_custom_metadata(message.customMetadata),
        digest_type=_DIGEST_TYPES[message.digestType] if message.HasField("digestType") else None,
        password=message.password,
    )


def _ensemble(members: Iterable[object]) -> tuple[BookieId, ...]:
    return tuple([BookieId(exact_text(member)) for member in members])


def _custom_metadata(entries: Iterable[bookkeeper.LedgerMetadataFormat.cMetadataMapEntry]) -> dict[str, bytes]:
    custom_metadata: dict[str, bytes] = {}
    for entry in entries:
        key = exact_text(entry.key)
        if key in custom_metadata or not entry.HasField("key"):
            raise UndecodableError(
                "a ledger's custom metadata is ambiguous; inspect it with `bookkeeper shell ledgermetadata`"
            )
        custom_metadata[key] = entry.value
    return custom_metadata


def _lines(body: bytes) -> list[str]:
    try:
        lines = body.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise UndecodableError("a ledger's node is not text metadata; read it again") from error
    return lines[:-1] if lines[-1] == "" else lines


def _from_lines(lines: list[str]) -> LedgerMetadata:
    try:
        quorum_size, ensemble_size, length_bytes = (int(line) for line in lines[:_V1_COUNTS])
        rows = [(int(row[0]), row[1:]) for row in (line.split("\t") for line in lines[_V1_COUNTS:])]
    except ValueError as error:
        raise UndecodableError("a ledger's node is not version 1 metadata; read it again") from error
    endings = [entry_id for entry_id, cells in rows if cells == [_V1_CLOSED]]
    closed = bool(endings) and endings != [_V1_IN_RECOVERY_ENTRY_ID]
    if len(endings) > 1 or (endings and rows[-1][1] != [_V1_CLOSED]):
        raise UndecodableError("a ledger's node ends more than once; read it again")
    return LedgerMetadata(
        state=LedgerState.CLOSED if closed else LedgerState.IN_RECOVERY if endings else LedgerState.OPEN,
        ensemble_size=ensemble_size,
        write_quorum_size=quorum_size,
        ack_quorum_size=quorum_size,
        length_bytes=length_bytes if closed else 0,
        last_entry_id=EntryId(endings[0]) if closed else _NO_ENTRY,
        segments=tuple(
            LedgerSegment(EntryId(first), tuple(map(BookieId, cells))) for first, cells in rows if cells != [_V1_CLOSED]
        ),
        digest_type=None,
    )


def _checked(metadata: LedgerMetadata) -> LedgerMetadata:
    if not _segments_fit(metadata.segments, metadata.ensemble_size):
        raise UndecodableError(
            "a ledger's ensembles contradict its metadata; inspect it with `bookkeeper shell ledgermetadata`"
        )
    quorums_fit = 1 <= metadata.ack_quorum_size <= metadata.write_quorum_size <= metadata.ensemble_size
    if not quorums_fit or metadata.last_entry_id < _NO_ENTRY or metadata.length_bytes < 0:
        raise UndecodableError(
            "a ledger's metadata contradicts itself; inspect it with `bookkeeper shell ledgermetadata`"
        )
    return metadata


def _segments_fit(segments: tuple[LedgerSegment, ...], ensemble_size: int) -> bool:
    """Return True if they begin at entry 0, ascend, and each name ``ensemble_size`` bookies."""
    previous = -1
    for segment in segments:
        if segment.first_entry_id <= previous or len(segment.ensemble) != ensemble_size:
            return False
        previous = segment.first_entry_id
    return bool(segments) and segments[0].first_entry_id == 0
