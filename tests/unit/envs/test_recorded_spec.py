"""The record of a run's spaces, and what of it counts when the run continues."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from tidemill.envs.recorded_spec import record_spec, spec_changes
from tidemill.types import EnvSpec, ObservationPart, PartSpace

_PARTS = (ObservationPart("gear", "float32", (3,)),)
_SPACES = (PartSpace("gear", (), (3,), (5,)),)
_SPEC = EnvSpec((12,), "uint8", num_actions=2, observation_parts=_PARTS, observation_spaces=_SPACES)


def test_equal_specs_have_no_changes(tmp_path: Path) -> None:
    """Declared spaces say less of a part than an environment does, and store the same."""
    record_spec(tmp_path, _SPEC)
    assert spec_changes(tmp_path, dataclasses.replace(_SPEC, observation_spaces=())) == {}
    assert spec_changes(tmp_path, dataclasses.replace(_SPEC, num_actions=3)) == {"num_actions": (2, 3)}


def test_spec_is_read_from_its_document() -> None:
    """Lists of JSON are tuples again; a field that an earlier version did not write has its default."""
    document = json.loads(json.dumps(dataclasses.asdict(_SPEC)))
    read = EnvSpec.from_document(document)
    assert (read, read.observation_spaces) == (_SPEC, _SPACES)
    assert (read.observation_parts[0].step_bytes, read.observation_spaces[0].starts) == (12, (5,))
    del document["observation_parts"], document["observation_spaces"], document["masks_actions"]
    assert EnvSpec.from_document(document) == EnvSpec((12,), "uint8", num_actions=2)
