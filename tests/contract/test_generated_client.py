"""A Python client generated from the OpenAPI document, as a user would make it, against the app on a fake service."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.server.authentication import Authentication
from pulsar_sidecar.server.authentication_tokens import TokenVerifier, secret_key
from pulsar_sidecar.server.paths import V2_PATH

from tests.contract.test_openapi_fuzzing import furnished
from tests.unit.server.serving import served
from tests.unit.server.test_authentication import ADMIN, SECRET, data_url, hs256

PROJECT = Path(__file__).parents[2]
PROGRAMS = PROJECT / ".venv" / "openapi-client" / "bin"
DOCUMENT = PROJECT / "docs" / "reference" / "openapi.json"
NOT_GENERATED = "delayed_messages. Endpoint will not be generated."
"""Its body is lines of JSON, which the generator does not know."""


def run(*command: str | Path, cwd: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(cwd), "COLUMNS": "200"}
    ended = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, Any]]:
    """Status and the client's reading of the response, by call."""
    assert PROGRAMS.exists(), "run: make .venv/openapi-client/.installed"
    directory, token = tmp_path_factory.mktemp("client"), hs256(ADMIN)
    service = furnished()
    service.missing = "ZooKeeper is away"
    with served(service, Authentication(TokenVerifier(secret_key(data_url(SECRET)), SystemClock()))) as server:
        (directory / "config.yml").write_text("post_hooks: []\n")
        made = run(PROGRAMS / "openapi-python-client", "generate", "--path", DOCUMENT, "--config", "config.yml",
                   "--meta", "none", "--output-path", "sidecar_client", cwd=directory)  # fmt: skip
        warnings = [line for line in made.splitlines() if line.startswith("WARNING")]
        assert warnings == [f"WARNING parsing POST {V2_PATH}/cancelDelayedMessages within {NOT_GENERATED}"], made
        calls = Path(__file__).with_name("generated_client_calls.py")
        found = json.loads(run(PROGRAMS / "python", calls, server.url, token, cwd=directory))
    assert service.calls("delete_topic")
    return {call: tuple(answer) for call, answer in found.items()}


def test_every_answer_has_the_class_that_the_document_promises(answers: dict[str, tuple[int, Any]]) -> None:
    status, found = answers["status"]
    assert (status, found["class"], found["control"]["pausedReason"]) == (200, "ServiceStatus", "maintenance")
    status, letters = answers["dead letters"]
    assert (status, [(letter["class"], letter["reason"]) for letter in letters]) == (
        200,
        [("DeadLetter", "still in use")],
    )
    status, paused = answers["pause"]
    assert (status, paused["class"], paused["pausedReason"]) == (200, "Control", "a test")
    assert answers["delete"] == (204, None)


@pytest.mark.parametrize(
    ("call", "status", "reason"),
    [
        ("unknown", 404, "is not on the hold list"),
        ("wrong", 400, "limit"),
        ("forged", 401, "token"),
        ("ready", 503, "ZooKeeper is away"),
    ],
)
def test_every_error_has_its_reason(answers: dict[str, tuple[int, Any]], call: str, status: int, reason: str) -> None:
    assert answers[call][0] == status
    assert answers[call][1]["class"] == "Reason"
    assert reason in answers[call][1]["reason"]
