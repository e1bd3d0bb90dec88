"""What kustomize makes of an overlay, as far as ours go: resources, merge patches, images.

Anything else in a kustomization is refused, so that a new feature is not left out of the tests.
"""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, cast

import yaml

Manifest = dict[str, Any]

KNOWN = {"apiVersion", "kind", "resources", "patches", "images"}

MERGE_KEYS = {
    "containers": "name",
    "env": "name",
    "ports": "containerPort",
    "volumes": "name",
    "volumeMounts": "mountPath",
}
"""By field, what tells items of a list apart. Source: `patchMergeKey` in k8s.io/api/core/v1."""


def render(directory: Path) -> list[Manifest]:
    """All manifests of an overlay, in the order of its resources."""
    kustomization = yaml.safe_load((directory / "kustomization.yaml").read_text())
    unknown = kustomization.keys() - KNOWN
    assert not unknown, f"{directory} uses {unknown}, which is not rendered here"
    found = list(_resources(directory, kustomization["resources"]))
    for patch in kustomization.get("patches", ()):
        assert patch.keys() == {"path"}, patch
        for change in documents(directory / patch["path"]):
            found = _patched(found, change)
    for image in kustomization.get("images", ()):
        for container in _containers(found):
            if container["image"].partition(":")[0] == image["name"]:
                container["image"] = f"{image['newName']}:{image['newTag']}"
    return found


def documents(path: Path) -> list[Manifest]:
    """All documents of a file."""
    return [each for each in yaml.safe_load_all(path.read_text()) if each is not None]


def identity(manifest: Manifest) -> tuple[str, str]:
    """Kind and name."""
    return manifest["kind"], manifest["metadata"]["name"]


def pod_spec(manifest: Manifest) -> Manifest | None:
    """The pods' specification of anything that makes pods."""
    template = manifest.get("spec", {}).get("template", {})
    spec = template.get("spec", {})
    return spec if "containers" in spec else None


def _resources(directory: Path, names: Sequence[str]) -> Iterator[Manifest]:
    for name in names:
        path = directory / name
        yield from render(path) if path.is_dir() else documents(path)


def _patched(found: Sequence[Manifest], change: Manifest) -> list[Manifest]:
    (target,) = (each for each in found if identity(each) == identity(change))
    if change.get("$patch") == "delete":
        return [each for each in found if each is not target]
    return [_merged(each, change) if each is target else each for each in found]


def _merged(old: Manifest, change: Manifest) -> Manifest:
    merged = deepcopy(old)
    for key, value in change.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            merged[key] = _merged(merged.get(key, {}), cast("Manifest", value))
        elif isinstance(value, list) and key in MERGE_KEYS:
            items = cast("list[Manifest]", value)
            merged[key] = _merged_lists(merged.get(key, []), items, MERGE_KEYS[key])
        else:
            merged[key] = value
    return merged


def _merged_lists(old: list[Manifest], change: list[Manifest], key: str) -> list[Manifest]:
    """Items of both; kustomize puts new ones in front."""
    changes = {each[key]: each for each in change}
    kept = [_merged(each, changes.pop(each[key], {})) for each in old]
    return [*changes.values(), *kept]


def _containers(found: Sequence[Manifest]) -> Iterator[Manifest]:
    for manifest in found:
        spec = pod_spec(manifest)
        if spec is not None:
            yield from spec["containers"]
