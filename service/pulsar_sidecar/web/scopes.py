"""Scope of a page, as in its address: a topic, a namespace, a tenant, or everything."""

from dataclasses import dataclass

from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.names import TopicDomain, TopicName, parse_topic_name
from pulsar_sidecar.web.in_process import encoded_path

_EVERYTHING = "/admin/v2"


@dataclass(frozen=True, slots=True)
class Scope:
    """A scope.

    Attributes:
        text: scope as written; empty for everything.
        path: encoded path of the REST route.
        topic: topic; None for a larger scope.
    """

    text: str
    path: str
    topic: TopicName | None = None

    @property
    def is_tenant(self) -> bool:
        """True for a whole tenant."""
        return bool(self.text) and self.topic is None and "/" not in self.text


def scope_of(text: str) -> Scope:
    """Return the scope that a filter names; raise `InvalidInputError` if it names none."""
    parts = text.split("/")
    if not text:
        return Scope("", _EVERYTHING)
    if "://" in text or len(parts) > 2:
        topic = topic_of(text)
        return Scope(str(topic), topic_path(topic), topic)
    if not all(parts) or {".", ".."} & set(parts):
        raise InvalidInputError(
            f"{text[:100]!r} is not a scope; write a tenant, tenant/namespace, or a topic's full name"
        )
    kind = "tenants" if len(parts) == 1 else "namespaces"
    return Scope(text, encoded_path(f"{_EVERYTHING}/{kind}", *parts))


def topic_of(text: str) -> TopicName:
    """Return a topic with ledgers by its name; raise `InvalidInputError` if it names none."""
    topic = parse_topic_name(text)
    if topic.domain is not TopicDomain.PERSISTENT:
        raise InvalidInputError(f"{topic} has no ledgers; write persistent://tenant/namespace/topic")
    return topic


def is_system(name: object) -> bool:
    """Return True if a name is a topic or a namespace of the brokers' own."""
    if not isinstance(name, str):
        return False
    try:
        topic = parse_topic_name(name if "://" in name else f"persistent://{name}/any")
    except InvalidInputError:
        return False
    return topic.is_system_topic


def topic_path(topic: TopicName) -> str:
    """Return the REST path of a topic."""
    version = "/admin" if topic.cluster else _EVERYTHING
    return encoded_path(f"{version}/{topic.domain.value}", *topic.namespace.split("/"), topic.local_name)
