"""Topics in a URL: each path segment is encoded, so ``a%2Fb`` is one segment.

Invariant: the caller's path names exactly one topic, the same one to Pulsar, or the sidecar refuses the call.
"""

import re
from collections.abc import Mapping
from typing import Annotated

from fastapi import Depends, Path

from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.ids import MAX_LEDGER_ID, EntryId, LedgerId, Position
from pulsar_sidecar.model.names import MAX_NAME_BYTES, TopicDomain, TopicName, java_url_decode, parse_topic_name
from pulsar_sidecar.server.rights import Subject

Tenant = Annotated[str, Path(description="Tenant, URL-encoded.", examples=["public"])]
Cluster = Annotated[str, Path(description="Cluster of a V1 namespace, URL-encoded.", examples=["standalone"])]
Namespace = Annotated[str, Path(description="Namespace without its tenant, URL-encoded.", examples=["default"])]
Topic = Annotated[str, Path(description="The topic's own name, URL-encoded.", examples=["orders"])]
Subscription = Annotated[str, Path(description="The subscription, URL-encoded.", examples=["billing"])]

V2_PATH = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"
V1_PATH = "/admin/persistent/{property}/{cluster}/{namespace}/{topic}"
NAMESPACE_PATH = "/admin/v2/namespaces/{tenant}/{namespace}"
V1_NAMESPACE_PATH = "/admin/namespaces/{property}/{cluster}/{namespace}"

_SUBJECT = ("tenant", "property", "cluster", "namespace", "topic")
_AMBIGUOUS = re.compile(r"//|;|/(\.|%2e){1,2}(/|$)", re.IGNORECASE)
_BROKEN_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


def is_ambiguous(path: str) -> bool:
    """Return True if the path has an empty segment, ``.``, ``..`` or a raw ``;``: others may read it differently."""
    return _AMBIGUOUS.search(path) is not None


def decode_segment(segment: str) -> str:
    """Decode one path segment like JAX-RS and Pulsar (``Codec.decode``).

    Raises:
        InvalidInputError: the segment is malformed, too long, empty, or ``.`` or ``..``.
    """
    if len(segment) > 3 * MAX_NAME_BYTES:
        raise InvalidInputError(f"a name in the path must be at most {MAX_NAME_BYTES} bytes long")
    if _BROKEN_ESCAPE.search(segment):
        raise InvalidInputError("the path has a % that is not an escape; encode the topic's name")
    try:
        text = java_url_decode(segment)
    except UnicodeDecodeError:
        raise InvalidInputError("the path is not UTF-8 once decoded") from None
    if text in ("", ".", ".."):
        raise InvalidInputError(f"{text!r} is not a name")
    return text


# Coroutines, because the framework runs other dependencies in threads.
async def v2_topic(tenant: Tenant, namespace: Namespace, topic: Topic) -> TopicName:
    local_name = decode_segment(topic)
    if "/" in local_name:
        raise InvalidInputError(
            "a topic's name has no slash: Pulsar would read it as a topic of another, cluster-bound namespace; "
            f"for that one use {V1_PATH}"
        )
    return _checked(decode_segment(tenant), None, decode_segment(namespace), local_name)


async def v1_topic(property: Tenant, cluster: Cluster, namespace: Namespace, topic: Topic) -> TopicName:
    return _checked(decode_segment(property), decode_segment(cluster), decode_segment(namespace), decode_segment(topic))


async def _v2_namespace(tenant: Tenant, namespace: Namespace) -> str:
    return _checked(decode_segment(tenant), None, decode_segment(namespace), "topic").namespace


async def _v1_namespace(property: Tenant, cluster: Cluster, namespace: Namespace) -> str:
    parts = decode_segment(property), decode_segment(cluster), decode_segment(namespace)
    return _checked(*parts, "topic").namespace


async def _tenant_name(tenant: Tenant) -> str:
    return _checked(decode_segment(tenant), None, "namespace", "topic").tenant


async def _subscription_name(subscription: Subscription) -> str:
    return decode_segment(subscription)


V2Topic = Annotated[TopicName, Depends(v2_topic)]
"""The topic of a route below `V2_PATH`."""
TOPIC_PATHS = ((V2_PATH, v2_topic, ""), (V1_PATH, v1_topic, "v1_"))
"""For a route that exists for both: its path, its topic dependency, and the prefix of its name in OpenAPI."""
V2Namespace = Annotated[str, Depends(_v2_namespace)]
"""The namespace of a route below `NAMESPACE_PATH` or `V2_PATH`, ``tenant/namespace``."""
NAMESPACE_PATHS = ((NAMESPACE_PATH, _v2_namespace, ""), (V1_NAMESPACE_PATH, _v1_namespace, "v1_"))
"""The same for a route of a namespace."""
TenantName = Annotated[str, Depends(_tenant_name)]
SubscriptionName = Annotated[str, Depends(_subscription_name)]


async def subject_of(path_params: Mapping[str, str]) -> Subject | None:
    """Return the tenant, namespace or topic that a path names, as its route reads it; None if it names none."""
    named = {key: path_params[key] for key in _SUBJECT if key in path_params}
    match sorted(named):
        case ["namespace", "tenant", "topic"]:
            topic = await v2_topic(**named)
        case ["cluster", "namespace", "property", "topic"]:
            topic = await v1_topic(**named)
        case ["namespace", "tenant"]:
            return Subject(decode_segment(named["tenant"]), await _v2_namespace(**named))
        case ["cluster", "namespace", "property"]:
            return Subject(decode_segment(named["property"]), await _v1_namespace(**named))
        case ["tenant"]:
            return Subject(await _tenant_name(**named))
        case _:
            return None
    return Subject(topic.tenant, topic.namespace, topic)


def _checked(tenant: str, cluster: str | None, namespace: str, local_name: str) -> TopicName:
    topic = TopicName(TopicDomain.PERSISTENT, tenant, cluster, namespace, local_name)
    if parse_topic_name(str(topic)) != topic:
        raise InvalidInputError("the path does not name a topic as Pulsar would read it")
    return topic


def parse_position(text: str) -> Position:
    """Parse a cancellation's id, ``ledgerId:entryId``.

    Raises:
        InvalidInputError: the text is not such an id.
    """
    ledger, colon, entry = text.partition(":")
    if not colon:
        raise InvalidInputError("a cancellation's id must be ledgerId:entryId")
    return Position(LedgerId(parse_number("ledgerId", ledger)), EntryId(parse_number("entryId", entry)))


def parse_number(name: str, text: str | None) -> int:
    if text is None or not text.strip():
        raise InvalidInputError(f"{name} is missing")
    if not text.isascii() or not text.isdigit() or int(text[:20]) > MAX_LEDGER_ID:
        raise InvalidInputError(f"{name} must be a number from 0 to {MAX_LEDGER_ID}, and not {text[:40]!r}")
    return int(text)
