"""The record of a run's spaces, and what of it counts when the run continues."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from tidemill.envs.recorded_spec import record_spec, spec_changes
from tidemill.types import EnvSpec, ObservationPart, PartSpace


def test_equal_specs_have_no_changes(tmp_path: Path) -> None:
    """Declared spaces say less of a part than an environment does, and store the same."""
    parts = (ObservationPart("gear", "float32", (3,)),)
    spaces = (PartSpace("gear", (), (3,), (5,)),)
    spec = EnvSpec((12,), "uint8", num_actions=2, observation_parts=parts, observation_spaces=spaces)
    record_spec(tmp_path, spec)
    assert spec_changes(tmp_path, dataclasses.replace(spec, observation_spaces=())) == {}
    assert spec_changes(tmp_path, dataclasses.replace(spec, num_actions=3)) == {"num_actions": (2, 3)}
