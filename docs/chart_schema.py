"""The JSON schema of the chart's values, by which helm refuses a wrong key and a value of the wrong kind.

It is derived from what the chart has: the default values give names and kinds, the service's settings give the keys of
``sidecar.configData``. Settings that the templates write themselves are not among them, and a secret may only be the
name of a file, since everybody who may read a ConfigMap sees it.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from pulsar_sidecar.settings.fields import Settings
from pulsar_sidecar.settings.sources import environment_variable, setting_key
from pydantic import SecretStr
from pydantic.fields import FieldInfo
from ruamel.yaml import YAML

CHART = Path(__file__).parents[1] / "deploy" / "helm" / "pulsar-sidecar"
_SCALAR = {"type": ["string", "number", "boolean"], "pattern": "^[^\\n\\r]*$"}
_PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
_NARROWED: Mapping[str, Mapping[str, Any]] = {
    "monitoringOperator": {"enum": ["prometheus", "victoria-metrics"]},
    "pullPolicy": {"enum": ["Always", "IfNotPresent", "Never"]},
    "podManagementPolicy": {"enum": ["Parallel", "OrderedReady"]},
    "sidecar.service.type": {"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
    "sidecar.ports.http": _PORT,
    "sidecar.pdb.maxUnavailable": {"type": ["integer", "string"], "pattern": "^[0-9]+%$"},
    "sidecar.gracePeriod": {"type": "integer", "minimum": 30},
    "audit.engine": {"enum": ["embedded", "spark"]},
    "auth.superUsers": {"type": "object", "additionalProperties": {"type": "string", "pattern": "^[^,]+$"}},
    "pulsar.metadataStoreUrl": {"type": "string", "pattern": "^((zk|etcd):.*)?$"},
}
"""By the value's path, or by its last name."""
_OPEN = ("updateStrategy", "resources")
"""Kubernetes' own objects, which it checks itself."""


def schema_text() -> str:
    """``values.schema.json``."""
    values = YAML(typ="safe").load(CHART / "values.yaml")
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "pulsar-sidecar", **_of(values, "")}
    schema["properties"]["global"] = {"type": "object"}  # helm passes it to every chart
    schema["properties"]["sidecar"]["properties"]["configData"] = _settings()
    return json.dumps(schema, indent=1) + "\n"


def _of(value: object, path: str) -> dict[str, Any]:
    name = path.rpartition(".")[2]
    for known in (path, name):
        if known in _NARROWED:
            return dict(_NARROWED[known])
    match value:
        case bool():
            return {"type": "boolean"}
        case int():
            return {"type": "integer", "minimum": 0}
        case str():
            return {"type": "string"}
        case list():
            return {"type": "array"}
        case dict() if value and name not in _OPEN:
            properties = {key: _of(each, f"{path}.{key}".lstrip(".")) for key, each in value.items()}
            return {"type": "object", "additionalProperties": False, "properties": properties}
        case _:
            return {"type": "object"}


def _settings() -> dict[str, Any]:
    templates = "".join(path.read_text(encoding="utf-8") for path in sorted(CHART.glob("templates/*")))
    written = set(re.findall(r"PULSAR_SIDECAR_[A-Z_]+", templates))
    fields = {name: field for name, field in Settings.model_fields.items() if environment_variable(name) not in written}
    properties = {setting_key(name): _setting(field) for name, field in fields.items()}
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _setting(field: FieldInfo) -> dict[str, Any]:
    kinds = get_args(field.annotation) or (field.annotation,)
    if SecretStr in kinds:
        return {"type": "string", "pattern": "^file:///"}
    if bool in kinds:
        return {"enum": [True, False, "true", "false"]}
    if all(isinstance(kind, str) for kind in kinds):
        return {"enum": list(kinds)}
    return _SCALAR
