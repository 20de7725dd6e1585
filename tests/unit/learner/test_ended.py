"""A learner at rest tells how its run has ended."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import Mock

from tidemill.config.digest import diverged_tag
from tidemill.config.run import RunSettings
from tidemill.config.sections import LearnerConfig
from tidemill.params.run_end import RESULT
from tidemill.services.learner.ended import RunThatEnded


def test_learner_that_diverged_tells_what_the_last_evaluation_found(tmp_path: Path) -> None:
    """That is written after the divergence, and may be that the run is solved; a result of another end is not told."""
    config = LearnerConfig(run=RunSettings(root=str(tmp_path), name="mine", target_return=200.0))
    ended = RunThatEnded(config)
    ended.ask(Mock(list_versions=Mock(return_value=Mock(tags={diverged_tag(config): 3}, versions=[]))))
    config.run.folder.mkdir()
    for mark, end in (("other", "ended"), (diverged_tag(config), "told"), (config.run.end_tag, "told")):
        (config.run.folder / RESULT).write_text(json.dumps({"end": "told", "mark": mark}))
        assert ended.status().end == end, mark
