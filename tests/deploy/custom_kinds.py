"""Which fields custom kinds have: no schema of theirs is in a package, so these are lists.

A value of `None` takes anything; a mapping lists all fields that there are, in a list those of each
item. `*` is any key.
"""

from collections.abc import Iterator, Mapping
from typing import Any, cast

Fields = Mapping[str, Any]

_SECRET = {"name": None}

_SCALING: Fields = {
    # HorizontalPodAutoscalerBehavior of Kubernetes' autoscaling/v2
    "stabilizationWindowSeconds": None,
    "selectPolicy": None,
    "tolerance": None,
    "policies": [dict.fromkeys(("type", "value", "periodSeconds"))],
}

_TRIGGER_METADATA: dict[str, Fields] = {
    # https://keda.sh/docs/2.22/scalers/temporal/
    "temporal": dict.fromkeys(
        (
            *("endpoint", "endpointFromEnv", "namespace", "taskQueue", "queueTypes"),
            *("targetQueueSize", "activationTargetQueueSize", "workerDeploymentName"),
            *("workerDeploymentBuildId", "includeRunningWorkflowCount", "enableTLS"),
            *("workflowTaskQueueForCount", "minConnectTimeout", "unsafeSsl", "tlsServerName"),
        )
    ),
    # https://keda.sh/docs/2.22/scalers/prometheus/
    "prometheus": dict.fromkeys(
        (
            *("serverAddress", "query", "threshold", "activationThreshold", "namespace"),
            *("cortexOrgID", "customHeaders", "ignoreNullValues", "queryParameters", "timeout"),
            *("unsafeSsl", "authModes"),
        )
    ),
}

_SCALED_OBJECT: Fields = {
    # https://keda.sh/docs/2.22/reference/scaledobject-spec/
    "scaleTargetRef": dict.fromkeys(("apiVersion", "kind", "name", "envSourceContainerName")),
    "pollingInterval": None,
    "cooldownPeriod": None,
    "initialCooldownPeriod": None,
    "idleReplicaCount": None,
    "minReplicaCount": None,
    "maxReplicaCount": None,
    "fallback": dict.fromkeys(("failureThreshold", "replicas", "behavior")),
    "advanced": {
        "restoreToOriginalReplicaCount": None,
        "horizontalPodAutoscalerConfig": {
            "name": None,
            "behavior": {"scaleUp": _SCALING, "scaleDown": _SCALING},
        },
        "scalingModifiers": dict.fromkeys(("target", "activationTarget", "metricType", "formula")),
    },
    "triggers": [
        {
            "type": None,
            "name": None,
            "metricType": None,
            "useCachedMetrics": None,
            "metadata": {"*": None},  # by the trigger's type: `_TRIGGER_METADATA`
            "authenticationRef": dict.fromkeys(("name", "kind")),
        }
    ],
}

SPECS: dict[str, Fields] = {
    "ScaledObject": _SCALED_OBJECT,
    # https://keda.sh/docs/2.22/concepts/authentication/
    "TriggerAuthentication": {
        "secretTargetRef": [dict.fromkeys(("parameter", "name", "key"))],
        "env": [dict.fromkeys(("parameter", "name", "containerName"))],
    },
    # github.com/temporalio/temporal-worker-controller, api/v1alpha1/workerdeployment_types.go
    "WorkerDeployment": {
        "replicas": None,
        "template": {"*": None},  # a pod's template, which is validated as one
        "minReadySeconds": None,
        "progressDeadlineSeconds": None,
        "rollout": {
            "strategy": None,
            "gate": dict.fromkeys(("workflowType", "input", "inputFrom")),
            "steps": [dict.fromkeys(("rampPercentage", "pauseDuration"))],
        },
        "sunset": dict.fromkeys(("scaledownDelay", "deleteDelay")),
        "workerOptions": {
            "connectionRef": {"name": None},
            "temporalNamespace": None,
            "unsafeCustomBuildID": None,
        },
    },
    # The same, api/v1alpha1/connection_types.go
    "Connection": {
        "hostPort": None,
        "tls": {"serverName": None, "caCertSecretRef": _SECRET},
        "mutualTLSSecretRef": _SECRET,
        "apiKeySecretRef": dict.fromkeys(("name", "key", "optional")),
    },
    # The same, examples/wrt-keda-prometheus.yaml
    "WorkerResourceTemplate": {
        "workerDeploymentRef": {"name": None},
        "template": {"*": None},
    },
}

REQUIRED: dict[str, tuple[str, ...]] = {
    "ScaledObject": ("scaleTargetRef", "triggers"),
    "TriggerAuthentication": (),
    "WorkerDeployment": ("template", "rollout", "sunset", "workerOptions"),
    "Connection": ("hostPort",),
    "WorkerResourceTemplate": ("workerDeploymentRef", "template"),
}

API_VERSIONS = {
    "ScaledObject": "keda.sh/v1alpha1",
    "TriggerAuthentication": "keda.sh/v1alpha1",
    "WorkerDeployment": "temporal.io/v1alpha1",
    "Connection": "temporal.io/v1alpha1",
    "WorkerResourceTemplate": "temporal.io/v1alpha1",
}


def problems(manifest: Mapping[str, Any]) -> list[str]:
    """What in a manifest of a custom kind is no field of it, or is missing."""
    kind = manifest["kind"]
    found = list(_unknown(manifest["spec"], SPECS[kind], "spec"))
    found += [f"spec.{each} is missing" for each in REQUIRED[kind] if each not in manifest["spec"]]
    if manifest["apiVersion"] != API_VERSIONS[kind]:
        found.append(f"{kind} is of {API_VERSIONS[kind]}")
    if kind == "ScaledObject":
        for trigger in manifest["spec"]["triggers"]:
            known = _TRIGGER_METADATA[trigger["type"]]
            found += _unknown(trigger["metadata"], known, f"trigger {trigger['type']}")
            values = trigger["metadata"].values()
            found += [f"{each!r} has to be a string" for each in values if type(each) is not str]
    if kind == "WorkerResourceTemplate" and manifest["spec"]["template"]["kind"] in SPECS:
        found += problems(manifest["spec"]["template"])
    return found


def _unknown(value: object, fields: object, path: str) -> Iterator[str]:
    if isinstance(fields, list) and isinstance(value, list):
        items = cast("list[object]", value)
        for number, item in enumerate(items):
            yield from _unknown(item, cast("list[object]", fields)[0], f"{path}[{number}]")
    elif isinstance(fields, Mapping) and isinstance(value, Mapping):
        known = cast("Fields", fields)
        for key, item in cast("Mapping[str, object]", value).items():
            if key not in known and "*" not in known:
                yield f"{path}.{key} is no field"
            elif key in known:
                yield from _unknown(item, known[key], f"{path}.{key}")
    elif fields is not None:
        yield f"{path} is no {'list' if isinstance(fields, list) else 'mapping'}"
