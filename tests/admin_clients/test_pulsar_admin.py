"""pulsar-admin at a broker and at a sidecar: the same commands, the same outcomes, for every kind of role."""

import os
import subprocess
from pathlib import Path

import pytest
from pulsar_sidecar.local_cluster.software import find_software
from pulsar_sidecar.local_cluster.spec import ClusterSpec

from tests.admin_clients.commands import COMMANDS
from tests.admin_clients.comparing import SIDES, Outcome, differences
from tests.admin_clients.java_admin import Caller, JavaAdmin
from tests.admin_clients.known_differences import KNOWN, denied_in_own_words
from tests.admin_clients.preparing import Preparing, Scene
from tests.cluster.choosing import version_under_test
from tests.cluster.patience import PATIENCE_SECONDS
from tests.cluster.running import ClusterUnderTest
from tests.cluster.sidecars import SidecarProcess
from tests.cluster.tokens import token

ROLES = {"superuser": "admin", "admin": "tenants-admin", "none": "without-rights"}
"""Kinds of callers, and the roles in their tokens."""


def test_the_commands_are_many() -> None:
    assert len(COMMANDS) >= 120
    assert sum(each.writes for each in COMMANDS) >= 40
    assert sum(each.fails for each in COMMANDS) >= 15


@pytest.mark.parametrize("kind", ROLES)
def test_every_command_ends_the_same(
    broker: str, sidecar: SidecarProcess, java: JavaAdmin, preparing: Preparing, kind: str
) -> None:
    direct, beside = (preparing.scene(kind, side, "tenants-admin") for side in SIDES)
    secret = token(ROLES[kind])
    at_the_broker = _outcomes(java, Caller(broker, secret), direct)
    if kind == "superuser":
        _check_kinds(at_the_broker)
    at_the_sidecar = _outcomes(java, Caller(sidecar.url, secret), beside)
    found = differences(COMMANDS, at_the_broker, at_the_sidecar)
    unknown = [each for each in found if (kind, each.command.template) not in KNOWN and not denied_in_own_words(each)]
    assert not unknown, f"{len(unknown)} of {len(COMMANDS)} differ:\n" + "\n".join(map(str, unknown))
    assert {template for of, template in KNOWN if of == kind} <= {each.command.template for each in found}

    if kind == "superuser":
        assert Path(str(beside.fields["downloaded"])).read_bytes() == Path(str(beside.fields["file"])).read_bytes()


def test_two_brokers_do_not_differ(guarded: ClusterUnderTest, java: JavaAdmin, preparing: Preparing) -> None:
    """The control: what is left out of the comparison is enough, so a difference above is the sidecar's."""
    outcomes = [
        _outcomes(java, Caller(url, token("admin")), preparing.scene("control", side))
        for url, side in zip(guarded.addresses.web_service_urls, SIDES, strict=True)
    ]
    found = differences(COMMANDS, *outcomes)
    assert not found, f"{len(found)} of {len(COMMANDS)} differ:\n" + "\n".join(map(str, found))
    _check_kinds(outcomes[0])


def _outcomes(java: JavaAdmin, caller: Caller, scene: Scene) -> list[Outcome]:
    return [java.command(caller, command.arguments(scene.fields)) for command in COMMANDS]


def _check_kinds(outcomes: list[Outcome]) -> None:
    wrong = [
        f"{command.template}: {outcome}"
        for command, outcome in zip(COMMANDS, outcomes, strict=True)
        if command.fails != outcome.failed
    ]
    assert not wrong, "\n".join(wrong)


def test_the_programs_themselves(broker: str, sidecar: SidecarProcess, preparing: Preparing, tmp_path: Path) -> None:
    """``bin/pulsar-admin`` and ``bin/pulsar-shell`` of the distribution, as processes with a ``client.conf``."""
    scenes = [preparing.scene("shell", side) for side in SIDES]
    ended = [_programs(url, scene, tmp_path) for url, scene in zip((broker, sidecar.url), scenes, strict=True)]
    assert ended[0] == ended[1]
    found, missing, shell = ended[0]
    assert not found.failed
    assert missing.failed
    assert "ready/made" in shell.output
    assert "Failed to delete topic" in shell.output


def _programs(url: str, scene: Scene, directory: Path) -> list[Outcome]:
    script = directory / "commands.txt"
    commands = [
        f"tenants get {scene.tenant}",
        f"topics create persistent://{scene.tenant}/ready/made",
        f"topics list {scene.tenant}/ready",
        f"topics delete persistent://{scene.tenant}/ready/made",
        f"topics delete persistent://{scene.tenant}/ready/made",
        f"topics list {scene.tenant}/ready",
    ]
    script.write_text("".join(f"admin {command}\n" for command in commands))
    return [
        _program(url, directory, "pulsar-admin", "tenants", "get", scene.tenant),
        _program(url, directory, "pulsar-admin", "namespaces", "topics", f"{scene.tenant}/none"),
        # Without --fail-on-error: the shell of 4.0.8 takes every command of a file for failed.
        _program(url, directory, "pulsar-shell", "--no-progress", "--filename", str(script)),
    ]


def _program(url: str, directory: Path, name: str, *arguments: str) -> Outcome:
    distribution = find_software(ClusterSpec(directory, version=version_under_test())).distribution
    configuration = directory / "client.conf"
    configuration.write_text(
        f"webServiceUrl={url}\n"
        "authPlugin=org.apache.pulsar.client.impl.auth.AuthenticationToken\n"
        f"authParams=token:{token('admin')}\n"
    )
    environment = {**os.environ, "PULSAR_CLIENT_CONF": str(configuration), "PULSAR_LOG_DIR": str(directory)}
    environment["PULSAR_EXTRA_OPTS"] = f"-Duser.home={directory}"  # the shell keeps its history there
    ended = subprocess.run(
        [str(distribution / "bin" / name), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    return Outcome(ended.returncode, ended.stdout, ended.stderr).comparable(form_only=False)
