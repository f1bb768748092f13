"""The documentation site: Sphinx reads the Markdown of this folder (`make docs`).

The references of routes and commands are written when the site is built, into files that Git ignores.
"""

import sys
import tomllib
from pathlib import Path

from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent))

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


def setup(app: Sphinx) -> None:
    from generate import write_site_pages  # it loads the whole program, which reading this file should not

    app.connect("builder-inited", lambda _: write_site_pages())
