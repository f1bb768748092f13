"""Parts of the overview: each feature shows the most urgent facts of its status."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fastapi import Request

from pulsar_sidecar.web.ask import KEEP_SECONDS, Reading, read
from pulsar_sidecar.web.in_process import Parameters


@dataclass(frozen=True, slots=True)
class Concern:
    """A problem, or a possible one; ``kind`` as in the macro ``state``."""

    kind: str
    word: str
    text: str
    href: str


@dataclass(frozen=True, slots=True)
class Figure:
    """A number with a link to its list."""

    label: str
    text: str
    href: str | None = None
    kind: str | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Shown:
    """Content of a part; its sidecars are as they were registered."""

    concerns: Sequence[Concern] = ()
    figures: Sequence[Figure] = ()
    sidecars: Sequence[object] = ()


@dataclass(frozen=True, slots=True)
class OverviewPart:
    """A feature's part: the route that it reads, and its content for that reading."""

    name: str
    path: str
    show: Callable[[Reading], Shown]
    parameters: Parameters | None = None
    keep_seconds: float = KEEP_SECONDS

    async def read(self, request: Request) -> Reading:
        """Return the reading that `show` takes."""
        return await read(request, self.path, self.parameters, self.keep_seconds)


async def show_part(request: Request, name: str) -> Shown:
    """Return the content of the part with that name: so that a page can show another feature's status."""
    parts: Sequence[OverviewPart] = request.app.state.overview
    part = next(each for each in parts if each.name == name)
    return part.show(await part.read(request))
