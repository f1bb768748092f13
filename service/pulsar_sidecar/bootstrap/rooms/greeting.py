"""Greetings."""

from pulsar_sidecar.api.rooms.greeting import router
from pulsar_sidecar.bootstrap.cluster_access import ClusterAccess
from pulsar_sidecar.bootstrap.room import Room, RoomEntry
from pulsar_sidecar.greeting.service import GreetingService


def open_greeting(cluster: ClusterAccess) -> Room:
    """It runs nothing by itself."""
    return Room([GreetingService(cluster.cluster_name)])


ENTRY = RoomEntry([router], open_greeting)
