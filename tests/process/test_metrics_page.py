"""docs/reference/metrics.md, beside what a running cluster serves."""

from __future__ import annotations

import re

from scripts.docs.metrics import PAGE, page
from tests.support.dashboards import DASHBOARDS, RULES

_ROW = re.compile(r"^\| `(\w+)` \| (\w+) \| (.*?) \| (.*) \|$", re.MULTILINE)


def test_page_names_every_metric_of_a_cluster() -> None:
    """Names, kinds and texts are those that are served, in the same order; labels that are served are named."""
    served, written = (_ROW.findall(text) for text in (page(), PAGE.read_text(encoding="utf-8")))
    assert [row[:2] + row[3:] for row in served] == [row[:2] + row[3:] for row in written]
    for now, then in zip(served, written, strict=True):  # a metric that has counted nothing yet shows no labels
        assert set(re.findall(r"`(\w+)`", now[2])) <= set(re.findall(r"`(\w+)`", then[2])), now[0]


def test_page_names_every_metric_of_an_alert_or_a_dashboard() -> None:
    """Also those that the cluster of the page does not serve, as those of a GPU."""
    used = {
        re.sub("_(bucket|count|sum)$", "", name)
        for file in (*DASHBOARDS, *RULES)
        for name in re.findall(r"(?<!:)\btidemill_[a-z_]+", file.read_text(encoding="utf-8"))
    }
    text = PAGE.read_text(encoding="utf-8")
    assert [name for name in sorted(used) if f"`{name}`" not in text] == []
