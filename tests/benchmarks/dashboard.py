"""The dashboard: first paint of pages over 10,000 findings beside the same page as a file, and what an open one costs.

A real Chromium opens each page of a real sidecar with an empty cache, in turns with a copy of the same HTML that
another server has in memory; what both share (browser, machine, CSS) is in both figures. Needs Playwright and
Chromium (`make test-browser`).
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import requests
from fastapi import FastAPI
from pulsar_sidecar.web import static_files
from starlette.responses import HTMLResponse

from tests.benchmarks.clusters import add_cluster_argument, benchmark_cluster, processor_seconds
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
_LOADING_SECONDS = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--findings", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--idle-seconds", type=int, default=60)
    add_cluster_argument(parser)


def run(arguments: argparse.Namespace) -> Iterator[Table]:
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pulsar-sidecar-dashboard-")))
        audits = _made_audits(scratch, arguments.findings)
        sidecars = Sidecars(stack.enter_context(benchmark_cluster(arguments.cluster)), scratch)
        stack.callback(sidecars.end_all)
        sidecar = sidecars.start_with_defaults(audits_directory=audits)
        browser = stack.enter_context(chromium())
        yield _paints(browser, sidecar.url, arguments)
        yield _idle(browser, sidecar, arguments.idle_seconds)


def _made_audits(place: Path, findings: int) -> Path:
    """A directory with one audit that found so many."""

    class Leaking(MadeUpCluster):
        """A small cluster with so many orphans."""

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


def _paints(browser: Any, server: str, arguments: argparse.Namespace) -> Table:
    audit = requests.get(f"{server}/admin/v2/audits", timeout=60).json()["audits"][0]["auditId"]
    pages = {
        "Findings": f"/ui/audits/{audit}/tables/orphans",
        "One audit": f"/ui/audits/{audit}",
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
    title = f"First paint with {arguments.findings:,} findings, {arguments.rounds} loads each with an empty cache"
    return Table(title, header, rows)


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


# --- left open -----------------------------------------------------------------------------------------------------


def _idle(browser: Any, sidecar: SidecarProcess, seconds: int) -> Table:
    rows = []
    for tabs, page in ((0, "-"), (1, "/ui/"), (1, "/ui/deletions"), (10, "/ui/deletions")):
        context = browser.new_context()
        for _ in range(tabs):
            context.new_page().goto(sidecar.url + page)
        time.sleep(_LOADING_SECONDS)
        before, began = processor_seconds(sidecar.pid), time.monotonic()
        time.sleep(seconds)
        used = (processor_seconds(sidecar.pid) - before) / (time.monotonic() - began)
        rows.append((f"{tabs}", page, f"{100 * used:.2f}"))
        context.close()
    title = f"A sidecar's processor time while its dashboard is open, {seconds} s each"
    return Table(title, ("tabs", "page", "% of a core"), rows)
