"""A run of an earlier format is continued, tested and passed on by the commands of today."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import pytest
import yaml

from tests.support.launched import launched, tidemill
from tidemill.scores import read_scores

OLD = sorted((Path(__file__).resolve().parents[1] / "data" / "formats").iterdir())


@pytest.mark.parametrize("old", OLD, ids=lambda folder: folder.name)
def test_run_of_an_earlier_format_is_resumed_evaluated_and_exported(old: Path, tmp_path: Path) -> None:
    """Learner, parameters and table continue where they were; then every file is of today's format."""
    run = Path(shutil.copytree(old / "run", tmp_path / "run"))
    before = read_scores(run / "scores.csv")[-1]
    assert "145 updates" in tidemill("evaluate", str(run), "--episodes", "2")
    words = ("--run.max-env-steps", "0", "--run.max-learner-steps", "200", "--actor.max-env-steps-per-s", "0")
    with launched("resume", str(run), *words) as resumed:
        assert resumed.wait() == 0, resumed.output
    assert "60 items" in resumed.output
    assert "145 updates, 220 agent decisions; weights" in resumed.output
    after = read_scores(run / "scores.csv")[-1]
    assert after.learner_steps == 200
    assert after.params_version > before.params_version
    assert json.loads((run / "result.json").read_text())["format"] == 1
    assert yaml.safe_load((run / "config.yaml").read_text())["format"] == 1
    bundle = tmp_path / "bundle"
    tidemill("export", str(run), "--out", str(bundle))
    for folder in (bundle, Path(shutil.copytree(old / "bundle", tmp_path / "old-bundle"))):
        tidemill("evaluate", str(folder), "--episodes", "2")


def test_run_of_a_later_format_ends_with_its_number_at_once(tmp_path: Path) -> None:
    """The service that finds it is not started again: it would find the same."""
    run = Path(shutil.copytree(OLD[-1] / "run", tmp_path / "run"))
    for file in (run / "replay" / "0").glob("0*"):
        data = bytearray(file.read_bytes())
        struct.pack_into("<I", data, 4, 5)
        file.write_bytes(data)
    with launched("resume", str(run), "--run.max-env-steps", "1000") as resumed:
        assert resumed.wait() == 2
    assert "00000001.log: format 5; this Tidemill reads up to 3: use a newer Tidemill" in resumed.output
    assert "restarting" not in resumed.output
    assert struct.unpack_from("<I", (run / "replay" / "0" / "00000001.log").read_bytes(), 4) == (5,)
