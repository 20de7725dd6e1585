"""A run where the system around it is unusual: folders, the locale, proxies, small or read-only disks, IPv6, names."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.naming import naming
from tests.support.replay_service import ServerProcess
from tests.support.waiting import longest_wait_s

_ROOT = Path(__file__).resolve().parents[2]
_COMMAND = str(Path(sys.executable).with_name("tidemill"))
_SHORT = ("--config", "cartpole_dqn", "--run.max-env-steps", "500", "--table.min-size", "100", "--run.name", "a")


def _done(folder: Path, command: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        timeout=max(300.0, longest_wait_s()),
        check=False,
    )
    said = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, said
    return said


def _run(folder: Path, *words: str) -> str:
    odd = {
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "http_proxy": "http://nowhere.invalid:1",
        "grpc_proxy": "http://127.0.0.1:9",
    }
    return _done(folder, [_COMMAND, *words], odd)


def test_run_is_trained_exported_and_evaluated_anywhere(tmp_path: Path) -> None:
    """In a folder whose name has a space and a letter beyond ASCII, by a locale without any, behind a proxy."""
    folder = tmp_path / "my rüns"
    folder.mkdir()
    said = _run(folder, "train", *_SHORT)
    assert "Traceback" not in said
    exported = _run(folder, "export", "runs/a", "--out", "my pölicy")
    (again,) = (line for line in exported.splitlines() if line.startswith("Test it anywhere:"))
    words = shlex.split(again.partition(":")[2])
    assert words[-1] == "my pölicy"
    assert "2 episodes" in _run(folder, *words[1:], "--episodes", "2")


def test_clone_is_installed_and_trains_in_such_a_folder(tmp_path: Path) -> None:
    """`make` installs it from files that name its path; Python reads those as UTF-8 from 3.13, before by the locale."""
    clone, utf8 = tmp_path / "my clöne", {"LC_ALL": "C.UTF-8", "MAKEFLAGS": ""}
    _done(tmp_path, ["git", "clone", "--quiet", str(_ROOT), str(clone)], utf8)
    _done(clone, [sys.executable, "-m", "venv", "--without-pip", ".venv"], utf8)
    (installed,) = (clone / ".venv" / "lib").glob("python*/site-packages")
    (installed / "lent.pth").write_text(sysconfig.get_path("purelib"))  # pip finds there what it would install
    _done(clone, ["make", "TORCH=none", ".venv/.runtime"], utf8)
    assert str(clone) in _done(clone, [".venv/bin/python", "-c", "import tidemill; print(tidemill.__file__)"], utf8)
    said = _done(clone, [".venv/bin/tidemill", "train", "--config", "cartpole_dqn", "--run.max-env-steps", "500"], utf8)
    assert "Traceback" not in said
    assert (clone / "runs" / "cartpole_dqn" / "result.json").exists()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that is not below /tmp, where another disk is mounted."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        yield Path(name)


def _prepared(kind: str, prepare: str) -> list[str]:
    """Return the words before a command that is run in a namespace that a shell script has prepared.

    The test is skipped where no namespace can be made.
    """
    unshare = ["unshare", kind, "--"]
    if os.geteuid() != 0 or not shutil.which("unshare"):
        pytest.skip("takes root and unshare")
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no namespaces can be made here")
    return [*unshare, "sh", "-euc", f'{prepare}\nexec "$@"', "sh"]


def _trained(folder: Path, kind: str, prepare: str, *settings: str) -> str:
    """Train in a namespace that a shell script has prepared; return what was printed, and written to the logs.

    The script finds the folder of the run in $RUN.
    """
    command = [*_prepared(kind, prepare), _COMMAND, "train", *_SHORT, *settings]
    said = _done(folder, command, {"RUN": str(folder), "ROOT": str(_ROOT)})
    logs = "".join(log.read_text() for log in sorted((folder / "runs" / "a" / "logs").iterdir()))
    assert "Traceback" not in said + logs
    assert (folder / "runs" / "a" / "result.json").exists()
    return said + logs


# A checkout below /tmp is still there behind the disk that is mounted over it.
_SMALL_TMP = """
mkdir "$RUN/checkout"
mount --bind "$ROOT" "$RUN/checkout"
mount -t tmpfs -o size=64m small /tmp
case "$ROOT" in /tmp/*) mkdir -p "$ROOT"; mount --bind "$RUN/checkout" "$ROOT" ;; esac
umount "$RUN/checkout"
"""

_SMALL = f"""
{_SMALL_TMP}
mount -t tmpfs -o size=64m small /dev/shm
"""


def test_run_needs_little_of_tmp_and_of_shared_memory(folder: Path) -> None:
    """64 MB of each are enough for two learners with a mirror in common: it lies in neither, however large it is."""
    said = _trained(folder, "--mount", _SMALL, "--launcher.learners", "2")
    assert "sampling for the learners of this machine" in said


_READ_ONLY = f"""
mount --bind "$RUN" "$RUN"
cd "$RUN"
chown 54321:54321 "$RUN"
{_SMALL_TMP}
mount -o remount,bind,ro /
if touch /root/written 2>/dev/null; then echo "the root can be written" >&2; exit 1; fi
umask 077
unset HOME USER LOGNAME
# It may read everything, for the interpreter may lie in a home of root's, and write as any other user.
may_read="--inh-caps -all,+dac_read_search --ambient-caps -all,+dac_read_search --bounding-set -all,+dac_read_search"
set -- setpriv --reuid 54321 --regid 54321 --clear-groups $may_read -- "$@"
"""


def test_services_write_to_the_run_and_to_tmp_alone(folder: Path) -> None:
    """All of them, on a root that is read-only, by a user without a name or a home, whose files no other reads."""
    _trained(folder, "--mount", _READ_ONLY, "--run.root", str(folder / "runs"))
    files = [file for file in (folder / "runs").rglob("*") if not file.is_symlink()]
    assert {(file.stat().st_uid, file.stat().st_mode & 0o077) for file in files} == {(54321, 0)}


_WITHOUT_IPV4 = """
ip link set lo up
ip -4 address flush dev lo
ip link add six type veth peer name peer
ip address add fd00:7::1/64 dev six nodad
ip link set six up
ip link set peer up
test -z "$(ip -4 -brief address)"
"""
_SERVICES = ("replay", "paramserver", "learner", "actor", "evaluator")


def test_run_needs_no_ipv4(folder: Path) -> None:
    """Every service listens at an address of IPv6, and calls the others there; the namespace has no other."""
    if not shutil.which("ip"):
        pytest.skip("takes the package iproute2")
    settings, host = ["--launcher.no-status-page"], "[fd00:7::1]"
    for service in _SERVICES:
        settings += [f"--{service}.server.metrics-address", f"{host}:0", f"--{service}.server.metrics-insecure"]
    for port, service in enumerate(_SERVICES[:3], start=7401):
        settings += [f"--{service}.server.address", f"{host}:{port}", f"--{service}.server.insecure"]
    said = _trained(folder, "--net", _WITHOUT_IPV4, *settings)
    assert f"address={host}:7401" in said


def test_service_whose_name_has_an_underscore_is_called_over_tls(folder: Path) -> None:
    """As Docker Compose names services: the certificate holds the name, and another name is refused."""
    (folder / "hosts").write_text("127.0.0.1 replay_0 other_0\n")
    inside = _prepared("--mount", 'mount --bind "$RUN/hosts" /etc/hosts')
    _done(folder, [_COMMAND, "certs", "made", "--host", "replay_0"], {})
    made = folder / "made"
    secured = ("--tls-cert", str(made / "server.pem"), "--tls-key", str(made / "server.key"))
    with closing(ServerProcess("127.0.0.1:0", *secured, "--tokens", str(made / "tokens.txt"))) as server:
        port = server.address.rpartition(":")[2]
        own = {"TIDEMILL_TLS_CA": str(made / "ca.pem"), "TIDEMILL_TOKEN_FILE": str(made / "operator.token")}
        ask = [*inside, _COMMAND, "replay", "tables"]
        _done(folder, [*ask, f"replay_0:{port}"], own | {"RUN": str(folder)})
        with pytest.raises(AssertionError, match=naming("TIDEMILL_TLS_NAME")):
            _done(folder, [*ask, f"other_0:{port}"], own | {"RUN": str(folder)})
