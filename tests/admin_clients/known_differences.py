"""Known differences between a sidecar and a broker, and their reasons (docs/pass-through.md)."""

from collections.abc import Mapping

from tests.admin_clients.comparing import Difference

_OF_A_PARTITIONED_TOPIC = "topics delete {ready}/parted"
_OWN_COMMAND = "the sidecar names the command of its own that deletes the partitions as well"

KNOWN: Mapping[tuple[str, str], str] = {
    ("superuser", _OF_A_PARTITIONED_TOPIC): _OWN_COMMAND,
    ("admin", _OF_A_PARTITIONED_TOPIC): _OWN_COMMAND,
    ("none", _OF_A_PARTITIONED_TOPIC): "a broker answers whether a topic has partitions before it looks at rights",
}
"""By kind of role and template. An entry that is no longer needed fails the test."""

_BROKERS_DENIAL = "Unauthorized to "
_OWN_DENIAL = "role 'without-rights'"


def denied_in_own_words(difference: Difference) -> bool:
    """Return True if both deny the caller the right, each in its own words."""
    broker, sidecar = difference.at_the_broker, difference.at_the_sidecar
    return (
        broker.failed
        and sidecar.failed
        and broker.exit_code == sidecar.exit_code
        and _BROKERS_DENIAL in str(broker)
        and _OWN_DENIAL in str(sidecar)
    )
