"""The caller of a request, as rights, the log and the pass-through to brokers see it, and as it sees itself."""

from dataclasses import dataclass
from typing import Literal

from pulsar_sidecar.model.results import result

Method = Literal["none", "token", "certificate"]


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller whose credential has been verified, or any caller where ``authenticationEnabled`` is false.

    Attributes:
        role: Pulsar's role; None only where every client may call.
        method: proof of the role; ``none`` only without a role.
        address: host that the connection comes from, without its port; empty if it has none.
    """

    role: str | None
    method: Method
    address: str


@result
class CallerRights:
    """Caller, and its rights by this sidecar's settings; brokers may grant it further ones on some topics."""

    cluster: str | None
    """Name of the Pulsar cluster that this sidecar serves."""
    role: str | None
    """Pulsar's role; null if the sidecar requires no credential."""
    authenticated_by: Method
    """Kind of the credential."""
    super_user: bool
    """True if the caller may do everything."""
    operator: bool
    """True if the caller has an operator's rights."""
    viewer: bool
    """True if the caller has a viewer's rights."""
