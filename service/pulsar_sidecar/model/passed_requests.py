"""A request that the sidecar passes to a broker, and the broker's answer to it.

Invariant: the request has the caller's own credential or none.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class PassedRequest:
    """What goes to a broker.

    Attributes:
        target: the path as the caller wrote it, and the query.
        headers: the caller's, without those that are about its connection only.
        body: whole, or in pieces, which can be sent once only.
        vouched: whether the sidecar itself lets the caller do everything; a broker that authenticates no client gets
            only such requests.
        on_behalf_of: the role of a caller that is known by its certificate only, which cannot be passed on; None where
            the request has what there is.
    """

    method: str
    target: str
    headers: Sequence[tuple[str, str]]
    body: bytes | AsyncIterator[bytes]
    vouched: bool
    on_behalf_of: str | None = None

    @property
    def is_read(self) -> bool:
        return self.method in ("GET", "HEAD", "OPTIONS")

    def __str__(self) -> str:
        return f"{self.method} {self.target.partition('?')[0]}"


class BrokerAnswer(Protocol):
    """The answer of a broker, whose body may still be on its way.

    Attributes:
        status: no redirect that another broker of the cluster can follow.
        headers: as the broker sent them.
    """

    status: int
    headers: Sequence[tuple[bytes, bytes]]

    def pieces(self) -> AsyncIterator[bytes]:
        """The body as it arrives; an `UnreachableError` if it breaks off."""


class Brokers(Protocol):
    """The brokers of the cluster."""

    def answer(self, request: PassedRequest) -> AbstractAsyncContextManager[BrokerAnswer]:
        """Send the request to the broker that takes it.

        Raises:
            TemporaryError: no broker could be reached, or a read got no answer.
            PassedChangeUnansweredError: a change may have reached a broker, and no answer came.
            InvalidInputError: the broker redirects a body that cannot be sent a second time.
            ForeignRedirectError: the broker redirects to an address that is no broker of this cluster.
            NotAuthenticatedError: the broker authenticates no client, and the request is not vouched for.
            NotAuthorizedError: the broker does not let the sidecar speak for others.
        """

    async def close(self) -> None:
        """End what is on its way; idempotent."""
