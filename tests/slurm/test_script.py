"""The commands of deploy/slurm: stand-ins of Slurm's programs and of the services write down what they are given."""

from __future__ import annotations

import os
import socket
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tidemill.config.load import load, load_config
from tidemill.config.sections import (
    ActorConfig,
    EvaluatorConfig,
    LearnerConfig,
    ParamServerConfig,
    ReplayConfig,
    RunConfig,
)
from tidemill.services.launcher.run.folder import write_config
from tidemill.services.tools.certs import SERVICES

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "deploy" / "slurm" / "tidemill.sbatch"

_CONFIGS: dict[str, type[Any]] = {
    "replay": ReplayConfig,
    "paramserver": ParamServerConfig,
    "learner": LearnerConfig,
    "actor": ActorConfig,
    "evaluator": EvaluatorConfig,
    "tidemill-check": RunConfig,
}
_STAND_INS = {
    "scontrol": 'echo "$3" | tr , "\\n"',
    "srun": """
        printf '%s\\n' "$@" >"$SEEN/srun-${1#--job-name=}"
        env | grep ^S >"$SEEN/srun.env"
        shift $(($# - 3))
        [ "$3" != "${FAILING:-}" ] || { SLURM_PROCID=1 "$@"; touch "$SEEN/gave-up"; } &
        export SLURM_PROCID=0
        exec "$@"
    """,
    "squeue": "",
    "scancel": 'touch "$SEEN/ended"; kill $(cat "$SEEN"/pid-*)',
    "sleep": "exec /bin/sleep 0.1",
    # Learner and evaluator end: the run is over. The others wait to be ended. The second task of FAILING is refused.
    "python": """
        name=${2#tidemill.services.} name=${name%.torchrun}
        printf '%s\\n' "$@" >"$SEEN/$name"
        env >"$SEEN/$name.env"
        case $name in
        learner | evaluator)
            until [ "${FAILING:-actor}" != actor -o -z "${FAILING:-}" -o -e "$SEEN/gave-up" ]; do /bin/sleep 0.01; done
            [ "${FAILING:-actor}" != actor ] || exit 0
            ;;
        esac
        [ "$name $SLURM_PROCID" != "${FAILING:-} 1" ] || exit 2
        echo $PPID $$ >"$SEEN/pid-$name-$SLURM_PROCID"
        [ ! -e "$SEEN/ended" ] || kill $PPID $$ # it has started after all others were ended
        exec /bin/sleep 600
    """,
    "tidemill": """
        printf '%s\\n' "$@" >"$SEEN/tidemill-$1"
        [ "$1" != certs ] || mkdir -pm 700 "$2"
        [ "$1" != check ] || echo >>"$SEEN/checks"
        [ "$1" != check ] || [ "$(wc -l <"$SEEN/checks")" -gt "${FAILING_CHECKS:-0}" ] || exit "$CODE"
    """,
}


class Script:
    """The script in a folder with stand-ins."""

    def __init__(self, folder: Path) -> None:
        """Write the stand-ins."""
        self._folder, self._seen = folder, folder / "seen"
        for name in ("bin", "seen"):
            (folder / name).mkdir()
        for name, text in _STAND_INS.items():
            (folder / "bin" / name).write_text(f"#!/bin/bash\n{text}\n")
            (folder / "bin" / name).chmod(0o755)

    def run(self, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run it to its end."""
        (self._seen / "ended").unlink(missing_ok=True)
        environment = {
            "PATH": f"{self._folder / 'bin'}:{os.environ['PATH']}",
            "HOME": str(self._folder),
            "SEEN": str(self._seen),
            "SLURM_JOB_ID": "1234",
            "SLURM_JOB_NAME": "pong",
            "SLURM_JOB_NODELIST": "a1,a2,a3",
            "TIDEMILL_CONFIG": str(ROOT / "configs" / "cartpole_dqn.yaml"),
        }
        return subprocess.run(
            ["bash", SCRIPT],
            cwd=self._folder,
            env=environment | variables,
            timeout=300,
            capture_output=True,
            text=True,
            check=False,
        )

    def words(self, name: str) -> list[str]:
        """Return the words that a stand-in was given."""
        return (self._seen / name).read_text().splitlines()

    def settings(self, name: str) -> Any:  # noqa: ANN401 - each service has another class
        """Return the settings that a program reads from its command line."""
        words = self.words(name)
        return load(_CONFIGS[name], words[words.index("--config") :], prog=name, description="")

    def variables(self, service: str) -> dict[str, str]:
        """Return the environment of a service."""
        lines = (self._seen / f"{service}.env").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if line.startswith("TIDEMILL_"))


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """The script, not run yet."""
    return Script(tmp_path)


def test_services_understand_their_commands_and_reach_one_another(script: Script, tmp_path: Path) -> None:
    """On three nodes: services on the first, the learner on the second, actors on all, each with its role's secrets."""
    ended = script.run(SLURM_NTASKS="6", TIDEMILL_REPLAY_SHARDS="2", TIDEMILL_RUN_ARGS="--run.seed 7")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    port = 20000 + 1234 % 500 * 20
    loaded = {}
    for service in ("replay", "paramserver", "learner", "actor", "evaluator"):
        loaded[service] = script.settings(service)
        assert (loaded[service].run.name, loaded[service].run.seed) == ("pong", 7)
        assert loaded[service].run.folder == tmp_path / "runs" / "pong"
        own = tmp_path / ".tidemill" / service
        if SERVICES[service].serves:
            server = getattr(loaded[service], service).server
            assert (server.tls_cert, server.tokens) == (str(own / "server.pem"), str(own / "tokens.txt"))
        if SERVICES[service].role:
            brought = script.variables(service)
            assert (brought["TIDEMILL_TLS_CA"], brought["TIDEMILL_TLS_NAME"]) == (str(own / "ca.pem"), "tidemill")
            assert brought["TIDEMILL_TOKEN_FILE"] == str(own / "token")
    assert loaded["learner"].cluster.replay == loaded["actor"].cluster.replay == (f"a1:{port + 3}", f"a1:{port + 4}")
    assert loaded["replay"].replay.server.address == f"0.0.0.0:{port + 3}"
    assert loaded["learner"].learner.server.address == f"0.0.0.0:{port + 1}"
    assert {loaded[name].cluster.params for name in ("learner", "actor", "evaluator")} == {f"a1:{port}"}
    assert (loaded["actor"].actor.count, loaded["replay"].replay.shards) == (6, 2)
    assert loaded["learner"].run.supervisor == loaded["evaluator"].run.supervisor == "job"
    assert script.settings("tidemill-check").cluster.learner == f"a2:{port + 1}"
    for service, place in {"replay": "a1", "paramserver": "a1", "evaluator": "a1", "learner": "a2"}.items():
        assert f"--nodelist={place}" in script.words(f"srun-{service}")
    assert "--nodes=3" in script.words("srun-actor")
    assert "the run is over" in ended.stdout


def test_every_service_has_the_same_agent(script: Script) -> None:
    """Its default batch has an item of each environment of all actors, so each service knows how many there are."""
    ended = script.run(SLURM_NTASKS="3", TIDEMILL_CONFIG=str(ROOT / "configs" / "pendulum_ppo.yaml"))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    agents = {name: script.settings(name).agent for name in ("tidemill-check", "learner", "actor", "evaluator")}
    assert agents["actor"].batch_size == 3 * 4
    assert agents == dict.fromkeys(agents, agents["actor"])


def test_parts_of_a_heterogeneous_job_are_services_learners_and_actors(
    script: Script,
) -> None:
    """Each learner node has a torchrun, with a learner on each GPU; they meet at the first of them."""
    parts = {"SLURM_JOB_NODELIST_HET_GROUP_0": "c1", "SLURM_JOB_NODELIST_HET_GROUP_1": "g1,g2"}
    parts |= {f"SLURM_JOB_ID_HET_GROUP_{part}": str(1234 + part) for part in range(3)}
    tasks = {"SLURM_HET_SIZE": "3", "SLURM_JOB_NODELIST": "c1", "SLURM_NTASKS_HET_GROUP_2": "64"}
    in_memory = {"TIDEMILL_REPLAY_ARGS": "--replay.storage.folder="}
    ended = script.run(**parts, **tasks, **in_memory, TIDEMILL_GPUS_PER_NODE="4")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    words = script.words("learner")
    assert {"--nnodes=2", "--nproc-per-node=4", "--node-rank=0", "--master-addr=g1"} < set(words)
    assert script.settings("learner").learner.device == "cuda"
    assert script.settings("replay").replay.storage.folder == ""
    groups = {"replay": 0, "paramserver": 0, "evaluator": 0, "learner": 1, "actor": 2}
    for service, group in groups.items():
        assert f"--het-group={group}" in script.words(f"srun-{service}")
    assert "--ntasks=64" in script.words("srun-actor")
    assert "--ntasks=2" in script.words("srun-learner")


@pytest.mark.parametrize(
    "variables, said",
    [
        ({"TIDEMILL_REPLAY_SHARDS": "18"}, "TIDEMILL_REPLAY_SHARDS is 18, allowed: 1 to 17"),
        ({"TIDEMILL_LEARNER_NODES": "3"}, "TIDEMILL_LEARNER_NODES is 3, but the job has 3 nodes"),
        ({"TIDEMILL_SECRETS": "open"}, "open has mode 755, allowed: 700"),
    ],
    ids=str,
)
def test_wrong_setting_ends_the_job_in_one_line(
    script: Script, tmp_path: Path, variables: dict[str, str], said: str
) -> None:
    """With 2, before any service starts."""
    (tmp_path / "open").mkdir(mode=0o755)
    ended = script.run(**variables)
    assert ended.returncode == 2
    assert said in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "service, preset, code",
    [
        ("replay", "cartpole_dqn", 1),
        ("learner", "cartpole_dqn", 1),
        ("actor", "cartpole_dqn", 0),
        ("actor", "cartpole_ppo", 1),
        ("actor", "cartpole_dqn in lock-step", 1),
    ],
)
def test_task_that_gives_up_fails_the_job_though_its_step_has_another(
    script: Script, tmp_path: Path, service: str, preset: str, code: int
) -> None:
    """Unless it is an actor, and the others may continue without it: the log of the job names it all the same."""
    file, _, in_lock_step = preset.partition(" ")
    config = load_config(ROOT / "configs" / f"{file}.yaml")
    config = replace(config, run=replace(config.run, deterministic=True)) if in_lock_step else config
    (tmp_path / "runs" / "pong").mkdir(parents=True)
    write_config(config, tmp_path / "runs" / "pong" / "config.yaml")
    ended = script.run(TIDEMILL_REPLAY_SHARDS="2", TIDEMILL_LEARNER_NODES="2", FAILING=service)
    assert ended.returncode == code, ended.stdout + ended.stderr
    assert f"{service} 1 ended with 2" in (ended.stderr if code else ended.stdout)


@pytest.mark.parametrize("service", ["learner", "replay"])
def test_earlier_divergence_does_not_keep_the_job_from_ending(script: Script, tmp_path: Path, service: str) -> None:
    """Behind a lost learner the evaluator has a quarter of an hour for the result, which it does not write here."""
    (tmp_path / "runs" / "pong").mkdir(parents=True)
    (tmp_path / "runs" / "pong" / "diverged.txt").touch()
    (tmp_path / "bin" / "sleep").write_text("#!/bin/sh\nexec /bin/sleep 0.005\n")
    ended = script.run(TIDEMILL_REPLAY_SHARDS="2", TIDEMILL_LEARNER_NODES="2", FAILING=service)
    assert ended.returncode == 1, ended.stdout + ended.stderr


def test_service_that_is_asked_to_end_between_two_starts_is_not_started_again(tmp_path: Path) -> None:
    """The signal comes while nothing runs that it could end."""
    starts = tmp_path / "starts"
    service = f'echo >>"{starts}"; (/bin/sleep 0.5; kill $PPID) & exit 3'
    keep = f'source <(sed -n "/^keep()/,/^}}/p" {SCRIPT}); keep bash -c "$0"'
    ended = subprocess.run(["bash", "-c", keep, service], timeout=60, capture_output=True, text=True, check=False)
    assert ended.returncode == 143
    assert len(starts.read_text().splitlines()) == 1


def test_port_in_use_is_refused(script: Script) -> None:
    """As by another job of the user on the node, whose number differs by 500."""
    with socket.create_server(("127.0.0.1", 20000 + 235 * 20 + 4)):  # of the second shard
        ended = script.run(SLURM_JOB_ID="1235", TIDEMILL_REPLAY_SHARDS="2")
    assert ended.returncode == 2
    assert "port 24704 of a1 is in use" in ended.stderr


def test_steps_ask_for_nothing_that_the_whole_job_asked_for(script: Script) -> None:
    """A step of one task would wait for all GPUs of the job, or have the memory of one processor."""
    names = ("GPUS", "GPUS_PER_TASK", "GPUS_PER_SOCKET", "MEM_PER_NODE", "MEM_PER_CPU", "MEM_PER_GPU", "NTASKS")
    asked = {f"SLURM_{name}{part}": "4" for name in names for part in ("", "_HET_GROUP_0", "_HET_GROUP_1")}
    ended = script.run(**asked, SLURM_GPUS_PER_NODE="4")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    left = {line.partition("=")[0] for line in script.words("srun.env")}
    assert "SLURM_GPUS_PER_NODE" in left
    assert not left & asked.keys()


def test_shards_divide_half_of_the_memory_of_their_node(script: Script) -> None:
    """Each sees the limit of all of them; an option of the user takes precedence."""
    for words, bound in (("", 8192), ("--replay.max-memory-mib 5", 5)):
        ended = script.run(SLURM_MEM_PER_NODE="32768", TIDEMILL_REPLAY_SHARDS="2", TIDEMILL_REPLAY_ARGS=words)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert script.settings("replay").replay.max_memory_mib == bound


@pytest.mark.parametrize("part", ["", "_HET_GROUP_0"])
def test_memory_of_a_node_is_that_of_its_processors(part: str, script: Script) -> None:
    """Where Slurm gives memory by the processor, as by `--mem-per-cpu` or a partition's default."""
    ended = script.run(**{f"SLURM_MEM_PER_CPU{part}": "2048"}, SLURM_CPUS_ON_NODE="8")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert script.settings("replay").replay.max_memory_mib == 8192


@pytest.mark.parametrize("files, made", [((), True), (("ca.pem",), False), (("ca.pem", "ca.key"), True)])
def test_secrets_are_made_or_renewed_where_the_key_of_the_ca_may_be(
    files: tuple[str, ...], made: bool, script: Script, tmp_path: Path
) -> None:
    """A folder without a CA may be one that another job has just begun; one without its key was made elsewhere."""
    secrets = tmp_path / ".tidemill"
    secrets.mkdir(mode=0o700)
    for name in files:
        (secrets / name).touch()
    ended = script.run()
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert (tmp_path / "seen" / "tidemill-certs").exists() == made


@pytest.mark.parametrize("failures, code, tries, ended_with", [(2, 1, 3, 0), (9, 1, 6, 1), (9, 2, 1, 2)])
def test_check_is_tried_again_unless_a_setting_is_wrong(
    failures: int, code: int, tries: int, ended_with: int, script: Script, tmp_path: Path
) -> None:
    """A job that was requeued has passed it before: a slow disk does not end it."""
    ended = script.run(FAILING_CHECKS=str(failures), CODE=str(code))
    assert ended.returncode == ended_with, ended.stdout + ended.stderr
    assert len((tmp_path / "seen" / "checks").read_text().splitlines()) == tries


def test_secrets_may_have_the_setgid_bit_of_the_folder_above(script: Script, tmp_path: Path) -> None:
    """As in a group's project folder: it lets nobody else in, and `chmod 700` leaves it."""
    (tmp_path / ".tidemill").mkdir()
    (tmp_path / ".tidemill").chmod(0o2700)
    ended = script.run()
    assert ended.returncode == 0, ended.stdout + ended.stderr
