"""Conversion of tables to Minari datasets (minari.farama.org) and back; needs the package `minari`, an extra."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemill.errors import AlreadyExists, InvalidArgument, NotFound, ResourceExhausted, described
from tidemill.replay.argument_types import check_deadline
from tidemill.replay.client import ReplayClient
from tidemill.replay.table_config import SelectorConfig, TableConfig
from tidemill.replay.transfer.episodes import ACTION, OBSERVATION, Episodes, Form, check_columns, columns_of
from tidemill.replay.transfer.exported_table import ExportedTable
from tidemill.replay.transfer.exporting import export_table
from tidemill.replay.transfer.filling import fill_table
from tidemill.replay.writing.steps import nest
from tidemill.temporary_folder import temporary_folder
from tidemill.types import ColumnSpec

if TYPE_CHECKING:
    from tidemill.replay.transfer.env_columns import EnvColumns


@dataclass(frozen=True)
class MinariReport:
    """Report of an export to a Minari dataset or an import from one.

    Attributes:
        dataset_id: Name of the dataset.
        table: Name of the table.
        episodes: Episodes, those that are there in part included.
        steps: Steps of all of them, final observations not counted.
        notes: Remarks for a person: what was left out, and what a run would store otherwise.
    """

    dataset_id: str
    table: str
    episodes: int
    steps: int
    notes: tuple[str, ...] = ()


def export_minari(  # noqa: PLR0913 - each is a separate condition
    address: str,
    table: str,
    dataset_id: str,
    *,
    env: str | None = None,
    form: Form | None = None,
    newest: int | None = None,
    since_s: float | None = None,
    until_s: float | None = None,
    folder: str | Path | None = None,
    timeout_s: float = 60.0,
) -> MinariReport:
    """Make a Minari dataset of a table of a running server, as the table is at one moment.

    The table has columns `observation`, `action`, `reward`, `terminated`, `truncated`, and `is_first` where a row after
    an episode's end holds its last observation; or `next_observation` beside them. Observation, action may be nested.
    Steps that items cover become episodes; one that is there in part ends truncated. Where its last observation was not
    written, a terminated episode repeats the one before, and another one loses its last step. Other columns become
    `infos`; priorities and payloads stay behind. Images are kept as they are.

    Args:
        address: Of the server.
        table: Name of the table.
        dataset_id: Name of the dataset, such as `walks/random-v0`; must not exist.
        env: Id of a gymnasium environment whose spaces the dataset has, without parts that are text; None makes boxes
            of the columns' shapes.
        form: Form of the table's observations and actions: `run` as a run stores them, which are converted to those of
            `env`; `flat` as a run with `env.flatten`; `env` as the environment has them, which are kept. None finds out
            by the columns, if they fit one form alone.
        newest: Only so many of the newest items; None means all.
        since_s: Only items that came at this Unix time, in seconds, or later; None means any (see `export_table`).
        until_s: Only items that came before this one; None means any.
        folder: Where the table is kept on disk meanwhile; None takes the system's temporary folder.
        timeout_s: Longest wait for the server's next part, in seconds.

    Raises:
        InvalidArgument: `minari` is not installed, or does not take the name; the table lacks a column, has no step, or
            does not fit the spaces; or `form` must be given, because actions may be in either unit.
        AlreadyExists: There is a dataset of that name.
        NotFound: No such table.
        FatalError: `folder` cannot be written to.
        FailedPrecondition: A time is given, and the server does not know when any item of the table came.
    """
    minari = _minari()
    try:
        minari.dataset.minari_dataset.parse_dataset_id(dataset_id)
    except (TypeError, ValueError) as error:  # TypeError: without a version
        raise InvalidArgument(
            f"dataset is {dataset_id!r}, allowed: [NAMESPACE/]NAME-vN of letters, digits, `_` and `-`, such as "
            "walks/random-v0"
        ) from error
    path = minari.storage.get_dataset_path(dataset_id)
    _check_free(path, dataset_id)
    check_deadline("timeout_s", timeout_s)
    with ReplayClient(address, deadline_s=timeout_s) as client:
        config = client.describe_table(table).config
    check_columns(config)
    columns = _columns(config, env, form)  # before an export that may take hours
    with temporary_folder("minari", folder) as temporary:
        files = Path(temporary) / "table"
        export_table(address, table, files, newest=newest, since_s=since_s, until_s=until_s, timeout_s=timeout_s)
        exported = ExportedTable(files)
        if not exported.items:
            raise InvalidArgument(f"table {table!r} has no such items to make episodes of")
        counted = _Counted(Episodes(exported), columns)
        _check_free(path, dataset_id)  # again, after what may have taken hours: what is there from here on is removed
        try:
            minari.create_dataset_from_buffers(
                dataset_id,
                counted,  # read one by one
                env=env,
                observation_space=columns.spaces[0],
                action_space=columns.spaces[1],
                description=f"Table {table!r} of a Tidemill replay server.",
                jpeg_encoding=False,
            )
        except BaseException as error:
            shutil.rmtree(path, ignore_errors=True)
            if isinstance(error, OSError):
                raise ResourceExhausted(f"cannot write {path}: {error}") from error
            raise
    return MinariReport(dataset_id, table, counted.episodes, counted.steps, columns.notes)


def _check_free(path: Path, dataset_id: str) -> None:
    if path.exists():
        raise AlreadyExists(f"the dataset {dataset_id!r} exists in {path}: choose another name, or delete it")


def import_minari(
    address: str,
    dataset_id: str,
    table: str,
    *,
    form: Form = "env",
    item_steps: int = 2,
    history: int = 0,
    sampler: SelectorConfig | None = None,
    timeout_s: float = 60.0,
) -> MinariReport:
    """Write a Minari dataset on this machine into a new table of a running server, for an offline run.

    Each step is a row of `observation`, `action`, `reward`, `terminated`, `truncated` and `is_first`, as Tidemill's
    actors write them: the reward is what followed the action; after an episode's last step comes a row with its last
    observation, whose action and reward are 0. Parts of the observation that are text are left out. Every step starts
    an item of `item_steps` consecutive rows. Rows after the end of an episode belong to the next one, or repeat the
    last row of all with `is_first`.

    Args:
        address: Of the server.
        dataset_id: Name of the dataset, as `minari list local` shows it.
        table: Name of the table; must not exist.
        form: `env` keeps the dataset's observations and actions as they are; `run` stores them as a run of its
            environment does: continuous actions scaled to [-1, 1] and clipped, discrete ones from 0, discrete parts of
            an observation one-hot; `flat` as a run with `env.flatten`.
        item_steps: Rows of an item: 2 for transitions, n + 1 for n steps. With 1 every row is an item.
        history: Rows before these that an item has besides, where observations are stacked: one less than the stack.
        sampler: How items are drawn; None is uniformly.
        timeout_s: Longest wait for the server, in seconds.

    Raises:
        InvalidArgument: `minari` is not installed or cannot read the dataset, or the dataset has no step, or one that
            no column can hold, or that `form` does not go with.
        NotFound: There is no such dataset on this machine.
        AlreadyExists: The server has a table of that name; nothing was written.
        ResourceExhausted: The server has no memory for all items.
        Unavailable: The server cannot be reached, or took nothing for `timeout_s`.
    """
    minari = _minari()
    from tidemill.replay.transfer.env_columns import EnvColumns, form_of_runs

    path = minari.storage.get_dataset_path(dataset_id)
    if not (path / "data").exists():
        below = sorted(f"{dataset_id}/{found.parent.relative_to(path)}" for found in path.rglob("data"))
        remedy = f"it has {', '.join(below)}" if below else f"`minari download {dataset_id}` fetches it"
        raise NotFound(f"no dataset {dataset_id!r} in {path.parent}: {remedy}")
    with _reading(dataset_id, path):
        dataset = minari.load_dataset(dataset_id)
        steps, episodes = int(dataset.total_steps), int(dataset.total_episodes)
    columns = EnvColumns(dataset.observation_space, dataset.action_space, form)
    rows = (row for episode in _episodes(dataset, dataset_id, path) for row in _rows(episode, columns, dataset_id))
    fill_table(
        address,
        table,
        rows,
        name=dataset_id,
        steps=steps,
        item_steps=item_steps,
        history=history,
        sampler=sampler,
        timeout_s=timeout_s,
    )
    notes = columns.notes
    if form == "env" and (other := form_of_runs(columns)):
        notes += (f"a run stores such observations or actions differently: as its prior data choose form {other}",)
    return MinariReport(dataset_id, table, episodes, steps, notes)


@contextlib.contextmanager
def _reading(dataset_id: str, path: Path) -> Iterator[None]:
    """Turn whatever Minari, and the package of the dataset's format, raise into an InvalidArgument."""
    try:
        yield
    except Exception as error:
        raise InvalidArgument(f"the dataset {dataset_id!r} in {path} cannot be read: {described(error)}") from error


def _episodes(dataset: Any, dataset_id: str, path: Path) -> Iterator[Any]:  # noqa: ANN401 - Minari's
    with _reading(dataset_id, path):
        yield from dataset.iterate_episodes()


class _Counted:
    """Episodes as Minari takes them, one at a time, and how many there were."""

    def __init__(self, episodes: Episodes, columns: EnvColumns) -> None:
        self._all, self._columns = episodes, columns
        self.episodes = self.steps = 0

    def __iter__(self) -> Iterator[Any]:
        buffer, columns = _minari().data_collector.EpisodeBuffer, self._columns
        for episode in self._all:
            self.episodes += 1
            self.steps += len(episode.rewards)
            yield buffer(
                observations=columns.returned(episode.observations),
                actions=columns.taken(episode.actions),
                rewards=episode.rewards,
                terminations=episode.terminated,
                truncations=episode.truncated,
                infos=nest(episode.others),
            )


def _rows(
    episode: Any,  # noqa: ANN401 - Minari's
    columns: EnvColumns,
    dataset_id: str,
) -> Iterator[tuple[dict[str, Any], bool]]:
    """Yield the rows of an episode of Minari, and whether each is the last."""
    count = len(episode.rewards)
    try:
        observations, actions = columns.observations(episode.observations), columns.actions(episode.actions)
    except InvalidArgument as error:
        raise InvalidArgument(f"episode {episode.id} of the dataset {dataset_id!r}: {error}") from error
    for i in range(count + 1):
        at = min(i, count - 1)
        is_cut = i == count - 1 and not episode.terminations[at]  # items continue behind it, returns must not
        taken = {name: values[at] if i < count else np.zeros_like(values[at]) for name, values in actions.items()}
        row = {name: values[i] for name, values in observations.items()} | taken
        yield (
            {
                **nest({name: np.asarray(value) for name, value in row.items()}),  # a float64 is a float of Python's
                "reward": np.asarray(episode.rewards[at] * (i < count)),
                "terminated": np.bool_(i < count and episode.terminations[at]),
                "truncated": np.bool_(i < count and (episode.truncations[at] or is_cut)),
                "is_first": np.bool_(i == 0),
            },
            i == count,
        )


def _columns(config: TableConfig, env: str | None, form: Form | None) -> EnvColumns:
    """Return the conversion of a table's columns. InvalidArgument: they do not fit the environment, or its form."""
    from tidemill.replay.transfer.env_columns import EnvColumns, as_space, form_of

    if env is None:
        if form:
            raise InvalidArgument(f"form is {form!r}, but env is not given: name the environment whose form it is")
        boxes = {column.name: _box(column) for column in config.signature}
        parts = [{name: boxes[name] for name in columns_of(list(boxes), part)} for part in (OBSERVATION, ACTION)]
        return EnvColumns(as_space(nest(parts[0])[OBSERVATION]), as_space(nest(parts[1])[ACTION]), "env")
    import gymnasium

    try:
        made = gymnasium.make(env)
    except (gymnasium.error.Error, ImportError) as error:
        raise InvalidArgument(f"env is {env!r}, which gymnasium does not make: {error}") from error
    spaces = made.observation_space, made.action_space
    made.close()
    shapes = {column.name: column.shape for column in config.signature}
    found = [{name: shapes[name] for name in columns_of(list(shapes), part)} for part in (OBSERVATION, ACTION)]
    columns = EnvColumns(*spaces, form) if form else form_of(*spaces, found[0] | found[1])
    for part, wanted, has in zip((OBSERVATION, ACTION), columns.shapes, found, strict=True):
        if wanted != has:
            raise InvalidArgument(f"env is {env!r}, whose {part} has columns {wanted}, the table has {has}")
    return columns


def _box(column: ColumnSpec) -> Any:  # noqa: ANN401 - a space
    from gymnasium.spaces import Box, MultiBinary

    dtype = np.dtype(column.dtype)
    if dtype.kind == "b":
        return MultiBinary(column.shape or 1)
    low, high = (-np.inf, np.inf) if dtype.kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return Box(low, high, column.shape, dtype.type)


def _minari() -> Any:  # noqa: ANN401 - the module
    """Return the package. InvalidArgument: it is not installed."""
    try:
        import minari
        import minari.data_collector
        import minari.dataset.minari_dataset
        import minari.storage
    except ImportError as error:
        raise InvalidArgument(f"minari cannot be imported ({error}): pip install 'tidemill[minari]'") from error
    return minari
