"""Processes of a run: where they listen, and their arguments."""

from __future__ import annotations

import dataclasses
import os
import stat
import tempfile
from pathlib import Path

import pytest

from tests.support.naming import naming
from tidemill import container_limits
from tidemill.config.addresses import check_addresses
from tidemill.config.load import load, write_document
from tidemill.config.run import ClusterSettings, RunSettings
from tidemill.config.sections import ActorConfig, ReplayConfig, RunConfig
from tidemill.config.services import InferenceSettings, LauncherSettings, ReplaySettings, StorageSettings
from tidemill.errors import ConfigError
from tidemill.rpc.addresses import is_server_address
from tidemill.rpc.settings import ServerSettings
from tidemill.services.launcher.run.paths import (
    inference_address,
    make_socket_folder,
    remove_socket_folder,
    socket_folder_of,
    with_addresses,
)
from tidemill.services.launcher.supervise.service_spec import cluster_specs

_SOCKETS = Path("/tmp/tidemill-x")


def test_addresses_are_sockets_unless_they_were_set() -> None:
    """Every default is replaced, and clients are sent where the servers listen."""
    config = with_addresses(RunConfig(), _SOCKETS)
    assert config.replay.server.address == "unix:///tmp/tidemill-x/replay.sock"
    assert config.cluster.replay == ("unix:///tmp/tidemill-x/replay.sock",)
    assert config.paramserver.server.address == config.cluster.params == "unix:///tmp/tidemill-x/params.sock"
    assert config.learner.server.address == config.cluster.learner == "unix:///tmp/tidemill-x/learner.sock"
    assert config.evaluator.server.address == "unix:///tmp/tidemill-x/evaluator.sock"


def test_address_that_was_set_is_kept_and_told_to_the_clients() -> None:
    """So actors of other machines can reach a server; another name for it may be given to them."""
    server = ServerSettings(address="0.0.0.0:9001", insecure=True)
    config = with_addresses(RunConfig(replay=ReplaySettings(server=server)), _SOCKETS)
    assert config.replay.server == server
    assert config.cluster.replay == ("0.0.0.0:9001",)
    named = RunConfig(replay=ReplaySettings(server=server), cluster=ClusterSettings(replay=("box:9001",)))
    assert with_addresses(named, _SOCKETS).cluster.replay == ("box:9001",)


def test_port_zero_is_not_an_address_that_others_could_know() -> None:
    """It asks for a free address, which a socket is."""
    config = RunConfig(replay=ReplaySettings(server=ServerSettings(address="127.0.0.1:0")))
    assert with_addresses(config, _SOCKETS).cluster.replay == ("unix:///tmp/tidemill-x/replay.sock",)


def test_socket_folder_is_private_and_removed_by_its_address_only() -> None:
    """Nobody else enters it; a path that is not one of ours is left alone."""
    folder = make_socket_folder()
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    assert socket_folder_of(f"unix://{folder}/replay.sock") == folder
    assert socket_folder_of("127.0.0.1:7401") is None
    remove_socket_folder(Path("/tmp"))
    remove_socket_folder(folder)
    assert not folder.exists()


def test_socket_folder_has_a_short_path_whatever_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel takes 107 bytes of a socket's path, so a long TMPDIR is left for another folder."""
    long = tmp_path / ("x" * 90)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    folder = make_socket_folder()
    assert folder.parent == Path("/tmp")
    assert is_server_address(inference_address(folder, 99_999))
    assert not is_server_address(inference_address(long / folder.name, 0))
    remove_socket_folder(folder)
    assert not folder.exists()


def test_cluster_has_one_process_a_service_and_the_actors_that_were_asked_for(tmp_path: Path) -> None:
    """Each actor has its own name, index and health socket; the evaluator comes last, after the learner."""
    config = dataclasses.replace(RunConfig(), launcher=LauncherSettings(actors=2, actor_nice=5, evaluator_nice=7))
    config = with_addresses(config, _SOCKETS)
    specs = {spec.name: spec for spec in cluster_specs(config, tmp_path / "cluster.yaml", _SOCKETS)}
    assert list(specs) == ["replay", "paramserver", "learner", "actor-0", "actor-1", "evaluator"]
    assert specs["evaluator"].after == ("learner",)
    assert [spec.nice for spec in specs.values()] == [0, 0, 0, 5, 5, 7]
    assert specs["actor-1"].health_address == "unix:///tmp/tidemill-x/actor-1.sock"


def test_several_shards_are_processes_of_one_kind_with_an_address_each(tmp_path: Path) -> None:
    """The clients get the addresses of all of them, each shard its own number and address."""
    storage = StorageSettings(folder="/data/replay")
    config = with_addresses(RunConfig(replay=ReplaySettings(shards=3, storage=storage)), _SOCKETS)
    file = tmp_path / "cluster.yaml"
    write_document(config, file)
    specs = cluster_specs(config, file, _SOCKETS)[:3]
    assert [(spec.name, spec.kind, spec.module) for spec in specs] == [
        (f"replay-{shard}", "replay", "tidemill.services.replay") for shard in range(3)
    ]
    settings = [load(ReplayConfig, spec.arguments, prog="x", description="x").replay for spec in specs]
    assert [(replay.shard, replay.shards) for replay in settings] == [(0, 3), (1, 3), (2, 3)]
    assert tuple(replay.server.address for replay in settings) == config.cluster.replay
    assert [replay.storage.folder for replay in settings] == [f"/data/replay/{shard}" for shard in range(3)]
    assert [spec.health_address for spec in specs] == list(config.cluster.replay)
    assert config.cluster.shard_count == 3


@pytest.mark.parametrize("limit, set_mib, each_mib", [(8 * 2**30, 0, 1536), (8 * 2**30, 100, 100), (None, 0, 0)])
def test_shards_divide_the_memory_of_their_container(
    limit: int | None, set_mib: int, each_mib: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each would take the limit for its own, so that together they would have several times the memory there is."""
    monkeypatch.setattr(container_limits, "memory_bytes", lambda: limit)
    monkeypatch.setattr(container_limits, "machine_memory_bytes", lambda: 16 * 2**30)
    config = with_addresses(RunConfig(replay=ReplaySettings(shards=4, max_memory_mib=set_mib)), _SOCKETS)
    file = tmp_path / "cluster.yaml"
    write_document(config, file)
    for spec in cluster_specs(config, file, _SOCKETS)[:4]:
        settings = load(ReplayConfig, spec.arguments, prog="x", description="x").replay
        assert settings.max_memory_mib == each_mib


@pytest.mark.parametrize(
    "setting,server",
    [
        ("address", ServerSettings(address="127.0.0.1:9001")),
        ("metrics_address", ServerSettings(metrics_address="127.0.0.1:9001")),
    ],
)
def test_one_address_for_several_shards_is_refused(setting: str, server: ServerSettings) -> None:
    """They could not all listen there; the message says what to do."""
    config = RunConfig(replay=ReplaySettings(server=server, shards=2))
    with pytest.raises(ConfigError, match=naming(f"replay.server.{setting} '127.0.0.1:9001' replay.shards 2")):
        with_addresses(config, _SOCKETS)


def test_actor_understands_what_the_launcher_tells_it(tmp_path: Path) -> None:
    """The command line of an actor loads as its settings."""
    config = with_addresses(RunConfig(launcher=LauncherSettings(actors=3)), _SOCKETS)
    file = tmp_path / "cluster.yaml"
    file.write_text("run: {name: x}\n")
    spec = cluster_specs(config, file, _SOCKETS)[5]
    actor = load(ActorConfig, spec.arguments, prog="x", description="x").actor
    assert (actor.id, actor.index, actor.count) == ("actor-2", 2, 3)
    assert actor.server.address == spec.health_address


def test_several_learners_are_one_service_that_torchrun_starts(tmp_path: Path) -> None:
    """Its health is that of the first rank; a single learner has no torchrun around it."""
    config = with_addresses(RunConfig(launcher=LauncherSettings(learners=3, max_restarts=4)), _SOCKETS)
    (spec,) = [spec for spec in cluster_specs(config, tmp_path / "c.yaml", _SOCKETS) if spec.kind == "learner"]
    assert (spec.name, spec.module) == ("learner", "tidemill.services.learner.torchrun")
    assert spec.arguments == ("3", "4", "--config", str(tmp_path / "c.yaml"))
    assert spec.health_address == config.learner.server.address
    alone = with_addresses(RunConfig(), _SOCKETS)
    (spec,) = [spec for spec in cluster_specs(alone, tmp_path / "c.yaml", _SOCKETS) if spec.kind == "learner"]
    assert spec.module == "tidemill.services.learner"


def test_inference_services_are_started_before_the_actors_that_are_told_of_them() -> None:
    """Each has a socket; without any the actors are told of none, and an address set on purpose is kept."""
    config = with_addresses(RunConfig(launcher=LauncherSettings(actors=1, inference=2)), _SOCKETS)
    addresses = ("unix:///tmp/tidemill-x/inference-0.sock", "unix:///tmp/tidemill-x/inference-1.sock")
    assert config.cluster.inference == addresses
    specs = {spec.name: spec for spec in cluster_specs(config, Path("c.yaml"), _SOCKETS)}
    names = list(specs)
    assert names.index("inference-1") == names.index("inference-0") + 1 < names.index("actor-0")
    assert tuple(specs[f"inference-{index}"].health_address for index in range(2)) == addresses
    assert specs["inference-1"].arguments[2:] == (
        "--inference.server.address",
        addresses[1],
        "--inference.index",
        "1",
    )
    assert with_addresses(RunConfig(), _SOCKETS).cluster.inference == ()
    named = RunConfig(cluster=ClusterSettings(inference=("box:7406",)))
    assert with_addresses(named, _SOCKETS).cluster.inference == ("box:7406",)


@pytest.mark.parametrize("deterministic", [True, False])
def test_actors_of_a_deterministic_run_play_again(deterministic: bool) -> None:
    """They alone: the launcher sees by a file that they write whether they get further."""
    config = with_addresses(RunConfig(run=RunSettings(deterministic=deterministic)), _SOCKETS)
    specs = cluster_specs(config, Path("c.yaml"), _SOCKETS)
    assert all((spec.history is not None) == (deterministic and spec.kind == "actor") for spec in specs)


def test_run_without_a_replay_service_uses_the_one_that_is_named() -> None:
    """None is started, whatever the number of shards; clients are sent to `cluster.replay`, its default included."""
    config = RunConfig(launcher=LauncherSettings(replay=False), replay=ReplaySettings(shards=2))
    addressed = with_addresses(config, _SOCKETS)
    assert addressed.cluster.replay == ("127.0.0.1:7401",)
    kinds = [spec.kind for spec in cluster_specs(addressed, Path("c.yaml"), _SOCKETS)]
    assert kinds == ["paramserver", "learner", "actor", "evaluator"]


def test_service_for_simulators_listens_where_other_programs_reach_it() -> None:
    """At its own address and no socket; actors are sent there, too."""
    config = RunConfig(inference=InferenceSettings(simulators=2), launcher=LauncherSettings(actors=0, inference=1))
    check_addresses(config, {})
    config = with_addresses(config, _SOCKETS)
    assert config.cluster.inference == ("127.0.0.1:7406",)
    (spec,) = [each for each in cluster_specs(config, Path("c.yaml"), _SOCKETS) if each.kind == "inference"]
    assert spec.health_address == "127.0.0.1:7406"


@pytest.mark.parametrize(
    "started, address, message",
    [
        (0, "127.0.0.1:7406", "inference.simulators 2 launcher.inference 0 1"),
        (2, "127.0.0.1:7406", "inference.simulators 2 launcher.inference 2 1"),
        (1, "127.0.0.1:0", "inference.server.address '127.0.0.1:0'"),
    ],
)
def test_simulators_that_could_reach_nobody_are_refused(started: int, address: str, message: str) -> None:
    """Before anything is started."""
    settings = InferenceSettings(simulators=2, server=ServerSettings(address=address))
    with pytest.raises(ConfigError, match=naming(message)):
        check_addresses(RunConfig(inference=settings, launcher=LauncherSettings(inference=started)), {})
