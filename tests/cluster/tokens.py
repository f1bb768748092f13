"""Brokers that require tokens, and tokens that they accept."""

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
    # The cluster's own readiness probe has no identity; brokers authorise every client that has one.
    "anonymousUserRole": "anonymous",
    "superUserRoles": "admin,anonymous",
    "brokerClientAuthenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
    "brokerClientAuthenticationParameters": f"token:{token('admin')}",
}
