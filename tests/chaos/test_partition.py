"""A partition between two machines, for which there are network namespaces here."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.fault_report import check
from tests.chaos.partition import KINDS, NOTICED_WITHIN_S, part, why_not


@pytest.mark.parametrize("kind", KINDS)
def test_partition_is_noticed_and_costs_a_pause(tmp_path: Path, kind: str) -> None:
    """Whether the link is down or all packets are dropped: all that was written is there once, and both continue."""
    if reason := why_not():
        pytest.skip(reason)
    (report,) = part(tmp_path, 1, 3, (kind,))
    check(report, faults=1)
    noticed_s = report.figures["noticed_s"]
    assert isinstance(noticed_s, list)
    assert len(noticed_s) == 1
    assert 0 < noticed_s[0] <= NOTICED_WITHIN_S
