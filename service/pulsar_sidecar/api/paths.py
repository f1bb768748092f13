"""Topics as they stand in a URL: each path segment is encoded, so ``a%2Fb`` is one segment.

Invariant: what the caller wrote names exactly one topic, which Pulsar would read the same way, or the call is refused.
"""

import re

from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.names import MAX_NAME_BYTES, TopicDomain, TopicName, java_url_decode, parse_topic_name

_BROKEN_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


def decode_segment(segment: str) -> str:
    """One path segment as JAX-RS and Pulsar decode it (``Codec.decode``).

    Raises:
        InvalidInputError: it is broken, too long, or a step through the path.
    """
    if len(segment) > 3 * MAX_NAME_BYTES:
        raise InvalidInputError(f"a name in the path is at most {MAX_NAME_BYTES} bytes long")
    if _BROKEN_ESCAPE.search(segment):
        raise InvalidInputError("the path has a % that begins no escape; encode the topic's name")
    try:
        text = java_url_decode(segment)
    except UnicodeDecodeError:
        raise InvalidInputError("the path is not UTF-8 once decoded") from None
    if text in ("", ".", ".."):
        raise InvalidInputError(f"{text!r} is no name")
    return text


def persistent_topic(tenant: str, namespace: str, topic: str) -> TopicName:
    """The topic of a V2 path."""
    local_name = decode_segment(topic)
    if "/" in local_name:
        raise InvalidInputError(
            "a topic's name has no slash: Pulsar would read it as a topic of another, cluster-bound namespace; "
            "for that one use /admin/persistent/{property}/{cluster}/{namespace}/{topic}"
        )
    return _checked(decode_segment(tenant), None, decode_segment(namespace), local_name)


def persistent_v1_topic(tenant: str, cluster: str, namespace: str, topic: str) -> TopicName:
    """The topic of a V1 path (``property/cluster/namespace``)."""
    return _checked(decode_segment(tenant), decode_segment(cluster), decode_segment(namespace), decode_segment(topic))


def namespace_of(tenant: str, namespace: str) -> str:
    """The namespace of a V2 path, ``tenant/namespace``."""
    return _checked(decode_segment(tenant), None, decode_segment(namespace), "topic").namespace


def _checked(tenant: str, cluster: str | None, namespace: str, local_name: str) -> TopicName:
    topic = TopicName(TopicDomain.PERSISTENT, tenant, cluster, namespace, local_name)
    if parse_topic_name(str(topic)) != topic:
        raise InvalidInputError("the path does not name a topic as Pulsar would read it")
    return topic
