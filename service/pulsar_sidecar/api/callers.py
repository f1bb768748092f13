"""Who calls, as the door knows it: all that rights, the log and what is passed on to brokers go by."""

from dataclasses import dataclass
from typing import Literal

Method = Literal["none", "token", "certificate"]


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller whose credential has been verified, or any caller where ``authenticationEnabled`` is false.

    Attributes:
        role: Pulsar's role; None only where every client may call.
        method: by what the role was proven; ``none`` only without a role.
        address: the host that the connection comes from, without its port; empty where it has none.
    """

    role: str | None
    method: Method
    address: str
