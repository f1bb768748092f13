"""The pages, in the order of the navigation: one question each.

To add a page: a module with its ``router``, its template in ``web/templates``, and one line in `PAGES`.
"""

from dataclasses import dataclass

from fastapi import APIRouter

from pulsar_sidecar.web.pages import delayed, leaks, overview, subscriptions


@dataclass(frozen=True, slots=True)
class Page:
    """One page; ``path`` is where the navigation leads."""

    path: str
    title: str
    router: APIRouter


PAGES = (
    Page("/ui/", "Overview", overview.router),
    Page(leaks.PATH, "Leaks", leaks.router),
    Page(delayed.PATH, "Delayed messages", delayed.router),
    Page(subscriptions.PATH, "Subscriptions", subscriptions.router),
)
