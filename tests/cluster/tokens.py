"""Brokers that ask for a token, and the tokens that they believe."""

import base64
from typing import Final

import jwt

KEY: Final = b"a key of at least 32 bytes for HS256"


def token(role: str) -> str:
    return jwt.encode({"sub": role}, KEY, algorithm="HS256")


TOKEN_CONF: Final = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "authenticationProviders": "org.apache.pulsar.broker.authentication.AuthenticationProviderToken",
    "tokenSecretKey": "data:;base64," + base64.b64encode(KEY).decode(),
    # The cluster's own readiness probe shows no identity; every client that shows one is judged by it.
    "anonymousUserRole": "anonymous",
    "superUserRoles": "admin,anonymous",
    "brokerClientAuthenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
    "brokerClientAuthenticationParameters": f"token:{token('admin')}",
}
