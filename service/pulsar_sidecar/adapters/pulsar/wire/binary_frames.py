"""Frames of Pulsar's binary protocol: ``[totalSize][commandSize][BaseCommand]``, both sizes big-endian 32-bit numbers.

A message's frame goes on with ``[0x0e01][CRC-32C of the rest][metadataSize][MessageMetadata][payload]``, as its entry
does.
"""

import socket
import struct

from google.protobuf.message import DecodeError

from pulsar_sidecar.adapters.bookkeeper.digests import crc32c
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.wire import PulsarApi_pb2 as api

MAX_FRAME_BYTES = 5 * 1024 * 1024 + 10 * 1024
"""What a broker takes and sends by default (``maxMessageSize`` and ``Commands.MESSAGE_SIZE_FRAME_PADDING``)."""

_SIZES = struct.Struct(">II")
_SIZE = struct.Struct(">I")
_CHECKSUM_MAGIC = b"\x0e\x01"


def encode(command: api.BaseCommand) -> bytes:
    """The frame of a command."""
    body = command.SerializeToString()
    return _SIZES.pack(len(body) + _SIZE.size, len(body)) + body


def encode_message(command: api.BaseCommand, metadata: api.MessageMetadata, payload: bytes) -> bytes:
    """The frame of a message (``Commands.serializeCommandSendWithSize``)."""
    body, head = command.SerializeToString(), metadata.SerializeToString()
    rest = _SIZE.pack(len(head)) + head + payload
    checked = _CHECKSUM_MAGIC + _SIZE.pack(crc32c(rest)) + rest
    return _SIZES.pack(_SIZE.size + len(body) + len(checked), len(body)) + body + checked


class FrameReader:
    """Reads commands from a connection, several at a time where several came together."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._received = bytearray()

    def next(self) -> api.BaseCommand:
        """The next command; what goes with it is skipped.

        Raises:
            OSError: the connection ended, or timed out: then the next call goes on where this one stopped.
            TemporaryError: what came is no frame of the protocol.
        """
        return self.next_with_message()[0]

    def next_with_message(self) -> tuple[api.BaseCommand, bytes]:
        """The next command, and the message that goes with it, empty for none; raises as `next`."""
        total = self._number(0)
        if not _SIZE.size <= total <= MAX_FRAME_BYTES:
            raise TemporaryError(f"a broker announced a frame of {total} bytes; is this Pulsar's binary port?")
        self._fill(_SIZE.size + total)
        command_bytes = self._number(_SIZE.size)
        if command_bytes > total - _SIZE.size:
            raise TemporaryError("a broker sent a command longer than its frame; is this Pulsar's binary port?")
        body = bytes(self._received[_SIZES.size : _SIZES.size + command_bytes])
        message = bytes(self._received[_SIZES.size + command_bytes : _SIZE.size + total])
        del self._received[: _SIZE.size + total]
        return _decoded(body), message

    def _number(self, offset: int) -> int:
        self._fill(offset + _SIZE.size)
        (number,) = _SIZE.unpack_from(self._received, offset)
        return int(number)

    def _fill(self, size_bytes: int) -> None:
        while len(self._received) < size_bytes:
            piece = self._connection.recv(65536)
            if not piece:
                raise ConnectionResetError("the broker closed the connection")
            self._received += piece


def _decoded(body: bytes) -> api.BaseCommand:
    try:
        return api.BaseCommand.FromString(body)
    except DecodeError as error:
        raise TemporaryError("a broker sent a command that cannot be read; is this Pulsar's binary port?") from error
