"""The page of errors knows every error that a user can meet."""

import re
from pathlib import Path

import agents.local_model
import cli.processes
import health
import settings
import stores.errors
import telemetry.providers
import temporal_tls
import workflows.agents
import workflows.conversation_refusals
import workflows.delegates
import workflows.direct
import workflows.effects
import workflows.journal

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "errors.md").read_text()


def test_every_public_error_class_is_explained() -> None:
    for module in (
        agents.local_model,
        cli.processes,
        health,
        settings,
        stores.errors,
        telemetry.providers,
        temporal_tls,
        workflows.agents,
        workflows.delegates,
        workflows.direct,
        workflows.conversation_refusals,
        workflows.effects,
        workflows.journal,
    ):
        classes = [
            value.__name__
            for value in vars(module).values()
            if isinstance(value, type)
            and issubclass(value, Exception)
            and value.__module__ == module.__name__
            and value is not stores.errors.StoreError
        ]
        assert classes
        for name in classes:
            assert f"`{name}`" in PAGE, f"{name} of {module.__name__} is not on the page"


def test_every_type_of_a_failure_is_explained() -> None:
    found: set[str] = set()
    for folder in ("workflows", "activities"):
        for path in (ROOT / folder).glob("*.py"):
            found |= set(re.findall(r'type="(\w+Error)"', path.read_text()))
    found |= set(re.findall(r'type="(\w+Error)"', (ROOT / "client.py").read_text()))
    assert "UnknownAgentError" in found
    found.add(workflows.effects.OUTCOME_UNKNOWN)
    for name in found:
        assert f"`{name}`" in PAGE, f"failure type {name} is not on the page"
