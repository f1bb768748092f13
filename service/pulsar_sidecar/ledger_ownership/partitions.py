"""What a partitioned topic's node below ``/admin/partitioned-topics`` says (``PartitionedTopicMetadata``)."""

import json

from pulsar_sidecar.model.errors import UndecodableError


def partition_count(data: bytes) -> int:
    """The number of partitions in a partitioned topic's node.

    Raises:
        UndecodableError: the node is not what Pulsar 4.0 writes.
    """
    try:
        partitions = json.loads(data)["partitions"]
    except (ValueError, KeyError, TypeError) as error:
        raise UndecodableError("a partitioned topic's node cannot be read") from error
    if type(partitions) is not int or partitions < 0:
        raise UndecodableError(f"a partitioned topic has {partitions!r} partitions")
    return partitions
