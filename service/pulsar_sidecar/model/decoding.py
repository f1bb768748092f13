"""Structs that any number of threads may decode at once, also for the first time."""

from typing import TypeVar

import msgspec

_Struct = TypeVar("_Struct", bound=type[msgspec.Struct])


def decodable(struct: _Struct) -> _Struct:
    """Has msgspec learn the struct's fields when the module that owns it is imported.

    It would learn them when the struct is first decoded, and a second thread that decodes it meanwhile ends the process
    by SIGSEGV (msgspec 0.22.0): what one thread has not filled in yet the other one follows.
    """
    msgspec.json.Decoder(struct)
    return struct
