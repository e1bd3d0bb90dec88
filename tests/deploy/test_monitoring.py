"""Dashboards and alerts: valid, of metrics that exist, each alert with an entry in the runbook."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import prometheus_client.utils
import pytest
import yaml

from telemetry_names import ALL, SERIES
from tests.architecture.source_tree import ROOT
from tests.deploy.alert_cases import QUIET, RAISING

MONITORING = ROOT / "deploy" / "monitoring"
DASHBOARDS = sorted((MONITORING / "grafana" / "dashboards").glob("*.json"))
RUNBOOK = ROOT / "docs" / "runbook.md"

PROMETHEUS_OWN = {"up"}

AGGREGATIONS = {"sum", "min", "max", "avg", "count", "topk", "quantile"}

_LABELS_OF_SCRAPES = {"instance", "job", "pod", "namespace"}


@pytest.fixture(scope="module")
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("no promtool here; CI installs Debian's package prometheus for it")
    return found


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text())["panels"]
    return found


def queries() -> Iterator[str]:
    """Of all alerts, panels and scalers."""
    yield from (rule["expr"] for rule in alerts())
    for path in DASHBOARDS:
        for panel in panels(path):
            yield from (target["expr"] for target in panel["targets"])
    for path in (ROOT / "deploy" / "kubernetes").rglob("scaling.yaml"):
        for line in re.findall(r"sum\(.*\)", path.read_text()):
            yield line.replace("{{temporal_worker_build_id}}", "build")


def names_in(query: str) -> set[str]:
    """What a query names as a metric: words that are no function, label, string or keyword."""
    bare = re.sub(r'"[^"]*"', "", query)
    bare = re.sub(r"\b(by|on|without|ignoring)\s*\([^)]*\)", "", bare)
    bare = re.sub(r"\{[^}]*\}", "", bare)
    bare = re.sub(r"\[[^\]]*\]", "", bare)
    words = re.findall(r"[a-zA-Z_:][a-zA-Z0-9_:]*(?!\s*\(|[a-zA-Z0-9_:])", bare)
    return set(words) - {"and", "or", "unless"}


def _bound(value: float) -> str:
    """As the client library, which has no types, writes it."""
    untyped: Any = prometheus_client.utils
    return str(untyped.floatToGoString(value))


def check_rules(promtool: str, path: Path) -> None:
    done = subprocess.run(
        [promtool, "check", "rules", path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_alerts_are_valid_rules(promtool: str) -> None:
    check_rules(promtool, MONITORING / "alerts.yaml")


def test_each_query_of_a_dashboard_and_of_a_scaler_is_a_valid_rule(
    promtool: str, tmp_path: Path
) -> None:
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(queries())]
    assert len(rules) > 60
    path = tmp_path / "queries.yaml"
    path.write_text(json.dumps({"groups": [{"name": "queries", "rules": rules}]}))  # YAML, too
    check_rules(promtool, path)


def test_the_configuration_of_prometheus_is_valid(promtool: str) -> None:
    done = subprocess.run(
        [promtool, "check", "config", "--syntax-only", MONITORING / "prometheus.yaml"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_query_names_metrics_that_exist() -> None:
    for query in queries():
        found = names_in(query)
        assert found, query
        assert found <= SERIES | PROMETHEUS_OWN, query


def test_a_query_of_a_metric_that_does_not_exist_is_noticed() -> None:
    query = 'sum by (le) (rate(perdure_boundary_time_bucket{a="b"}[5m])) > on (x) other'
    assert names_in(query) == {"perdure_boundary_time_bucket", "other"}


def test_each_query_names_labels_and_buckets_that_exist() -> None:
    by_series = {name: metric for metric in ALL for name in metric.series}
    for query in queries():
        for series, selector in re.findall(r"([a-z_]+)\{([^}]*)\}", query):
            if series in PROMETHEUS_OWN:
                continue
            metric = by_series[series]
            given = dict(re.findall(r'(\w+)=~?"([^"]*)"', selector))
            bound = given.pop("le", None)
            assert set(given) <= {*metric.labels, *_LABELS_OF_SCRAPES}, query
            if bound is not None:
                assert bound in {_bound(each) for each in metric.buckets}, query


def test_every_metric_of_perdures_own_is_on_a_dashboard() -> None:
    shown = {
        name
        for path in DASHBOARDS
        for panel in panels(path)
        for target in panel["targets"]
        for name in names_in(target["expr"])
    }
    own = [each for each in ALL if each.name.startswith("perdure.")]
    assert [each.name for each in own if shown.isdisjoint(each.series)] == []


def test_each_alert_has_its_entry_in_the_runbook_and_no_entry_is_left_over() -> None:
    headings = re.findall(r"^### (Perdure\w+)$", RUNBOOK.read_text(), re.MULTILINE)
    assert headings == [rule["alert"] for rule in alerts()]
    for rule in alerts():
        anchor = rule["alert"].lower()
        assert rule["annotations"]["runbook_url"] == f"docs/runbook.md#{anchor}"
        assert rule["labels"]["severity"] in {"page", "ticket"}


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    for path in DASHBOARDS:
        found = panels(path)
        assert len({each["id"] for each in found}) == len(found)
        cells = [
            (x, y)
            for place in (each["gridPos"] for each in found)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        ]
        assert len(set(cells)) == len(cells), path.name


def test_each_alert_is_raised_by_what_it_is_about_and_none_by_a_healthy_hour(
    promtool: str, tmp_path: Path
) -> None:
    assert list(RAISING) == [rule["alert"] for rule in alerts()]
    cases = [_case({**QUIET, **series}, {alert}) for alert, series in RAISING.items()]
    cases[0] = _case({}, {"PerdureNoWorkers"})
    cases.append(_case(QUIET, set()))
    path = tmp_path / "cases.yaml"
    rule_files = [str(MONITORING / "alerts.yaml")]
    path.write_text(json.dumps({"rule_files": rule_files, "tests": cases}))
    done = subprocess.run(
        [promtool, "test", "rules", path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _case(series: dict[str, str], raised: set[str]) -> dict[str, Any]:
    """A test of promtool: these alerts fire after an hour, and no other one."""
    firing = 'count by (alertname) (ALERTS{alertstate="firing"})'
    samples = [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in sorted(raised)]
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [{"expr": firing, "eval_time": "59m", "exp_samples": samples}],
    }
