"""The calls that service.adapters.pulsar makes on the C++ client's module (pulsar-client 3.13)."""

from collections.abc import Callable
from datetime import timedelta
from enum import Enum

class PulsarException(Exception): ...  # noqa: N818

class Result(Enum):
    Ok = 0
    UnknownError = 1
    InvalidConfiguration = 2
    Timeout = 3
    AuthorizationError = 8
    InvalidMessage = 16
    ProducerNotInitialized = 18
    OperationNotSupported = 24
    ProducerBlockedQuotaExceededError = 25
    ProducerBlockedQuotaExceededException = 26
    ProducerQueueIsFull = 27
    MessageTooBig = 28
    TopicTerminated = 33
    CryptoError = 34
    IncompatibleSchema = 35
    NotAllowedError = 40
    MemoryBufferIsFull = 44

class MessageId:
    def __init__(self, partition: int, ledger_id: int, entry_id: int, batch_index: int) -> None: ...
    def ledger_id(self) -> int: ...
    def entry_id(self) -> int: ...
    def partition(self) -> int: ...
    def batch_index(self) -> int: ...

class Message: ...

class MessageBuilder:
    def content(self, data: bytes) -> MessageBuilder: ...
    def property(self, name: str, value: str) -> MessageBuilder: ...
    def ordering_key(self, key: str) -> MessageBuilder: ...
    def sequence_id(self, sequence_id: int) -> MessageBuilder: ...
    def deliver_after(self, delay: timedelta) -> MessageBuilder: ...
    def build(self) -> Message: ...

class Producer:
    def send_async(self, message: Message, callback: Callable[[Result, MessageId], None]) -> None: ...
    def close_async(self, callback: Callable[[Result], None]) -> None: ...
