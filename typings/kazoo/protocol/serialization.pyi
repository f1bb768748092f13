from collections.abc import Sequence
from typing import ClassVar

class Delete:
    def __init__(self, path: str, version: int) -> None: ...

class CheckVersion:
    def __init__(self, path: str, version: int) -> None: ...

class Transaction:
    type: ClassVar[int]
    def __init__(self, operations: Sequence[Delete | CheckVersion]) -> None: ...
    def serialize(self) -> bytearray: ...

class Connect:
    def __init__(
        self, protocol_version: int, last_zxid_seen: int, time_out: int, session_id: int, passwd: bytes, read_only: bool
    ) -> None: ...
    def serialize(self) -> bytearray: ...

class Sync:
    type: ClassVar[int]
    def __init__(self, path: str) -> None: ...
    def serialize(self) -> bytes: ...

class Auth:
    type: ClassVar[int]
    def __init__(self, auth_type: int, scheme: str, auth: str) -> None: ...
    def serialize(self) -> bytes: ...

class Close:
    type: ClassVar[int]

CloseInstance: Close
