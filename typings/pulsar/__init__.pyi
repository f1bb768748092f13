"""The calls that pulsar_sidecar.adapters.pulsar makes on pulsar-client 3.13."""

import logging
from collections.abc import Callable

import _pulsar
from _pulsar import PulsarException as PulsarException
from _pulsar import Result as Result
from pulsar import exceptions as exceptions

class ConsumerType:
    Exclusive: ConsumerType
    Shared: ConsumerType

class InitialPosition:
    Earliest: InitialPosition
    Latest: InitialPosition

class MessageId:
    earliest: _pulsar.MessageId
    latest: _pulsar.MessageId
    _msg_id: _pulsar.MessageId
    def __init__(self, partition: int = -1, ledger_id: int = -1, entry_id: int = -1, batch_index: int = -1) -> None: ...

class Message:
    _message: _pulsar.Message
    def data(self) -> bytes: ...
    def properties(self) -> dict[str, str]: ...
    def partition_key(self) -> str: ...
    def ordering_key(self) -> str: ...
    def event_timestamp(self) -> int: ...
    def publish_timestamp(self) -> int: ...
    def message_id(self) -> _pulsar.MessageId: ...
    def topic_name(self) -> str: ...
    def redelivery_count(self) -> int: ...
    def producer_name(self) -> str: ...

class Authentication: ...

class AuthenticationToken(Authentication):
    def __init__(self, token: str | Callable[[], str]) -> None: ...

class AuthenticationBasic(Authentication):
    def __init__(self, username: str, password: str) -> None: ...

class AuthenticationTLS(Authentication):
    def __init__(self, certificate_path: str, private_key_path: str) -> None: ...

class ConsumerBatchReceivePolicy:
    def __init__(self, max_num_message: int, max_num_bytes: int, timeout_ms: int) -> None: ...

class CompressionType:
    NONE: CompressionType
    LZ4: CompressionType

class LoggerLevel:
    Debug: LoggerLevel
    Info: LoggerLevel
    Warn: LoggerLevel
    Error: LoggerLevel

class FileLogger:
    def __init__(self, log_level: LoggerLevel, log_file: str) -> None: ...

class Client:
    def __init__(
        self,
        service_url: str,
        authentication: Authentication | None = None,
        *,
        operation_timeout_seconds: int = 30,
        stats_interval_in_seconds: int = 600,
        tls_trust_certs_file_path: str | None = None,
        tls_allow_insecure_connection: bool = False,
        tls_validate_hostname: bool = False,
        logger: logging.Logger | FileLogger | None = None,
        connection_timeout_ms: int = 10000,
        tls_private_key_file_path: str | None = None,
        tls_certificate_file_path: str | None = None,
    ) -> None: ...
    def create_producer(
        self,
        topic: str,
        producer_name: str | None = None,
        *,
        send_timeout_millis: int = 30000,
        max_pending_messages: int = 1000,
        block_if_queue_full: bool = False,
        batching_enabled: bool = False,
        batching_max_messages: int = 1000,
        batching_max_allowed_size_in_bytes: int = 131072,
        batching_max_publish_delay_ms: int = 10,
        compression_type: CompressionType = ...,
    ) -> Producer: ...
    def subscribe(
        self,
        topic: str | list[str],
        subscription_name: str,
        consumer_type: ConsumerType = ...,
        *,
        receiver_queue_size: int = 1000,
        consumer_name: str | None = None,
        negative_ack_redelivery_delay_ms: int = 60000,
        initial_position: InitialPosition = ...,
        batch_receive_policy: ConsumerBatchReceivePolicy | None = None,
    ) -> Consumer: ...
    def create_reader(
        self,
        topic: str,
        start_message_id: MessageId | _pulsar.MessageId,
        *,
        receiver_queue_size: int = 1000,
        is_read_compacted: bool = False,
        start_message_id_inclusive: bool = False,
    ) -> Reader: ...
    def get_topic_partitions(self, topic: str) -> list[str]: ...
    def close(self) -> None: ...

class Producer:
    _producer: _pulsar.Producer
    def last_sequence_id(self) -> int: ...
    def send(self, content: bytes, *, partition_key: str | None = None) -> _pulsar.MessageId: ...
    def close(self) -> None: ...

class Consumer:
    def receive(self, timeout_millis: int | None = None) -> Message: ...
    def batch_receive(self) -> list[Message]: ...
    def acknowledge(self, message: _pulsar.MessageId) -> None: ...
    def negative_acknowledge(self, message: _pulsar.MessageId) -> None: ...
    def close(self) -> None: ...

class Reader:
    def read_next(self, timeout_millis: int | None = None) -> Message: ...
    def has_message_available(self) -> bool: ...
    def seek(self, messageid: int) -> None: ...
    def close(self) -> None: ...
