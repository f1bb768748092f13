"""The documentation site: Sphinx reads the Markdown of this folder (`make docs`)."""

import tomllib
from pathlib import Path

_PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]

project = _PROJECT["name"]
release = version = _PROJECT["version"]
author = copyright = "the pulsar-sidecar authors"
extensions = ["myst_parser"]
exclude_patterns = ["_build"]
html_extra_path = ["reference/openapi.json"]
myst_heading_anchors = 4
html_theme = "furo"
html_title = f"{project} {release}"
html_show_sphinx = False
html_copy_source = False
