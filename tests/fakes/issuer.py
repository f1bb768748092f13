"""An OpenID Connect issuer in this process, with discovery document, keys, tokens, and faults."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from tests.fakes.http_servers import Answer, Arrived, http_server

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
_DISCOVERY, _KEYS, _TOKENS = "/.well-known/openid-configuration", "/keys", "/token"


class FakeIssuer:
    """An issuer.

    Attributes:
        keys: published keys by id.
        changes: changes of the discovery document.
        answers: bodies of whole paths that override the usual ones; None returns 500.
        statuses: statuses of paths, instead of 200.
        asked: requested paths, in order.
        forms: token requests of clients, in order.
        lifetime_seconds: lifetime of issued tokens; None omits ``expires_in``.
    """

    def __init__(self) -> None:
        self.url = ""
        self.keys: dict[str, PrivateKey] = {"first": rsa.generate_private_key(65537, 2048)}
        self.changes: dict[str, object] = {}
        self.answers: dict[str, bytes | None] = {}
        self.statuses: dict[str, int] = {}
        self.asked: list[str] = []
        self.forms: list[dict[str, str]] = []
        self.delay_seconds = 0.0
        self.lifetime_seconds: int | None = 3_600

    def asked_for_keys(self) -> int:
        return self.asked.count(_KEYS)

    def token(self, claims: dict[str, Any], key_id: str = "first", algorithm: str | None = None) -> str:
        key = self.keys[key_id]
        signed_by = algorithm or ("RS256" if isinstance(key, rsa.RSAPrivateKey) else "ES256")
        return jwt.encode({"iss": self.url} | claims, key, signed_by, {"kid": key_id})

    def answer(self, arrived: Arrived) -> Answer:
        if arrived.method == "POST":
            self.forms.append({name: values[0] for name, values in parse_qs(arrived.body.decode()).items()})
        self.asked.append(arrived.target)
        time.sleep(self.delay_seconds)
        body = self._body(arrived.target)
        return Answer(500) if body is None else Answer(self.statuses.get(arrived.target, 200), body)

    def _body(self, path: str) -> bytes | None:
        if path in self.answers:
            return self.answers[path]
        documents: dict[str, dict[str, object]] = {
            _DISCOVERY: {"issuer": self.url, "jwks_uri": self.url + _KEYS, "token_endpoint": self.url + _TOKENS}
            | self.changes,
            _KEYS: {"keys": [_public(key_id, key) for key_id, key in self.keys.items()]},
            _TOKENS: {"access_token": f"token-{len(self.forms)}", "token_type": "Bearer"}
            | ({} if self.lifetime_seconds is None else {"expires_in": self.lifetime_seconds}),
        }
        return json.dumps(documents[path]).encode() if path in documents else None


@contextmanager
def running_issuer() -> Iterator[FakeIssuer]:
    issuer = FakeIssuer()
    with http_server(issuer.answer) as server:
        issuer.url = server.url
        yield issuer


def _public(key_id: str, key: PrivateKey) -> dict[str, object]:
    public = key.public_key()
    form = (
        RSAAlgorithm.to_jwk(public, as_dict=True)
        if isinstance(public, rsa.RSAPublicKey)
        else (ECAlgorithm.to_jwk(public, as_dict=True))
    )
    return {**form, "kid": key_id, "use": "sig"}
