"""The simulations of replay's log and of the parameter server's store, at length."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

from tests.chaos.fault_report import FaultReport
from tests.support.launched import ROOT

_REPLAY = "tests/unit/replay/log/test_power_cut.py::test_power_cut_at_any_call_loses_nothing_synced"
_PARAMS = "tests/unit/paramserver/test_store_schedules.py::test_acknowledged_changes_outlive_any_schedule_of_faults"
_SIMULATIONS = {
    "replay's log, ack: write": f"{_REPLAY}[write]",
    "replay's log, ack: fsync": f"{_REPLAY}[fsync]",
    "the parameter server's store": _PARAMS,
}


def simulate(schedules: int) -> Iterator[FaultReport]:
    """Run so many seeded schedules of faults on each simulated disk; yield what came of it.

    Each compares every start with what was acknowledged. A schedule that fails is named on the output, and counted as
    one thing that was acknowledged and lost: no other follows.
    """
    for name, test in _SIMULATIONS.items():
        command = [sys.executable, "-m", "pytest", "-q", "--timeout", "0", test]
        environment = os.environ | {"TIDEMILL_POWER_CUTS": str(schedules)}
        ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        if ended.returncode:
            sys.stderr.write(ended.stdout)
        yield FaultReport(f"simulation of {name}", faults=schedules, acknowledged_lost=int(ended.returncode != 0))
