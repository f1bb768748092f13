"""The type of the dashboard's pages, and the pages that belong to no feature."""

from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import APIRouter

from pulsar_sidecar.web.overview_parts import OverviewPart


@dataclass(frozen=True, slots=True)
class Page:
    """A page; ``path`` is the target of the navigation, ``below`` has the routers of its subpages.

    ``overview`` is what the overview shows of it.
    """

    path: str
    title: str
    router: APIRouter
    below: Sequence[APIRouter] = ()
    overview: Sequence[OverviewPart] = ()
