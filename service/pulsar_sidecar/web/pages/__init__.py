"""The pages, in the order of the navigation: one question each.

To add a page: a module with its ``router``, its template in ``web/templates``, and one line in `PAGES`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import APIRouter

from pulsar_sidecar.web.pages import (
    audits,
    dead_letters,
    delayed,
    deletions,
    leaks,
    overview,
    pending,
    pins,
    subscriptions,
)


@dataclass(frozen=True, slots=True)
class Page:
    """One page; ``path`` is where the navigation leads, ``below`` what else belongs to it."""

    path: str
    title: str
    router: APIRouter
    below: Sequence[APIRouter] = ()


PAGES = (
    Page("/ui/", "Overview", overview.router),
    Page(deletions.HERE, "Deletions", deletions.router, [dead_letters.router, pending.router]),
    Page(leaks.PATH, "Leaks", leaks.router),
    Page(audits.PATH, "Audits", audits.router),
    Page(delayed.PATH, "Delayed messages", delayed.router),
    Page(subscriptions.PATH, "Subscriptions", subscriptions.router),
    Page(pins.PATH, "What pins this?", pins.router),
)
