"""What can go wrong while a local cluster is started, used or taken down, each told apart by its class.

Invariant: every text names the next step, because the reader is a person at a terminal.
"""

from pulsar_sidecar.model.errors import ConflictError, NotFoundError, PermanentError


class MissingPrerequisiteError(PermanentError):
    """Something that has to be installed on this machine is not (a JDK, Maven)."""


class DistributionError(PermanentError):
    """The Pulsar distribution could not be fetched or unpacked."""


class MemberFailedError(PermanentError):
    """A member did not become ready; the text ends with the last lines of its log."""


class ClusterExistsError(ConflictError):
    """The directory already holds a cluster, or files that are not ours."""


class ClusterNotFoundError(NotFoundError):
    """The directory holds no cluster, or the cluster has no member of that name."""
