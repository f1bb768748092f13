"""The chart as helm renders it, and the values that its tests go through."""

import functools
import json
import subprocess
from collections.abc import Mapping
from typing import Any

from ruamel.yaml import YAML

from tests.cluster.choosing import PROJECT
from tests.cluster.go_tools import HELM, tool_or_skip

CHART = PROJECT / "deploy" / "helm" / "pulsar-sidecar"
EXAMPLES = {path.stem: YAML(typ="safe").load(path) for path in sorted((CHART.parent / "examples").glob("*.yaml"))}
OLDEST, NEWEST = "1.27.0", "1.37.0"
NAMESPACE = "pulsar"

_MINIMAL: Mapping[str, Any] = {
    "pulsar": {
        "webServiceUrl": "http://broker:8080",
        "brokerServiceUrl": "pulsar://broker:6650",
        "metadataStoreUrl": "zk:zookeeper:2181/chroot",
    },
    "auth": {"authentication": {"jwt": {"secretName": "keys", "usingSecretKey": True}}, "superUsers": {"me": "admin"}},
}
VALUES: Mapping[str, Mapping[str, Any]] = {
    **EXAMPLES,
    "minimal": _MINIMAL,
    "by-issuer": _MINIMAL
    | {
        "auth": {"authentication": {"jwt": {"enabled": False}}, "superUsers": {"a": "admin", "b": "operator"}},
        "sidecar": {
            "configData": {
                "openIDAllowedTokenIssuers": "https://id.example.com",
                "openIDAllowedAudiences": "pulsar",
                "twoPhaseDeletionOutcomeRetentionInMinutes": 1000000,
                "topicTwoPhaseDeletionEnabled": "true",
                "ackStateWatchedTopics": "persistent://a/b/c, persistent://a/b/back\\slash",
            }
        },
    },
    "spark": _MINIMAL
    | {
        "audit": {"enabled": True, "engine": "spark", "nodeSelector": {"disk": "large"}, "tolerations": [{"key": "a"}]},
        "duplicates": {"enabled": True, "scope": "public/default", "volume": {"existingClaim": "mine"}},
    },
    "everything": _MINIMAL
    | {
        "fullnameOverride": "everything",
        "labels": {"team": "messaging"},
        "images": {"imagePullSecrets": ["registry"], "sidecar": {"repository": "example.com/sidecar", "tag": "1"}},
        "tls": {
            "sidecar": {"enabled": True, "secretName": "listener"},
            "broker": {"enabled": True, "caSecretName": "ca", "secretName": "client"},
            "zookeeper": {"enabled": True, "caSecretName": "ca", "secretName": "client"},
        },
        "serviceAccount": {"annotations": {"a": "b"}},
        "sidecar": {
            "replicaCount": 3,
            "advertisedUrl": "https://sidecar.example.com",
            "preStopSeconds": 0,
            "annotations": {"a": "b"},
            "appAnnotations": {"a": "b"},
            "priorityClassName": "high",
            "nodeSelector": {"a": "b"},
            "tolerations": [{"key": "a", "operator": "Exists"}],
            "affinity": {"podAntiAffinity": {}},
            "extraEnvs": [{"name": "TZ", "value": "UTC"}],
            "extraVolumes": [{"name": "more", "emptyDir": {}}],
            "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
            "service": {"type": "LoadBalancer", "annotations": {"a": "b"}},
            "headlessService": {"annotations": {"a": "b"}},
            "pdb": {"maxUnavailable": "50%"},
            "podMonitor": {
                "enabled": True,
                "customLabels": {"release": "prometheus"},
                "metricRelabelings": [{"action": "labeldrop", "regex": "cluster"}],
            },
            "prometheusRule": {
                "enabled": True,
                "customLabels": {"release": "prometheus"},
                "runbookUrlBase": "https://docs.example.com/sidecar/",
            },
            "networkPolicy": {"ingressFrom": [{"namespaceSelector": {"matchLabels": {"a": "b"}}}]},
        },
        "audit": {"enabled": True, "volume": {"storageClassName": "fast", "accessModes": ["ReadWriteMany"]}},
    },
    "victoria-metrics": _MINIMAL
    | {
        "monitoringOperator": "victoria-metrics",
        "sidecar": {
            "podMonitor": {"enabled": True, "metricRelabelings": [{"action": "labeldrop", "regex": "cluster"}]}
        },
    },
    "bare": _MINIMAL
    | {
        "serviceAccount": {"create": False},
        "sidecar": {
            "pdb": {"usePolicy": False},
            "networkPolicy": {"enabled": False},
            "probe": {kind: {"enabled": False} for kind in ("startup", "liveness", "readiness")},
        },
    },
}


def rendered(name: str) -> list[dict[str, Any]]:
    """The objects that ``helm install`` makes of these values of `VALUES`; skips the test without helm."""
    return _documents(json.dumps(VALUES[name]))


def helm_template(values: str) -> "subprocess.CompletedProcess[str]":
    """``helm template`` with values as JSON."""
    helm = tool_or_skip(HELM)
    command = [str(helm), "template", "release", str(CHART), "--namespace", NAMESPACE, "--kube-version", OLDEST]
    return subprocess.run([*command, "--values", "-"], input=values, capture_output=True, text=True, check=False)


@functools.cache
def _documents(values: str) -> list[dict[str, Any]]:
    answer = helm_template(values)
    assert answer.returncode == 0, answer.stderr
    return [document for document in YAML(typ="safe").load_all(answer.stdout) if document]
