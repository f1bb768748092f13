"""An OpenID Connect issuer in this process: its discovery document, its keys, tokens, and what goes wrong with them."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qs

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
_DISCOVERY, _KEYS, _TOKENS = "/.well-known/openid-configuration", "/keys", "/token"


class FakeIssuer(ThreadingHTTPServer):
    """An issuer.

    Attributes:
        keys: by their ids; those that it publishes.
        changes: to its discovery document.
        answers: overrides bodies of whole paths; None answers 500.
        statuses: of paths, instead of 200.
        asked: the paths that were asked for, in turn.
        forms: what clients sent for a token, in turn.
        lifetime_seconds: of the tokens that it issues; None leaves ``expires_in`` out.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.keys: dict[str, PrivateKey] = {"first": rsa.generate_private_key(65537, 2048)}
        self.changes: dict[str, object] = {}
        self.answers: dict[str, bytes | None] = {}
        self.statuses: dict[str, int] = {}
        self.asked: list[str] = []
        self.forms: list[dict[str, str]] = []
        self.delay_seconds = 0.0
        self.lifetime_seconds: int | None = 3_600

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def asked_for_keys(self) -> int:
        return self.asked.count(_KEYS)

    def token(self, claims: dict[str, Any], key_id: str = "first", algorithm: str | None = None) -> str:
        key = self.keys[key_id]
        signed_by = algorithm or ("RS256" if isinstance(key, rsa.RSAPrivateKey) else "ES256")
        return jwt.encode({"iss": self.url} | claims, key, signed_by, {"kid": key_id})

    def body(self, path: str) -> bytes | None:
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


class _Handler(BaseHTTPRequestHandler):
    server: FakeIssuer
    protocol_version: ClassVar[str] = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        form = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.forms.append({name: values[0] for name, values in parse_qs(form).items()})
        self._answer()

    def log_message(self, format: str, *args: object) -> None:
        """Tests are quiet."""

    def _answer(self) -> None:
        self.server.asked.append(self.path)
        time.sleep(self.server.delay_seconds)
        body = self.server.body(self.path)
        self.send_response(500 if body is None else self.server.statuses.get(self.path, 200))
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        self.wfile.write(body or b"")


@contextmanager
def running_issuer() -> Iterator[FakeIssuer]:
    with FakeIssuer() as issuer:
        threading.Thread(target=issuer.serve_forever, args=(0.01,), daemon=True).start()
        yield issuer
        issuer.shutdown()


def _public(key_id: str, key: PrivateKey) -> dict[str, object]:
    public = key.public_key()
    form = (
        RSAAlgorithm.to_jwk(public, as_dict=True)
        if isinstance(public, rsa.RSAPublicKey)
        else (ECAlgorithm.to_jwk(public, as_dict=True))
    )
    return {**form, "kid": key_id, "use": "sig"}
