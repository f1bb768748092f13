"""The REST reference as one plain page, for ``/docs``: no script, and nothing fetched from another host."""

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any


def reference_page(document: Mapping[str, Any]) -> str:
    """An OpenAPI document as HTML."""
    title = escape(document["info"]["title"])
    sections = "".join(_sections(document))
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title></head><body>'
        f"<h1>{title}</h1><pre>{escape(document['info']['description'])}</pre>{sections}"
        '<p>All fields and types: <a href="openapi.json">openapi.json</a></p></body></html>'
    )


def _sections(document: Mapping[str, Any]) -> Iterator[str]:
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            yield f"<h2><code>{escape(method.upper())} {escape(path)}</code></h2>"
            yield f"<p>{escape(operation.get('description', ''))}</p>"
            parameters = [
                f"<li><code>{escape(parameter['name'])}</code> {escape(parameter.get('description', ''))}</li>"
                for parameter in operation.get("parameters", ())
            ]
            yield f"<ul>{''.join(parameters)}</ul>"
