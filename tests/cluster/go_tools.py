"""Go programs for some tests: from PATH, else built once, in a pinned version, into the cache.

This machine's Go builds a tool from its module and installs nothing else. Tests run in parallel, so one process builds
and the others wait for it. `tool_or_skip` skips a test and names the missing tool.
"""

import functools
import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from pulsar_sidecar.local_cluster.processes import exclusive
from pulsar_sidecar.local_cluster.spec import cache_directory
from pulsar_sidecar.model.clocks import SystemClock

_DOWNLOAD_SECONDS = 300
_BUILD_SECONDS = 500
_FAILED_FOR_SECONDS = 900
_GO_MODULE = "module tools\n\ngo 1.24.0\n"


@dataclass(frozen=True, slots=True)
class GoTool:
    """A ``main`` package at a version of its module, such as ``helm.sh/helm/v3/cmd/helm`` at ``v3.19.4``.

    Without a package the tool is never built; ``version`` then names its source.
    """

    name: str
    package: str | None
    version: str

    @property
    def built(self) -> Path:
        """Path of the build: ``tools/<name>-<version>`` in the project's cache."""
        return cache_directory() / "tools" / f"{self.name}-{self.version}"


HELM = GoTool("helm", "helm.sh/helm/v3/cmd/helm", "v3.19.4")
PROMTOOL = GoTool("promtool", None, "Debian: the package prometheus")  # its build exceeds a test's time
COREDNS = GoTool("coredns", "github.com/coredns/coredns", "v1.12.4")


class ToolMissingError(Exception):
    """Raised when a tool is missing and cannot be built here; the text is a reason to skip."""


def tool_or_skip(tool: GoTool) -> Path:
    try:
        return path_of(tool)
    except ToolMissingError as error:
        pytest.skip(str(error))


def path_of(tool: GoTool) -> Path:
    """Return the tool's program, built if necessary.

    Raises:
        ToolMissingError: neither the tool exists nor a Go that builds it.
    """
    if found := shutil.which(tool.name):
        return Path(found)
    if not tool.built.exists() and (reason := reason_not_built(tool)):
        raise ToolMissingError(reason)
    return tool.built


@functools.cache
def reason_not_built(tool: GoTool) -> str | None:
    """Build the tool, and return the reason if that fails; only once, since an unreachable network costs minutes."""
    if tool.package is None:
        return f"no {tool.name}: install it ({tool.version})"
    go = shutil.which("go")
    if go is None:
        return f"no {tool.name}: install it, or Go, with which these tests build it once"
    try:
        _build(go, tool, tool.package)
    except ToolMissingError as error:
        return str(error)
    return None


def _build(go: str, tool: GoTool, package: str) -> None:
    """Build the tool beside its path and move it there, so that no caller finds an incomplete program.

    A failure counts also for the waiting processes, which would otherwise wait as long again.
    """
    tool.built.parent.mkdir(parents=True, exist_ok=True)
    work = tool.built.with_name(f".{tool.built.name}.build")
    work.mkdir(exist_ok=True)
    with exclusive(work):
        if tool.built.exists():
            return
        failed = work / "failed"
        if failed.exists() and SystemClock().now_ms() / 1000 - failed.stat().st_mtime < _FAILED_FOR_SECONDS:
            raise ToolMissingError(failed.read_text())
        program = work / tool.name
        (work / "go.mod").write_text(_GO_MODULE)
        build = ["build", "-buildvcs=false", "-ldflags", "-s -w", "-o", str(program), package]
        try:
            _run(tool, work, [go, "get", "-tool", f"{package}@{tool.version}"], _DOWNLOAD_SECONDS)
            _run(tool, work, [go, *build], _BUILD_SECONDS)
        except ToolMissingError as error:
            failed.write_text(str(error))
            raise
        program.rename(tool.built)


def _run(tool: GoTool, work: Path, command: list[str], seconds: float) -> None:
    # `go install package@version` refuses modules with replacements, like those of Kubernetes and Prometheus.
    environment = os.environ | {"CGO_ENABLED": "0", "GOWORK": "off"}
    failed = f"no {tool.name}: install it; Go could not build {tool.package}"
    try:
        ran = subprocess.run(
            command, cwd=work, env=environment, capture_output=True, text=True, check=False, timeout=seconds
        )
    except subprocess.TimeoutExpired as error:
        raise ToolMissingError(f"{failed} within {seconds:.0f} s") from error
    if ran.returncode:
        raise ToolMissingError(f"{failed}: {(ran.stderr.strip() or 'it gave no reason').splitlines()[-1]}")


def module_or_skip(module: str, version: str) -> Path:
    """Return the directory of a Go module's files in Go's own cache."""
    go = shutil.which("go")
    if go is None:
        pytest.skip(f"no Go, which reads {module}")
    ran = subprocess.run(
        [go, "mod", "download", "-json", f"{module}@{version}"],
        cwd=cache_directory(),
        capture_output=True,
        text=True,
        check=False,
        timeout=_DOWNLOAD_SECONDS,
    )
    answer = json.loads(ran.stdout or "{}")
    if ran.returncode:
        pytest.skip(f"Go could not read {module}: {answer.get('Error', ran.stderr).splitlines()[-1]}")
    return Path(answer["Dir"])
