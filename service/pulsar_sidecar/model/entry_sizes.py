"""The largest entry that bookies and brokers exchange, and the largest node that ZooKeeper takes."""

from typing import Final

DEFAULT_MAX_MESSAGE_SIZE: Final = 5 * 1024 * 1024
STOCK_JUTE_MAX_BUFFER: Final = 1_048_575
"""``jute.maxbuffer`` of a stock ZooKeeper; one that Pulsar's ``bin/pulsar`` starts takes 10,485,760 bytes."""

FRAME_PADDING: Final = 10 * 1024
"""``Commands.MESSAGE_SIZE_FRAME_PADDING``: brokers read frames of ``maxMessageSize`` and this."""
_FRAME_OVERHEAD: Final = 64
"""Overhead of an entry in the V2 protocol with a CRC32C digest, the defaults; about the same with the others."""
_REQUEST_OVERHEAD: Final = 1024
"""The path of the node, and the request around it."""


def max_entry_bytes(max_message_size: int) -> int:
    """Return the largest entry that a broker of this ``maxMessageSize`` can read."""
    return max_message_size + FRAME_PADDING - _FRAME_OVERHEAD


def max_node_bytes(jute_max_buffer: int) -> int:
    """Return the largest node that such a ZooKeeper certainly takes."""
    return jute_max_buffer - _REQUEST_OVERHEAD
