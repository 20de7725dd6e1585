"""Addresses and data folders of the services of one machine's cluster.

Unix sockets in a private folder: unlike a free TCP port they cannot be taken by another process while a
service restarts, and no other user of the machine reaches them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tidemill.config.addresses import check_shards
from tidemill.config.load import read_settings
from tidemill.config.sections import RunConfig
from tidemill.errors import AlreadyExists, ConfigError, FatalError
from tidemill.linux import LONGEST_SOCKET
from tidemill.params.stored import newest_number
from tidemill.rpc.settings import ServerSettings
from tidemill.services.launcher.run.folder import has_trained, with_run_paths

_PREFIX = "tidemill-"
_LONGEST_NAME = len("/tidemill-12345678/inference-12345.sock")
_DEFAULT = RunConfig()


def make_socket_folder() -> Path:
    """Make a folder only this user can enter: in TMPDIR, unless the paths of sockets in it would be too long.

    Raises:
        FatalError: No folder with a short path can be written to.
    """
    for place in _places():
        with contextlib.suppress(OSError):
            return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
    tried, most = ", ".join(map(str, _places())) or "none", LONGEST_SOCKET - _LONGEST_NAME
    raise FatalError(
        f"no folder for sockets (tried: {tried}); set TMPDIR to a writable folder whose path has at most {most} bytes"
    )


def _places() -> list[Path]:
    """Return the folders that may hold folders of sockets, in order of preference."""
    usual: list[str] = []
    with contextlib.suppress(OSError):  # no temporary folder can be written to
        usual.append(tempfile.gettempdir())
    places = dict.fromkeys(map(Path, (*usual, "/tmp", "/var/tmp")))
    return [place for place in places if len(os.fsencode(place)) + _LONGEST_NAME <= LONGEST_SOCKET]


def remove_socket_folder(folder: Path) -> None:
    """Remove a folder that `make_socket_folder` made; one that is gone, or is another's, is left alone."""
    if folder.name.startswith(_PREFIX) and folder.parent in _places():
        shutil.rmtree(folder, ignore_errors=True)


def with_addresses(config: RunConfig, sockets: Path) -> RunConfig:
    """Return the settings with an address for every server that has only its default one.

    An address that was set on purpose is kept, for example so that actors of other machines can reach it.

    Raises:
        ConfigError: A single address is set on purpose for several replay shards.
    """
    check_shards(config)
    replay = _chosen(config.replay.server, _DEFAULT.replay.server, sockets / "replay.sock")
    params = _chosen(config.paramserver.server, _DEFAULT.paramserver.server, sockets / "params.sock")
    learner = _chosen(config.learner.server, _DEFAULT.learner.server, sockets / "learner.sock")
    evaluator = _chosen(config.evaluator.server, _DEFAULT.evaluator.server, sockets / "evaluator.sock")
    cluster = dataclasses.replace(
        config.cluster,
        replay=_shards_reached_at(config, replay, sockets),
        params=_reached_at(config.cluster.params, _DEFAULT.cluster.params, params),
        learner=_reached_at(config.cluster.learner, _DEFAULT.cluster.learner, learner),
        inference=config.cluster.inference or inference_addresses(config, sockets),
    )
    return dataclasses.replace(
        config,
        cluster=cluster,
        replay=dataclasses.replace(config.replay, server=replay),
        paramserver=dataclasses.replace(config.paramserver, server=params),
        learner=dataclasses.replace(config.learner, server=learner),
        evaluator=dataclasses.replace(config.evaluator, server=evaluator),
    )


def shard_address(sockets: Path, shard: int) -> str:
    """Return the address of replay shard `shard`, if there are several."""
    return _socket(sockets / f"replay-{shard}.sock")


def actor_address(sockets: Path, index: int) -> str:
    """Return the address of the health service of actor `index`."""
    return _socket(sockets / f"actor-{index}.sock")


def inference_addresses(config: RunConfig, sockets: Path) -> tuple[str, ...]:
    """Return the addresses of inference services. The one for simulators can be reached by other programs."""
    if config.inference.simulators:
        return (config.inference.server.address,)
    return tuple(inference_address(sockets, index) for index in range(config.launcher.inference))


def inference_address(sockets: Path, index: int) -> str:
    """Return the address of inference service `index`."""
    return _socket(sockets / f"inference-{index}.sock")


def socket_folder_of(address: str) -> Path | None:
    """Return the folder a socket's address points into; None if it is not a socket."""
    return Path(address.removeprefix("unix://")).parent if address.startswith("unix:///") else None


def why_out_of_reach(address: str) -> str:
    """Return why no program of this user reaches a socket here, and what to do; empty if one may, or it is a port."""
    folder = socket_folder_of(address)
    if folder is None or os.access(folder, os.X_OK):
        return ""
    if os.path.isdir(folder):
        return f"{folder} is another user's; ask as the user who started the run"
    return (
        f"there is no {folder} here; ask where the run was started: on the same machine, and in the same container or "
        "service with a private /tmp"
    )


def _chosen(server: ServerSettings, default: ServerSettings, socket: Path) -> ServerSettings:
    is_chosen = server.address != default.address and not server.address.endswith(":0")
    return server if is_chosen else dataclasses.replace(server, address=_socket(socket))


def _shards_reached_at(config: RunConfig, server: ServerSettings, sockets: Path) -> tuple[str, ...]:
    if config.cluster.replay != _DEFAULT.cluster.replay or not config.launcher.replay:
        return config.cluster.replay
    shards = config.replay.shards
    return (server.address,) if shards == 1 else tuple(shard_address(sockets, shard) for shard in range(shards))


def _reached_at(address: str, default: str, server: ServerSettings) -> str:
    return address if address != default else server.address


def _socket(path: Path) -> str:
    return f"unix://{path}"


RUN_LOG = "{run}/replay/{shard}"
"""Folder of each shard's log within the run's folder."""


def with_storage(config: RunConfig) -> RunConfig:
    """Return the settings with a log in the run's folder, unless there is one already or none is wanted."""
    storage = config.replay.storage
    if storage.folder or storage.memory_only:
        return config
    return _with_log_in(config, RUN_LOG)


def with_beginning(config: RunConfig) -> RunConfig:
    """Return the settings with the version of the parameters that the run continues from."""
    number = newest_number(config.run.params_folder)
    return dataclasses.replace(config, run=dataclasses.replace(config.run, continued_from=number))


def with_absolute_log(config: RunConfig) -> RunConfig:
    """Return the settings with the folder of the log from the root, where another directory finds it again."""
    folder = config.replay.storage.folder
    is_relative = folder and not folder.startswith("{run}")
    return _with_log_in(config, str(Path(folder).absolute())) if is_relative else config


def log_folders(config: RunConfig) -> list[Path]:
    """Return the folder of the log of each replay service that the launcher starts; none if they have no log."""
    folder, shards = with_storage(config).replay.storage.folder, config.replay.shards
    if not (folder and config.launcher.replay):
        return []
    divided = folder if shards == 1 or "{shard}" in folder else f"{folder}/{{shard}}"
    here = divided.replace("{run}", str(config.run.folder))
    return [Path(here.replace("{shard}", str(shard))) for shard in range(shards)]


def has_log(folder: Path) -> bool:
    """True if a folder holds the log of a replay service."""
    return any(file.stem.isdigit() for file in folder.glob("*.log"))


def check_new_log(config: RunConfig, *, fresh: bool) -> None:
    """Raise `AlreadyExists` if a new run would find the experience of an earlier one in the folder of its log.

    A run that never trained may start again with its own log, unless `fresh` asks for a new one. The log of a run that
    has one of its sources on its own replay service is there before it, without the table that the run fills.
    """
    if not fresh and _starts_again(config):
        return
    run = config.run.folder.resolve()
    for folder in log_folders(config):
        if folder.resolve().is_relative_to(run) or not has_log(folder):
            continue
        if not _has_own_source(config):
            raise AlreadyExists(
                f"replay.storage.folder is {config.replay.storage.folder!r}, and {folder} holds the experience of "
                "an earlier run, which this one would train on: name an empty folder, or one for each run by {run}, "
                "such as '{run}/replay'. To continue the earlier run, use `tidemill resume`"
            )
        if other := _run_that_filled_the_table(config, folder):
            raise AlreadyExists(
                f"table.name is {config.table.name!r}, and {folder} holds the experience of {other} in the table of "
                "this name, which this run would train on: choose another name with --table.name or, if that log was "
                f"removed since and written again, move {other} elsewhere"
            )


def _has_own_source(config: RunConfig) -> bool:
    """True if one of `learner.sources` is another table of the run's own replay service."""
    sources = config.learner.sources.items()
    return any(not source.replay and (source.table or name) != config.table.name for name, source in sources)


def _run_that_filled_the_table(config: RunConfig, log: Path) -> Path | None:
    """Return the folder of a run with the same root that has trained with the same table in a log; None without one."""
    return next((folder for folder, other in runs_with_its_table(config) if log in log_folders(other)), None)


def runs_with_its_table(
    config: RunConfig, which: Callable[[Path], bool] = has_trained
) -> Iterator[tuple[Path, RunConfig]]:
    """Yield folder and settings of each run with a table of the same name, below the same root.

    Args:
        config: Of the run.
        which: Whether a folder counts; those of runs that have trained by default.
    """
    for file in sorted(config.run.folder.parent.glob("*/config.yaml")):
        with contextlib.suppress(ConfigError, FatalError):  # nor could it be continued
            if which(file.parent):
                other = with_absolute_log(read_settings(RunConfig, file))
                if other.table.name == config.table.name:
                    yield file.parent, other


def _starts_again(config: RunConfig) -> bool:
    """True if the run's folder is that of a run with the same log that has not trained."""
    try:
        before = read_settings(RunConfig, config.run.folder / "config.yaml")
    except ConfigError:
        return False
    return log_folders(with_absolute_log(before)) == log_folders(config) and not has_trained(config.run.folder)


def check_finds_log(before: RunConfig, config: RunConfig) -> None:
    """Raise a `ConfigError` if the folder of a run's log is relative, as it was, and has no log in this directory."""
    folder, here = config.replay.storage.folder, log_folders(config)
    is_as_it_was = folder == before.replay.storage.folder and not folder.startswith(("/", "{run}"))
    if folder and is_as_it_was and here and not any(map(has_log, here)):
        raise ConfigError(
            f"replay.storage.folder is {folder!r}, but {Path(folder).absolute()} has no log of the run: resume from "
            "the directory it was started in, or give the path with --replay.storage.folder"
        )


def check_owns_log(before: RunConfig, config: RunConfig) -> None:
    """Raise `AlreadyExists` if a run's folder is a copy, and its log that of the original, which is still there."""
    path, log = config.run.folder, log_folders(config)
    for original in (before.run.folder.resolve(), path.with_name(before.run.name)):
        with contextlib.suppress(OSError, ConfigError, FatalError):  # it is not there
            other = with_run_paths(read_settings(RunConfig, original / "config.yaml"), original)
            is_shared = other.table.name == config.table.name and not set(log).isdisjoint(log_folders(other))
            if original.samefile(path) or not is_shared:
                continue
            raise AlreadyExists(
                f"replay.storage.folder is {config.replay.storage.folder!r}, the log of the run in {original}, and "
                f"{path} is a copy of that run: each would train on the experience of the other. Copy the log, and "
                "name the copy with --replay.storage.folder; an empty folder starts with an empty table"
            )


def check_keeps_shards(before: RunConfig, config: RunConfig) -> None:
    """Raise a `ConfigError` if a log is there that another number of shards wrote.

    Each shard restores only the log with its number, so that a part of the table would be left out. The learner knows a
    lone server by another name than a shard, and would count the restored decisions twice.
    """
    then, now = before.replay.shards, config.replay.shards
    as_it_was = dataclasses.replace(config, replay=dataclasses.replace(config.replay, shards=then))
    if then != now and any(map(has_log, [*log_folders(as_it_was), *log_folders(config)])):
        raise ConfigError(
            f"replay.shards is {now}, but the run's log was written with {then}: leave it out, or train under another "
            "--run.name"
        )


def _with_log_in(config: RunConfig, folder: str) -> RunConfig:
    storage = dataclasses.replace(config.replay.storage, folder=folder)
    return dataclasses.replace(config, replay=dataclasses.replace(config.replay, storage=storage))
