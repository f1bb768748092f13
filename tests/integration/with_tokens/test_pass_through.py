"""Requests that are passed to real brokers, which judge callers by their own credential or by the role that we name."""

import asyncio
from urllib.parse import quote

import jwt
import pytest
import requests
from pulsar_sidecar.adapters.pulsar_rest.admin_rest import AdminRest, is_same_request
from pulsar_sidecar.adapters.pulsar_rest.pass_through import PassThrough, ProxyIdentity
from pulsar_sidecar.adapters.zookeeper.zookeeper import ZooKeeperMetadataStore
from pulsar_sidecar.identity.credentials import TlsOptions, parse_credentials
from pulsar_sidecar.local_cluster.state import ClusterAddresses
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.errors import NotAuthenticatedError, NotAuthorizedError
from pulsar_sidecar.model.passed_requests import PassedRequest
from pulsar_sidecar.server.authentication_tokens import TokenVerifier, secret_key

from tests.cluster.running import ClusterUnderTest
from tests.cluster.tokens import KEY, TOKEN_CONF, token

SUPERUSERS_ONLY = "/admin/v2/brokers/configuration/values"


def status(addresses: ClusterAddresses, proxy: ProxyIdentity, request: PassedRequest) -> int:
    async def ask() -> int:
        rest = AdminRest(addresses.web_service_urls, parse_credentials("token", token("admin")), store=store)
        passing = PassThrough(rest, TlsOptions(), store, proxy)
        try:
            async with passing.answer(request) as answer:
                return answer.status
        finally:
            await passing.close()

    with ZooKeeperMetadataStore(addresses.metadata_store_url, SystemClock()) as store:
        return asyncio.run(ask())


def known_as(role: str) -> ProxyIdentity:
    return ProxyIdentity(parse_credentials("token", token(role)), role)


def spoken_for(role: str) -> PassedRequest:
    return PassedRequest("GET", SUPERUSERS_ONLY, [], b"", vouched=False, on_behalf_of=role)


def sent_by(role: str) -> PassedRequest:
    headers = [("Authorization", f"Bearer {token(role)}")]
    return PassedRequest("GET", SUPERUSERS_ONLY, headers, b"", vouched=False)


@pytest.mark.parametrize(("role", "is_answered"), [("admin", True), ("other", False)])
def test_a_broker_judges_the_role_whom_the_sidecar_speaks_for(
    guarded: ClusterUnderTest, role: str, is_answered: bool
) -> None:
    assert (status(guarded.addresses, known_as("sidecar"), spoken_for(role)) == 200) is is_answered


@pytest.mark.parametrize(("role", "is_answered"), [("admin", True), ("other", False)])
def test_a_broker_judges_the_token_that_is_passed_on(guarded: ClusterUnderTest, role: str, is_answered: bool) -> None:
    assert (status(guarded.addresses, known_as("sidecar"), sent_by(role)) == 200) is is_answered


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
@pytest.mark.filterwarnings("ignore::jwt.warnings.InsecureKeyLengthWarning")
def test_a_broker_and_the_sidecar_take_the_same_algorithms_for_a_key(guarded: ClusterUnderTest, algorithm: str) -> None:
    """The key has 288 bits, too few for HS384 and HS512."""
    signed = jwt.encode({"sub": "admin"}, KEY, algorithm=algorithm)
    headers = {"Authorization": f"Bearer {signed}", "X-Pulsar-Auth-Method-Name": "token"}
    answer = requests.get(f"{guarded.addresses.web_service_urls[0]}/admin/v2/clusters", headers=headers, timeout=30)
    tokens = TokenVerifier(secret_key(TOKEN_CONF["tokenSecretKey"]), SystemClock())
    try:
        role = tokens.role(signed)
    except NotAuthenticatedError:
        role = None
    assert (answer.status_code, role) == ((200, "admin") if algorithm == "HS256" else (401, None))


def test_the_sidecar_speaks_for_no_role_where_it_is_not_a_proxy(guarded: ClusterUnderTest) -> None:
    with pytest.raises(NotAuthorizedError, match="not among proxyRoles"):
        status(guarded.addresses, known_as("admin"), spoken_for("other"))


def test_a_role_that_the_sidecar_takes_for_a_proxys_by_mistake_lends_nothing(guarded: ClusterUnderTest) -> None:
    mistaken = ProxyIdentity(parse_credentials("token", token("admin")), "sidecar")
    assert status(guarded.addresses, mistaken, spoken_for("other")) in (401, 403)


@pytest.mark.parametrize("name", ["plain", "a/b ü", "x+y z", "%41%2f", "~!*'()", "q?x=1&y=2;z"])
def test_a_broker_redirects_a_change_to_what_was_asked_for(cluster: ClusterUnderTest, name: str) -> None:
    """The redirect encodes the query again, in another order."""
    target = (
        f"/admin/v2/persistent/public/default/{quote(name, safe='')}/subscription/{quote('s/ ü+', safe='')}/skip_all"
        "?x=%2F%20a+b&authoritative=false&y=%C3%BC&x=b;c"
    )
    asked = [f"{base}{target}" for base in cluster.addresses.web_service_urls]
    answers = [requests.post(url, timeout=30, allow_redirects=False) for url in asked]
    redirected = [(url, each.headers["Location"]) for url, each in zip(asked, answers, strict=True) if each.is_redirect]
    assert redirected
    assert all(is_same_request(url, location) for url, location in redirected)
