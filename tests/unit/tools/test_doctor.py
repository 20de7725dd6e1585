"""The checks of `tidemill doctor`: what each says of a machine where something is missing, and what to do."""

from __future__ import annotations

import datetime
import os
import resource
from pathlib import Path

import pytest

from tests.support.closed_folder import deny
from tidemill import container_limits, linux
from tidemill.installation import how_to_repair
from tidemill.services.tools import certs
from tidemill.services.tools.doctor import machine, software
from tidemill.services.tools.doctor.finding import says


@pytest.fixture(name="programs")
def _programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that is the whole PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def _program(folder: Path, name: str, script: str) -> None:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


def test_program_that_is_missing_or_fails_says_nothing(programs: Path) -> None:
    """A check continues without it."""
    _program(programs, "fails", "echo something; exit 3")
    _program(programs, "works", "echo ' something '")
    assert (says("no-such-program"), says("fails"), says("works")) == (None, None, "something")


@pytest.mark.parametrize(
    "requirement, is_met",
    [
        ("pytest>=1", True),
        ("pytest>=1.0.0,<999", True),
        ('pytest>=999; extra == "learn"', False),
        ("pytest<1,>=0.1", False),
        ("pytest<1.0", False),
        (f"pytest>={pytest.__version__}", True),
        (f"pytest<{pytest.__version__}", False),
        ("pytest", True),
        ("no-such-package>=1", True),
    ],
)
def test_package_of_another_version_fails(requirement: str, is_met: bool) -> None:
    """It says which one is there, which is needed, and how to get it; what is not installed is reported elsewhere."""
    found = software.outside_bounds([requirement])
    assert [finding.mark for finding in found] == ([] if is_met else ["FAIL"])
    assert is_met or found[0].advice == how_to_repair(requirement.partition(";")[0])
    assert is_met or pytest.__version__ in found[0].text


def test_docker_is_asked_for_client_plugin_and_engine(programs: Path) -> None:
    """Each has its own remedy."""
    assert software.docker()[0].text == "no Docker: only `docker compose up` needs it"
    _program(programs, "docker", '[ "$1" = version ]')
    assert software.docker()[0].text == "Docker has no compose plugin"
    _program(programs, "docker-compose", "echo 2.35")
    assert software.docker()[0].text == "no Docker engine answers"
    _program(programs, "docker", "echo 28.1.0")
    assert (software.docker()[0].mark, software.docker()[0].text) == ("ok", "Docker engine 28.1.0 with compose")


def test_folders_that_containers_cannot_read_are_noted(tmp_path: Path) -> None:
    """As those of a checkout that was made under a strict umask; another folder than a checkout is not looked at."""
    assert software.closed_to_containers(tmp_path) == []
    _checkout(tmp_path)
    (tmp_path / "deploy/grafana/dashboards").chmod(0o700)
    (tmp_path / "configs" / "a.yaml").touch(mode=0o600)
    (finding,) = software.closed_to_containers(tmp_path)
    assert finding.mark == "note"
    assert "`chmod -R go+rX configs deploy/grafana/dashboards`" in finding.advice
    (tmp_path / "deploy/grafana/dashboards").chmod(0o755)
    (tmp_path / "configs" / "a.yaml").chmod(0o644)
    assert software.closed_to_containers(tmp_path) == []


def test_folder_that_keeps_out_other_users_is_left_so_where_no_container_needs_it(tmp_path: Path) -> None:
    """As that of Grafana's password, which is a mounted file of another name."""
    _checkout(tmp_path)
    (tmp_path / "deploy/grafana/private").mkdir(mode=0o700)
    assert software.closed_to_containers(tmp_path) == []


def test_file_that_vanishes_meanwhile_is_not_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an editor's, between the list of a folder and the look at the file."""
    _checkout(tmp_path)
    monkeypatch.setattr(Path, "rglob", lambda folder, _: [folder / "gone"])
    assert software.closed_to_containers(tmp_path) == []


def _checkout(folder: Path) -> None:
    """Make what containers of Compose read, open to all users."""
    grafana = folder / "deploy/grafana"
    mounted = ("configs", "docs", "deploy/prometheus", "deploy/grafana/provisioning", "deploy/grafana/dashboards")
    for path in (folder / name for name in mounted):
        path.mkdir(parents=True)
        path.chmod(0o755)
    (grafana / "admin-password.example").touch()
    (grafana / "admin-password.example").chmod(0o644)


@pytest.mark.parametrize(
    "answer, expected", [("yes", ["the clock is synchronised"]), ("no", ["the clock is not synchronised"]), ("", [])]
)
def test_clock_is_asked_of_the_system(programs: Path, answer: str, expected: list[str]) -> None:
    """A machine without a service for it says nothing."""
    _program(programs, "timedatectl", f"echo {answer}")
    assert [finding.text for finding in machine.clock()] == expected


def test_few_open_files_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hard limit of this process is what a server would have."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (512, 2048))
    finding = machine.open_files()[0]
    assert (finding.mark, finding.text) == ("note", "2048 open files per process")
    assert "ulimit -n 65536" in finding.advice


@pytest.mark.parametrize("available, can_fork, marks", [(True, True, []), (True, False, ["note"]), (False, False, [])])
def test_services_that_cannot_be_forked_are_noted(
    available: bool, can_fork: bool, marks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a newer Python or kernel would change that."""
    monkeypatch.setattr(linux, "AVAILABLE", available)
    monkeypatch.setattr(linux, "CAN_FORK", can_fork)
    assert [finding.mark for finding in machine.forking()] == marks


@pytest.mark.parametrize("gib, mark", [(1, "note"), (8, "ok")])
def test_little_memory_is_noted(tmp_path: Path, gib: int, mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the kernel says is available, not what is free; outside of a container."""
    monkeypatch.setattr(container_limits, "free_memory_bytes", lambda: None)
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(f"MemTotal: 99999999 kB\nMemFree: 1 kB\nMemAvailable: {gib * 1024**2} kB\n")
    finding = machine.memory(meminfo)[0]
    assert (finding.mark, finding.text) == (mark, f"{gib}.0 GiB of memory available")
    assert machine.memory(tmp_path / "none") == []


def test_certificates_are_read_for_how_long_they_last(tmp_path: Path) -> None:
    """Those that end soon are noted, those that ended or cannot be read fail; keys are not taken for certificates."""
    folder = tmp_path / "certs"
    assert [finding.mark for finding in machine.certificates(folder)] == ["FAIL"]
    certs.make(folder)
    assert {finding.mark for finding in machine.certificates(folder)} == {"ok"}
    texts = " ".join(finding.text for finding in machine.certificates(folder))
    assert "server.pem is valid for 364 days" in texts
    assert ".key" not in texts
    (folder / "ca.pem").write_text("nothing")
    assert [finding.mark for finding in machine.certificates(folder)].count("FAIL") == 1

    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=350)
    soon = [finding for finding in machine.certificates(folder, later) if finding.mark == "note"]
    assert {Path(finding.text.split()[0]).name for finding in soon} == {"client.pem", "server.pem"}
    assert [f"certs {folder}` renews it" in finding.advice for finding in soon] == [True, True]


def test_advice_renews_the_certificate_that_ends(tmp_path: Path) -> None:
    """A service's has another command than that of the folder, and no command renews a CA."""
    folder = tmp_path / "certs"
    certs.make(folder)
    certs.make_services(folder)
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=certs.CA_DAYS - 1)
    advice = {
        Path(finding.text.split()[0]).relative_to(folder): finding.advice
        for finding in machine.certificates(folder, later)
    }
    assert f"certs {folder}` renews it" in advice[Path("server.pem")]
    assert f"certs {folder} --services` renews it" in advice[Path("replay", "server.pem")]
    for ca in (Path("ca.pem"), Path("learner", "ca.pem")):
        assert "a CA cannot be renewed" in advice[ca]


def test_advice_on_a_damaged_file_makes_the_same_one_again(tmp_path: Path) -> None:
    """The names of a server are lost with its certificate; a service's copy of the CA is not the CA."""
    folder = tmp_path / "certs"
    certs.make(folder)
    certs.make_services(folder)
    for file in ("server.pem", "client.pem", "learner/ca.pem"):
        (folder / file).write_text("nothing")
    found = machine.certificates(folder)
    advice = {Path(finding.text.split()[0]).relative_to(folder): finding.advice for finding in found}
    assert f"certs {folder}` with its --host and --shards renews it" in advice[Path("server.pem")]
    assert f"certs {folder}` renews it" in advice[Path("client.pem")]
    assert f"certs {folder} --services --keep` writes it again" in advice[Path("learner", "ca.pem")]
    certs.make_services(folder, keep=True)
    assert (folder / "learner" / "ca.pem").read_bytes() == (folder / "ca.pem").read_bytes()


def test_advice_on_a_server_s_machine_renews_where_the_ca_is(tmp_path: Path) -> None:
    """`tidemill certs` would make another CA here, which clients do not trust."""
    certs.make(tmp_path)
    certs.make_services(tmp_path)
    (tmp_path / "ca.key").unlink()
    (tmp_path / "server.pem").write_text("nothing")
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=certs.CERTIFICATE_DAYS)
    advice = {
        Path(finding.text.split()[0]).relative_to(tmp_path): finding.advice
        for finding in machine.certificates(tmp_path, later)
    }
    for file in (Path("server.pem"), Path("client.pem"), Path("replay", "server.pem")):
        assert "where ca.key is" in advice[file]


def test_disk_that_cannot_be_written_fails(tmp_path: Path) -> None:
    """Before a run would; the folder need not exist yet."""
    assert machine.disk(tmp_path / "runs" / "new")[0].mark in ("ok", "note")
    if os.getuid():
        tmp_path.chmod(0o500)
        assert machine.disk(tmp_path / "runs")[0].mark == "FAIL"


def test_folder_that_another_user_closed_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the disk, with the folder's name; what certificates are below it is not known."""
    deny(monkeypatch, closed := tmp_path / "closed")
    (finding,) = machine.disk(closed / "runs" / "new")
    assert (finding.mark, finding.text) == ("FAIL", f"{closed} cannot be written")
    (finding,) = machine.certificates(closed / "certs")
    assert (finding.mark, finding.text) == ("FAIL", f"no certificate is found in {closed / 'certs'}")


def test_folder_without_certificates_is_a_finding_if_it_was_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be mistyped; who names none may have none."""
    monkeypatch.chdir(tmp_path)
    assert [finding.mark for finding in machine.certificates(Path("cert"))] == ["FAIL"]
    assert machine.certificates(None) == []


@pytest.mark.parametrize("version, machine", [((3, 14, 0), "x86_64"), ((3, 13, 5), "aarch64")])
def test_box2d_is_not_advised_where_it_has_no_wheel(
    version: tuple[int, ...], machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Installing it there would mean compiling it."""
    monkeypatch.setattr("sys.version_info", version)
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "Box2D" else name)
    (finding,) = [each for each in software.packages() if "Box2D" in each.text]
    assert (finding.mark, finding.advice) == ("note", "")


def test_temporary_folder_with_a_long_path_is_as_good_as_a_run_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sockets are then elsewhere; only without any folder for them nothing can run."""
    long = tmp_path / ("x" * 80)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    (finding,) = machine.sockets()
    assert (finding.mark, str(long) in finding.text) == ("ok", False)
    monkeypatch.setattr("tidemill.services.launcher.run.paths._places", list)
    (finding,) = machine.sockets()
    assert (finding.mark, "TMPDIR" in finding.advice) == ("FAIL", True)
