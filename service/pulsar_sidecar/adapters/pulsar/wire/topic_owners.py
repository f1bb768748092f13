"""Which broker serves a topic, looked up by the binary protocol (``CommandLookupTopic``) and remembered."""

import threading
from typing import Final

from pulsar_sidecar.adapters.pulsar.wire.binary_connections import BinaryConnections, BrokerAddress, server_error
from pulsar_sidecar.model.errors import PermanentError, TemporaryError
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.wire import PulsarApi_pb2 as api

_MAX_LOOKUPS: Final = 5
_REMEMBERED_TOPICS: Final = 10_000


class TopicOwners:
    """Safe for use by several threads."""

    def __init__(self, service_url: str, connections: BinaryConnections) -> None:
        """``service_url`` is ``brokerServiceUrl``: one address, or several separated by commas."""
        scheme, _, hosts = service_url.partition("://")
        self._services = [BrokerAddress(f"{scheme}://{host.strip()}") for host in hosts.split(",") if host.strip()]
        self._tls = scheme == "pulsar+ssl"
        self._connections = connections
        self._known: dict[TopicName, BrokerAddress] = {}
        self._lock = threading.Lock()

    def of(self, topic: TopicName) -> BrokerAddress:
        """The broker that serves the topic, as it was last looked up; an unowned topic gets an owner."""
        with self._lock:
            known = self._known.get(topic)
        if known is not None:
            return known
        found = self._looked_up(topic)
        with self._lock:
            if len(self._known) >= _REMEMBERED_TOPICS:
                self._known.clear()
            self._known[topic] = found
        return found

    def forget(self, topic: TopicName) -> None:
        """Look it up anew next time: the broker said that it does not serve it, or cannot be reached."""
        with self._lock:
            self._known.pop(topic, None)

    def _looked_up(self, topic: TopicName) -> BrokerAddress:
        failure: TemporaryError | None = None
        for service in self._services:
            try:
                return self._follow(topic, service)
            except TemporaryError as error:
                failure = error
        raise failure or TemporaryError("no broker service URL is configured")

    def _follow(self, topic: TopicName, service: BrokerAddress) -> BrokerAddress:
        place, authoritative = service, False
        for _ in range(_MAX_LOOKUPS):
            answer = self._ask(topic, place, authoritative)
            url = answer.brokerServiceUrlTls if self._tls else answer.brokerServiceUrl
            if not url:
                raise PermanentError(f"the owner of {topic} has no address with this scheme; check brokerServiceUrl")
            next_place = BrokerAddress(url, service.url if answer.proxy_through_service_url else None)
            if answer.response == api.CommandLookupTopicResponse.Connect:
                return next_place
            place, authoritative = next_place, answer.authoritative
        raise TemporaryError(f"looking up {topic} was redirected too often; ownership is moving, try again")

    def _ask(self, topic: TopicName, place: BrokerAddress, authoritative: bool) -> api.CommandLookupTopicResponse:
        doing = f"looking up {topic} at {place.url}"
        try:
            with self._connections.using(place) as connection:
                request_id = connection.next_request_id()
                lookup = api.CommandLookupTopic(topic=str(topic), request_id=request_id, authoritative=authoritative)
                connection.send(api.BaseCommand(type=api.BaseCommand.LOOKUP, lookupTopic=lookup))
                answer = connection.answer_to(request_id, api.BaseCommand.LOOKUP_RESPONSE, doing)
        except OSError as error:
            raise TemporaryError(f"{doing}: the broker did not answer ({error}); try again") from error
        response = answer.lookupTopicResponse
        if response.response == api.CommandLookupTopicResponse.Failed:
            raise server_error(doing, response.error, response.message)
        return response
