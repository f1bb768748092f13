"""The identity, with its role, by which the sidecar acts for callers that have only a certificate."""

import ssl

import jwt

from pulsar_sidecar.adapters.pulsar_rest.pass_through import ProxyIdentity
from pulsar_sidecar.bootstrap.cluster_access import broker_identity_of
from pulsar_sidecar.identity.credentials import AuthPlugin, ClientCredentials, parse_credentials
from pulsar_sidecar.model.errors import InvalidInputError, NotAuthenticatedError
from pulsar_sidecar.server.authentication import role_of_certificate
from pulsar_sidecar.settings.fields import Settings


def proxy_identity_of(settings: Settings) -> ProxyIdentity:
    """Return the identity of ``adminPassThroughAuthPlugin``, or the sidecar's own.

    Raises:
        InvalidInputError: the identity cannot be used.
    """
    credentials, _ = broker_identity_of(settings)
    if settings.admin_pass_through_auth_plugin is not None:
        params = settings.admin_pass_through_auth_params
        credentials = parse_credentials(
            settings.admin_pass_through_auth_plugin, params.get_secret_value() if params else None
        )
    return ProxyIdentity(credentials, _role_of(credentials, settings.token_auth_claim))


def _role_of(credentials: ClientCredentials, claim: str) -> str | None:
    """Return the role, which must match the brokers' ``proxyRoles``; unverified, because brokers verify it."""
    try:
        match credentials.plugin:
            case AuthPlugin.TOKEN:
                claims = jwt.decode(credentials.current_token(), options={"verify_signature": False})
                role = claims.get(claim)
                return role if isinstance(role, str) else None
            case AuthPlugin.BASIC:
                return credentials.user
            case AuthPlugin.TLS if credentials.certificate is not None:
                return role_of_certificate(ssl.PEM_cert_to_DER_cert(credentials.certificate.file.read_text()))
            case _:
                return None
    except (jwt.InvalidTokenError, NotAuthenticatedError):
        return None
    except (OSError, ValueError) as error:
        raise InvalidInputError(
            f"the certificate {credentials.certificate} cannot be read ({type(error).__name__}); name a PEM file"
        ) from error
