"""The composition root of extracts: tables of stored messages."""

import re
from collections.abc import Iterable
from functools import partial
from typing import Final

from pulsar_sidecar.adapters.parquet.output import parquet_output
from pulsar_sidecar.bootstrap.process import tool_version
from pulsar_sidecar.bootstrap.stored_messages import opened_messages
from pulsar_sidecar.features.duplicates.extract import extract
from pulsar_sidecar.features.duplicates.manifests import ExtractManifest
from pulsar_sidecar.features.duplicates.requests import ExtractRequest
from pulsar_sidecar.features.duplicates.verify import Progress
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.names import TopicName, parse_topic_name
from pulsar_sidecar.model.progress import Report
from pulsar_sidecar.ownership.paths import read_instance_id
from pulsar_sidecar.ownership.stored_topics import StoredTopics

_TOPIC_SLASHES: Final = 2
_NAME: Final = re.compile(r"[-=:.\w]*[-=:\w][-=:.\w]*", re.ASCII)


def take_extract(request: ExtractRequest, report: Report) -> ExtractManifest:
    """Make an extract of a tenant, a namespace or a topic.

    Raises:
        NotFoundError: the tenant, namespace or topic does not exist.
        TemporaryError: the messages could not be read, or the extract not written; nothing is left behind.
    """
    clock = SystemClock()
    with opened_messages(request.stored, clock) as (store, messages):
        root = request.stored.ledgers_root
        url = request.stored.metadata_store_url or ""
        instance_id = read_instance_id(store, root)
        return extract(
            _places_of(request.scope, StoredTopics(store)),
            messages,
            partial(parquet_output, request.output),
            Progress(report, clock),
            clock,
            scope=request.scope,
            source=url,
            instance_id=instance_id,
            tool_version=tool_version(),
        )


def _places_of(scope: str, topics: StoredTopics) -> Iterable[TopicName]:
    """Return the partitions, and the topics that have none, of a scope."""
    if "://" in scope or scope.count("/") >= _TOPIC_SLASHES:
        return topics.places_of(parse_topic_name(scope))
    if not all(_NAME.fullmatch(part) for part in scope.split("/")):
        raise InvalidInputError(f"{scope!r:.200} is neither a tenant nor a namespace nor a topic")
    return topics.places_below(scope)
