"""The REST reference as one plain page, for ``/docs``: no script, and nothing fetched from another host."""

from collections.abc import Mapping
from typing import Any

from jinja2 import Environment

_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{{ info.title }}</title></head><body>
<h1>{{ info.title }}</h1><pre>{{ info.description }}</pre>
{% for path, operations in paths.items() %}{% for method, operation in operations.items() %}
<h2><code>{{ method | upper }} {{ path }}</code></h2><p>{{ operation.description }}</p>
<ul>{% for one in operation.parameters %}<li><code>{{ one.name }}</code> {{ one.description }}</li>{% endfor %}</ul>
{% endfor %}{% endfor %}
<p>All fields and types: <a href="openapi.json">openapi.json</a></p></body></html>"""


def reference_page(document: Mapping[str, Any]) -> str:
    """An OpenAPI document as HTML."""
    return Environment(autoescape=True).from_string(_PAGE).render(document)
