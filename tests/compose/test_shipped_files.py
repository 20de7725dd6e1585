"""The files for containers as they lie in the repository, except those of Kubernetes: nothing is started."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509

from tests.compose.shipped import HEALTH_PATH, ROOT, check_secured, load_as, run
from tests.support.dashboards import DASHBOARDS, RULES, load, rules
from tidemill.config.load import load as load_config
from tidemill.config.sections import RunConfig
from tidemill.gpus import CAPABILITIES, DRIVERS
from tidemill.services.tools.certs import SERVICES, certs

COMPOSE = (ROOT / "docker-compose.yml", ROOT / "docker-compose.gpu.yml", ROOT / "docker-compose.insecure.yml")
VARIABLE = re.compile(r"\$\{(TIDEMILL_[A-Z_]+):-((?:[^{}]|\$\{[^}]*\})*)\}")
KNOB = re.compile(r"^#((?:TIDEMILL|COMPOSE)_[A-Z_]+)=(.*)$", re.MULTILINE)
OURS = ("replay-0", "replay-1", "paramserver", "learner", "actor", "evaluator", "inference")
FURTHER = tuple(f"inference-{gpu}" for gpu in range(1, 8))
"""The inference services of GPUs after the first."""


def compose_command() -> list[str]:
    """Return the command that is Docker Compose. The test is skipped where there is none."""
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    plugin = ["docker", "compose"]
    has_docker = shutil.which("docker") is not None
    if not has_docker or subprocess.run([*plugin, "version"], capture_output=True, check=False).returncode:
        pytest.skip("there is neither docker-compose nor the compose plugin of docker")
    return plugin


def services() -> dict[str, Any]:
    """Return the services of docker-compose.yml, its anchors resolved."""
    found: dict[str, Any] = yaml.safe_load(COMPOSE[0].read_text())["services"]
    return found


def with_defaults(text: str) -> str:
    """Return a value of a compose file as it is when no variable is set."""
    return VARIABLE.sub(lambda match: match.group(2), text)


def words_of(service: dict[str, Any]) -> list[str]:
    """Return the command line of a service of ours, after the module's name."""
    return [*service.get("entrypoint", [])[3:], *shlex.split(with_defaults(service["command"]))]


def server_names(certificate: Path) -> list[str]:
    """Return the DNS names of a certificate."""
    loaded = x509.load_pem_x509_certificate(certificate.read_bytes())
    held = loaded.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return held.get_values_for_type(x509.DNSName)


@pytest.mark.parametrize("files", [COMPOSE[:1], COMPOSE[:2], COMPOSE[::2], COMPOSE], ids=["cpu", "gpu", "plain", "all"])
def test_compose_file_is_valid(files: tuple[Path, ...]) -> None:
    """Compose accepts the file alone, and with those for GPUs and for no TLS on top."""
    run(*compose_command(), *(word for file in files for word in ("-f", str(file))), "config", "-q")


def test_every_knob_is_documented_with_its_default() -> None:
    """.env.example names each variable of the compose files once, with the value it has when it is not set."""
    text = "".join(file.read_text() for file in COMPOSE)
    used = {name: default for name, default in VARIABLE.findall(text)}
    assert set(re.findall(r"\$\{([A-Z_]+)", text)) == used.keys(), "a variable without a default"
    documented = dict(KNOB.findall((ROOT / ".env.example").read_text()))
    documented.pop("COMPOSE_FILE")
    assert documented == used


def gpu_services() -> dict[str, Any]:
    """Return the settings that docker-compose.gpu.yml changes or adds, of each service."""
    found: dict[str, Any] = yaml.safe_load(COMPOSE[1].read_text())["services"]
    return found


def test_learner_of_the_file_for_gpus_ends_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks for `cuda`, after torchrun's two words, where `auto` would train on the CPU; a person may override it."""
    entrypoint = gpu_services()["learner"]["entrypoint"]
    assert entrypoint[:5] == ["python", "-m", "tidemill.services.learner.torchrun", "gpu", "5"]
    words = [*entrypoint[5:], *words_of(services()["learner"])]
    assert load_as("learner", words, monkeypatch).learner.device == "cuda"
    assert load_as("learner", [*words, "--learner.device", "cpu"], monkeypatch).learner.device == "cpu"


@pytest.mark.parametrize("name", ["inference", *FURTHER])
def test_inference_service_of_the_file_for_gpus_ends_without_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the command of a CPU's and asks for `cuda`; a person may override it."""
    command = gpu_services()[name]["command"]
    assert command == f"--inference.device cuda {services()[name]['command']}"
    words = words_of(services()[name] | {"command": command})
    assert load_as("inference", words, monkeypatch).inference.device == "cuda"
    assert load_as("inference", [*words, "--inference.device", "cpu"], monkeypatch).inference.device == "cpu"


def test_container_of_gpus_has_the_memory_that_nccl_and_cuda_need() -> None:
    """Locked and shared memory, no NUMA probe, and a limit for eight GPUs beside what a learner on a CPU has."""
    learner = gpu_services()["learner"]
    assert learner["ulimits"] == {"memlock": -1}
    assert learner["environment"]["NCCL_CUMEM_HOST_ENABLE"] == "0"
    assert learner["mem_limit"] == f"${{TIDEMILL_GPU_LEARNER_MEMORY:-{16 + 8 * 8}g}}"


def test_learner_has_all_gpus_of_the_machine_or_those_that_are_named() -> None:
    """Not by `device_ids`: an engine that gives GPUs by CDI alone takes "0,1" for the name of one."""
    for service in gpu_services().values():
        assert service["deploy"]["resources"]["reservations"]["devices"] == [
            {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
        ]
    learner, inference = gpu_services()["learner"], gpu_services()["inference"]
    assert with_defaults(inference["environment"]["CUDA_VISIBLE_DEVICES"]) == "0"
    named = with_defaults(learner["environment"]["CUDA_VISIBLE_DEVICES"])
    assert named == ",".join(map(str, range(16)))
    assert "${TIDEMILL_GPUS:-" in learner["environment"]["CUDA_VISIBLE_DEVICES"]


@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_each_gpu_has_an_inference_service_with_the_profile_for_so_many(
    gpus: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They differ in the GPU alone; actors, who are told as operations.md says, know them by their certificate."""
    names = [name for name, service in services().items() if f"inference-{gpus}-gpus" in service.get("profiles", [])]
    assert names == ["inference", *FURTHER[: gpus - 1]]
    changes = [dict(gpu_services()[name]) for name in names]
    seen = [with_defaults(change.pop("environment")["CUDA_VISIBLE_DEVICES"]) for change in changes]
    assert seen == [str(gpu) for gpu in range(gpus)]
    assert all(change == changes[0] for change in changes)
    first = services()["inference"]
    assert all(services()[name] | {"profiles": first["profiles"]} == first for name in names)
    guide = (ROOT / "docs/operations.md").read_text()
    assert f"inference-{gpus}-gpus" in guide
    addresses = shlex.split(re.findall(r'TIDEMILL_ACTOR_ARGS="(--cluster.inference [^"]*inference-3[^"]*)"', guide)[0])
    told = load_as("actor", [*words_of(services()["actor"]), *addresses], monkeypatch).cluster.inference
    assert told == tuple(f"{name}:7406" for name in ("inference", *FURTHER[:3]))
    assert certs([str(tmp_path), "--services"]) == 0
    assert set(names) <= set(server_names(tmp_path / "inference" / "server.pem"))
    assert not set(FURTHER) & set(server_names(tmp_path / "replay" / "server.pem"))


def test_prometheus_finds_every_inference_service() -> None:
    """By an alias that all have; `inference` is the first of them alone, as actors are told of it."""
    jobs = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())["scrape_configs"]
    (job,) = [job for job in jobs if job["job_name"] == "inference"]
    for name in ("inference", *FURTHER):
        assert services()[name]["networks"]["cluster"]["aliases"] == job["dns_sd_configs"][0]["names"]


def test_guide_says_what_another_shard_has_of_its_own() -> None:
    """Blocks of shards differ in a number that a copy has to change, in the plain file as well.

    The copy is in the same file: its anchors are not known in an override file.
    """
    guide = (ROOT / "docs/operations.md").read_text().partition("\n### Replay shards\n")[2].partition("\n## ")[0]
    for file in (COMPOSE[0], COMPOSE[2]):
        text = file.read_text()
        first, second = (yaml.safe_load(text)["services"][f"replay-{n}"]["entrypoint"] for n in (0, 1))
        (place,) = (i for i, (one, other) in enumerate(zip(first, second, strict=True)) if one != other)
        assert second[place] == "1"
        assert f'`{second[place - 1]} "2"`' in guide
        assert f"`{file.name}`" in guide
        (block,) = re.findall(r"^  replay-1:\n(?:    .*\n)+", text, re.MULTILINE)
        copy = block.replace("replay-1", "replay-2").replace('"1"', '"2"')
        third = yaml.safe_load(text.replace(block, block + copy))["services"]["replay-2"]
        assert third["entrypoint"] == [*second[:place], "2", *second[place + 1 :]]
    assert "override file" not in guide


def test_image_for_gpus_states_the_cuda_that_it_holds() -> None:
    """The container toolkit compares it with the driver's; the documents name the driver and the GPUs for it."""
    dockerfile = (ROOT / "deploy/Dockerfile").read_text()
    (held,) = re.findall(
        r"^cuda-toolkit==(\d+)\.", (ROOT / "deploy/requirements/torch-cuda.txt").read_text(), re.MULTILINE
    )
    stage = dockerfile.partition("FROM learn AS learn-cuda\n")[2].partition("\nFROM")[0]
    assert stage.strip() == f'ENV NVIDIA_REQUIRE_CUDA="cuda>={held}.0"'
    assert "FROM learn-${TORCH} AS runtime-learn" in dockerfile
    driver, capability = DRIVERS[int(held)], CAPABILITIES[int(held)]
    for name in (
        "README.md",
        "docs/operations.md",
        "docs/troubleshooting.md",
        ".env.example",
        "docker-compose.gpu.yml",
    ):
        text = " ".join((ROOT / name).read_text().replace("#", " ").split())
        assert f"driver {driver} or newer" in text, name
        assert name == "docs/troubleshooting.md" or f"capability {capability[0]}.{capability[1]} or newer" in text, name


def test_only_what_a_person_opens_is_published() -> None:
    """Four ports, on loopback; Tidemill's own services are on a network without a way in or out."""
    published = {name: service["ports"] for name, service in services().items() if "ports" in service}
    assert published.keys() == {"page", "tensorboard", "prometheus", "grafana"}
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)
    assert yaml.safe_load(COMPOSE[0].read_text())["networks"]["cluster"] == {
        "internal": True,
        "driver_opts": {"com.docker.network.bridge.inhibit_ipv4": "true"},
    }
    for name in (*OURS, "operator"):
        assert list(services()[name]["networks"]) == ["cluster"], name
    assert services()["certs"]["network_mode"] == services()["check"]["network_mode"] == "none"


def test_folders_of_this_machine_are_labelled_for_containers() -> None:
    """Where SELinux confines containers, they read no folder without a label of theirs."""
    mounts = [with_defaults(mount) for service in services().values() for mount in service.get("volumes", [])]
    folders = [mount for mount in mounts if mount.startswith((".", "/"))]
    assert len(folders) > 10
    assert [mount for mount in folders if "z" not in mount.rpartition(":")[2].split(",")] == []


def test_two_stacks_share_a_machine() -> None:
    """Every name begins with the project's, and every published port can be set."""
    document = yaml.safe_load(COMPOSE[0].read_text())
    for kind in ("networks", "volumes", "secrets"):
        assert not [name for name, settings in document[kind].items() if settings and "name" in settings], kind
    assert not [name for name, service in services().items() if service.get("network_mode") == "host"]
    for service in services().values():
        for port in service.get("ports", []):
            assert re.match(r"127\.0\.0\.1:\$\{TIDEMILL_[A-Z]+_PORT:-\d+\}:", port), port


def test_second_stack_has_another_port_wherever_the_first_has_one() -> None:
    """The example sets each published port, and each knob whose default has that port in an address."""
    knobs = dict(VARIABLE.findall(COMPOSE[0].read_text()))
    section = (ROOT / "docs/operations.md").read_text().partition("\n## Two runs on one box\n")[2]
    example = dict(re.findall(r"^(\w+)=(.*)$", section.partition("```ini\n")[2].partition("```")[0], re.MULTILINE))
    for name, port in ((name, default) for name, default in knobs.items() if name.endswith("_PORT")):
        assert example[name] != port
        moved = {
            knob: default.replace(f":{port}/", f":{example[name]}/")
            for knob, default in knobs.items()
            if f":{port}/" in default
        }
        assert moved.items() <= example.items()


@pytest.mark.parametrize("path", DASHBOARDS, ids=[path.stem for path in DASHBOARDS])
def test_dashboard_shows_the_run_that_is_chosen(path: Path) -> None:
    """Each series of a process is limited to it; what Prometheus makes itself knows no run."""
    document = load(path)
    _, variable = document["templating"]["list"]
    assert (variable["name"], variable["definition"]) == ("run", "label_values(tidemill_build_info, run)")
    assert all(link["includeVars"] for link in document["links"])
    for panel in document["panels"]:
        for target in panel["targets"]:
            expression = re.sub(r"by \([^)]*\)", "", target["expr"])
            names = re.findall(
                r"\b((?:tidemill|process|python|grpc_server)[\w:]*|\w+:tidemill_[\w:]+)(?=[\s{\[)]|$)", expression
            )
            unlimited = [n for n in names if not re.search(rf'{n}\{{[^}}]*run=~"\$run"', expression)]
            assert unlimited in ([], ["job:tidemill_up:sum"], ["job:tidemill_expected:max"]), panel["title"]


def test_every_service_is_confined() -> None:
    """No root file system to write to, no capability, no new privilege, a memory limit, a way to come back."""
    for name, service in services().items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["mem_limit"], name
        # `on-failure` forgets what ended well because the engine did, and starts what a person has stopped
        assert service["restart"] == ("no" if name in ("certs", "check", "operator") else "unless-stopped"), name
        assert "container_name" not in service, name


@pytest.mark.parametrize("name", OURS)
def test_compose_command_is_understood(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each service accepts its command line, keeps the run in its volume and finds the others by their names."""
    service = services()[name]
    config = load_as(name.partition("-")[0], words_of(service), monkeypatch)
    assert config.run.root == "/runs"
    if name in ("learner", "evaluator"):
        assert config.run.supervisor == "engine"
    if name == "actor":
        assert config.actor.count == int(with_defaults(str(service["scale"])))
        assert config.actor.index_from_dns
    if name.startswith("replay"):
        assert f"replay-{config.replay.shard}" == name
        assert config.replay.shards == 2
    elif name != "paramserver":
        assert config.cluster.params == "paramserver:7402"
        assert name in ("evaluator", "inference") or config.cluster.replay == ("replay-0:7401", "replay-1:7401")


@pytest.mark.parametrize("name", OURS)
def test_compose_service_is_secured(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What others reach has TLS and tokens, who calls others has a CA and a token, and only metrics are plain."""
    service = services()[name]
    kind = name.partition("-")[0]
    config = load_as(kind, words_of(service), monkeypatch)
    check_secured(kind, getattr(config, kind).server, service.get("environment", {}))
    assert service["depends_on"]["certs"] == {"condition": "service_completed_successfully"}
    assert service["depends_on"]["check"] == {"condition": "service_completed_successfully"}


def test_settings_of_every_service_are_checked_together() -> None:
    """Those that a variable adds to any of them, and the addresses that they call; it makes the run's config.yaml."""
    command = services()["check"]["command"]
    for name in OURS:
        kind = name.partition("-")[0].upper()
        assert f"${{TIDEMILL_{kind}_ARGS:-}}" in services()[name]["command"]
        assert f"${{TIDEMILL_{kind}_ARGS:-}}" in command
    words = shlex.split(with_defaults(command))
    config = load_config(RunConfig, words, prog="check", description="")
    assert config.run.root == "/runs"
    assert len(config.cluster.replay) == config.replay.shards == 2
    assert "runs:/runs" in services()["check"]["volumes"]


def test_every_service_has_the_same_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its default batch has an item of each environment of all actors, so each service knows how many there are."""
    words = {name: words_of(services()[name]) for name in ("learner", "actor", "evaluator", "inference")}
    words["page"] = words_of(services()["check"] | {"entrypoint": []})  # `check` reads all sections, as a page does
    agents = {}
    for name, own in words.items():
        own[own.index("--config") + 1] = "configs/pendulum_ppo.yaml"
        agents[name] = load_as(name, own, monkeypatch).agent
    assert agents["page"].batch_size == 2 * 4
    assert agents == dict.fromkeys(agents, agents["page"])


@pytest.mark.parametrize("name", ["actor", "inference", "evaluator"])
def test_parameters_are_read_from_the_volume_that_the_server_writes(name: str) -> None:
    """At the path where each looks for them; actors and inference services cannot write there."""
    reader = services()[name]
    assert ("runs:/runs" if name == "evaluator" else "runs:/runs:ro") in reader["volumes"]
    assert "runs:/runs" in services()["paramserver"]["volumes"]
    assert all("--run.root /runs " in services()[each]["command"] for each in (name, "paramserver"))


def test_images_leave_threads_of_learners_and_disks_of_actors_alone() -> None:
    """A container has volumes where the compose file says so, and one OpenMP thread only where many share a machine."""
    stages = re.split(r"^FROM ", (ROOT / "deploy/Dockerfile").read_text(), flags=re.MULTILINE)[1:]
    parents = {stage.split()[2]: stage.split()[0] for stage in stages}
    bodies = {stage.split()[2]: stage for stage in stages}

    def text(name: str) -> str:
        return bodies[name] + (text(parents[name]) if parents.get(name) in bodies else "")

    assert not any(re.search(r"^VOLUME", body, re.MULTILINE) for body in bodies.values())
    single = {name for name in ("learner", "actor", "inference", "evaluator") if "OMP_NUM_THREADS=1" in text(name)}
    assert single == {"actor", "inference", "evaluator"}


def test_images_hold_no_compiler() -> None:
    """The wheel is built in a separate stage; a learner on a GPU records graphs, which needs no compiler."""
    stages = re.split(r"^FROM ", (ROOT / "deploy/Dockerfile").read_text(), flags=re.MULTILINE)[1:]
    installing = [stage.split()[2] for stage in stages if re.search(r"apt-get|gcc|g\+\+|build-essential", stage)]
    assert installing == ["wheel"]
    assert not [stage for stage in stages if stage.split()[0] == "wheel"]


def test_compose_service_has_its_own_secrets_alone() -> None:
    """Each mounts one volume of certificates, to read, at the path that all use; `certs` alone writes them."""
    mounts = {
        name: [mount for mount in service.get("volumes", []) if mount.startswith("certs")]
        for name, service in services().items()
    }
    shares = {f"certs-{name}" for name in SERVICES}
    assert set(mounts.pop("certs")) == {"certs:/certs"} | {f"{share}:/certs/{share[6:]}" for share in shares}
    assert mounts.pop("page") == mounts["operator"]
    for name in (*OURS, *FURTHER, "operator"):
        kind = name.partition("-")[0]
        assert mounts.pop(name) == [f"certs-{kind}:/certs:ro"], name
    assert not any(mounts.values())
    assert shares | {"certs"} == {
        name for name in yaml.safe_load(COMPOSE[0].read_text())["volumes"] if name.startswith("certs")
    }


def test_certificates_are_made_for_the_names_that_services_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the command of the service `certs`; the operator's address of the learner is one of them, too."""
    words = shlex.split(with_defaults(services()["certs"]["command"]))
    monkeypatch.chdir(ROOT)
    assert words[:2] == ["certs", "/certs"]
    assert certs([str(tmp_path), *words[2:]]) == 0
    kinds = ("replay", "paramserver", "learner", "inference")
    names = {kind: server_names(tmp_path / kind / "server.pem") for kind in kinds}
    learner = load_as("learner", words_of(services()["learner"]), monkeypatch)
    called = [
        *learner.cluster.replay,
        learner.cluster.params,
        services()["operator"]["environment"]["TIDEMILL_LEARNER"],
        "inference:7406",  # as docker-compose.yml tells a person to
    ]
    for address in called:
        host = address.partition(":")[0]
        assert host in names[host.partition("-")[0]]


@pytest.mark.parametrize("has_gpus", [False, True], ids=["cpu", "gpu"])
def test_file_without_tls_takes_nothing_else_away(has_gpus: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It replaces where experience and parameters are served and read, and leaves the rest as it is."""
    plain = yaml.safe_load(COMPOSE[2].read_text())["services"]
    excepted = with_defaults(plain.pop("page")["environment"]["TIDEMILL_TLS_EXCEPT"]).split()
    called = shlex.split(with_defaults(services()["page"]["command"]))
    at = {name: called.index(f"--cluster.{name}") for name in ("replay", "params", "learner")}
    assert excepted == [*called[at["replay"] + 1 : at["params"]], called[at["params"] + 1]]
    assert plain.keys() == {*OURS, *FURTHER}
    for name, changes in plain.items():
        if "entrypoint" not in changes:
            assert changes == {"environment": {"TIDEMILL_TLS_CA": "", "TIDEMILL_TOKEN_FILE": ""}}, name
            continue
        kind, base = name.partition("-")[0], services()[name] | (gpu_services().get(name, {}) if has_gpus else {})
        changed = load_as(kind, words_of(base | changes), monkeypatch)
        secured = load_as(kind, words_of(base), monkeypatch)
        own = replace(getattr(secured, kind).server, tls_cert="", tls_key="", tokens="", insecure=True)
        section = replace(getattr(secured, kind), server=own)
        assert changed == replace(secured, **{kind: section}), name


def test_page_asks_every_process_of_the_default_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """And those that a variable adds: further shards, inference services under the alias that all have."""
    command = services()["page"]["command"]
    asked = load_as("page", shlex.split(with_defaults(command))[2:], monkeypatch).launcher.endpoints
    assert sorted(asked) == sorted(f"{name}:9400" for name in OURS if name != "inference")
    words = shlex.split(with_defaults(command.replace("${TIDEMILL_PAGE_ENDPOINTS:-}", "inference-services:9400")))
    assert load_as("page", words[2:], monkeypatch).launcher.endpoints == (*asked, "inference-services:9400")


@pytest.mark.parametrize("password", [None, "\n", "secret\n"])
def test_grafana_does_not_start_without_a_password_that_it_can_read(password: str | None, tmp_path: Path) -> None:
    """It would silently take `admin`, which everybody knows."""
    file = tmp_path / "password"
    if password is not None:
        file.write_text(password)
    ended = _grafana_started(file, tmp_path)
    assert (ended.returncode == 0, ended.stdout) == ((True, "started\n") if password == "secret\n" else (False, ""))
    assert ("TIDEMILL_GRAFANA_PASSWORD_FILE" in ended.stderr) == (password != "secret\n")


@pytest.mark.parametrize("own", ["", "/secure/password"])
@pytest.mark.parametrize("works", [True, False])
def test_grafana_takes_a_password_that_is_set_after_its_first_start(own: str, works: bool, tmp_path: Path) -> None:
    """It reads the file for a new database only. The public password never replaces one that was set by hand.

    Where it is refused, as one that is too short, Grafana starts and the log says which password is valid.
    """
    file, given = tmp_path / "password", tmp_path / "given"
    file.write_text("secret\n")
    (tmp_path / "grafana").write_text(f'#!/bin/sh\necho "$@" >{given}; cat >>{given}; exit {0 if works else 1}\n')
    (tmp_path / "grafana").chmod(0o755)
    assert _grafana_started(file, tmp_path, own).stdout == "started\n"
    assert not given.exists()
    (tmp_path / "grafana.db").touch()
    ended = _grafana_started(file, tmp_path, own)
    assert (ended.returncode, ended.stdout) == (0, "started\n")
    assert given.exists() == bool(own)
    assert not own or given.read_text() == "cli admin reset-admin-password --password-from-stdin\nsecret\n"
    assert ("earlier password" in ended.stderr) == (bool(own) and not works)


def _grafana_started(file: Path, data: Path, own: str = "") -> subprocess.CompletedProcess[str]:
    """Run Grafana's entrypoint with a folder that holds its database and a program in its place."""
    words = [word.replace("$$", "$").replace("/run.sh", "echo started") for word in services()["grafana"]["entrypoint"]]
    environment = {
        "PATH": f"{data}:{os.environ['PATH']}",
        "GF_PATHS_DATA": str(data),
        "GF_SECURITY_ADMIN_PASSWORD__FILE": str(file),
        "TIDEMILL_GRAFANA_PASSWORD_FILE": own,
    }
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=60)


def test_upgrade_replaces_servers_before_clients() -> None:
    """The page names every service with an image of ours, servers of actors first; all images are built before."""
    page = (ROOT / "docs/operations.md").read_text()
    (block,) = re.findall(r"```bash\n(docker compose[^`]*up -d --no-deps[^`]*)```", page)
    first, *steps = block.splitlines()
    replaced = [name for step in steps for name in step.partition("--no-deps ")[2].partition("#")[0].split()]
    assert sorted(replaced) == sorted((*OURS, "page", "tensorboard"))
    servers = [name for name in replaced if "tokens.txt" in str(services()[name].get("entrypoint"))]
    assert replaced[: len(servers)] == servers
    assert first == f"docker compose --profile {services()['inference']['profiles'][0]} build"


def test_prometheus_reads_the_rules_of_a_new_release() -> None:
    """Compose leaves a container alone whose mounted files change; without this it keeps the rules of its start."""
    assert "./deploy/prometheus:/etc/prometheus:ro,z" in services()["prometheus"]["volumes"]
    assert "--enable-feature=auto-reload-config" in services()["prometheus"]["command"]


def test_images_are_asked_for_their_health_cheaply_and_alike() -> None:
    """One script, run by Python without its packages, asks every process of ours for /healthz beside its metrics."""
    dockerfile = (ROOT / "deploy/Dockerfile").read_text()
    probe = ["python", "-I", "-S", "/opt/health_probe.py"]
    checks = [json.loads(words) for words in re.findall(r"HEALTHCHECK [^\n]*\n  CMD (\[.*\])", dockerfile)]
    assert checks == [[*probe, f"127.0.0.1:9400{HEALTH_PATH}"]] * 6
    assert services()["tensorboard"]["healthcheck"]["test"][:5] == ["CMD", *probe]


def test_proxy_of_docker_stands_between_no_containers() -> None:
    """Docker may set its variables in each container; wget would ask it for that container, Grafana for Prometheus."""
    read_by_wget, read_by_go = "http_proxy", "HTTP_PROXY"
    askers = {name for name, service in services().items() if "wget" in service.get("healthcheck", {}).get("test", ())}
    assert askers == {"prometheus", "grafana"}
    assert all(services()[name]["environment"][read_by_wget] == "" for name in askers)
    assert services()["grafana"]["environment"][read_by_go] == ""


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_panel_says_what_it_shows(path: Path) -> None:
    """Each panel has a title, a description, a unit, and queries to the data source that is chosen; none overlap."""
    dashboard = load(path)
    assert dashboard["uid"] == f"tidemill-{path.stem}"
    source, *variables = dashboard["templating"]["list"]
    assert (source["name"], source["type"], source["query"]) == ("datasource", "datasource", "prometheus")
    chosen = {"type": "prometheus", "uid": "${datasource}"}
    assert all(each["datasource"] == chosen for each in (*variables, *dashboard["panels"]))
    cells: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        assert panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["targets"], panel["title"]
        assert all(target["datasource"] == chosen for target in panel["targets"]), panel["title"]
        place = panel["gridPos"]
        own = {(place["x"] + i, place["y"] + j) for i in range(place["w"]) for j in range(place["h"])}
        assert not own & cells, panel["title"]
        assert max(x for x, _ in own) < 24
        cells |= own


def test_overview_says_training_only_while_there_is_a_learner(tmp_path: Path) -> None:
    """A run that has ended says how, where its learner stays; on Kubernetes it is gone, and nothing is said."""
    panels = load(ROOT / "deploy/grafana/dashboards/overview.json")["panels"]
    (panel,) = (panel for panel in panels if panel["title"] == "Run")
    expression, tests = panel["targets"][0]["expr"].replace("$run", "one"), []
    for series, end in (
        ('tidemill_learner_steps_total{run="one"}', "training"),
        ('tidemill_run_end_info{run="one", end="target reached"}', "target reached"),
    ):
        shown = {"expr": expression, "eval_time": "1m", "exp_samples": [{"labels": f'{{end="{end}"}}', "value": 1}]}
        gone = {"expr": expression, "eval_time": "9m", "exp_samples": []}
        inputs = [{"series": series, "values": "1x4 stale"}]
        tests.append({"input_series": inputs, "promql_expr_test": [shown, gone]})
    (tmp_path / "overview.yml").write_text(yaml.safe_dump({"tests": tests}))
    run("promtool", "test", "rules", str(tmp_path / "overview.yml"))


def test_overview_shows_the_numbers_of_the_newest_process(tmp_path: Path) -> None:
    """Those of a pod that was replaced, or of a deleted run of the name, may be larger; all are gone after the end."""
    panels = load(ROOT / "deploy/grafana/dashboards/overview.json")["panels"]
    tiles = {panel["title"]: panel["targets"][0]["expr"] for panel in panels if panel["type"] == "stat"}
    tests = []
    for title, name in (
        ("Newest score", "tidemill_evaluator_return_mean"),
        ("Best score", "tidemill_evaluator_best_return_mean"),
        ("Environment steps", "tidemill_learner_env_steps"),
    ):
        inputs = [
            {"series": f'{each}{{run="one", job="a", instance="{instance}"}}', "values": values}
            for instance, value, start, when in (("old", 480, 1, "{}x4 stale"), ("new", 300, 2, "_x6 {}x4 stale"))
            for each, values in (
                (name, when.format(value)),
                ("process_start_time_seconds", when.format(start)),
            )
        ]
        expression = tiles[title].replace("$run", "one")
        shown = [
            {"expr": expression, "eval_time": when, "exp_samples": [{"labels": "{}", "value": value}]}
            for when, value in (("2m", 480), ("5m", 480), ("9m", 300), ("1h", 300))
        ]
        tests.append({"input_series": inputs, "promql_expr_test": shown})
    (tmp_path / "overview.yml").write_text(yaml.safe_dump({"tests": tests}))
    run("promtool", "test", "rules", str(tmp_path / "overview.yml"))


@pytest.mark.parametrize("job, lag", [("actor", 0), ("inference", 93)])
def test_panel_of_parameters_leaves_out_a_process_that_has_none_yet(job: str, lag: int, tmp_path: Path) -> None:
    """It seemed to be as many versions behind as there were."""
    (file,) = (ROOT / "deploy/grafana/dashboards").glob(f"{job}*.json")
    (panel,) = (panel for panel in load(file)["panels"] if panel["title"] == "Parameters")
    name = f"tidemill_{job}_params_version"
    acts = '{process="a", run="one"}' if lag else f'{name}{{process="a", run="one"}}'
    inputs = [
        {"series": f'{series}{{{process}run="one"}}', "values": f"{value}x4"}
        for series, process, value in (
            ("tidemill_paramserver_latest_version", "", 100),
            (name, 'process="a", ', 7),
            (name, 'process="b", ', 0),
        )
    ]
    shown = {
        "expr": panel["targets"][0]["expr"].replace("$run", "one"),
        "eval_time": "1m",
        "exp_samples": [{"labels": acts, "value": lag or 7}],
    }
    tests = [{"input_series": inputs, "promql_expr_test": [shown]}]
    (tmp_path / "panel.yml").write_text(yaml.safe_dump({"tests": tests}))
    run("promtool", "test", "rules", str(tmp_path / "panel.yml"))


def test_share_of_the_samples_is_over_all_learners(tmp_path: Path) -> None:
    """Two that draw as much from each of two shards: each shard gives half."""
    panels = load(ROOT / "deploy/grafana/dashboards/replay.json")["panels"]
    (panel,) = (panel for panel in panels if panel["title"] == "Share of the samples")
    name = "tidemill_learner_shard_samples_total"
    inputs = [
        {"series": f'{name}{{run="one", process="{rank}", shard="{shard}"}}', "values": "0+9x30"}
        for rank in "ab"
        for shard in "01"
    ]
    shares = [{"labels": f'{{shard="{shard}"}}', "value": 0.5} for shard in "01"]
    shown = {"expr": panel["targets"][0]["expr"].replace("$run", "one"), "eval_time": "5m", "exp_samples": shares}
    tests = [{"interval": "15s", "input_series": inputs, "promql_expr_test": [shown]}]
    (tmp_path / "panel.yml").write_text(yaml.safe_dump({"tests": tests}))
    run("promtool", "test", "rules", str(tmp_path / "panel.yml"))


def test_prometheus_takes_its_files() -> None:
    """Promtool finds nothing wrong with configuration and rules, and the tests of the rules pass."""
    run("promtool", "check", "config", "--syntax-only", "deploy/prometheus/prometheus.yml")
    run("promtool", "check", "rules", *map(str, RULES))
    run("promtool", "test", "rules", *map(str, sorted((ROOT / "deploy/prometheus/tests").glob("*.yml"))))


def test_every_alert_is_explained_and_tested() -> None:
    """An alert has a severity, a chapter in the operations guide and a promtool test that lets it fire."""
    guide = (ROOT / "docs/operations.md").read_text()
    tested = yaml.safe_load((ROOT / "deploy/prometheus/tests/alerts.yml").read_text())["tests"]
    fired = {check["alertname"] for case in tested for check in case["alert_rule_test"] if check["exp_alerts"]}
    alerts = [rule for rule in rules() if "alert" in rule]
    for rule in alerts:
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert f"### {rule['alert']}\n" in guide
        chapter = f"{{{{ $externalLabels.docs }}}}#{rule['alert'].lower()}"
        assert rule["annotations"]["runbook_url"] == chapter
    assert fired == {rule["alert"] for rule in alerts}
