"""Workflows of a public host: valid, with pinned actions and few rights, and nothing that the Makefile does itself."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.cluster.choosing import PROJECT

GITHUB = PROJECT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").iterdir())
TARGETS = set(re.findall(r"^([a-z-]+):", (PROJECT / "Makefile").read_text(), re.MULTILINE))


def steps(workflow: Path) -> list[dict[str, Any]]:
    jobs = YAML(typ="safe").load(workflow)["jobs"].values()
    return [step for job in jobs for step in job["steps"]]


def made(script: str) -> set[str]:
    return set(re.findall(r"\bmake ([a-z-]+)", script))


def test_files_follow_their_schemas() -> None:
    for schema, files in (("github-workflows", WORKFLOWS), ("dependabot", [GITHUB / "dependabot.yml"])):
        command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", *files]
        checked = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_calls_make_and_installs_nothing(workflow: Path) -> None:
    scripts = "\n".join(step.get("run", "") for step in steps(workflow))
    assert made(scripts)
    assert made(scripts) <= TARGETS
    assert not re.search(r"\b(pip|uv|npm|apt|apt-get|mvn|go) ", scripts)


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_has_pinned_actions_and_may_only_read(workflow: Path) -> None:
    assert YAML(typ="safe").load(workflow)["permissions"] == {"contents": "read"}
    for step in steps(workflow):
        assert re.search(r"@[0-9a-f]{40}$", step.get("uses", "@" + 40 * "0"))


def test_changes_must_pass_the_same_here_and_there() -> None:
    there = {
        target
        for path in WORKFLOWS
        if path.stem in ("check", "test")
        for step in steps(path)
        for target in made(step.get("run", ""))
    }
    assert made((PROJECT / ".ci" / "run").read_text()) == there
