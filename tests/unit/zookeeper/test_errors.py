import inspect

import pytest
from kazoo import exceptions
from kazoo.handlers.threading import KazooTimeoutError
from pulsar_sidecar.adapters.zookeeper.session import (
    CLIENT_ERRORS,
    DEFINITE_ANSWERS,
    REFUSALS,
    is_lost,
    is_retryable,
    reading_failed,
    writing_failed,
)
from pulsar_sidecar.model.errors import OutcomeUnknownError, TemporaryError

LOSSES = (
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
BASES = {exceptions.KazooException, exceptions.ZookeeperError}


def every_exception_of_kazoo() -> set[type[Exception]]:
    declared: set[type[Exception]] = {
        kind for _, kind in inspect.getmembers(exceptions, inspect.isclass) if issubclass(kind, Exception)
    }
    return (declared - BASES) | {KazooTimeoutError}


def test_every_exception_of_kazoo_has_a_meaning() -> None:
    named = (*DEFINITE_ANSWERS, *REFUSALS, *LOSSES)
    assert len(named) == len(set(named))
    assert set(named) == every_exception_of_kazoo()
    assert {kind for kind in named if is_lost(kind())} == set(LOSSES)
    assert all(issubclass(kind, CLIENT_ERRORS) for kind in every_exception_of_kazoo())


@pytest.mark.parametrize("kind", sorted(every_exception_of_kazoo(), key=str))
def test_a_failure_without_a_definite_answer_leaves_the_outcome_of_a_write_open(kind: type[Exception]) -> None:
    error = writing_failed(kind(), "write /a")
    assert isinstance(error, OutcomeUnknownError if is_lost(kind()) else TemporaryError)
    assert "write /a" in str(error)
    assert isinstance(reading_failed(kind(), "read /a"), TemporaryError)


@pytest.mark.parametrize(
    "kind",
    [
        exceptions.ConnectionLoss,
        exceptions.SessionExpiredError,
        exceptions.ConnectionClosedError,
        exceptions.OperationTimeoutError,
        exceptions.RequestTimeoutError,
        KazooTimeoutError,
    ],
)
def test_lost_answers_may_be_asked_for_again(kind: type[Exception]) -> None:
    assert is_lost(kind())
    assert is_retryable(kind())


def test_a_refusal_is_not_asked_for_again() -> None:
    assert not is_retryable(exceptions.NoAuthError())
    assert "credential" in str(reading_failed(exceptions.NoAuthError(), "read /a"))


def test_a_throttled_call_did_nothing_and_may_be_repeated() -> None:
    assert is_retryable(exceptions.ThrottledOpError())
    assert not is_lost(exceptions.ThrottledOpError())


def test_unknown_kazoo_errors_count_as_lost() -> None:
    class LaterError(exceptions.KazooException):
        pass

    assert is_lost(LaterError())
    assert not isinstance(LaterError(), DEFINITE_ANSWERS)
