"""`python -m scripts.kubernetes_rules`: write the rules of Prometheus as an object for its operator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

_ROOT = Path(__file__).resolve().parents[1]
_RULES = _ROOT / "deploy/prometheus/rules"
_OBJECT = _ROOT / "deploy/kubernetes/components/prometheusrule/prometheusrule.yaml"
_HEADER = "# Written by scripts/kubernetes_rules.py from deploy/prometheus/rules: change those and run it.\n"


def prometheus_rule() -> dict[str, Any]:
    """Return the PrometheusRule with every group of the rule files."""
    groups = [group for file in sorted(_RULES.glob("*.yml")) for group in yaml.safe_load(file.read_text())["groups"]]
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "tidemill"},
        "spec": {"groups": groups},
    }


def main() -> None:
    """Write the object."""
    _OBJECT.write_text(_HEADER + yaml.safe_dump(prometheus_rule(), sort_keys=False, width=1_000), encoding="utf-8")


if __name__ == "__main__":
    main()
