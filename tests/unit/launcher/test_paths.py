"""Where a run's experience is kept, and what resume says of it."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import shlex
import shutil
import tempfile
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.support.naming import naming
from tidemill.config.addresses import check_addresses, check_simulators
from tidemill.config.given import given_by, given_in
from tidemill.config.load import load, load_config, write_document
from tidemill.config.run import RunSettings
from tidemill.config.sections import RunConfig
from tidemill.config.services import StorageSettings
from tidemill.config.yaml_text import written
from tidemill.errors import ConfigError, FatalError
from tidemill.programs.cluster import Cluster
from tidemill.programs.train import train
from tidemill.services.launcher import cli
from tidemill.services.launcher.commands.summary import describe_restored
from tidemill.services.launcher.commands.train import remove_leftover_sockets
from tidemill.services.launcher.run.env_check import check_environment
from tidemill.services.launcher.run.folder import RunFolder
from tidemill.services.launcher.run.paths import (
    make_socket_folder,
    remove_socket_folder,
    with_addresses,
    with_beginning,
    with_storage,
)
from tidemill.settings.overlay import to_document


@pytest.mark.parametrize(
    "storage, folder",
    [
        (StorageSettings(), "{run}/replay/{shard}"),
        (StorageSettings(folder="/fast/log"), "/fast/log"),
        (StorageSettings(memory_only=True), ""),
        (StorageSettings(folder="/fast/log", memory_only=True), ""),
    ],
)
def test_run_keeps_its_log_in_its_folder_unless_told_otherwise(storage: StorageSettings, folder: str) -> None:
    """Nothing given: the run's folder; a folder given: that one; memory only: none."""
    config = RunConfig()
    config = dataclasses.replace(config, replay=dataclasses.replace(config.replay, storage=storage))
    found = with_storage(config)
    assert found.replay.storage == dataclasses.replace(storage, folder=folder)
    assert dataclasses.replace(found, replay=config.replay) == config


def test_run_begins_with_the_newest_version_in_its_folder(tmp_path: Path) -> None:
    """A new run with none, whatever the settings that it is started with have from another run."""
    config = RunConfig(run=RunSettings(name="run", root=str(tmp_path), continued_from=9))
    assert with_beginning(config).run.continued_from == 0
    folder = config.run.params_folder
    folder.mkdir(parents=True)
    for name in ("0000000002.json", "0000000012.json", "0000000012.copy.json", "tags.json"):
        (folder / name).touch()
    assert with_beginning(config).run.continued_from == 12


def test_resume_says_whether_experience_comes_back(tmp_path: Path) -> None:
    """With a log the tables come back, without one they fill again."""
    assert any("not restored: there is no log" in line for line in describe_restored(tmp_path, RunConfig()))
    (tmp_path / "replay" / "0").mkdir(parents=True)
    (tmp_path / "replay" / "0" / "00000001.log").touch()
    assert any("from the log" in line for line in describe_restored(tmp_path, RunConfig()))


@pytest.mark.parametrize(
    "actors, source, message, right",
    [
        (0, "env", "evaluator.source 'env' 'simulators' env.spaces", "launcher.actors"),
        (2, "simulators", "launcher.actors 2 0 env.spaces", "evaluator.source"),
        (2, "env", "launcher.actors 2 0 evaluator.source 'env' 'simulators' env.spaces env.spaces", "nothing"),
    ],
)
def test_only_what_is_wrong_with_a_run_of_simulators_is_named(
    actors: int, source: str, message: str, right: str
) -> None:
    """A setting that is as it must be is not asked for."""
    spaces = {"observation": ["float32", 4], "num_actions": 2}
    config = load_config(
        {
            "env": {"id": "robot", "spaces": spaces},
            "agent": {"algorithm": "dqn"},
            "launcher": {"actors": actors, "inference": 1},
            "inference": {"simulators": 2},
            "evaluator": {"source": source},
        }
    )
    with pytest.raises(ConfigError, match=naming(message)) as refused:
        check_simulators(config)
    assert right not in str(refused.value)


@pytest.mark.parametrize("inference", [[], ["inference-0.inference:7406"]])
def test_run_of_another_cluster_is_told_how_to_reach_what_is_started_here(inference: list[str], tmp_path: Path) -> None:
    """With the options that it names it is not refused, and nothing is looked for elsewhere."""
    cluster = {"params": "paramserver:7402", "learner": "learner:7403", "inference": inference}
    document = {"cluster": cluster}
    with pytest.raises(ConfigError) as refused:
        check_addresses(load_config(document), {})
    assert ("cluster.inference is 'inference-0.inference:7406'" in str(refused.value)) == bool(inference)
    options = str(refused.value).partition(" add ")[2].partition(", or ")[0]
    (file := tmp_path / "config.yaml").write_text(written(document))
    config = load(RunConfig, shlex.split(options), prog="resume", description="", file=file)
    check_addresses(config, {})
    assert config.cluster == RunConfig().cluster


@pytest.mark.parametrize("replay", [["box:7401"], ["box:7401", "box:7411"]])
def test_replay_service_elsewhere_is_used_only_if_none_is_started(replay: list[str]) -> None:
    """Or if the one that is started listens there, for actors of other machines."""
    cluster = {"cluster": {"replay": replay}}
    for refused in ({}, {"params": "box:7402"}):
        with pytest.raises(ConfigError, match=naming(f"cluster.replay '{' '.join(replay)}' --launcher.replay")):
            Cluster(load_config({"cluster": cluster["cluster"] | refused}))
    check_addresses(load_config(cluster | {"launcher": {"replay": False}}), {})
    check_addresses(load_config(cluster | {"replay": {"server": {"address": "0.0.0.0:7401"}}}), {})


def test_default_address_of_the_replay_service_is_refused_if_one_is_started() -> None:
    """The service there would stay unused. With the other addresses it is one that `resume` asked for."""

    def check(*words: str) -> None:
        config = load(RunConfig, words, prog="train", description="")
        check_addresses(config, given_by(words))

    address = ("--cluster.replay", "127.0.0.1:7401")
    for words in (address, ["=".join(address)]):
        with pytest.raises(ConfigError, match=naming("cluster.replay '127.0.0.1:7401' --launcher.replay")):
            check(*words)
    check(*address, "--launcher.replay", "false")
    check(*address, "--cluster.params", "127.0.0.1:7402", "--cluster.learner", "127.0.0.1:7403")
    check(*address, "--replay.server.address", "0.0.0.0:7401")


@pytest.mark.parametrize("words", [["train"], ["resume", "runs/a"]])
def test_default_address_is_refused_as_an_option(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would count as not given: the service would listen at a socket, where nobody who was given it would look."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs" / "a"
    folder.mkdir(parents=True)
    write_document(RunConfig(run=RunSettings(name="a")), folder / "config.yaml")
    (folder / ".lock").touch()
    refused_later = ["--cluster.params", "elsewhere:7402"]
    with pytest.raises(ConfigError, match=naming("learner.server.address '127.0.0.1:7403' another port")):
        cli.COMMANDS[words[0]].load()([*words[1:], "--learner.server.address=127.0.0.1:7403", *refused_later])


def test_default_address_is_refused_in_a_file_and_from_python(tmp_path: Path) -> None:
    """As it is as an option. A file that Tidemill wrote has the defaults of what nobody gave."""
    file, address = tmp_path / "mine.yaml", "127.0.0.1:7401"
    file.write_text(f"env: {{id: CartPole-v1}}\nreplay: {{server: {{address: '{address}'}}}}\n")
    for start in (
        lambda: cli.COMMANDS["train"].load()(["--config", str(file)]),
        lambda: train(config=file),
        lambda: train("CartPole-v1", settings={"replay.server.address": address}),
        lambda: train("CartPole-v1", settings={"replay": {"server": {"address": address}}}),
        lambda: Cluster(file),
        lambda: Cluster({"replay": {"server": {"address": address}}}),
    ):
        with pytest.raises(ConfigError, match=naming(f"replay.server.address '{address}' another port")):
            start()
    write_document(RunConfig(), file)
    assert given_in(file) == {}
    file.write_text(f"# tidemill 0.1.0\n{written(to_document(RunConfig()))}")
    assert given_in(file) == {}
    assert Cluster(file).config == RunConfig()


def test_machine_without_a_temporary_folder_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container whose file system is read-only."""
    refused = OSError(errno.EROFS, os.strerror(errno.EROFS))
    for name in ("gettempdir", "mkdtemp"):
        monkeypatch.setattr(tempfile, name, Mock(side_effect=refused))
    for call in (make_socket_folder, lambda: check_environment(RunConfig())):
        with pytest.raises(FatalError, match=naming("set TMPDIR")):
            call()


@pytest.mark.parametrize("is_whole", [True, False])
def test_sockets_of_a_killed_launcher_are_removed_if_they_can_be_found(tmp_path: Path, is_whole: bool) -> None:
    """After a loss of power cluster.yaml may be empty, which does not keep the run from being resumed."""
    config = RunConfig(run=RunSettings(root=str(tmp_path)))
    sockets = make_socket_folder()
    with RunFolder.create(config, fresh=False) as folder:
        remove_leftover_sockets(folder)
        folder.write_cluster(with_addresses(config, sockets))
        if not is_whole:
            folder.cluster_file.write_text("")
        remove_leftover_sockets(folder)
    assert sockets.exists() == (not is_whole)
    remove_socket_folder(sockets)


@pytest.mark.parametrize("is_followed", [False, True])
def test_sockets_of_a_killed_launcher_are_removed_if_its_folder_was_renamed(tmp_path: Path, is_followed: bool) -> None:
    """Also if another run, with its own sockets, is running at the path before."""
    config = RunConfig(run=RunSettings(root=str(tmp_path)))
    sockets, others = make_socket_folder(), make_socket_folder()
    renamed = tmp_path / "renamed"
    with RunFolder.create(config, fresh=False) as folder:
        folder.write_cluster(with_addresses(config, sockets))
        folder.path.rename(renamed)
    with contextlib.ExitStack() as stack:
        if is_followed:
            stack.enter_context(RunFolder.create(config, fresh=False)).write_cluster(with_addresses(config, others))
        remove_leftover_sockets(stack.enter_context(RunFolder.open(renamed)))
    assert (sockets.exists(), others.exists()) == (False, True)
    remove_socket_folder(others)


def test_sockets_of_the_run_that_a_folder_was_copied_from_are_left(tmp_path: Path) -> None:
    """A copy of a running run has its cluster.yaml, with sockets that its services listen at."""
    config = RunConfig(run=RunSettings(root=str(tmp_path)))
    sockets = make_socket_folder()
    with RunFolder.create(config, fresh=False) as original:
        original.write_cluster(with_addresses(config, sockets))
        with RunFolder.open(shutil.copytree(original.path, tmp_path / "copy")) as copy:
            remove_leftover_sockets(copy)
    assert sockets.exists()
    remove_socket_folder(sockets)
