"""kazoo's exceptions, told apart by what they mean for the caller.

Invariant: every exception class of kazoo has a place here (a test enumerates them), and none of them ever turns into
"there is no such node" except ZooKeeper's own answer NoNode.
"""

from enum import Enum

from kazoo import exceptions
from kazoo.handlers.threading import KazooTimeoutError

from pulsar_sidecar.model.errors import OutcomeUnknownError, SidecarError, TemporaryError, UnreachableError


class Meaning(Enum):
    """What a failed call says about its effect."""

    ANSWER = "a definite answer about the node, which the caller interprets"
    REFUSED = "the store refused and did nothing"
    LOST = "no answer: a write may or may not have taken effect"


CLIENT_ERRORS = (exceptions.KazooException, KazooTimeoutError)
"""Everything a call through kazoo may raise."""

DEFINITE_ANSWERS = (
    exceptions.NoNodeError,
    exceptions.BadVersionError,
    exceptions.NodeExistsError,
    exceptions.NotEmptyError,
    exceptions.NoChildrenForEphemeralsError,
)
_REFUSALS = (
    exceptions.APIError,
    exceptions.AuthFailedError,
    exceptions.BadArgumentsError,
    exceptions.ConfigurationError,
    exceptions.EphemeralOnLocalSessionError,
    exceptions.InvalidACLError,
    exceptions.InvalidCallbackError,
    exceptions.MarshallingError,
    exceptions.NewConfigNoQuorumError,
    exceptions.NoAuthError,
    exceptions.NoWatcherError,
    exceptions.NotReadOnlyCallError,
    exceptions.QuotaExceededError,
    exceptions.ReconfigDisabledError,
    exceptions.ReconfigInProcessError,
    exceptions.RolledBackError,
    exceptions.SASLException,
    exceptions.SessionClosedRequireSaslError,
    exceptions.ThrottledOpError,
    exceptions.UnimplementedError,
)
_LOSSES = (
    KazooTimeoutError,
    exceptions.CancelledError,
    exceptions.ConnectionClosedError,
    exceptions.ConnectionDropped,
    exceptions.ConnectionLoss,
    exceptions.DataInconsistency,
    exceptions.LockTimeout,
    exceptions.OperationTimeoutError,
    exceptions.RequestTimeoutError,
    exceptions.RuntimeInconsistency,
    exceptions.SessionExpiredError,
    exceptions.SessionMovedError,
    exceptions.SystemZookeeperError,
    exceptions.UnknownSessionError,
    exceptions.WriterNotClosedException,
    exceptions.ZookeeperStoppedError,
)
MEANINGS: dict[type[Exception], Meaning] = {
    **dict.fromkeys(DEFINITE_ANSWERS, Meaning.ANSWER),
    **dict.fromkeys(_REFUSALS, Meaning.REFUSED),
    **dict.fromkeys(_LOSSES, Meaning.LOST),
}
_WORTH_REPEATING = (exceptions.ThrottledOpError, exceptions.NotReadOnlyCallError)
_CREDENTIAL_WANTED = (
    exceptions.AuthFailedError,
    exceptions.NoAuthError,
    exceptions.SessionClosedRequireSaslError,
    exceptions.SASLException,
)


def meaning(error: Exception) -> Meaning:
    """The meaning of a client's exception; an unknown one counts as a lost answer."""
    return MEANINGS.get(type(error), Meaning.LOST)


def may_be_repeated(error: Exception) -> bool:
    """Whether asking the same again soon may succeed, for a call that changes nothing."""
    return meaning(error) is Meaning.LOST or isinstance(error, _WORTH_REPEATING)


def reading_failed(error: Exception, what: str) -> TemporaryError:
    """The error to raise when ``what`` (a phrase such as "read /a") could not be read."""
    kind = UnreachableError if meaning(error) is Meaning.LOST else TemporaryError
    return kind(f"could not {what}: {_cause(error)}")


def writing_failed(error: Exception, what: str) -> SidecarError:
    """The error to raise when ``what`` got no usable answer from the store."""
    if meaning(error) is Meaning.LOST:
        return OutcomeUnknownError(f"the answer was lost to: {what} ({_cause(error)}); read it again, then decide")
    return TemporaryError(f"could not {what}: {_cause(error)}; nothing was changed")


def _cause(error: Exception) -> str:
    name = type(error).__name__
    if isinstance(error, _CREDENTIAL_WANTED):
        return f"ZooKeeper says {name}; give the sidecar a credential that may do this"
    if meaning(error) is Meaning.LOST:
        return f"ZooKeeper did not answer ({name}); check that it runs and is reachable"
    return f"ZooKeeper says {name}"
