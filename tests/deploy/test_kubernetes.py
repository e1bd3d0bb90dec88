"""The Kubernetes manifests: valid, confined, and with settings that exist."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate  # pyright: ignore[reportMissingTypeStubs]
import pytest
import yaml

from settings import Settings
from tests.architecture.source_tree import ROOT
from tests.deploy.custom_kinds import SPECS, problems
from tests.deploy.rendering import Manifest, documents, identity, pod_spec, render

KUBERNETES = ROOT / "deploy" / "kubernetes"
DIRECTORIES = sorted(path.parent for path in KUBERNETES.rglob("kustomization.yaml"))
VERSION = "1.31.0"
"""The oldest that is validated for; the newest that the package knows is, too."""

GRACE_MARGIN = 15
"""Seconds that a worker has to close its store in, after its activities."""

by_directory = pytest.mark.parametrize(
    "directory", DIRECTORIES, ids=lambda path: str(path.relative_to(KUBERNETES))
)


def environment_of(spec: Manifest) -> dict[str, Any]:
    """Variables of a pod's one container; of secrets, where they are."""
    (container,) = spec["containers"]
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}


@by_directory
@pytest.mark.parametrize("version", [VERSION, kubernetes_validate.latest_version()])
def test_every_manifest_is_valid(directory: Path, version: str) -> None:
    for manifest in render(directory):
        if manifest["kind"] in SPECS:
            assert problems(manifest) == [], identity(manifest)
        else:
            kubernetes_validate.validate(manifest, version, strict=True)


@by_directory
def test_pods_of_custom_kinds_are_valid_pods(directory: Path) -> None:
    for manifest in render(directory):
        if manifest["kind"] == "WorkerDeployment":
            labels = manifest["spec"]["template"]["metadata"]["labels"]
            spec = {"template": manifest["spec"]["template"], "selector": {"matchLabels": labels}}
            as_deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "spec": spec}
            kubernetes_validate.validate(
                {**as_deployment, "metadata": manifest["metadata"]}, VERSION, strict=True
            )


@by_directory
def test_pods_may_do_as_little_as_possible(directory: Path) -> None:
    for manifest in render(directory):
        spec = pod_spec(manifest)
        if spec is None:
            continue
        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        (container,) = spec["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert "memory" in container["resources"]["limits"]


@by_directory
def test_workers_have_probes_and_more_time_to_end_than_they_take(directory: Path) -> None:
    for manifest in render(directory):
        spec = pod_spec(manifest)
        if spec is None or manifest["kind"] == "Job":
            continue
        (container,) = spec["containers"]
        assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "health"}
        assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "health"}
        grace = int(environment_of(spec)["PERDURE_GRACEFUL_SHUTDOWN_SECONDS"])
        assert spec["terminationGracePeriodSeconds"] >= grace + GRACE_MARGIN


@by_directory
def test_every_variable_is_a_setting_that_exists(directory: Path) -> None:
    known = {f"PERDURE_{name.upper()}" for name in Settings.model_fields}
    for manifest in render(directory):
        text = json.dumps(manifest)
        assert set(re.findall(r"PERDURE_[A-Z_]+", text)) <= known, identity(manifest)


@by_directory
def test_secrets_are_named_and_not_written_down(directory: Path) -> None:
    for manifest in render(directory):
        assert manifest["kind"] != "Secret"
        spec = pod_spec(manifest)
        if spec is not None:
            for name, value in environment_of(spec).items():
                if name.endswith(("_URI", "_KEY")) and "TLS" not in name:
                    assert set(value) == {"secretKeyRef"}, name


def test_every_role_of_workers_has_a_budget_for_disruptions() -> None:
    manifests = render(KUBERNETES / "base")
    budgets, workers = (
        [each["spec"]["selector"] for each in manifests if each["kind"] == kind]
        for kind in ("PodDisruptionBudget", "Deployment")
    )
    assert workers
    assert [each for each in workers if each not in budgets] == []


@pytest.mark.parametrize("overlay", ["production", "versioned"])
def test_scalers_count_busy_slots_and_keep_two_workers(overlay: str) -> None:
    scalers = [
        each["spec"].get("template", each)["spec"]
        for each in render(KUBERNETES / "overlays" / overlay)
        if each["kind"] in {"ScaledObject", "WorkerResourceTemplate"}
    ]
    assert scalers
    for spec in scalers:
        assert [each["type"] for each in spec["triggers"]] == ["temporal", "prometheus"]
        assert "temporal_worker_task_slots_used" in spec["triggers"][1]["metadata"]["query"]
        assert spec["minReplicaCount"] >= 2
        behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
        assert behavior["scaleDown"]["stabilizationWindowSeconds"] >= 300


@by_directory
def test_kustomize_renders_the_same(directory: Path) -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("no kubectl here; the small renderer of the tests stands alone")
    done = subprocess.run(
        [kubectl, "kustomize", directory], capture_output=True, text=True, check=True
    )
    theirs = {identity(each): each for each in yaml.safe_load_all(done.stdout)}
    ours = {identity(each): each for each in render(directory)}
    assert theirs == ours


def test_the_list_of_fields_finds_what_is_none() -> None:
    (scaled, *_) = documents(KUBERNETES / "overlays" / "production" / "scaling.yaml")
    scaled["spec"]["minReplicas"] = 1
    scaled["spec"]["triggers"][0]["metadata"]["queueName"] = "perdure"
    scaled["spec"]["triggers"][0]["metadata"]["targetQueueSize"] = 20
    del scaled["spec"]["scaleTargetRef"]
    assert problems(scaled) == [
        "spec.minReplicas is no field",
        "spec.scaleTargetRef is missing",
        "trigger temporal.queueName is no field",
        "20 has to be a string",
    ]
