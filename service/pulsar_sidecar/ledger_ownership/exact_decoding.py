"""Protobuf bytes are understood completely or not at all.

Protobuf itself forgives: unknown fields are kept aside, a repeated scalar's last value wins, messages glued together
merge, text that is no UTF-8 arrives as bytes. Here a forgiven byte could be a ledger that is still referenced, so one
rule covers every case: what was understood, written again, must be exactly as long as what was read. Pulsar and
BookKeeper write the shortest form.
"""

from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from pulsar_sidecar.model.errors import UndecodableError

M = TypeVar("M", bound=Message)


def decode_exactly(message_type: type[M], data: bytes) -> M:
    """The message in ``data``.

    Raises:
        UndecodableError: truncated, not of this type, or holding anything that this version does not know.
    """
    message = message_type()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise UndecodableError(f"{len(data)} bytes are no {_name(message)}; read them again") from error
    if not message.IsInitialized():
        raise UndecodableError(f"{_name(message)} lacks a required field; read it again")
    message.DiscardUnknownFields()
    if message.ByteSize() != len(data):
        raise UndecodableError(
            f"{_name(message)} holds something that this version does not know; upgrade before concluding"
        )
    return message


def _name(message: Message) -> str:
    return message.DESCRIPTOR.name


def exact_text(value: object) -> str:
    """A protobuf string as text.

    Raises:
        UndecodableError: the field is no UTF-8 (protobuf's runtime then hands out its bytes).
    """
    if isinstance(value, str):
        return value
    raise UndecodableError(f"{value!r:.80} was to be UTF-8 text; read it again")
