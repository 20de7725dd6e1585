"""The queries people look at: those of the dashboards and of Prometheus's rules."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
DASHBOARDS = sorted((ROOT / "deploy/grafana/dashboards").glob("*.json"))
RULES = sorted((ROOT / "deploy/prometheus/rules").glob("*.yml"))


@dataclass(frozen=True)
class Query:
    """One query.

    Attributes:
        owner: The panel or rule it belongs to.
        expression: In PromQL.
    """

    owner: str
    expression: str

    @property
    def needs_more(self) -> bool:
        """Whether it has an answer only where a learner has a GPU, or where there is an inference service."""
        return "_gpu_" in self.expression or "tidemill_inference_" in self.expression


def load(dashboard: Path) -> dict[str, Any]:
    """Return a dashboard's document."""
    document: dict[str, Any] = json.loads(dashboard.read_text(encoding="utf-8"))
    return document


def panel_queries() -> list[Query]:
    """Return the queries of every panel of every dashboard."""
    return [
        Query(f"{path.stem}: {panel['title']}", target["expr"].replace("$run", ".*"))
        for path in DASHBOARDS
        for panel in load(path)["panels"]
        for target in panel["targets"]
    ]


def rules() -> list[dict[str, Any]]:
    """Return every recording and alert rule."""
    groups = [group for path in RULES for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]]
    return [rule for group in groups for rule in group["rules"]]


def rule_queries() -> list[Query]:
    """Return the queries of the rules."""
    return [Query(rule.get("record") or rule["alert"], rule["expr"]) for rule in rules()]
