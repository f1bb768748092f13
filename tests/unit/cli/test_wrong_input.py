"""For all input and responses: a documented exit code and a sentence, never a traceback."""

import io
import json
import re
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pulsar_sidecar.__main__ import programs
from typer.core import TyperGroup

from tests.fakes.http_servers import Answer, Arrived, HttpServer, http_server
from tests.unit.cli.running import Terminal
from tests.unit.cli.test_help import COMMANDS

NOT_HERE = {("serve",), ("demo",), ("demo", "down"), ("local-cluster", "up"), ("completion",)}
"""Programs that start for real here, or have no input; the others act on files, fakes and a server of this test."""
RUNNABLE = [
    (path, command) for path, command in COMMANDS if not isinstance(command, TyperGroup) and path not in NOT_HERE
]
WORDS = [
    "", "-", "--", ".", "..", "0", "1", "-1", "1e400", "nan", "9" * 30, "x=y", "=", "a/b", "a/b/c", "a//c", "12:3",
    "persistent://a/b/c", "persistent://a/b/c", "{", "[" * 2_000, "null", '{"a":1}', "12:3:4:5:6", "zk:", "zk://a:1",
    "zk-snapshot:garbage", "token:", "json", "table", "none", "garbage", "records", "2026-12-24T18:00:00Z", "\x1b[2J",
    "é", "http://[", "http://127.0.0.1:1", "file:///nowhere",
]  # fmt: skip
documents = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 2**70) | st.sampled_from([1e400, "", "x", "done"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["operationId", "state", "stage", "reason", "leaks", "a"]), inner, max_size=5)
    ),
    max_leaves=8,
)
answers = st.one_of(
    documents.map(lambda document: json.dumps(document).encode()), st.sampled_from([b"", b"<html>", b"\xff"])
)


@pytest.fixture(scope="module")
def stranger() -> Iterator[HttpServer]:
    """A server that is not a sidecar; it gives every call the same response."""
    with http_server() as server:
        yield server


def strange(status: int, body: bytes = b"") -> Callable[[Arrived], Answer]:
    return lambda _: Answer(status, body, {"Location": "http://127.0.0.1:1/", "Connection": "close"})


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "garbage").write_bytes(b"\xff\x00{\n[]\n\n{}\n" * 3)
    (tmp_path / "records").write_text('{"ledgerId": 1}\n')
    return tmp_path


def documented_exit_codes(command: Any) -> set[int]:
    return {int(code) for code in re.findall(r"(?<=[:;] )\d(?= )", " ".join(command.epilog.split()))}


def ends_well(terminal: Terminal, *arguments: str, codes: Collection[int] = range(5)) -> None:
    ran = terminal.run(*arguments)
    assert ran.code in codes, ran
    assert "Traceback" not in ran.err
    assert ran.code == 0 or ran.err or ran.out, "a failure has a reason"


@st.composite
def written(draw: st.DrawFn, option: Any) -> list[str]:
    """An option or an argument as one may write it, mostly with as many values as it takes."""
    name = [draw(st.sampled_from(option.opts))] if option.param_type_name == "option" else []
    takes_none = getattr(option, "is_flag", False)
    count = draw(st.sampled_from([0] if takes_none else [1, 1, 1, 1, 1, 0, 2]))
    return [*name, *(draw(st.sampled_from(WORDS)) for _ in range(count))]


@given(data=st.data(), status=st.sampled_from([200, 202, 204, 307, 404, 409, 500]), body=answers)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_arguments_and_any_answer(
    terminal: Terminal, stranger: HttpServer, place: Path, monkeypatch: pytest.MonkeyPatch, data: st.DataObject,
    status: int, body: bytes,
) -> None:  # fmt: skip
    del place
    path, command = data.draw(st.sampled_from(RUNNABLE))
    chosen = [option for option in command.params if option.required or data.draw(st.integers(0, 5)) == 0]
    words = [word for option in chosen for word in data.draw(written(option))]
    stranger.answer = strange(status, b"" if status == 204 else body)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data.draw(st.binary(max_size=50)))))
    ends_well(
        terminal,
        "--admin-url",
        stranger.url,
        "--request-timeout",
        "5",
        *path,
        *words,
        codes=documented_exit_codes(command),
    )


def test_every_command_documents_its_exit_codes() -> None:
    for path, command in RUNNABLE:
        assert {0, 1} <= documented_exit_codes(command), path


GARBAGE = [
    b"",
    b"\xff\xfe\x00{",
    b'{"members": 1, "files": [{}]}',
    b'authPlugin=token\nauthParams={"token": []}\n\\u12',
]
NOWHERE = ("--web-service-url", "http://127.0.0.1:1", "--broker-service-url", "pulsar://127.0.0.1:1")
TOO_LONG = "a" * 300


@pytest.mark.parametrize("garbage", GARBAGE)
def test_any_file_and_directory(
    garbage: bytes, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    terminal = Terminal(capsys, monkeypatch, programs())
    file, directory = tmp_path / "file", tmp_path / "directory"
    file.write_bytes(garbage)
    directory.mkdir()
    for name in ("manifest.json", "summary.json", "cluster.json"):
        (directory / name).write_bytes(garbage)
    (tmp_path / "file.p.checkpoint").write_bytes(garbage)
    rocksdb = tmp_path / "rocksdb"
    rocksdb.mkdir()
    for name in ("CURRENT", "000001.log"):
        (rocksdb / name).write_bytes(garbage)
    new = ("--output", tmp_path / "new")
    commands: list[tuple[Any, ...]] = [
        ("--admin-url", "http://127.0.0.1:1", "--tls-trust-cert-path", file, "ledger-deletion", "status"),
        ("--admin-url", "http://127.0.0.1:1", "--auth-params", f"file://{file}", "ledger-deletion", "status"),
        ("--admin-url", "http://127.0.0.1:1", "ledger-deletion", "append", "--file", file),
        ("--admin-url", "http://127.0.0.1:1", "topics", "cancel-delayed-messages", "orders", "--file", file),
        ("serve", "--config", file, "--metadata-store-url", "x"),
        ("metadata", "dump", "--source", f"zk-snapshot:{file}", *new),
        ("metadata", "dump", "--source", f"rocksdb-copy:{rocksdb}", *new),
        ("ledgers", "list", "--metadata-store-url", f"rocksdb-copy:{rocksdb}", *new),
        ("publish", file, "orders", "--producer-name", "p", "--format", "length-prefixed", "--dry-run", *NOWHERE),
    ]
    for place in (directory, file, tmp_path / "nowhere"):
        commands += [("audit", verb, place) for verb in ("show", "apply", "report", "prune")]
        commands += [("local-cluster", verb, "--dir", place) for verb in ("status", "down")]
        commands += [
            ("audit", "explain", place, "5"),
            ("audit", "run", "--dump", place, "--listing", place, *new),
            ("audit", "push", place, "--group-url", "http://127.0.0.1:1/metrics/job/x"),
            ("deduplication", "stuck", "--dump", place),
            ("deduplication", "duplicates", "--extract", place, *new),
            ("deduplication", "duplicates", "--extract", place, "--output", file / "below"),
        ]
    for command in commands:
        ends_well(terminal, *map(str, command))
    monkeypatch.setenv("PULSAR_CLIENT_CONF", str(file))
    ends_well(terminal, "ledger-deletion", "status")


def test_addresses_that_no_resolver_takes(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal(capsys, monkeypatch, programs())
    for host in (TOO_LONG, "[", "a b", "a:b", "a:99999", "\xe9..", ""):
        for scheme in ("http", "https"):
            ends_well(terminal, "--admin-url", f"{scheme}://{host}", "ledger-deletion", "status")


def test_redirecting_foreign_server_is_not_a_sidecar(terminal: Terminal, stranger: HttpServer) -> None:
    stranger.answer = strange(307)
    ran = terminal.run("--admin-url", stranger.url, "ledger-deletion", "status")
    assert (ran.code, ran.out) == (1, "")
    stranger.answer = strange(204)
    ran = terminal.run("--admin-url", stranger.url, "namespaces", "set-deduplication", "public/default", "--enable")
    assert (ran.code, ran.out) == (1, "")
    assert "does --admin-url name a sidecar" in ran.err
