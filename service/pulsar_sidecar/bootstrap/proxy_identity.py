"""With which identity the sidecar speaks for callers that it knows by their certificate only, and its role."""

import ssl

import jwt

from pulsar_sidecar.adapters.pulsar.rest.pass_through import ProxyIdentity
from pulsar_sidecar.api.authentication import role_of_certificate
from pulsar_sidecar.bootstrap.cluster_access import broker_identity_of
from pulsar_sidecar.identity.credentials import AuthPlugin, ClientCredentials, parse_credentials
from pulsar_sidecar.model.errors import InvalidInputError, NotAuthenticatedError
from pulsar_sidecar.settings.fields import Settings


def proxy_identity_of(settings: Settings) -> ProxyIdentity:
    """The identity of ``adminPassThroughAuthPlugin``, or the sidecar's own; `InvalidInputError` if unusable."""
    credentials, _ = broker_identity_of(settings)
    if settings.admin_pass_through_auth_plugin is not None:
        params = settings.admin_pass_through_auth_params
        credentials = parse_credentials(
            settings.admin_pass_through_auth_plugin, params.get_secret_value() if params else None
        )
    return ProxyIdentity(credentials, _role_of(credentials, settings.token_auth_claim))


def _role_of(credentials: ClientCredentials, claim: str) -> str | None:
    """As brokers take it; it only has to fit what they name in ``proxyRoles``, and they verify the credential."""
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
