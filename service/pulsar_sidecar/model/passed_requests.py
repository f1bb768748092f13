"""Requests that the sidecar passes to brokers, and their responses.

Invariant: the request has the caller's own credential or none.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class PassedRequest:
    """Caller's request that the sidecar passes to a broker.

    Attributes:
        target: the path as the caller wrote it, and the query.
        headers: the caller's headers, without those of its connection.
        body: the whole body, or its pieces, which can be sent only once.
        vouched: True if the sidecar itself lets the caller do everything; the sidecar sends only such requests to a
            broker that authenticates no client.
        on_behalf_of: the role of a caller that is known only by its certificate, which cannot be passed on; None if the
            request has the caller's credential, or there is none.
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
    """Status and headers of a broker's response; the body may still be arriving.

    Attributes:
        status: the status code, never a redirect that another broker of the cluster can serve.
        headers: the headers as the broker sent them.
    """

    status: int
    headers: Sequence[tuple[bytes, bytes]]

    def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives; raise `UnreachableError` if it breaks off."""


class Brokers(Protocol):
    """Pass-through of callers' requests to the cluster's brokers."""

    def answer(self, request: PassedRequest) -> AbstractAsyncContextManager[BrokerAnswer]:
        """Send the request to the broker that serves it.

        Raises:
            TemporaryError: no broker could be reached, or a read got no response.
            PassedChangeUnansweredError: a change may have reached a broker, and no response came.
            InvalidInputError: the broker redirects a body that cannot be sent a second time.
            ForeignRedirectError: the broker redirects to an address that does not belong to a broker of this cluster.
            NotAuthenticatedError: the broker authenticates no client, and the request is not vouched for.
            NotAuthorizedError: the broker does not let the sidecar speak for others.
        """

    async def close(self) -> None:
        """End the requests in flight; idempotent."""
