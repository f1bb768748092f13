"""The alerts, as the files for Prometheus have them."""

from collections.abc import Mapping
from typing import Any, Final

from ruamel.yaml import YAML

from tests.cluster.choosing import PROJECT

FILES: Final = sorted((PROJECT / "deploy" / "prometheus").glob("*.rules.yml"))
RULES: Final[Mapping[str, Any]] = {
    str(rule["alert"]): rule
    for path in FILES
    for group in YAML(typ="safe").load(path)["groups"]
    for rule in group["rules"]
}
"""By name."""
