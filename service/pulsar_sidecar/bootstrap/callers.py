"""Authentication and authorisation of callers, and the identity that speaks for them, made from the settings."""

import ssl

import jwt

from pulsar_sidecar.adapters.open_id_issuers import KeyCaching, OpenIdIssuers
from pulsar_sidecar.adapters.pulsar_rest.pass_through import ProxyIdentity
from pulsar_sidecar.bootstrap.cluster_access import broker_identity_of
from pulsar_sidecar.identity.credentials import AuthPlugin, ClientCredentials, parse_credentials
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import InvalidInputError, NotAuthenticatedError
from pulsar_sidecar.model.file_urls import content_of
from pulsar_sidecar.model.permissions import TenantPolicies
from pulsar_sidecar.server.authentication import Authentication, role_of_certificate
from pulsar_sidecar.server.authentication_open_id import OpenIdRules, OpenIdVerifier
from pulsar_sidecar.server.authentication_tokens import TokenVerifier, public_key, secret_key
from pulsar_sidecar.server.listener_tls import ListenerTls
from pulsar_sidecar.server.rights import Rights, Roles
from pulsar_sidecar.settings.fields import Settings
from pulsar_sidecar.web.open_id import SignInIssuer

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


def authentication_of(settings: Settings, clock: Clock) -> Authentication | None:
    """Return the authentication, None if every client may call; raise `InvalidInputError` if a key cannot be read."""
    if not settings.authentication_enabled:
        return None
    return Authentication(
        _tokens_of(settings, clock),
        _open_id_of(settings, clock),
        certificates=settings.listen_tls_trust_certs_file_path is not None,
    )


def listener_tls_of(settings: Settings) -> ListenerTls | None:
    """Return the listener's TLS settings, None for HTTP."""
    file, key_file = settings.listen_tls_certificate_file_path, settings.listen_tls_key_file_path
    if file is None or key_file is None:
        return None
    return ListenerTls(
        file,
        key_file,
        settings.listen_tls_trust_certs_file_path,
        settings.listen_tls_require_trusted_client_cert_on_connect,
        _VERSIONS[settings.listen_tls_min_version],
    )


def _tokens_of(settings: Settings, clock: Clock) -> TokenVerifier | None:
    if settings.token_secret_key is not None:
        key = secret_key(settings.token_secret_key.get_secret_value())
    elif settings.token_public_key is not None:
        key = public_key(settings.token_public_key)
    else:
        return None
    return TokenVerifier(
        key,
        clock,
        role_claim=settings.token_auth_claim,
        audience=settings.token_audience,
        audience_claim=settings.token_audience_claim,
    )


def _open_id_of(settings: Settings, clock: Clock) -> OpenIdVerifier | None:
    issuers = settings.openid_allowed_token_issuers
    if not issuers:
        return None
    rules = OpenIdRules(
        frozenset(issuers),
        frozenset(settings.openid_allowed_audiences),
        settings.openid_role_claim,
        settings.openid_accepted_time_leeway_seconds,
    )
    caching = KeyCaching(
        settings.openid_cache_refresh_after_write_seconds,
        settings.openid_cache_expiration_seconds,
        settings.openid_key_id_cache_miss_refresh_seconds,
    )
    keys = OpenIdIssuers(issuers, clock, caching, settings.openid_token_issuer_trust_certs_file_path)
    return OpenIdVerifier(rules, keys, clock)


def sign_in_issuer_of(settings: Settings) -> SignInIssuer | None:
    """Return the dashboard's issuer, None for tokens only; raise `InvalidInputError` if a file cannot be read."""
    if settings.openid_client_id is None or not settings.authentication_enabled:
        return None
    secret = settings.openid_client_secret
    return SignInIssuer(
        url=settings.openid_allowed_token_issuers[0],
        client_id=settings.openid_client_id,
        client_secret=None if secret is None else content_of(secret.get_secret_value(), "openIDClientSecret"),
        scope=settings.openid_client_scope,
        audience=next(iter(settings.openid_allowed_audiences), None),
        dashboard_url=settings.dashboard_url or settings.effective_advertised_url,
        trusted=settings.openid_token_issuer_trust_certs_file_path,
    )


def rights_of(settings: Settings, policies: TenantPolicies) -> Rights:
    """Return the rights of callers; without authentication every client may do everything."""
    roles = Roles(*map(frozenset, (settings.super_user_roles, settings.operator_roles, settings.viewer_roles)))
    return Rights(roles, policies, enforced=settings.authentication_enabled)


def proxy_identity_of(settings: Settings) -> ProxyIdentity:
    """Return the identity by which the sidecar acts for callers with only a certificate, by default its own.

    Raises:
        InvalidInputError: the identity of ``adminPassThroughAuthPlugin`` cannot be used.
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
