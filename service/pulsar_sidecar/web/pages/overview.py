"""Overview: problems, the worst first, and figures, each with a link to its list."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fastapi import APIRouter, Request
from starlette.responses import Response

from pulsar_sidecar.web.ask import Reading
from pulsar_sidecar.web.overview_parts import Concern, Figure, OverviewPart
from pulsar_sidecar.web.shell import page

_SWITCHED_OFF = 405

router = APIRouter()


@dataclass(frozen=True, slots=True)
class Overview:
    """The page: problems, the worst first, then figures."""

    concerns: Sequence[Concern]
    figures: Sequence[Figure]
    sidecars: Sequence[object]
    readings: Sequence[Reading]


@router.get("/ui/")
async def overview(request: Request) -> Response:
    """Return the page with the status of every feature."""
    parts: Sequence[OverviewPart] = request.app.state.overview
    readings = await asyncio.gather(*(each.read(request) for each in parts))
    return await page(request, "overview.html.j2", view=_overview(parts, readings), title="Overview")


def _overview(parts: Sequence[OverviewPart], readings: Sequence[Reading]) -> Overview:
    shown = [part.show(reading) for part, reading in zip(parts, readings, strict=True)]
    concerns = [*_unread(parts, readings), *(concern for each in shown for concern in each.concerns)]
    concerns.sort(key=lambda concern: (concern.kind != "bad", concern.kind == "off"))
    figures = [figure for each in shown for figure in each.figures]
    return Overview(concerns, figures, [sidecar for each in shown for sidecar in each.sidecars], readings)


def _unread(parts: Sequence[OverviewPart], readings: Sequence[Reading]) -> Iterator[Concern]:
    problems: dict[str, list[str]] = {}
    for part, reading in zip(parts, readings, strict=True):
        if reading.problem is not None and reading.status != _SWITCHED_OFF:
            problems.setdefault(reading.problem, []).append(part.name)
    for problem, found in problems.items():
        yield Concern("bad", "Not readable", f"{', '.join(found)}: {problem}", "/ui/")
