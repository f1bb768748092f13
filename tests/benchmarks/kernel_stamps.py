"""When the kernel received what a socket gives: a busy interpreter gets round to reading it later.

Only Linux stamps; elsewhere there is none.
"""

import socket
import struct
import sys
from collections.abc import Sequence
from typing import Final

# asm-generic/socket.h; Python has no name for it. Stamps are struct timespec of CLOCK_REALTIME.
_SO_TIMESTAMPNS: Final = 35
_TIMESPEC = struct.Struct("@qq")

STAMP_SPACE_BYTES: Final = socket.CMSG_SPACE(_TIMESPEC.size)
"""Room for one stamp in the ancillary data of ``recvmsg``."""


def stamp_arrivals(receiving: socket.socket) -> None:
    """Have the kernel stamp what arrives from now on."""
    if sys.platform == "linux":
        receiving.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)


def stamp_ns(ancillary: Sequence[tuple[int, int, bytes]]) -> int | None:
    """The stamp in the ancillary data of ``recvmsg``, nanoseconds since the epoch; None where there is none."""
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPNS and len(data) >= _TIMESPEC.size:
            seconds, nanoseconds = _TIMESPEC.unpack_from(data)
            return int(seconds * 1_000_000_000 + nanoseconds)
    return None
