"""Import of LeRobot datasets (github.com/huggingface/lerobot) into tables; needs the package `pyarrow`, an extra.

A dataset is a folder: `meta/info.json` names the features, and `data/chunk-*/*.parquet` has a row for each frame.
Format v2 has one file for each episode, v3 several episodes in a file. Videos are in other files and are not read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill.arrays import Array
from tidemill.errors import InvalidArgument, NotFound
from tidemill.observation_parts import part_name
from tidemill.replay.table_config import SelectorConfig
from tidemill.replay.transfer.filling import Rows, fill_table

_OBSERVATION, _ACTION = "observation.", "action"
_REWARD, _DONE, _TRUNCATED = "next.reward", "next.done", "next.truncated"
_EPISODE, _FRAME = "episode_index", "frame_index"
_FORMATS = ("v2", "v3")
_FRAMES_AT_ONCE = 4096


@dataclass(frozen=True)
class LeRobotReport:
    """Report of an import of a LeRobot dataset.

    Attributes:
        folder: Of the dataset.
        table: Name of the table.
        episodes: Episodes written.
        steps: Steps of all of them, final observations not counted.
        columns: Features that became the observation, in order.
    """

    folder: Path
    table: str
    episodes: int
    steps: int
    columns: tuple[str, ...]


def import_lerobot(  # noqa: PLR0913 - each is a separate choice
    address: str,
    folder: str | Path,
    table: str,
    *,
    observations: Sequence[str] = (),
    final_reward: float | None = None,
    action_bounds: tuple[Sequence[float], Sequence[float]] | None = None,
    item_steps: int = 2,
    history: int = 0,
    sampler: SelectorConfig | None = None,
    timeout_s: float = 60.0,
) -> LeRobotReport:
    """Write a LeRobot dataset of this machine into a new table of a running server.

    Each frame is a row of `observation`, `action`, `reward`, `terminated`, `truncated` and `is_first`, as Tidemill's
    actors write them. An episode is terminated if `next.done` of its last frame is true and `next.truncated`, where the
    dataset has it, is not; otherwise it is truncated. LeRobot does not store what was observed after the last action:
    the last row of a terminated episode repeats its last observation, and a truncated one loses its last step.

    Args:
        address: Of the server.
        folder: Of the dataset, with `meta` and `data`; format v2 or v3.
        table: Name of the table; must not exist.
        observations: Features that make up the observation, such as `observation.state`; empty takes all that are
            numbers. One alone is the column `observation`, several are `observation__NAME`, in lower case with `_`.
        final_reward: Reward of each episode's last step if the dataset has no `next.reward`; other steps get 0.
        action_bounds: Lowest and highest action, one number for all dimensions or one for each, of the environment
            to train in; actions are scaled from them to [-1, 1] and clipped. None leaves actions as they are.
        item_steps: Rows of an item: 2 for transitions, n + 1 for n steps; see `import_minari`.
        history: Rows before these that an item has besides, where observations are stacked: one less than the stack.
        sampler: How items are drawn; None is uniformly.
        timeout_s: Longest wait for the server, in seconds.

    Raises:
        InvalidArgument: `pyarrow` is not installed, the dataset is of another format, lacks a feature or has no step.
        NotFound: There is no such dataset.
        AlreadyExists: The server has a table of that name; nothing was written.
        ResourceExhausted: The server has no memory for all items.
        Unavailable: The server cannot be reached, or took nothing for `timeout_s`.
    """
    dataset = _Dataset(Path(folder), observations, final_reward, action_bounds)
    fill_table(
        address,
        table,
        dataset.rows(),
        name=str(folder),
        steps=dataset.frames,
        item_steps=item_steps,
        history=history,
        sampler=sampler,
        timeout_s=timeout_s,
    )
    return LeRobotReport(Path(folder), table, dataset.episodes, dataset.steps, dataset.observations)


class _Dataset:
    """The frames of a dataset, read file by file, and how many were written."""

    def __init__(
        self,
        folder: Path,
        observations: Sequence[str],
        final_reward: float | None,
        bounds: tuple[Sequence[float], Sequence[float]] | None,
    ) -> None:
        self._parquet, self._arrow_error = _pyarrow()
        self._folder = folder
        info = _info(folder)
        self._features: dict[str, dict[str, Any]] = info["features"]
        self.frames = int(info.get("total_frames", 0))
        self.observations = self._chosen(observations)
        self._final_reward = final_reward
        if (_REWARD in self._features) == (final_reward is not None):
            raise InvalidArgument(
                f"final_reward is {final_reward}, but the dataset has {_REWARD}: leave it out"
                if final_reward is not None
                else f"the dataset has no {_REWARD}: give final_reward, the reward of each episode's last step"
            )
        self._check(_ACTION)
        self._bounds = None if bounds is None else self._as_bounds(*bounds)
        self.episodes = self.steps = 0

    def rows(self) -> Rows:
        """Yield the rows of every episode, and whether each is the last."""
        frames: list[dict[str, Any]] = []
        for frame in self._frames():
            if frames and frame[_EPISODE] != frames[0][_EPISODE]:
                yield from self._episode(frames)
                frames = []
            if frame[_FRAME] != len(frames):
                raise InvalidArgument(
                    f"episode {frame[_EPISODE]} of {self._folder} has frame_index {frame[_FRAME]} after {len(frames)} "
                    "frames, must count from 0"
                )
            frames.append(frame)
        if frames:
            yield from self._episode(frames)

    def _episode(self, frames: list[dict[str, Any]]) -> Rows:
        terminated = bool(frames[-1][_DONE] and not frames[-1][_TRUNCATED])
        count = len(frames) - (not terminated)
        if not count:
            return
        self.episodes += 1
        self.steps += count
        for i in range(count + 1):
            frame = frames[min(i, len(frames) - 1)]
            is_last = i == count - 1
            action = frame[_ACTION] if i < count else np.zeros_like(frame[_ACTION])
            reward = frame[_REWARD] * np.float32(i < count)
            if is_last and self._final_reward is not None:
                reward = np.float32(self._final_reward)
            yield (
                {
                    "observation": frame["observation"],
                    "action": action,
                    "reward": reward,
                    "terminated": np.bool_(is_last and terminated),
                    "truncated": np.bool_(is_last and not terminated),
                    "is_first": np.bool_(i == 0),
                },
                i == count,
            )

    def _frames(self) -> Iterator[dict[str, Any]]:
        """Yield each frame in order, with its observation nested as the table's columns are."""
        paths = sorted(self._folder.glob("data/chunk-*/*.parquet"))
        if not paths:
            raise NotFound(f"{self._folder} has no data/chunk-*/*.parquet: download the whole dataset")
        optional = [name for name in (_REWARD, _DONE, _TRUNCATED) if name in self._features]
        names = [*self.observations, _ACTION, _EPISODE, _FRAME, *optional]
        found = 0
        for path in paths:
            try:
                with self._parquet.ParquetFile(path) as file:
                    if missing := [name for name in names if name not in file.schema_arrow.names]:
                        raise InvalidArgument(f"{path} has no column {missing[0]}, which meta/info.json lists")
                    for batch in file.iter_batches(_FRAMES_AT_ONCE, columns=names):
                        columns = {name: self._column(name, batch.column(name), path) for name in names}
                        found += len(batch)
                        yield from self._split(columns, len(batch))
            except self._arrow_error as error:  # such as the note that Git LFS leaves in place of a file
                raise InvalidArgument(
                    f"{path} is not a Parquet file that can be read, download it again: {error}"
                ) from error
        if found != self.frames:
            raise InvalidArgument(
                f"{self._folder} has {found:,} frames, meta/info.json lists {self.frames:,}: download the whole dataset"
            )

    def _split(self, columns: dict[str, Array], count: int) -> Iterator[dict[str, Any]]:
        action = columns[_ACTION]
        if self._bounds is not None:
            low, high = self._bounds
            action = np.clip((action - low) / (high - low) * 2 - 1, -1, 1).astype(np.float32)
        no = np.zeros(count, np.bool_)
        done, truncated = columns.get(_DONE, no), columns.get(_TRUNCATED, no)
        reward = columns.get(_REWARD)
        for i in range(count):
            seen = {_part(name): columns[name][i] for name in self.observations}
            frame = {
                "observation": next(iter(seen.values())) if len(seen) == 1 else seen,
                _ACTION: action[i],
                _EPISODE: int(columns[_EPISODE][i]),
                _FRAME: int(columns[_FRAME][i]),
                _DONE: bool(done[i]),
                _TRUNCATED: bool(truncated[i]),
            }
            yield frame | {_REWARD: np.float32(0) if reward is None else np.float32(reward[i])}

    def _column(self, name: str, values: Any, path: Path) -> Array:  # noqa: ANN401 - pyarrow's
        """Return the values of a column as [F, *shape]; of shape [1], as LeRobot keeps a single number, [F]."""
        feature = self._features[name]
        count, shape = len(values), tuple(int(size) for size in feature["shape"])
        while hasattr(values, "storage") or hasattr(values.type, "value_type"):
            values = values.storage if hasattr(values, "storage") else values.flatten()
        whole = np.asarray(values.to_numpy(zero_copy_only=False))
        if whole.size != count * int(np.prod(shape)) or whole.dtype.kind not in "biuf":
            raise InvalidArgument(f"{path} has {whole.size} numbers in {name} of {count} frames, must be {shape} each")
        whole = whole.astype(np.dtype(feature["dtype"]), copy=False)
        is_number = shape == (1,) and (name != _ACTION or whole.dtype.kind in "iu") and name not in self.observations
        return whole.reshape(count, *(() if is_number else shape))

    def _chosen(self, observations: Sequence[str]) -> tuple[str, ...]:
        numbers = [name for name in self._features if name.startswith(_OBSERVATION) and self._is_number(name)]
        for name in observations:
            if name not in numbers:
                kind = self._features.get(name, {}).get("dtype", "not a feature")
                allowed = ", ".join(numbers) or "none"
                raise InvalidArgument(f"observations has {name!r}, which is {kind}, allowed: {allowed}")
        if not (chosen := tuple(observations) or tuple(numbers)):
            raise InvalidArgument(f"{self._folder} has no feature `observation.*` of numbers; videos are not read")
        parts = [_part(name) for name in chosen]
        if alike := [name for name, part in zip(chosen, parts, strict=True) if parts.count(part) > 1]:
            raise InvalidArgument(f"observations has {alike}, which are one column {_part(alike[0])!r}: choose one")
        return chosen

    def _check(self, name: str) -> None:
        if name not in self._features or not self._is_number(name):
            raise InvalidArgument(f"{self._folder} has no feature {name!r} of numbers")

    def _is_number(self, name: str) -> bool:
        try:
            return np.dtype(self._features[name]["dtype"]).kind in "biuf"
        except TypeError:
            return False  # an image, a video or a text

    def _as_bounds(self, low: Sequence[float], high: Sequence[float]) -> tuple[NDArray[Any], NDArray[Any]]:
        shape = tuple(self._features[_ACTION]["shape"])
        bounds = np.asarray(low, np.float64), np.asarray(high, np.float64)
        fits = all(bound.size in (1, int(np.prod(shape))) and np.isfinite(bound).all() for bound in bounds)
        if not fits or not (bounds[0] < bounds[1]).all():
            raise InvalidArgument(
                f"action_bounds is {list(low)}, {list(high)}, allowed: finite numbers, low below high, one or {shape}"
            )
        return bounds


def _part(feature: str) -> str:
    """Return the name of the part of the observation that a feature becomes, which a column may have."""
    return part_name(feature.removeprefix(_OBSERVATION))


def _info(folder: Path) -> dict[str, Any]:
    """Return the contents of meta/info.json. NotFound, InvalidArgument: it is not there, or not of a format known."""
    path = folder / "meta" / "info.json"
    try:
        info = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise NotFound(f"no LeRobot dataset in {folder}: it has no meta/info.json") from None
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"{path} cannot be read: {error}") from error
    version = info.get("codebase_version") if isinstance(info, dict) else None
    if not isinstance(version, str) or version.split(".")[0] not in _FORMATS:
        raise InvalidArgument(f"{path} has codebase_version {version!r}, allowed: {' or '.join(_FORMATS)}")
    if not isinstance(info.get("features"), dict):
        raise InvalidArgument(f"{path} has no features")
    found: dict[str, Any] = info
    return found


def _pyarrow() -> tuple[Any, type[Exception]]:
    """Return the package's reader of Parquet, and what it raises. InvalidArgument: it is not installed."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise InvalidArgument(f"pyarrow cannot be imported ({error}): pip install 'tidemill[lerobot]'") from error
    return pyarrow.parquet, pyarrow.ArrowException
