"""Tables to Minari datasets and back, with the package itself: `tidemill replay to-minari` and `from-minari`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.extras import needs_extra, run_with_extras
from tests.support.launched import BOUND_S, ROOT
from tests.support.replay_service import LocalServer, local_server
from tidemill.replay import ItemWindow, ReplayWriter, SelectorConfig, SelectorKind, TableConfig, signature_like

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

_needs_minari = needs_extra("minari")

_RECORD = """
import sys
import gymnasium, minari, numpy as np
from minari.data_collector import EpisodeBuffer

env, rng, buffers = gymnasium.make("CartPole-v1", max_episode_steps=15), np.random.default_rng(0), []
for number in range(6):
    observation, _ = env.reset(seed=number)
    observations, actions, rewards, terminations, truncations, over = [observation], [], [], [], [], False
    while not over:
        actions.append(np.int64(number % 2 if number < 3 else rng.integers(2)))
        observation, reward, terminated, truncated, _ = env.step(int(actions[-1]))
        over = terminated or truncated
        observations.append(observation), rewards.append(reward)
        terminations.append(terminated), truncations.append(truncated)
    buffers.append(EpisodeBuffer(observations=np.array(observations), actions=np.array(actions), rewards=rewards,
                                 terminations=terminations, truncations=truncations))
minari.create_dataset_from_buffers("cartpole/played-v0", buffers, env="CartPole-v1", jpeg_encoding=False)
"""

_COMPARE = """
import minari, numpy as np

one, other = (minari.load_dataset(name) for name in ("cartpole/played-v0", "cartpole/back-v0"))
assert one.total_steps == other.total_steps and one.total_episodes == other.total_episodes == 6
assert one.observation_space == other.observation_space and one.action_space == other.action_space
ends = set()
for a, b in zip(one.iterate_episodes(), other.iterate_episodes(), strict=True):
    for name in ("observations", "actions", "rewards", "terminations", "truncations"):
        x, y = getattr(a, name), getattr(b, name)
        assert x.dtype == y.dtype and x.tobytes() == y.tobytes(), (name, x, y)
    ends.add((bool(a.terminations[-1]), bool(a.truncations[-1])))
assert ends == {(True, False), (False, True)}
print("equal")
"""

_NESTED = """
import minari, numpy as np
from gymnasium.spaces import Box

data = minari.load_dataset("images-v0")
(episode,) = data.iterate_episodes()
assert isinstance(data.observation_space["image"], Box)
assert episode.observations["image"].dtype == np.uint8
assert np.array_equal(episode.observations["image"][:, 0, 0, 0], [7, 17, 27, 37])
assert np.array_equal(episode.actions["1"], [0, 1, 2])
assert np.array_equal(episode.infos["log_prob"], np.float32([0, -1, -2]))
print("nested")
"""


_STEPS = """
import contextlib, io, json, sys
from tidemill.services.replay.__main__ import main

ended = []
for step in json.loads(sys.argv[1]):
    streams = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
        code = exec(step, {}) or 0 if isinstance(step, str) else main(step)
    ended.append((code, *(stream.getvalue() for stream in streams)))
print(json.dumps(ended))
"""


class _Ended(NamedTuple):
    code: int
    stdout: str
    stderr: str


def _run(folder: Path, *steps: str | list[str]) -> list[_Ended]:
    """Run steps in one process: programs, and command lines of `tidemill replay`."""
    done = run_with_extras("-c", _STEPS, json.dumps(steps), MINARI_DATASETS_PATH=str(folder))
    assert done.returncode == 0, done.stderr
    return [_Ended(*ended) for ended in json.loads(done.stdout.splitlines()[-1])]


@pytest.fixture
def server() -> Iterator[LocalServer]:
    """A server in memory."""
    with local_server() as running:
        yield running


@_needs_minari
def test_dataset_goes_into_a_table_and_comes_back_equal(server: LocalServer, tmp_path: Path) -> None:
    """Recorded with Minari, through a table, and as Minari reads it again: spaces, dtypes and every bit."""
    back = ["to-minari", server.address, "played", "cartpole/back-v0"]
    take = ["from-minari", server.address, "cartpole/played-v0", "played"]
    (recorded,) = _run(tmp_path, _RECORD)
    taken, given, again, other, twice, missing = _run(
        tmp_path,
        take,
        [*back, "--env", "CartPole-v1"],
        back,
        ["to-minari", server.address, "played", "other-v0", "--env", "MountainCar-v0"],
        take,
        ["from-minari", server.address, "nowhere-v0", "played"],
    )
    (compared,) = _run(tmp_path, _COMPARE)  # a process that wrote nothing sees what is on disk alone
    assert recorded.code == 0, recorded.stderr
    assert taken.code == 0, taken.stderr
    assert "6 episodes" in taken.stdout
    assert given.code == 0, given.stderr
    assert compared.stdout == "equal\n", compared.stderr
    table = server.replay.find("played")
    lines = taken.stdout.split()
    assert table.size == int(lines[lines.index("steps") - 1].replace(",", ""))  # an item for each step
    assert again.code == 1
    assert "'cartpole/back-v0' exists in" in again.stderr
    assert "whose observation has columns {'observation': (2,)}, the table has {'observation': (4,)}" in other.stderr
    assert twice.code == 1
    assert "table 'played' is at" in twice.stderr
    assert table.counters.inserts == table.size
    assert "no dataset 'nowhere-v0'" in missing.stderr
    assert sorted(path.name for path in tmp_path.glob("*-v0")) == []


_WRITE = """
import numpy as np
from tidemill.replay import ItemWindow, ReplayWriter, SelectorConfig, SelectorKind, TableConfig, signature_like

def row(n):
    image = np.full((8, 8, 3), 10 * n + 7, np.uint8)
    return {"observation": {"image": image, "speed": 0.5 * n}, "action": (np.float32([n, n]), n), "reward": 1.0,
            "terminated": False, "truncated": n == 2, "is_first": n == 0, "log_prob": -float(n)}

table = TableConfig("images", signature_like(row(0)), SelectorConfig(SelectorKind.UNIFORM), 100, 2)
with ReplayWriter("{address}", table, windows=ItemWindow(2)) as writer:
    for n in range(4):
        writer.append(row(n))
"""


@_needs_minari
def test_nested_steps_and_images_are_kept_as_they_are(server: LocalServer, tmp_path: Path) -> None:
    """Spaces made of the columns; images not compressed with loss; what is none of Minari's becomes infos."""
    write = _WRITE.replace("{address}", server.address)
    written, given = _run(tmp_path, write, ["to-minari", server.address, "images", "images-v0"])
    (read,) = _run(tmp_path, _NESTED)
    assert written.code == 0, written.stderr
    assert given.code == 0, given.stderr
    assert read.stdout == "nested\n"


_KITCHEN = """
import minari, numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Text
from minari.data_collector import EpisodeBuffer

space = Dict({"Bottom burner": Box(-1, 1, (2,), np.float64), "light-switch": Discrete(3), "mission": Text(9)})
observations = {"Bottom burner": np.zeros((4, 2)), "light-switch": np.array([0, 1, 2, 0]), "mission": ["cook"] * 4}
ends = np.array([False, False, True])
episode = EpisodeBuffer(observations=observations, actions=np.float32([[-2], [0], [2]]), rewards=np.ones(3),
                        terminations=ends, truncations=~ends & False)
minari.create_dataset_from_buffers("kitchen-v0", [episode], observation_space=space, action_space=Box(-2, 2, (1,)))
"""

_TORQUES = """
import minari

kept, scaled = (next(minari.load_dataset(name).iterate_episodes()) for name in ("kept-v0", "scaled-v0"))
print(kept.actions.tolist(), scaled.actions.tolist(), minari.load_dataset("scaled-v0").action_space)
"""


@_needs_minari
def test_parts_are_stored_as_in_a_run(server: LocalServer, tmp_path: Path) -> None:
    """Names of columns and text as in a run in any form; with --form run the numbers, too."""
    take = ["from-minari", server.address, "kitchen-v0"]
    _, kept, run = _run(tmp_path, _KITCHEN, [*take, "kept"], [*take, "run", "--form", "run"])
    assert "\nleft out what is text: observation__mission\n" in kept.stdout, kept.stderr
    assert kept.stdout.endswith("choose form run\n")
    assert run.stdout.endswith("left out what is text: observation__mission\n"), run.stderr
    columns = [{each.name: each for each in server.replay.find(name).config.signature} for name in ("kept", "run")]
    assert columns[0].keys() == columns[1].keys()
    burner, switch = "observation__bottom_burner", "observation__light_switch"
    assert [(each[burner].dtype, each[switch].shape) for each in columns] == [("float64", ()), ("float32", (3,))]


@_needs_minari
def test_actions_of_a_run_become_those_of_its_environment(server: LocalServer, tmp_path: Path) -> None:
    """Torques of a pendulum from -2 to 2; which of the two a table holds must be said."""
    row = {"observation": [0.0] * 3, "action": [0.5], "reward": 1.0, "terminated": False, "truncated": False}
    table = TableConfig("t", signature_like({**row, "is_first": True}), SelectorConfig(SelectorKind.UNIFORM), 9, 2)
    with ReplayWriter(server.address, table, windows=ItemWindow(2)) as writer:
        for n in range(3):
            writer.append({**row, "is_first": n == 0})
    give = ["to-minari", server.address, "t"]
    end = ["--env", "Pendulum-v1"]
    unsaid, kept, scaled = _run(
        tmp_path,
        [*give, "unsaid-v0", *end],
        [*give, "kept-v0", *end, "--form", "env"],
        [*give, "scaled-v0", *end, "--form", "run"],
    )
    assert unsaid.code == 1
    assert "choose form run for the table of a run" in unsaid.stderr
    assert (kept.code, scaled.code) == (0, 0), kept.stderr + scaled.stderr
    (torques,) = _run(tmp_path, _TORQUES)
    assert torques.stdout == "[[0.5], [0.5]] [[1.0], [1.0]] Box(-2.0, 2.0, (1,), float32)\n", torques.stderr


@_needs_minari
def test_range_of_time_becomes_a_dataset(tmp_path: Path) -> None:
    """--since and --until: of two episodes the one that came in between, and none is an error that leaves nothing."""
    step = {"observation": 0.0, "action": 0, "reward": 1.0, "terminated": False, "truncated": False, "is_first": True}
    table = TableConfig("t", signature_like(step), SelectorConfig(SelectorKind.UNIFORM), 100, max_item_steps=2)
    now_s = 1000.0
    with local_server(time_of_day=lambda: now_s) as server:
        with ReplayWriter(server.address, table, windows=ItemWindow(2)) as writer:
            for steps in (5, 8):
                for n in range(steps):
                    writer.append({**step, "terminated": n == steps - 2, "is_first": n == 0})
                writer.end_episode()
                writer.flush(BOUND_S)
                now_s += 1000.0
        between = datetime.fromtimestamp(1500).isoformat()
        limits = {"later": ["--since", between], "earlier": ["--until", between], "none": ["--since", "1h"]}
        write = ["to-minari", server.address, "t"]
        later, earlier, none = _run(tmp_path, *([*write, f"{name}-v0", *limit] for name, limit in limits.items()))
    assert later.stdout == "made later-v0 of t: 1 episodes, 7 steps\n", later.stderr
    assert earlier.stdout == "made earlier-v0 of t: 1 episodes, 4 steps\n", earlier.stderr
    assert "table 't' has no such items" in none.stderr
    assert sorted(path.name for path in tmp_path.glob("*-v0")) == ["earlier-v0", "later-v0"]


def test_without_the_package_it_says_what_to_install(server: LocalServer) -> None:
    """In one line."""
    code = "import sys; sys.modules['minari'] = None; from tidemill.services.replay.__main__ import main; "
    code += f"sys.exit(main(['to-minari', '{server.address}', 't', 'x-v0']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 1
    assert "pip install 'tidemill[minari]'" in done.stderr
