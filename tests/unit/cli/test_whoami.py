"""``pulsar-sidecar whoami``, as a person runs it."""

import json

import pytest
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.server.authentication import Authentication
from pulsar_sidecar.server.authentication_tokens import TokenVerifier, secret_key
from pulsar_sidecar.server.rights import Rights, Roles

from tests.fakes.deletion_service import FakeDeletionService
from tests.unit.cli.running import Terminal
from tests.unit.server.serving import served
from tests.unit.server.test_authentication import SECRET, data_url, hs256

ROLES = Roles(frozenset({"root"}), frozenset({"op"}), frozenset({"look"}))


@pytest.mark.parametrize(
    ("role", "allowed"),
    [
        ("root", ["yes", "yes", "yes"]),
        ("op", ["no", "yes", "yes"]),
        ("look", ["no", "no", "yes"]),
        ("tenants-admin", ["no", "no", "no"]),
    ],
)
def test_a_credential_names_its_role_and_what_the_settings_allow_it(
    terminal: Terminal, role: str, allowed: list[str]
) -> None:
    tokens = Authentication(TokenVerifier(secret_key(data_url(SECRET)), SystemClock()))
    with served(FakeDeletionService(), tokens, rights=Rights(ROLES)) as server:
        terminal.set("PULSAR_SIDECAR_ADMIN_URL", server.url)
        ran = terminal.run("--auth-plugin", "token", "--auth-params", f"token:{hs256({'sub': role})}", "whoami")
        refused = terminal.run("whoami")
    assert ran.code == 0, ran.err
    who, *rights = ran.out.splitlines()
    assert who == f"{role}, by token"
    assert [(line[2:14].strip(), line[14:19].strip()) for line in rights] == [
        *zip(("super user", "operator", "viewer"), allowed, strict=True)
    ]
    assert (refused.code, refused.out) == (1, "")
    assert "HTTP 401" in refused.err


def test_without_authentication_every_caller_may_do_everything(terminal: Terminal) -> None:
    with served(FakeDeletionService()) as server:
        terminal.set("PULSAR_SIDECAR_ADMIN_URL", server.url)
        ran = terminal.run("--auth-params", f"token:{hs256({'sub': 'root'})}", "whoami")
        as_json = terminal.run("whoami", "--output-format", "json")
    assert ran.out.splitlines()[:2] == [
        "no role: the sidecar requires no credential (authenticationEnabled=false)",
        "  super user  yes  everything",
    ]
    assert json.loads(as_json.out)["superUser"] is True
