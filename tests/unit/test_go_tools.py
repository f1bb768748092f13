"""Search for programs written in Go: PATH first, then one build in the cache, else a reason to skip."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.go_tools import GoTool, ToolMissingError, path_of, reason_not_built

TOOL = GoTool("tool", "example.org/tool/cmd/tool", "v1.2.3")
BUILDS = """#!/bin/sh
echo "$*" >>"$CALLS"
if [ "$1" = build ]; then while [ "$1" != -o ]; do shift; done; echo built >"$2"; fi
"""
FAILS = "#!/bin/sh\necho downloading >&2\necho 'no such host' >&2\nexit 1\n"


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("PULSAR_SIDECAR_CACHE", str(tmp_path / "cache"))
    reason_not_built.cache_clear()
    yield
    reason_not_built.cache_clear()


def install(directory: Path, name: str, script: str) -> Path:
    program = directory / "bin" / name
    program.write_text(script)
    program.chmod(0o755)
    return program


def test_a_tool_on_the_path_is_taken(tmp_path: Path) -> None:
    install(tmp_path, "go", BUILDS)
    program = install(tmp_path, "tool", FAILS)
    assert path_of(TOOL) == program


def test_a_tool_is_built_once_in_its_version(tmp_path: Path) -> None:
    install(tmp_path, "go", BUILDS)
    built = path_of(TOOL)
    assert (built, built.read_text()) == (tmp_path / "cache" / "tools" / "tool-v1.2.3", "built\n")
    reason_not_built.cache_clear()
    assert path_of(TOOL) == built
    calls = (tmp_path / "calls").read_text().splitlines()
    assert [call.split()[0] for call in calls] == ["get", "build"]
    assert calls[0].endswith(f"{TOOL.package}@{TOOL.version}")


def test_without_go_the_reason_names_both_ways(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(ToolMissingError, match="install it, or Go"):
        path_of(TOOL)


def test_a_build_that_fails_gives_its_reason_and_leaves_no_tool(tmp_path: Path) -> None:
    install(tmp_path, "go", FAILS)
    with pytest.raises(ToolMissingError, match=r"could not build .*: no such host"):
        path_of(TOOL)
    assert not TOOL.built.exists()
    install(tmp_path, "go", BUILDS)
    reason_not_built.cache_clear()  # as in a process beside this one
    with pytest.raises(ToolMissingError, match="no such host"):
        path_of(TOOL)


def test_a_tool_that_is_never_built_is_asked_for(tmp_path: Path) -> None:
    install(tmp_path, "go", BUILDS)
    with pytest.raises(ToolMissingError, match=r"^no tool: install it \(Debian"):
        path_of(GoTool("tool", None, "Debian: a package"))
