"""LeRobot datasets into tables, read with pyarrow: `tidemill replay from-lerobot`."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support.extras import needs_extra, run_with_extras
from tests.support.naming import naming
from tests.support.replay_service import local_server
from tidemill.errors import InvalidArgument
from tidemill.replay.transfer import lerobot
from tidemill.replay.transfer.episodes import Episodes
from tidemill.replay.transfer.exported_table import ExportedTable
from tidemill.replay.transfer.exporting import export_table
from tidemill.replay.transfer.lerobot import import_lerobot
from tidemill.types import EnvSpec, signature_of

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

_WRITE = """
import json, sys
from pathlib import Path
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

LENGTHS = (4, 3, 1)  # the last has an end that is a limit: its only step has no observation after it

def feature(dtype, *shape):
    return {"dtype": dtype, "shape": list(shape), "names": None}

def frames(episode, rewards):
    count = LENGTHS[episode]
    state = np.float32([[episode, i, 0.5] for i in range(count)])
    columns = {
        "observation.state": pa.FixedSizeListArray.from_arrays(pa.array(state.ravel()), 3),
        "observation.Environment-state": pa.array([[float(i)] for i in range(count)], pa.list_(pa.float32())),
        "action": pa.array([[i - 2.0] for i in range(count)], pa.list_(pa.float32())),
        "episode_index": pa.array([episode] * count, pa.int64()),
        "frame_index": pa.array(range(count), pa.int64()),
        "timestamp": pa.array(np.arange(count, dtype=np.float32) / 10),
    }
    if rewards:
        columns["next.reward"] = pa.array(np.arange(count, dtype=np.float32) + 1)
        columns["next.done"] = pa.array([i == count - 1 and episode != 1 for i in range(count)])
        columns["next.truncated"] = pa.array([i == count - 1 and episode == 2 for i in range(count)])
    return pa.table(columns)

def write(folder, version, files, rewards):
    (folder / "meta").mkdir(parents=True)
    (folder / "data" / "chunk-000").mkdir(parents=True)
    features = {
        "observation.state": feature("float32", 3),
        "observation.Environment-state": feature("float32", 1),
        "observation.images.top": {"dtype": "video", "shape": [96, 96, 3], "names": None},
        "action": feature("float32", 1),
        **{name: feature("int64", 1) for name in ("episode_index", "frame_index")},
        "timestamp": feature("float32", 1),
    }
    if rewards:
        features |= {"next.reward": feature("float32", 1)}
        features |= {name: feature("bool", 1) for name in ("next.done", "next.truncated")}
    info = {"codebase_version": version, "total_frames": sum(LENGTHS), "total_episodes": 3, "features": features}
    (folder / "meta" / "info.json").write_text(json.dumps(info))
    for name, episodes in files.items():
        tables = [frames(episode, rewards) for episode in episodes]
        pq.write_table(pa.concat_tables(tables), folder / "data" / "chunk-000" / name)

from tidemill.services.replay.__main__ import main
root, address = Path(sys.argv[1]), sys.argv[2]
write(root / "v2", "v2.1", {f"episode_{i:06d}.parquet": [i] for i in range(3)}, rewards=True)
write(root / "v3", "v3.0", {"file-000.parquet": [0, 1], "file-001.parquet": [2]}, rewards=False)
write(root / "v1", "v1.6", {}, rewards=True)
write(root / "torn", "v3.0", {"file-000.parquet": [0, 1, 1]}, rewards=True)
scaled = ["--observation", "observation.state", "--action-low", "-2", "--action-high", "2"]
longer = ["--item-steps", "4", "--history", "1"]
codes = [
    main(["from-lerobot", address, str(root / "v2"), "two", *scaled]),
    main(["from-lerobot", address, str(root / "v3"), "three", "--final-reward", "5", *longer]),
    main(["from-lerobot", address, str(root / "v2"), "two"]),
    main(["from-lerobot", address, str(root / "v3"), "other"]),
    main(["from-lerobot", address, str(root / "v1"), "other"]),
    main(["from-lerobot", address, str(root / "torn"), "torn"]),
    main(["from-lerobot", address, str(root / "v2"), "other", "--observation", "observation.images.top"]),
    main(["from-lerobot", address, str(root / "none"), "other"]),
]
print(codes)
"""


@needs_extra("pyarrow")
def test_dataset_goes_into_a_table(tmp_path: Path) -> None:
    """Both layouts: observations as one column or several, ends, rewards, scaled actions; errors name the value."""
    with local_server() as server:
        done = run_with_extras("-c", _WRITE, str(tmp_path), server.address)
        assert done.stdout.endswith("[0, 0, 1, 1, 1, 1, 1, 1]\n"), done.stderr
        for table in ("two", "three"):
            export_table(server.address, table, tmp_path / table)
        two, three = (ExportedTable(tmp_path / table) for table in ("two", "three"))
    first, second = Episodes(two)
    np.testing.assert_array_equal(first.observations["observation"][:, 1], [0, 1, 2, 3, 3])
    np.testing.assert_array_equal(first.actions["action"], np.array([[-1], [-0.5], [0], [0.5]], np.float32))
    np.testing.assert_array_equal(first.rewards, [1, 2, 3, 4])
    assert (first.terminated[-1], first.truncated[-1]) == (True, False)
    np.testing.assert_array_equal(second.observations["observation"][:, 1], [0, 1, 2])
    assert (second.terminated[-1], second.truncated[-1]) == (False, True)
    run = signature_of(EnvSpec((3,), "float32", action_shape=(1,)))
    found = {column.name: (column.dtype, column.shape) for column in two.config.signature}
    assert {column.name: (column.dtype, column.shape) for column in run} == found
    lengths = []
    for episode in Episodes(three):
        assert set(episode.observations) == {"observation__state", "observation__environment_state"}
        lengths.append(len(episode.rewards))
        np.testing.assert_array_equal(episode.rewards, [*[0.0] * (len(episode.rewards) - 1), 5.0])
        assert not episode.terminated.any()
        assert episode.actions["action"][0] == -2
    assert lengths == [3, 2]
    assert (three.items, three.config.max_item_steps) == (5, 5)  # each decision, also those near an end
    for text in (
        "table 'two' is at",
        "no next.reward: give final_reward",
        "codebase_version 'v1.6', allowed: v2 or v3",
        "episode 1 of",
        "frame_index 0 after 3 frames",
        "'observation.images.top', which is video, allowed: observation.state, observation.Environment-state",
        "no LeRobot dataset in",
    ):
        assert text in done.stderr


def test_without_the_package_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it calls the server."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InvalidArgument, match=re.escape("pip install 'tidemill[lerobot]'")):
        import_lerobot("127.0.0.1:1", tmp_path, "t")


def test_features_that_would_be_one_column_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their names differ in what a column's name does not have."""
    monkeypatch.setattr(lerobot, "_pyarrow", lambda: (None, Exception))
    features = {name: {"dtype": "float32", "shape": [1]} for name in ("observation.left-arm", "observation.left.Arm")}
    (tmp_path / "meta").mkdir()
    info = json.dumps({"codebase_version": "v3.0", "features": features | {"action": features["observation.left.Arm"]}})
    (tmp_path / "meta" / "info.json").write_text(info)
    with pytest.raises(InvalidArgument, match=naming("'left_arm' ['observation.left-arm', 'observation.left.Arm']")):
        import_lerobot("127.0.0.1:1", tmp_path, "t", final_reward=0.0)
