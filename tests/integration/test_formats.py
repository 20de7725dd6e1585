"""Each file says its format by number: files of every earlier format are read, those of a later one refused."""

from __future__ import annotations

import json
import re
import shutil
import struct
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import yaml

from tests.support.batches import CONTINUOUS
from tests.support.naming import naming
from tests.support.numbered_steps import numbered_step, steps_table
from tidemill import formats, load_policy
from tidemill.bundle.files import read_bundle
from tidemill.config.load import from_document, load, read_document, read_settings, write_document
from tidemill.config.sections import RunConfig
from tidemill.envs.recorded_spec import record_spec, spec_changes
from tidemill.errors import ConfigError, FatalError, TidemillError
from tidemill.formats import check_format, read_json
from tidemill.params.document import seal
from tidemill.params.stored import read_params
from tidemill.params.version import Params
from tidemill.replay import ItemWindow, ReplayClient, ReplayWriter, Server, import_table
from tidemill.replay.transfer.exported_table import ExportedTable
from tidemill.replay.transfer.folder import digest_of
from tidemill.scores import read_scores
from tidemill.services.evaluator.csv_logs import EpisodeLog, ScoreLog
from tidemill.services.evaluator.run_logs import WallClock
from tidemill.services.learner.checkpoint.format import Checkpoint
from tidemill.services.learner.checkpoint.store import CheckpointStore
from tidemill.services.tools.sweep.journal import Journal

OLD = sorted((Path(__file__).resolve().parents[1] / "data" / "formats").iterdir())
"""Files of each earlier format: a run that has ended, its table, and the bundle that was exported from it."""


@pytest.fixture(name="old", params=OLD, ids=lambda folder: folder.name)
def fixture_old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a copy of the files of an earlier format."""
    return Path(shutil.copytree(request.param, tmp_path / "old"))


def _first(folder: Path, pattern: str) -> Path:
    return next(iter(sorted(folder.glob(pattern))))


def test_settings_scores_and_result_of_an_earlier_format_are_read(old: Path) -> None:
    """Settings load, rows keep what they say, and what is written next has the number of today."""
    run = old / "run"
    config = from_document(RunConfig, read_document(run / "config.yaml"))
    assert config.env.id == "CartPole-v1"
    write_document(config, run / "config.yaml")
    assert yaml.safe_load((run / "config.yaml").read_text())["format"] == formats.NEWEST[formats.CONFIG]
    rows = read_scores(run / "scores.csv")
    assert rows[-1].learner_steps == 145
    assert ScoreLog(run / "scores.csv").rows == tuple(rows)
    assert (run / "scores.csv").read_text().splitlines()[-1].endswith(f",{formats.NEWEST[formats.SCORES]}")
    assert read_scores(run / "scores.csv") == rows
    assert read_json(run / "result.json", formats.RESULT)["evaluations"] == len(rows)


def test_parameters_checkpoint_and_bundle_of_an_earlier_format_are_read(old: Path) -> None:
    """The policy acts from the run's folder and from the bundle, alike."""
    assert read_params(old / "run" / "params").number == 4
    found = CheckpointStore(old / "run" / "checkpoints", keep=1).newest()
    assert found is not None
    assert found[1].counters["learner_steps"] == 145
    assert read_bundle(old / "bundle").params.number == 4
    observations = np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)
    of_run, of_bundle = (load_policy(old / name).act(observations) for name in ("run", "bundle"))
    assert np.array_equal(of_run, of_bundle)


def test_tables_of_an_earlier_format_are_served_and_imported(old: Path) -> None:
    """A server continues their log; another one takes the exported table. A log of one count gives it to its tables."""
    with Server(old / "run" / "replay" / "0") as server, ReplayClient(server.address) as client:
        (table,) = client.list_tables()
        assert (table.items, table.env_steps) == (60, 220)
        with ReplayWriter(server.address, steps_table(), windows=ItemWindow(1)) as writer:
            writer.append(numbered_step(1))
    with Server(old / "run" / "replay" / "0") as server, ReplayClient(server.address) as client:
        assert {table.config.name: table.items for table in client.list_tables()} == {"replay": 60, "t": 1}
        assert [table.env_steps for table in client.list_tables()] == [220, 1]
    with Server() as server:
        import_table(server.address, old / "table")
        with ReplayClient(server.address) as client:
            assert [table.items for table in client.list_tables()] == [60]


def _numbered(file: Path, **changes: object) -> Path:
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format": 5} | changes))
    return file


def _newer_config(old: Path) -> Path:
    file = old / "run" / "config.yaml"
    file.write_text("format: 5\nshards: {}\n")
    return file


def _newer_scores(old: Path) -> Path:
    file = old / "run" / "scores.csv"
    file.write_text("returns,format,more\n1.5,5,x\n")
    return file


def _newer_episodes(old: Path) -> Path:
    file = old / "run" / "episodes.csv"
    file.write_text("params_version,format,more\n1,5,x\n2,5,y\n")
    return file


def _newer_evaluation(old: Path) -> Path:
    (old / "evaluation.json").write_text("{}")
    return _numbered(old / "evaluation.json")


def _newer_sweep(old: Path) -> Path:
    file = old / "trials.jsonl"
    file.write_text('{"format": 5}\n{"further": 1}\n{"to')
    return file


def _newer_parameters(old: Path) -> Path:
    for file in (old / "run" / "params").glob("*.json"):
        file.write_bytes(seal({"format": 5, "further": 1}))
    return old / "run" / "params" / "tags.json"


def _newer_checkpoint(old: Path) -> Path:
    store = CheckpointStore(old / "run" / "checkpoints", keep=2)
    found = store.newest()
    assert found is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(formats, "NEWEST", {**formats.NEWEST, formats.CHECKPOINT: 5})
        return store.write(found[1])


def _newer_log(old: Path) -> Path:
    folder = old / "run" / "replay" / "0"
    for file in folder.glob("0*"):
        data = bytearray(file.read_bytes())
        struct.pack_into("<I", data, 4, 5)
        file.write_bytes(data)
    return folder / "00000001.log"


def _newer_bundle(old: Path) -> Path:
    file = old / "bundle" / "bundle.json"
    file.write_bytes(seal({"format": 5, "policy": "of another kind"}))
    return file


def _newer_table(old: Path) -> Path:
    file = old / "table" / "manifest.json"
    document = json.loads(file.read_text()) | {"version": 5}
    del document["sha256"]
    file.write_text(json.dumps(document | {"sha256": digest_of(document)}))
    return file


def _newer_spec(old: Path) -> Path:
    record_spec(old / "run", CONTINUOUS)
    return _numbered(old / "run" / "env_spec.json")


_READERS: dict[str, tuple[Callable[[Path], Path], Callable[[Path], object]]] = {
    formats.CONFIG: (_newer_config, lambda old: read_document(old / "run" / "config.yaml")),
    formats.RESULT: (
        lambda old: _numbered(old / "run" / "result.json"),
        lambda old: read_json(old / "run" / "result.json", formats.RESULT),
    ),
    formats.SCORES: (_newer_scores, lambda old: read_scores(old / "run" / "scores.csv")),
    formats.EPISODES: (_newer_episodes, lambda old: EpisodeLog(old / "run" / "episodes.csv")),
    formats.CLOCK: (
        lambda old: _numbered(old / "run" / "wall_clock.json"),
        lambda old: WallClock(old / "run" / "wall_clock.json", 0.0, lambda: 0.0),
    ),
    formats.ENV_SPEC: (_newer_spec, lambda old: spec_changes(old / "run", CONTINUOUS)),
    formats.EVALUATION: (_newer_evaluation, lambda old: read_json(old / "evaluation.json", formats.EVALUATION)),
    formats.PARAMETERS: (_newer_parameters, lambda old: read_params(old / "run" / "params")),
    formats.CHECKPOINT: (_newer_checkpoint, lambda old: CheckpointStore(old / "run" / "checkpoints", keep=2).newest()),
    formats.REPLAY_LOG: (_newer_log, lambda old: Server(old / "run" / "replay" / "0")),
    formats.BUNDLE: (_newer_bundle, lambda old: read_bundle(old / "bundle")),
    formats.TABLE: (_newer_table, lambda old: ExportedTable(old / "table")),
    formats.SWEEP: (_newer_sweep, lambda old: Journal(old / "trials.jsonl")),
}


@pytest.mark.parametrize("kind", _READERS)
def test_file_of_a_later_format_is_refused_by_its_number(kind: str, tmp_path: Path) -> None:
    """The one line names the file, its format and the newest that is read, whatever else the file holds."""
    old = Path(shutil.copytree(OLD[-1], tmp_path / "old"))
    make, read = _READERS[kind]
    file = make(old)
    with pytest.raises(FatalError, match=naming(file, 5, formats.NEWEST[kind])) as raised:
        read(old)
    assert "\n" not in str(raised.value)


def _continued(folder: Path) -> RunConfig:
    return load(RunConfig, [], prog="resume", description="", file=folder / "config.yaml")


@pytest.mark.parametrize("read", [load_policy, _continued])
@pytest.mark.parametrize("name", ["run", "bundle"])
def test_settings_that_a_later_release_has_added_are_refused_by_its_version(
    read: Callable[[Path], object], name: str, tmp_path: Path
) -> None:
    """They have the same format. The one line names the file, both versions and the setting, and guesses no other."""
    folder = Path(shutil.copytree(OLD[-1] / name, tmp_path / name))
    file = folder / "config.yaml"
    document = yaml.safe_load(file.read_text())
    document["env"]["idd"] = "x"
    file.write_text(f"# tidemill 99.0\n{yaml.safe_dump(document)}")
    versions = f"was written by Tidemill 99.0, this is {version('tidemill')}"
    expected = f"{file} {versions}: unknown setting 'env.idd'; use a newer Tidemill"
    with pytest.raises(ConfigError, match=f"^{re.escape(expected)}$"):
        read(folder)


def test_missing_code_is_not_blamed_on_a_later_release(tmp_path: Path) -> None:
    """The run's own algorithm is not where it is read, whatever version wrote the file."""
    file = tmp_path / "config.yaml"
    file.write_text("# tidemill 99.0\nagent: {algorithm: 'not_here:MyConfig'}\n")
    with pytest.raises(ConfigError, match=naming("not_here")) as raised:
        read_settings(RunConfig, file)
    assert "99.0" not in str(raised.value)


def test_wrong_value_is_not_blamed_on_a_later_release(tmp_path: Path) -> None:
    """Only a name that this one does not know is; both are told if there are both."""
    file = tmp_path / "config.yaml"
    file.write_text("# tidemill 99.0\nenv: {frame_skip: 0}\n")
    with pytest.raises(ConfigError, match=r"^env\.frame_skip is 0, [^\n]*$"):
        read_settings(RunConfig, file)
    file.write_text("# tidemill 99.0\nenv: {frame_skip: 0, further: 1}\n")
    with pytest.raises(ConfigError, match=r"99\.0.*'env\.further'; use a newer[^\n]*\nenv\.frame_skip is 0, [^\n]*$"):
        read_settings(RunConfig, file)


def test_wrong_option_is_not_blamed_on_a_later_release(tmp_path: Path) -> None:
    """The file itself can be read."""
    file = tmp_path / "config.yaml"
    file.write_text("# tidemill 99.0\nenv: {id: CartPole-v1}\n")
    with pytest.raises(ConfigError, match=r"^env\.frame_skip is 0"):
        load(RunConfig, ["--env.frame-skip", "0"], prog="", description="", file=file)


def test_single_number_in_a_log_that_differs_is_a_misread_byte(tmp_path: Path) -> None:
    """It has no checksum; the other files and the note of the newest segment say what the log is."""
    folder = Path(shutil.copytree(OLD[-1] / "run" / "replay" / "0", tmp_path / "log"))
    data = bytearray((folder / "00000001.log").read_bytes())
    struct.pack_into("<I", data, 4, 5)
    (folder / "00000001.log").write_bytes(data)
    with Server(folder) as server, ReplayClient(server.address) as client:
        assert [table.items for table in client.list_tables()] == [60]


@pytest.mark.parametrize("number", ["5", 0, -1, True, 1.0])
def test_what_is_no_number_of_a_format_is_refused(number: object) -> None:
    """None is the first format, which said none."""
    check_format(formats.RESULT, None, "here")
    with pytest.raises(FatalError, match=naming("here", repr(number), "1")):
        check_format(formats.RESULT, number, "here")


@pytest.mark.parametrize("damage", [b"", b"\xff\xfe\x00\n", b"[" * 5000 + b"\n", b"null\n", b"[]\n", b"5\n", bytes(64)])
@pytest.mark.parametrize("kind", _READERS)
def test_damaged_file_is_read_around_or_refused_by_name(kind: str, damage: bytes, tmp_path: Path) -> None:
    """Other errors than Tidemill's would end the process with a traceback.

    What is read instead is what the files beside it have: a copy, an earlier checkpoint, or nothing.
    """
    old, newer = (Path(shutil.copytree(OLD[-1], tmp_path / name)) for name in ("old", "newer"))
    make, read = _READERS[kind]
    file = old / make(newer).relative_to(newer)
    file.write_bytes(damage)  # this one alone: `make` may give others a later format, too
    opened: object
    try:
        opened = read(old)
    except TidemillError as error:
        opened = error
    match opened:
        case TidemillError():
            assert str(file) in str(opened)
        case Server():
            opened.close()
        case Params():
            assert opened.number == 4
        case (_, Checkpoint() as earlier):
            assert earlier.counters["learner_steps"] == 145
        case dict() | list() | None:
            assert opened in ({}, [])
