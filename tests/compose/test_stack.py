"""The shipped Dockerfile and docker-compose.yml, unchanged, in a real engine: one cluster runs through all of it.

The tests are the chapters of that life, in this order; each leaves the cluster running for the next.
"""

from __future__ import annotations

import io
import math
import re
import subprocess
import tarfile
import urllib.error
from datetime import UTC, datetime
from pathlib import Path

import grpc
import pytest
import yaml

from tests.compose.answers import growing_shard, image_size, metrics_of, newest_version, result_of, scores, stored_steps
from tests.compose.breakages import (
    append_nonsense,
    can_read_metrics,
    corrupt_version,
    crash_in_sight,
    expire_certificates,
    in_volume,
    publish_as_another,
)
from tests.compose.callers import CALLS, fingerprint, outcome, take_secrets, take_token
from tests.compose.stack import OURS, SERVICES, Stack, until
from tests.support.dashboards import panel_queries, rule_queries, rules
from tests.support.naming import naming
from tests.support.status_page import press, shown, states

pytestmark = pytest.mark.timeout(900)  # the first test builds the images

_BUILT = ("replay", "paramserver", "learner", "actor", "evaluator")
_INFERENCE = ("--profile", "inference-2-gpus")
_SIMULATORS = ("--profile", "inference")
_STEPS, _UPDATES = "sum(tidemill_replay_env_steps_total)", "max(tidemill_learner_steps_total)"
_VERSION = "max(tidemill_paramserver_latest_version)"
_ACTING = "count(rate(tidemill_actor_env_steps_total[15s]) > 0 and on (instance) up == 1)"
"""How many actors act, of those that are there now."""


def test_every_container_becomes_healthy(stack: Stack) -> None:
    """Two replay shards, two actors and the rest: each container passes its own healthcheck."""
    stack.until_healthy()
    assert len(stack.states()) == len(SERVICES) + 1
    for job, count in {"replay": 2, "paramserver": 1, "learner": 1, "actor": 2, "evaluator": 1}.items():
        until(lambda job=job, count=count: stack.targets(job) == count, f"Prometheus finds {count} {job}")  # type: ignore[misc]


def test_cluster_trains(stack: Stack) -> None:
    """Environment steps, updates and parameter versions rise, and an evaluation appears."""
    first = [stack.until_above(name, 0.0) for name in (_STEPS, _UPDATES, _VERSION)]
    for name, value in zip((_STEPS, _UPDATES, _VERSION), first, strict=True):
        stack.until_above(name, value)
    stack.until_above("max(tidemill_evaluator_return_mean)", -math.inf)
    read = "assert len(open('/runs/short/scores.csv').readlines()) > 1"
    stack.inside("evaluator", "python", "-c", read)
    evaluate = ("evaluate", "/runs/short", "--config", "configs/short.yaml", "--episodes", "2")
    assert "2 episodes" in stack.once("evaluator", "tidemill", *evaluate)


def test_run_has_its_settings_and_its_policy_comes_out_of_the_volumes(stack: Stack) -> None:
    """Commands on a run read config.yaml of `check`; one of them passes the policy on as an archive."""
    with tarfile.open(fileobj=io.BytesIO(stack.policy("short"))) as archive:
        names = archive.getnames()
        read = archive.extractfile("short-policy/config.yaml")
        assert read is not None
        settings = yaml.safe_load(read)
        owners = {(member.uid, member.mode & 0o044) for member in archive if member.isfile()}
    assert {"short-policy/policy.safetensors", "short-policy/README.md"} <= set(names)
    assert settings["agent"]["hidden_sizes"] == [32, 32]
    assert owners == {(0, 0o044)}


def test_wrong_settings_are_refused_before_anything_starts(stack: Stack) -> None:
    """`up` ends with an error and the reason is in one container's log; the services that run are left as they are."""
    ids = {container["Id"] for service in OURS for container in stack.containers(service)}
    for variable, value, words in (
        ("TIDEMILL_CONFIG", "configs/nope.yaml", "configs/nope.yaml"),
        ("TIDEMILL_LEARNER_ARGS", "--learner.publish-evry 5", "publish"),
        ("TIDEMILL_RUN_ARGS", "--env.id MountainCarContinuous-v0", "under another --run.name"),
        ("TIDEMILL_REPLAY_SHARDS", "3", "cluster.replay lists 2"),
    ):
        before = stack.variables
        stack.configure(**{variable: value})
        with pytest.raises(AssertionError):
            stack.compose("up", "-d", "--no-build", "learner")
        assert words in stack.logs("check"), stack.logs("check")
        stack.reset(before)
    assert ids == {container["Id"] for service in OURS for container in stack.containers(service)}


def test_actors_share_out_the_ladder(stack: Stack) -> None:
    """Each of two replicas finds its number in DNS and knows how many there are: no two explore alike."""
    found = []
    for container in stack.containers("actor"):
        log = stack.engine.run("sh", "-c", f"docker logs {container['Id']} 2>&1")
        found.append(re.findall(r"acting starts .*\bindex=(\d+)", log)[-1])
    assert sorted(found) == ["0", "1"]
    assert stack.value("min(tidemill_actor_expected)") == stack.value("max(tidemill_actor_expected)") == 2


def test_services_cannot_be_reached_from_this_machine(stack: Stack) -> None:
    """Metrics and health need no credential, but only containers of the network have a way there."""
    for service in OURS:
        assert not can_read_metrics(stack.address(service)), service
    fetch = f"import urllib.request as r; r.urlopen('http://{stack.address('replay-0')}:9400/metrics', timeout=10)"
    stack.inside("paramserver", "python", "-c", fetch)


def test_caller_needs_the_token_of_a_role(stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where this machine has a way, plaintext, no token, a wrong one and that of another role are refused."""
    code = grpc.StatusCode
    own, actors = take_secrets(stack, tmp_path / "certs"), take_token(stack, "actor", tmp_path / "actor.token")
    wrong = tmp_path / "wrong.token"
    wrong.touch(0o600)
    wrong.write_text("w" * 64)
    ca = own / "ca.pem"
    with stack.reached_by_this_machine():
        for wanted in CALLS:
            assert outcome(stack, wanted, monkeypatch) is code.UNAVAILABLE, wanted
            assert outcome(stack, wanted, monkeypatch, ca=ca) is code.UNAUTHENTICATED, wanted
            assert outcome(stack, wanted, monkeypatch, ca=ca, token=wrong) is code.UNAUTHENTICATED, wanted
        for wanted in ("list tables", "list versions"):
            assert outcome(stack, wanted, monkeypatch, ca=ca, token=actors) is code.OK, wanted
            assert outcome(stack, wanted, monkeypatch, ca=ca, token=own / "token") is code.OK, wanted
        for wanted in ("reset a table", "pause"):
            assert outcome(stack, wanted, monkeypatch, ca=ca, token=actors) is code.PERMISSION_DENIED, wanted
        assert outcome(stack, "reset a table", monkeypatch, ca=ca, token=own / "token") is code.NOT_FOUND


def test_operator_steers_and_services_do_not(stack: Stack) -> None:
    """`run operator` has the operator's token; the learner's own lets it look, no more."""
    assert "table items" in stack.operator("status")
    assert "paused" in stack.operator("ctl", "pause")
    assert "continues" in stack.operator("ctl", "resume")
    assert "table items" in stack.inside("learner", "tidemill", "status", "--learner", "127.0.0.1:7403")
    with pytest.raises(AssertionError, match=naming("learner operator")):
        stack.inside("learner", "tidemill", "ctl", "pause", "--learner", "127.0.0.1:7403")
    assert "table items" in stack.once("actor", "tidemill", "status", "--learner", "learner:7403")
    with pytest.raises(AssertionError, match=naming("actor operator")):
        stack.once("actor", "tidemill", "ctl", "stop", "--learner", "learner:7403")


def test_status_page_shows_the_cluster_and_its_buttons_need_the_token(stack: Stack) -> None:
    """The address in its log leads to it from this machine's loopback."""
    url = re.findall(r"http://127\.0\.0\.1:\d+/#[\w-]+", stack.logs("page"))[-1]
    all_of_them = dict.fromkeys(("actor-0", "actor-1", "evaluator", *OURS[:4]), "serving")
    until(lambda: states(url) == all_of_them, "the page finds every process", lambda: str(states(url)))
    assert "serving" in str(shown(url)["logs"]["replay-1"])
    assert shown(url)["logs"]["actor-1"]
    until(lambda: shown(url)["learner_steps"] > 0 and shown(url)["scores"], "it shows updates and scores")
    assert "checkpoint of" in press(url, "checkpoint")
    with pytest.raises(urllib.error.HTTPError, match=naming("403")):
        press(f"{url[:-1]}{'a' if url[-1] == 'b' else 'b'}", "checkpoint")


def test_services_see_their_own_secrets_alone(stack: Stack) -> None:
    """To read, as files of their user that no other user reads; an actor has a token and a CA."""
    look = "import os; print(*sorted(f'{os.stat(e).st_mode & 0o777:o}:{e.name}' for e in os.scandir('/certs')))"
    server, client = ["600:server.key", "600:server.pem", "600:tokens.txt"], ["600:ca.pem", "600:token"]
    seen = {service: stack.inside(service, "python", "-c", look).split() for service in OURS}
    assert seen["actor"] == seen["evaluator"] == client
    assert seen["replay-0"] == seen["replay-1"] == seen["paramserver"] == server
    assert seen["learner"] == sorted(client + server)
    with pytest.raises(AssertionError, match="Read-only file system"):
        stack.inside("actor", "python", "-c", "open('/certs/token', 'w')")


def test_certificates_are_renewed_while_training_continues(stack: Stack) -> None:
    """By a command, for who connects after that; another `up` keeps them, and renews those that expire soon."""
    with stack.reached_by_this_machine():
        addresses = [(stack.address("replay-0"), 7401), (stack.address("paramserver"), 7402)]
        before = [fingerprint(*address) for address in addresses]
        stack.compose("run", "--rm", "-T", "certs", "certs", "/certs", "--services")
        renewed = [fingerprint(*address) for address in addresses]
        assert not set(before) & set(renewed)
        stack.until_above(_UPDATES, stack.value(_UPDATES))
        stack.crash("learner")
        stack.crash("actor")
        stack.until_above(_VERSION, stack.value(_VERSION))
        stack.until_above(_STEPS, stack.value(_STEPS))
        stack.up(actors=2)
        assert [fingerprint(*address) for address in addresses] == renewed
        expire_certificates(stack)
        expired = [fingerprint(*address) for address in addresses]
        stack.up(actors=2)
        assert not set(expired) & {fingerprint(*address) for address in addresses}
    stack.until_healthy()


def test_health_is_asked_without_starting_pythons_packages(stack: Stack) -> None:
    """A check costs a service less than four times the CPU of Python's start; importing gRPC costs twelve times it."""
    for service in ("replay-0", "learner"):
        command = stack.containers(service)[0]["Config"]["Healthcheck"]["Test"][1:]
        measure = (
            "import resource as r, subprocess as s\n"
            f"for command in (['python', '-I', '-S', '-c', ''], {command!r}):\n"
            "    for _ in range(10): s.run(command, check=True)\n"
            "    used = r.getrusage(r.RUSAGE_CHILDREN); print(used.ru_utime + used.ru_stime)"
        )
        start_s, both_s = map(float, stack.inside(service, "python", "-c", measure).split())
        assert both_s - start_s < 4 * start_s


def test_services_run_without_root_or_a_writable_root(stack: Stack) -> None:
    """User 10001, no capability, nothing writable but the volumes and /tmp; nothing starts through a shell."""
    probe = "import os; assert os.getuid() == 10001; open('/app/file', 'w')"
    for service in OURS:
        inspected = stack.containers(service)[0]
        assert inspected["Config"]["Entrypoint"][:2] == ["python", "-m"], service
        assert inspected["Config"]["Healthcheck"]["Test"][0] == "CMD", service
        assert inspected["HostConfig"]["ReadonlyRootfs"], service
        assert inspected["HostConfig"]["CapDrop"] == ["ALL"], service
        with pytest.raises(AssertionError, match="Read-only file system"):
            stack.inside(service, "python", "-c", probe)


def test_service_needs_no_shell(stack: Stack) -> None:
    """With nothing in the place of its shells, a service starts and passes its healthcheck."""
    name = f"{stack.project}-shell-less"
    shells = [word for shell in ("dash", "bash") for word in ("--volume", f"/dev/null:/usr/bin/{shell}:ro")]
    options = ["--rm", "--detach", "--name", name, "--read-only", "--cap-drop", "ALL", "--network", "none", *shells]
    addresses = ["--replay.server.address", "127.0.0.1:7401", "--replay.server.metrics-address", "127.0.0.1:9400"]
    stack.engine.docker("run", *options, stack.image("replay"), *addresses)
    health = ["inspect", "--format", "{{.State.Health.Status}}", name]
    try:
        until(lambda: stack.engine.docker(*health).strip() == "healthy", "healthy without a shell")
    finally:
        stack.engine.docker("rm", "--force", name)


def test_images_are_labelled_and_replay_holds_no_torch(stack: Stack) -> None:
    """Every image says what it is; replay and the parameter server take a tenth of what a learner takes."""
    base = image_size(stack, stack.containers("learner")[0]["Config"]["Image"])
    for service in _BUILT:
        labels = stack.engine.docker("inspect", "--format", "{{json .Config.Labels}}", stack.image(service))
        assert '"org.opencontainers.image.licenses":"Apache-2.0"' in labels
    for service in ("replay", "paramserver"):
        assert image_size(stack, stack.image(service)) < 0.5 * base
        find = "import importlib.util as u, sys; sys.exit(u.find_spec('torch') is not None)"
        stack.engine.docker("run", "--rm", "--entrypoint", "python", stack.image(service), "-c", find)


def test_kernel_is_in_use_in_every_image_and_its_compiler_in_none(stack: Stack) -> None:
    """`tidemill doctor` says so, and decoding of each service takes that path."""
    command = ["run", "--rm", "--network", "none", "--entrypoint", "sh", stack.image("evaluator"), "-c"]
    assert "ok    the compiled kernel is in use" in stack.engine.docker(*command, "tidemill doctor || true")
    look = "import shutil, tidemill.kernel as k; print(k.available, k.reason, shutil.which('gcc'))"
    for service in OURS:
        assert stack.inside(service, "python", "-c", look).split() == ["True", "None"], service


@pytest.mark.parametrize("service", OURS)
def test_metrics_pass_promtool(stack: Stack, service: str) -> None:
    """Names, units and help of everything on /metrics are as Prometheus wants them."""
    metrics = metrics_of(stack, service)
    assert "tidemill_" in metrics
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=metrics, capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_every_panel_shows_something(stack: Stack) -> None:
    """Each query of each dashboard is valid and answers with data on a cluster that runs."""
    empty = [query for query in panel_queries() if not query.needs_more]
    assert len(empty) > 60

    def all_answer() -> bool:
        empty[:] = [query for query in empty if not stack.numbers(query.expression)]
        return not empty

    until(all_answer, "every panel has data", lambda: "\n".join(f"{q.owner}: {q.expression}" for q in empty))
    for query in panel_queries():
        stack.query(query.expression)  # those that need a GPU are at least valid


def test_every_rule_is_evaluated(stack: Stack) -> None:
    """Prometheus loads every rule, evaluates it without an error, and a healthy cluster sets off no alert of a fault.

    A policy that has just begun to learn may truly be far below its best; promtool tests when that alert fires.
    """
    for query in rule_queries():
        stack.query(query.expression)
    loaded = {rule["name"]: rule for group in stack.rule_groups() for rule in group["rules"]}
    assert loaded.keys() == {rule.get("record") or rule["alert"] for rule in rules()}
    assert {name: rule["lastError"] for name, rule in loaded.items() if rule.get("lastError")} == {}
    assert {name for name, rule in loaded.items() if rule["health"] != "ok"} == set()
    until(
        lambda: {name for name, _ in stack.firing()} <= {"TidemillScoreDropped"},
        "no alert of a fault",  # one whose fault is there stays
        lambda: f"{stack.firing()}",
    )


def test_actors_are_scaled_while_the_cluster_runs(stack: Stack) -> None:
    """Prometheus scrapes three actors, and all of them act; `--scale` leaves everything else alone.

    `TIDEMILL_ACTORS=3` leaves the servers alone: the learner's batch may follow it, and it continues from a checkpoint.
    """
    servers = ("replay-0", "replay-1", "paramserver")
    learner, *kept = (stack.containers(name)[0]["Id"] for name in ("learner", *servers))
    stack.compose("up", "-d", "--no-build", "--no-recreate", "--scale", "actor=3", *SERVICES)
    until(lambda: stack.targets("actor") == 3, "three actors", stack.describe)
    stack.until_above(_ACTING, 2.0)
    assert stack.containers("learner")[0]["Id"] == learner
    updates = stack.value(_UPDATES)
    stack.up(actors=3)
    assert [stack.containers(server)[0]["Id"] for server in servers] == kept
    until(lambda: "restored" in stack.logs("learner"), "the learner continues", stack.describe)
    stack.until_above(_UPDATES, updates)
    stack.until_above(_ACTING, 2.0)


def test_actor_that_crashes_comes_back(stack: Stack) -> None:
    """A killed actor is started again and acts; what the others do is not disturbed."""
    stack.up(actors=3)
    url = re.findall(r"http://127\.0\.0\.1:\d+/#[\w-]+", stack.logs("page"))[-1]
    actors, now = {"actor-0", "actor-1", "actor-2"}, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S")

    def has_seen_all() -> bool:  # only then can it tell that one of them was restarted
        logs = shown(url)["logs"]
        return logs.keys() >= actors and all(logs[actor] and max(logs[actor]) > now for actor in actors)

    until(has_seen_all, "the page has asked each of three actors", stack.describe)
    steps = stack.value(_STEPS)
    stack.crash("actor")
    until(lambda: stack.targets("actor") == 3, "three actors again", stack.describe)
    assert stack.until_above(_STEPS, steps) > steps

    def restarts() -> int:
        return sum(row["restarts"] for row in shown(url)["processes"] if row["name"].startswith("actor"))

    until(lambda: restarts() > 0, "the page counts it", stack.describe)
    assert any(event.endswith("was restarted") for event in shown(url)["events"])


def test_replay_shard_that_crashes_has_everything_acknowledged(stack: Stack) -> None:
    """A killed shard brings back from its log every step it had acknowledged; actors and learner continue with it."""
    shard, stored = growing_shard(stack)
    stack.crash(shard)
    until(lambda: stack.states()[stack.containers(shard)[0]["Name"].strip("/")] == "healthy", "healthy again")
    assert stored_steps(stack, shard) >= stored
    until(lambda: stack.targets("replay") == 2, "both shards answer", stack.describe)
    updates = stack.value(_UPDATES)
    stack.until_above(_UPDATES, updates)


def test_learner_that_crashes_resumes(stack: Stack) -> None:
    """A killed learner resumes from its checkpoint with a new fencing token; versions never fall."""
    checkpoint = stack.until_above("max(tidemill_learner_checkpoint_steps)", 0.0)
    version, fencing_token = stack.value(_VERSION), stack.value("max(tidemill_paramserver_generation)")
    stack.crash("learner")
    stack.until_above("max(tidemill_paramserver_generation)", fencing_token)
    stack.until_above(_VERSION, version)
    stack.until_above("max(tidemill_learner_checkpoint_steps)", checkpoint)


def test_faults_raise_alerts_that_end_with_them(stack: Stack) -> None:
    """One shard of two and one actor of three that never last are missed, though DNS and `up` know nothing of them.

    Meanwhile an actor that comes back each time, a disk that refuses checkpoints, messages that make no sense, a
    second learner and corrupt parameters are reported; then actors that hang, a parameter server that is gone and a
    learner without data. What can end ends when all are well again.
    """
    looping, restarting = stack.containers("actor")[-1], stack.containers("actor")[0]
    names = [looping["Name"].strip("/"), stack.containers("replay-1")[0]["Name"].strip("/")]
    stack.until_above("min(tidemill_learner_shard_live)", 0.0)
    with stack.crash_loop(*names):
        in_volume(stack, "chmod", "a-w", "/runs/short/checkpoints")
        corrupt_version(stack)
        stack.until_firing(("TidemillCheckpointFailed", "learner"), ("TidemillCorruptParameters", "paramserver"))
        in_volume(stack, "chmod", "u+w", "/runs/short/checkpoints")
        crash_in_sight(stack, restarting, 4)
        publish_as_another(stack)
        append_nonsense(stack)
        stack.until_firing(("TidemillInsertErrors", ""))
        missing = ("TidemillProcessMissing", "replay"), ("TidemillProcessMissing", "actor")
        lost = ("TidemillShardLost", "learner")
        stack.until_firing(*missing, lost, ("TidemillRestartLoop", "actor"), ("TidemillTwoLearners", "paramserver"))
    stack.until_healthy()
    still = (
        ("TidemillTargetDown", "actor"),
        ("TidemillServiceMissing", "paramserver"),
        ("TidemillServiceMissing", "actor"),
        ("TidemillLearnerStalled", "learner"),
    )
    with stack.frozen("actor"):
        (paramserver,) = stack.containers("paramserver")
        stack.engine.docker("stop", paramserver["Id"])
        stack.until_firing(*still)
    stack.engine.docker("start", paramserver["Id"])
    stack.until_healthy()
    gone = {*missing, lost, *still}
    until(lambda: not gone & stack.firing(), "the alerts end", lambda: f"{stack.firing()}")


def test_everything_comes_back_with_the_engine(stack: Stack) -> None:
    """After a restart of the Docker engine, as by a reboot, all that ran runs again, and the learner continues."""
    if stack.engine.daemon is None:
        pytest.skip("the Docker engine was there before the tests, which must not restart it")
    stack.until_healthy()
    restored = stack.logs("learner").count("restored")
    stack.engine.daemon.restart()
    stack.until_healthy()
    until(lambda: stack.logs("learner").count("restored") > restored, "the learner continues", stack.describe)
    stack.until_above(_VERSION, stack.value(_VERSION))


def test_termination_ends_every_service_with_zero(stack: Stack) -> None:
    """SIGTERM: each service finishes what it is at and exits with 0 within its grace period."""
    for services in (("paramserver", "replay-0", "replay-1"), ("learner", "actor", "evaluator")):
        stack.compose("up", "-d", "--no-build", "--no-deps", *services)  # an upgrade that finds nothing new
    stack.until_healthy()
    stack.compose("stop", *OURS, bound_s=180)
    codes = {c["Name"]: c["State"]["ExitCode"] for service in OURS for c in stack.containers(service)}
    assert set(codes.values()) == {0}, f"{codes}\n{stack.describe()}"
    inspected = stack.once("replay-0", "python -m tidemill.services.replay", "inspect", "/runs/short/replay")
    assert inspected.rstrip().endswith("whole")


def test_run_moves_to_another_box(stack: Stack) -> None:
    """After `down` and `up` the run continues: checkpoint, parameter versions and scores are those of before.

    So it does from volumes that are new: backed up after `stop`, restored after `down` as the operations guide says.
    """
    archives = {service: stack.archive(service) for service in ("learner", "replay-0", "replay-1")}
    version, rows = newest_version(stack), scores(stack)
    assert version > 0
    stack.compose("down", bound_s=180)
    assert (newest_version(stack), scores(stack)) == (version, rows)
    stack.compose("down", "--volumes", bound_s=180)
    for service, archive in archives.items():
        stack.restore(service, archive)
    assert (newest_version(stack), scores(stack)) == (version, rows)
    served = "--cluster.inference inference:7406 inference-1:7406"  # for the next test
    stack.configure(TIDEMILL_ACTORS="2", TIDEMILL_ACTOR_ARGS=served)
    stack.compose(*_INFERENCE, "up", "-d", "--no-build", "inference", "inference-1")
    stack.up(actors=2)
    stack.until_healthy()
    stack.until_above(_VERSION, version)
    assert "restored" in stack.logs("learner")
    assert scores(stack) >= rows


def test_actors_are_served_by_the_inference_services_of_a_profile(stack: Stack) -> None:
    """With the profile for two GPUs, here on the CPU: both services are found, and the actors are connected to them."""
    until(lambda: stack.targets("inference") == 2, "Prometheus finds both", stack.describe)
    stack.until_above("sum(tidemill_inference_actors)", 1.0)
    stack.until_above("sum(rate(tidemill_inference_env_steps_total[15s]))", 0.0)
    stack.compose(*_INFERENCE, "rm", "--force", "--stop", "inference", "inference-1")
    stack.configure(TIDEMILL_ACTOR_ARGS="")


def test_simulators_are_awaited_without_actors(stack: Stack) -> None:
    """As docs/tutorials/simulators.md has it: the service takes simulators, and no actor plays."""
    served = "--inference.simulators 16 --cluster.replay replay-0:7401 replay-1:7401"
    stack.configure(TIDEMILL_INFERENCE_ARGS=served, TIDEMILL_EVALUATOR_ARGS="--cluster.inference inference:7406")
    stack.compose(*_SIMULATORS, "up", "-d", "--no-build", "--scale", "actor=0", *SERVICES, "inference")
    until(lambda: not stack.containers("actor"), "there is no actor", stack.describe)
    until(lambda: stack.targets("inference") == 1, "Prometheus finds the service", stack.describe)
    stack.until_above("count(tidemill_simulators)", 0.0)
    until(lambda: set(stack.states().values()) == {"healthy"}, "all are healthy", stack.describe)
    stack.compose(*_SIMULATORS, "rm", "--force", "--stop", "inference")
    stack.configure(TIDEMILL_INFERENCE_ARGS="", TIDEMILL_EVALUATOR_ARGS="")


def test_run_ends_by_itself_and_stays_ended(stack: Stack) -> None:
    """At the target learner and evaluator idle, also when the engine restarts them; they wake in the next test."""
    stack.configure(TIDEMILL_RUN_ARGS="--run.target-return -2000")  # any policy has more
    stack.up(actors=2)
    stack.until_above('sum(tidemill_resting{job=~"learner|evaluator"})', 1.0)
    result = result_of(stack)
    assert result["solved"], result
    version = newest_version(stack)
    ended = [stack.containers(service)[0]["Id"] for service in ("learner", "evaluator")]
    stack.engine.docker("restart", *ended)  # a container sees nothing else of a restart of the engine
    stack.until_healthy()
    stack.until_above('sum(tidemill_resting{job=~"learner|evaluator"})', 1.0)
    assert newest_version(stack) == version
    assert result_of(stack) == result


def test_another_target_wakes_the_run_and_tls_can_be_turned_off(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the file that says so experience and parameters are in plaintext; the learner's controls are not."""
    version = stack.value(_VERSION)
    stack.configure(TIDEMILL_RUN_ARGS="--run.target-return 0")  # which no pendulum has: the run continues
    stack.add_file("docker-compose.insecure.yml")
    stack.up(actors=2)
    stack.until_healthy()
    stack.until_above(_VERSION, version)
    with stack.reached_by_this_machine():
        assert outcome(stack, "list tables", monkeypatch) is grpc.StatusCode.OK
        assert outcome(stack, "pause", monkeypatch) is grpc.StatusCode.UNAVAILABLE
    assert "table items" in stack.operator("status")
    url = re.findall(r"http://127\.0\.0\.1:\d+/#[\w-]+", stack.logs("page"))[-1]
    all_of_them = dict.fromkeys(("actor-0", "actor-1", "evaluator", *OURS[:4]), "serving")
    until(
        lambda: states(url) == all_of_them, "the status page reaches those without TLS and the learner", stack.describe
    )
