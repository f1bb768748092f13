"""Structs and dataclasses that any number of threads may decode at once, also for the first time."""

from typing import TypeVar

import msgspec

_Kind = TypeVar("_Kind", bound=type)


def decodable(kind: _Kind) -> _Kind:
    """Make msgspec inspect the fields of a struct or a dataclass when the module that owns it is imported.

    Otherwise it inspects them at the first decoding, and a second thread that decodes it meanwhile crashes the
    process with SIGSEGV (msgspec 0.22.0): it follows pointers that the first thread has not filled in yet.
    """
    msgspec.json.Decoder(kind)
    return kind
