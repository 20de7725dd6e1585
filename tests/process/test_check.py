"""`tidemill check`, which a compose file runs before anything else: settings of all services, and what it leaves."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.launched import launched
from tests.support.naming import naming
from tidemill.config.load import from_document, read_document, read_settings
from tidemill.config.sections import RunConfig
from tidemill.errors import AlreadyExists, ConfigError
from tidemill.services.launcher.commands.check import check
from tidemill.services.launcher.run.folder import check_free

pytestmark = pytest.mark.process

_RUN = ("--run.name", "box", "--env.id", "Pendulum-v1", "--launcher.no-fork-services")
_ELSEWHERE = ("--cluster.params", "server:7402")


def _checked(root: Path, *arguments: str) -> tuple[int, str]:
    with launched("check", "--run.root", str(root), *_RUN, *arguments) as command:
        code = command.wait()
    return code, command.output


def test_right_settings_become_the_config_of_the_run(tmp_path: Path) -> None:
    """Those of every service, in the file that commands on a run read; a second time, as each `up` does, as well.

    `resume` on this machine is told which addresses to leave out, instead of looking for services that are not here.
    """
    options = ["--learner.publish-every", "7", "--actor.count", "5", "--cluster.params", "paramserver:7402"]
    one_name = ["--cluster.replay", "dns:///replay:7401", "--cluster.replay-shards", "2", "--replay.shards", "2"]
    for more in ([], one_name):
        code, output = _checked(tmp_path, *options, *more)
        assert code == 0, output
    assert "sac on Pendulum-v1" in output
    written = from_document(RunConfig, read_document(tmp_path / "box" / "config.yaml"))
    assert (written.learner.publish_every, written.actor.count) == (7, 5)
    before = (tmp_path / "box" / "config.yaml").read_text()
    assert re.search(r"^# tidemill ", before, re.MULTILINE)
    with launched("resume", str(tmp_path / "box"), "--launcher.no-fork-services") as command:
        assert command.wait() == 2
    assert "cluster.params is 'paramserver:7402', but this command starts" in command.output
    assert "add --cluster.replay 127.0.0.1:7401 --cluster.params 127.0.0.1:7402 --cluster.learner" in command.output
    assert (tmp_path / "box" / "config.yaml").read_text() == before
    check_free(tmp_path / "box", fresh=False)  # `train` of the same name may follow


def test_check_without_addresses_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No engine starts the services of these settings. A folder that no run may have is refused all the same."""
    here = (*_RUN, "--run.root", str(tmp_path))
    assert check(here) == 0
    assert not list(tmp_path.iterdir())
    assert f"not written to {tmp_path / 'box' / 'config.yaml'}" in capsys.readouterr().err
    (tmp_path / "box").mkdir()
    (tmp_path / "box" / "config.yaml").write_text("mine")
    with pytest.raises(AlreadyExists, match=naming("config.yaml")):
        check(here)


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--env.id", "CartPole-v1"], "actions are discrete"),
        (["--replay.shards", "2"], "replay.shards is 2, but cluster.replay lists 1.*TIDEMILL_REPLAY_SHARDS"),
        (
            ["--replay.shards", "3", "--cluster.replay-shards", "2"],
            "replay.shards is 3, but cluster.replay_shards is 2",
        ),
        (
            ["--cluster.inference", "inference:7405", "--actor.count", "65", "--launcher.actors", "9"],
            "actor.count is 65, but cluster.inference lists 1 and inference.max_streams is 64",
        ),
    ],
)
def test_wrong_setting_is_refused_and_nothing_written(arguments: list[str], words: str, tmp_path: Path) -> None:
    """In one line, with exit code 2, whichever service it is for."""
    code, output = _checked(tmp_path, *arguments)
    assert code == 2, output
    assert re.search(words, output), output
    assert not (tmp_path / "box").exists()


def test_update_of_a_user_s_algorithm_is_left_to_the_learner(tmp_path: Path) -> None:
    """Which has more memory than a check, and perhaps the GPU that the update needs; how it acts is tried."""
    own = ("--env.id", "CartPole-v1", "--agent.algorithm")
    code, output = _checked(tmp_path, *own, "tests.process.test_env_check:UpdatesBadly", "--agent.aborts")
    assert code == 0, output
    code, output = _checked(tmp_path, *own, "tests.process.test_env_check:ActsWrongly")
    assert code == 2, output


def test_share_of_a_batch_is_left_to_the_learner(tmp_path: Path) -> None:
    """An engine decides how many learners share it; `launcher.learners` is not what it starts."""
    code, output = _checked(tmp_path, "--agent.batch-size", "70000")
    assert code == 0, output


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--learner.device", "cuda:0"], "a batch, a learner.device or replay shards that the learners cannot share"),
        (["--run.deterministic"], "run.deterministic with several learners"),
    ],
)
def test_what_several_learners_cannot_have_is_left_to_them(arguments: list[str], words: str, tmp_path: Path) -> None:
    """An engine decides how many there are, and the help says that nobody checks it before."""
    code, output = _checked(tmp_path, *arguments)
    assert code == 0, output
    with launched("check", "--help") as command:
        assert command.wait() == 0
    assert words in " ".join(command.output.split())


@pytest.mark.parametrize(
    "count, address, expected",
    [(2, ["--cluster.params", "server:7402"], True), (18, ["--cluster.params", "server:7402"], False), (2, [], False)],
)
def test_another_number_of_actors_than_the_file_s_is_noted(
    count: int, address: list[str], expected: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only `tidemill train` starts `launcher.actors`, which a preset such as Ape-X's is meant for."""
    root = ("--run.root", str(tmp_path))
    assert check([*_RUN, *root, "--launcher.actors", "18", "--actor.count", str(count), *address]) == 0
    noted = "note: launcher.actors is 18, but actor.count is 2" in capsys.readouterr().err
    assert noted == expected


def test_run_that_has_trained_keeps_its_environment_and_algorithm(tmp_path: Path) -> None:
    """A name that another task has is refused by both tasks' names, before the services would compare columns."""
    assert _checked(tmp_path, *_ELSEWHERE)[0] == 0
    assert _checked(tmp_path, "--agent.algorithm", "td3", *_ELSEWHERE)[0] == 0, "nothing has been trained"
    assert _checked(tmp_path, *_ELSEWHERE)[0] == 0
    (tmp_path / "box" / "scores.csv").write_text("header\nrow\n")
    before = (tmp_path / "box" / "config.yaml").read_bytes()
    for arguments, words in (
        (["--env.id", "MountainCarContinuous-v0"], "env.id 'MountainCarContinuous-v0' (it was 'Pendulum-v1')"),
        (["--agent.algorithm", "td3"], "agent.algorithm 'td3' (it was 'sac')"),
        (["--agent.hidden-sizes", "32"], "agent.hidden_sizes [32] (it was [256, 256])"),
        (["--agent.n-step", "3", "--replay.storage.memory-only"], "agent.n_step 3 (it was 1)"),  # the service keeps it
    ):
        code, output = _checked(tmp_path, *arguments)
        assert code == 2, output
        assert words in output
        assert "another --run.name" in output
    assert (tmp_path / "box" / "config.yaml").read_bytes() == before


def test_run_that_has_trained_here_keeps_its_settings(tmp_path: Path) -> None:
    """`tidemill resume` would train with those of a check. With addresses they are those of services."""
    assert _checked(tmp_path, "--cluster.params", "127.0.0.1:7402")[0] == 0
    (tmp_path / "box" / "scores.csv").write_text("header\nrow\n")
    file = tmp_path / "box" / "config.yaml"
    before = file.read_bytes()
    code, output = _checked(tmp_path, "--learner.publish-every", "7")
    assert code == 0, output
    assert "settings differ: learner.publish_every 7 (it was " in output
    assert f"not written to {file}" in output
    assert "--cluster.params 127.0.0.1:7402" in output
    assert file.read_bytes() == before
    mine = tmp_path / "mine.yaml"
    mine.write_text("cluster: {params: '127.0.0.1:7402'}\n")
    for every, address in (
        (7, ["--cluster.params", "paramserver:7402"]),
        (8, ["--cluster.params", "127.0.0.1:7402"]),  # the default
        (9, ["--config", str(mine)]),
    ):
        code, output = _checked(tmp_path, "--learner.publish-every", str(every), *address)
        assert code == 0, output
        assert f"learner.publish_every {every} (it was " in output
        assert from_document(RunConfig, read_document(file)).learner.publish_every == every


def test_settings_of_a_newer_tidemill_do_not_hold_up_the_return_to_this_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A check with the addresses of services replaces them; another one leaves them to a newer version."""
    here = (*_RUN, "--run.root", str(tmp_path))
    elsewhere = (*here, *_ELSEWHERE)
    assert check(elsewhere) == 0
    (tmp_path / "box" / "scores.csv").write_text("header\nrow\n")
    file = tmp_path / "box" / "config.yaml"
    file.write_text("# tidemill 99.0\nenv: {id: Pendulum-v1, further: 1}\n")
    with pytest.raises(ConfigError, match=naming(file, "99.0 'env.further'")):
        check(here)
    capsys.readouterr()
    assert check(elsewhere) == 0
    assert f"note: {file} of Tidemill 99.0 is replaced" in capsys.readouterr().err
    assert read_settings(RunConfig, file).cluster.params == "server:7402"


@pytest.mark.parametrize(
    "wrong", ["agent: {algorithm: 'not_here:MyConfig'}", "env: {frame_skip: 0}", "env: {frame_skip: 0, further: 1}"]
)
def test_config_of_a_newer_tidemill_that_is_wrong_otherwise_stays(wrong: str, tmp_path: Path) -> None:
    """Code of the user's that is missing here, or a value that no version takes: the check says what it is."""
    elsewhere = (*_RUN, "--run.root", str(tmp_path), *_ELSEWHERE)
    assert check(elsewhere) == 0
    (tmp_path / "box" / "scores.csv").write_text("header\nrow\n")
    file = tmp_path / "box" / "config.yaml"
    file.write_text(before := f"# tidemill 99.0\n{wrong}\n")
    named = "env.frame_skip 0" if "frame_skip" in wrong else "agent.algorithm 'not_here:MyConfig'"
    with pytest.raises(ConfigError, match=naming(file, named)) as refused:
        check(elsewhere)
    assert ("99.0" in str(refused.value)) == ("further" in wrong)
    assert file.read_text() == before


def test_config_of_a_trained_run_that_is_not_text_is_named(tmp_path: Path) -> None:
    """One line, with addresses or without, and the file stays."""
    here = (*_RUN, "--run.root", str(tmp_path))
    assert check((*here, *_ELSEWHERE)) == 0
    (tmp_path / "box" / "scores.csv").write_text("header\nrow\n")
    file = tmp_path / "box" / "config.yaml"
    file.write_bytes(b"env: \xff\n")
    for arguments in (here, (*here, *_ELSEWHERE)):
        with pytest.raises(ConfigError, match=naming(file, "is not a text of settings")):
            check(arguments)
    assert file.read_bytes() == b"env: \xff\n"
