"""What is said of settings that do not fit, and which variables there are."""

import re
from pathlib import Path

import pytest

from settings import (
    OTHER_VARIABLES,
    InvalidSettingsError,
    Settings,
    check_variables,
    load_settings,
    option_parser,
)

ROOT = Path(__file__).parents[2]
ELSEWHERE = {"PERDURE_CHAOS", "PERDURE_PAYLOAD", "PERDURE_TEMPORAL_TLS"}
"""Beginnings of names, in words of messages."""


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("PERDURE_TASK_QEUE", "x", "did you mean PERDURE_TASK_QUEUE?"),
        ("PERDURE_HELTH_PORT", "8080", "did you mean PERDURE_HEALTH_PORT?"),
        ("PERDURE_COLOUR", "red", "PERDURE_COLOUR is set and is no setting"),
        ("PERDURE_HEALTH_PORT", "http", "PERDURE_HEALTH_PORT: Input should be a valid integer"),
        ("PERDURE_HEALTH_PORT", "70000", "less than or equal to 65535"),
        ("PERDURE_ROLE", "both", "PERDURE_ROLE: Input should be 'all', 'workflows' or 'activit"),
        ("PERDURE_TASK_QUEUE", " ", "PERDURE_TASK_QUEUE: String should have at least 1 char"),
        ("PERDURE_ROUTES", '{"tool:pay": ""}', "PERDURE_ROUTES at tool:pay: String should have"),
        ("PERDURE_ROUTES", '{"pay": "q"}', "'pay' is neither `agent:NAME` nor `tool:NAME`"),
        ("PERDURE_ROUTES", "pay=q", "PERDURE_ROUTES: it is no JSON"),
        ("PERDURE_DEPLOYMENT", "a.b", "PERDURE_DEPLOYMENT: String should match"),
        ("PERDURE_TEMPORAL_TLS_CERT", "c.pem", "both PERDURE_TEMPORAL_TLS_CERT and PERDURE_TEMP"),
    ],
)
def test_a_variable_that_does_not_fit_is_named(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, words: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(InvalidSettingsError, match=re.escape(words)):
        load_settings()


def test_a_secret_is_not_repeated_in_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_PAYLOAD_KEYS", '{"k": ["secret"]}')
    with pytest.raises(InvalidSettingsError, match="PERDURE_PAYLOAD_KEYS") as raised:
        load_settings()
    assert "secret" not in str(raised.value)


def test_what_kubernetes_sets_for_a_service_of_that_name_is_no_mistake() -> None:
    of_service = [
        "PERDURE_API_SERVICE_HOST",
        "PERDURE_API_SERVICE_PORT",
        "PERDURE_API_SERVICE_PORT_HTTP",
        "PERDURE_API_PORT",
        "PERDURE_API_PORT_8080_TCP",
        "PERDURE_API_PORT_8080_TCP_ADDR",
    ]
    check_variables([*of_service, "PATH"])
    with pytest.raises(InvalidSettingsError, match="PERDURE_API_PORT"):
        check_variables(of_service[3:])


def test_every_variable_that_the_code_reads_is_known() -> None:
    known = {*(name.upper() for name in Settings.model_fields), *OTHER_VARIABLES}
    product = [
        path
        for path in ROOT.rglob("*.py")
        if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
        and path.relative_to(ROOT).parts[0] not in {"benchmarks", "tests", "build"}
    ]
    read = {
        found
        for path in product
        for found in re.findall(r"PERDURE_[A-Z_]*[A-Z]", path.read_text())
        if found not in ELSEWHERE
    }
    assert len(read) > 30
    assert {each for each in read if each.removeprefix("PERDURE_") not in known} == set()


def test_each_setting_has_an_option_with_its_variable_and_a_line_of_help() -> None:
    words = option_parser("worker.py").format_help()
    for name, field in Settings.model_fields.items():
        assert f"--{name.replace('_', '-')} VALUE" in words
        assert field.description
        assert f"PERDURE_{name.upper()}" in words
