"""The dashboard: first paint of its pages beside the same as a file, and what open ones cost, where there is much.

Findings and running topic deletions are made up. A real Chromium opens each page of a real sidecar with an empty
cache, in turns with a copy of the same HTML that another server has in memory; what both share (browser, machine, CSS)
is in both figures. Needs Playwright and Chromium (`make test-browser`).
"""

import argparse
import random
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import requests
from fastapi import FastAPI
from pulsar_sidecar.features.ledger_deletion.topic_deletion.operation import (
    Operation,
    encode_operation,
    operation_path,
)
from pulsar_sidecar.model.ids import OperationId
from pulsar_sidecar.model.names import parse_topic_name
from pulsar_sidecar.ownership.paths import managed_ledger_path
from pulsar_sidecar.web import static_files
from starlette.responses import HTMLResponse

from tests.benchmarks.clusters import (
    add_cluster_argument,
    add_control_argument,
    benchmark_cluster,
    processor_seconds,
    resident_mb,
    versions,
)
from tests.benchmarks.made_nodes import make_nodes
from tests.browser.looking import chromium, served
from tests.cluster.sidecars import SidecarProcess, Sidecars
from tests.made_clusters import MadeUpCluster
from tests.reporting import Table

NAME = "dashboard"
_PAINT = """() => new Promise(resolve => {
  const look = () => {
    const [paint] = performance.getEntriesByName("first-contentful-paint");
    paint ? resolve(paint.startTime) : setTimeout(look, 5);
  };
  look();
})"""
_LOADING_SECONDS = 10
_READERS = 50
_FORGET_THE_HIGHEST = "5"
"""To ``clear_refs`` of ``proc(5)``: the highest memory counts from now on."""
_NEVER_MS = 4_000_000_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--findings", type=int, default=100_000)
    parser.add_argument("--deletions", type=int, default=10_000, help="topic deletions that wait for brokers")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--idle-seconds", type=int, default=60)
    add_cluster_argument(parser)
    add_control_argument(parser)


def run(arguments: argparse.Namespace) -> Iterator[Table]:
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pulsar-sidecar-dashboard-")))
        audits = _made_audits(scratch, arguments.findings)
        addresses = stack.enter_context(benchmark_cluster(arguments.cluster))
        make_nodes(addresses.metadata_store_url, _made_deletions(arguments.deletions))
        sidecars = Sidecars(addresses, scratch)
        stack.callback(sidecars.end_all)
        browser = stack.enter_context(chromium())
        for version, environment in versions(arguments.control).items():
            sidecar = sidecars.start_with_defaults_in(environment, audits_directory=audits)
            yield _paints(browser, sidecar.url, version, arguments)
            yield _opened_at_once(sidecar, version, arguments.findings)
            yield _left_open(sidecar, version, arguments.idle_seconds)
            sidecars.end_all()


def _made_audits(place: Path, findings: int) -> Path:
    """A directory with one audit with this many findings."""

    class Leaking(MadeUpCluster):
        """A small cluster with this many orphans."""

        __slots__ = ()

        @property
        def orphans(self) -> int:
            return findings

    dump, listing = Leaking(1).write(place)
    audits = place / "audits"
    audits.mkdir(mode=0o700)
    where = [f"--dump={dump}", f"--listing={listing}", f"--output={audits / 'made-up'}"]
    ran = subprocess.run(
        [sys.executable, "-m", "pulsar_sidecar", "audit", "run", *where], capture_output=True, text=True, check=False
    )
    # Its guards refuse a plan in which so large a share of a cluster would go; the findings are there.
    if not (audits / "made-up" / "summary.json").exists():
        raise RuntimeError(ran.stderr[-2000:])
    return audits


# --- first paint ---------------------------------------------------------------------------------------------------


def _paints(browser: Any, server: str, version: str, arguments: argparse.Namespace) -> Table:
    audit = _audit(server)
    pages = {
        "Findings": f"{audit}/tables/orphans",
        "One audit": audit,
        "Overview": "/ui/",
        "Deletions": "/ui/deletions",
    }
    texts = {name: requests.get(server + path, timeout=60).text for name, path in pages.items()}
    if f"of {arguments.findings:,}" not in texts["Findings"]:
        raise RuntimeError("the page of findings does not list them")
    times: dict[tuple[str, str], list[float]] = {}
    with _files(texts) as files:
        for _ in range(arguments.rounds):
            for name, path in pages.items():
                for kind, url in (("page", server + path), ("file", files[name])):
                    times.setdefault((name, kind), []).append(_paint(browser, url))
    rows = [
        (
            name,
            f"{len(texts[name].encode()) / 1024:,.0f}",
            *(_figures(times[name, kind]) for kind in ("page", "file")),
        )
        for name in pages
    ]
    header = ("page", "KiB of HTML", "first paint, ms: median (90 %)", "the same as a file")
    loads = f"{arguments.rounds} loads each with an empty cache"
    return Table(f"First paint with {arguments.findings:,} findings, {loads}, {version}", header, rows)


def _audit(server: str) -> str:
    audits = requests.get(f"{server}/admin/v2/audits", timeout=60).json()["audits"]
    return f"/ui/audits/{audits[0]['auditId']}"


def _paint(browser: Any, url: str) -> float:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    try:
        page = context.new_page()
        page.goto(url)
        return float(page.evaluate(_PAINT))
    finally:
        context.close()


def _figures(times: Sequence[float]) -> str:
    return f"{statistics.median(times):.0f} ({statistics.quantiles(times, n=10)[-1]:.0f})"


@contextmanager
def _files(texts: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """A server that has them in memory; the address of each."""
    app = FastAPI(openapi_url=None)
    app.include_router(static_files.router)

    @app.get("/ui/files/{name}")
    def file(name: str) -> HTMLResponse:
        return HTMLResponse(texts[name])

    with served(app) as address:
        yield {name: f"{address}/ui/files/{name}" for name in texts}


# --- opened at once ------------------------------------------------------------------------------------------------


def _opened_at_once(sidecar: SidecarProcess, version: str, findings: int) -> Table:
    """Let each of 50 readers open another page of findings at the same moment."""
    place = f"{sidecar.url}{_audit(sidecar.url)}/tables/orphans"
    offsets = [(reader + 1) * findings // (_READERS + 1) for reader in range(_READERS)]
    Path(f"/proc/{sidecar.pid}/clear_refs").write_text(_FORGET_THE_HIGHEST)
    before = processor_seconds(sidecar.pid)
    with ThreadPoolExecutor(_READERS) as readers:
        waits = list(readers.map(lambda offset: _seconds(f"{place}?offset={offset}"), offsets))
    used = processor_seconds(sidecar.pid) - before
    row = (f"{1000 * statistics.median(waits):,.0f} ({1000 * max(waits):,.0f})", f"{used:.1f}")
    title = f"{_READERS} readers open another page of {findings:,} findings each, {version}"
    header = ("wait, ms: median (longest)", "processor s", "resident MiB, highest")
    return Table(title, header, [(*row, f"{resident_mb(sidecar.pid, 'VmHWM'):,.0f}")])


def _seconds(url: str) -> float:
    began = time.monotonic()
    requests.get(url, timeout=600).raise_for_status()
    return time.monotonic() - began


# --- left open -----------------------------------------------------------------------------------------------------


def _left_open(sidecar: SidecarProcess, version: str, seconds: int) -> Table:
    rows = []
    for tabs, page in ((0, "-"), (1, "/ui/"), (1, "/ui/deletions"), (10, "/ui/deletions"), (50, "/ui/deletions")):
        with _tabs(sidecar.url + page, tabs) as waits:
            time.sleep(_LOADING_SECONDS)
            waits.clear()
            before, began = processor_seconds(sidecar.pid), time.monotonic()
            time.sleep(seconds)
            used = (processor_seconds(sidecar.pid) - before) / (time.monotonic() - began)
            waited = f"{1000 * statistics.median(waits):,.0f} ({1000 * max(waits):,.0f})" if waits else "-"
            rows.append((f"{tabs}", page, f"{100 * used:.2f}", waited, f"{resident_mb(sidecar.pid):,.0f}"))
    title = f"A sidecar while its dashboard is open, {seconds} s each, {version}"
    return Table(
        title, ("tabs", "page", "% of a core", "wait of a refresh, ms: median (longest)", "resident MiB"), rows
    )


@contextmanager
def _tabs(url: str, count: int) -> Iterator[list[float]]:
    """Read the page as this many visible tabs do, each of its live parts in its own time; yield the seconds waited."""
    waits: list[float] = []
    ended = threading.Event()

    def tab() -> None:
        with requests.Session() as session:
            periods = [int(each) for each in re.findall(r'data-seconds="([0-9]+)"', session.get(url, timeout=600).text)]
            due = [time.monotonic() + random.uniform(0, period) for period in periods]
            while not ended.wait(max(0.0, min(due) - time.monotonic())):
                part = due.index(min(due))
                began = time.monotonic()
                session.get(url, headers={"HX-Request": "true"}, timeout=600).raise_for_status()
                waits.append(time.monotonic() - began)
                due[part] = max(due[part] + periods[part], time.monotonic())

    threads = [threading.Thread(target=tab) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield waits
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def _made_deletions(count: int) -> Iterator[tuple[str, bytes]]:
    """Yield the nodes of topic deletions that wait for brokers, so that no sidecar continues them meanwhile."""
    for number in range(count):
        name = f"persistent://public/default/orders-of-the-shop-{number}"
        operation = Operation(
            operation_id=OperationId(f"{number:032x}"),
            topic_name=name,
            partitions=None,
            force=True,
            requested_by="admin",
            requested_ms=1_790_000_000_000 + number,
            incarnations={managed_ledger_path(parse_topic_name(name).managed_ledger_name): number},
            recorded=tuple(map(str, range(10 * number, 10 * number + 10))),
            attempts=3,
            last_reason="http://broker-7:8080 did not respond (ReadTimeout); the sidecar keeps trying",
            not_before_ms=_NEVER_MS,
            failures=3,
            failing_since_ms=1_790_000_000_000,
        )
        yield operation_path(operation.operation_id), encode_operation(operation)
