"""Sign-in at an OpenID Connect issuer: the authorization code flow with PKCE (RFC 7636), without a session here.

Invariants: the browser keeps the proof that it began the flow in a cookie that no script can read; the sidecar redeems
a code only with that proof, and only at the token endpoint in the issuer's own document.
"""

import base64
import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

import requests

from pulsar_sidecar.identity.discovery import TIMEOUT_SECONDS, discovered_url, verified_by
from pulsar_sidecar.model.errors import NotAuthenticatedError, UnreachableError

CALLBACK = "/ui/sign-in/callback"


@dataclass(frozen=True, slots=True)
class Flow:
    """A sign-in in progress, which the browser keeps.

    Attributes:
        state: value that the issuer must send back.
        verifier: secret whose hash the issuer knows.
        next_page: page to open after the sign-in.
    """

    state: str
    verifier: str
    next_page: str

    @classmethod
    def begun(cls, next_page: str) -> "Flow":
        return cls(secrets.token_urlsafe(24), secrets.token_urlsafe(48), next_page)

    @classmethod
    def read(cls, text: str | None) -> "Flow | None":
        """Parse a flow from its `text`; None if that is malformed."""
        parts = (text or "").split(" ", 2)
        return cls(*parts) if len(parts) == 3 and all(parts) else None

    @property
    def text(self) -> str:
        return f"{self.state} {self.verifier} {self.next_page}"

    @property
    def challenge(self) -> str:
        digest = hashlib.sha256(self.verifier.encode()).digest()
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


@dataclass(frozen=True, slots=True)
class SignInIssuer:
    """The issuer at which people sign in; calls block.

    Attributes:
        client_secret: secret of the client; None for a public client.
        audience: audience to request, which some issuers require.
        dashboard_url: address under which browsers reach this dashboard.
        trusted: PEM file with the CA certificates that verify the issuer; None for the system's.
    """

    url: str
    client_id: str
    client_secret: str | None
    scope: str
    audience: str | None
    dashboard_url: str
    trusted: Path | None = None

    def address(self, flow: Flow) -> str:
        """Return the URL of the issuer's sign-in page; raise `TemporaryError` if its document cannot be read."""
        parameters = {
            "response_type": "code",
            "client_id": self.client_id,
            "redirect_uri": self._redirect_uri,
            "scope": self.scope,
            "state": flow.state,
            "code_challenge": flow.challenge,
            "code_challenge_method": "S256",
            **({} if self.audience is None else {"audience": self.audience}),
        }
        place = discovered_url(self.url, "authorization_endpoint", self.trusted)
        return f"{place}{'&' if '?' in place else '?'}{urlencode(parameters)}"

    def tokens(self, code: str, flow: Flow) -> Sequence[str]:
        """Redeem a code for tokens, the one for APIs first.

        Raises:
            NotAuthenticatedError: the issuer refuses the code.
            TemporaryError: the issuer does not respond.
        """
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._redirect_uri,
            "client_id": self.client_id,
            "code_verifier": flow.verifier,
            **({} if self.client_secret is None else {"client_secret": self.client_secret}),
        }
        place = discovered_url(self.url, "token_endpoint", self.trusted)
        try:
            answer = requests.post(
                place, data=form, timeout=TIMEOUT_SECONDS, verify=verified_by(self.trusted), allow_redirects=False
            )
            document = answer.json()
        except (requests.RequestException, OSError) as error:
            raise UnreachableError(f"the issuer does not respond at {place} ({type(error).__name__})") from error
        found = [document.get(name) for name in ("access_token", "id_token")] if isinstance(document, dict) else []
        tokens = [token for token in found if isinstance(token, str) and token]
        if answer.status_code != requests.codes.ok or not tokens:
            reason = document.get("error", answer.status_code) if isinstance(document, dict) else answer.status_code
            raise NotAuthenticatedError(f"the issuer refused the sign-in ({str(reason)[:100]}); sign in again")
        return tokens

    @property
    def _redirect_uri(self) -> str:
        return self.dashboard_url.rstrip("/") + CALLBACK
