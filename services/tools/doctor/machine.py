"""Checks of the machine: open files, memory, disk, clock, ports, sockets, and expiry of certificates."""

from __future__ import annotations

import datetime
import os
import resource
import shutil
from pathlib import Path

from tidemill import container_limits, linux
from tidemill.config.sections import RunConfig
from tidemill.errors import FatalError
from tidemill.installation import command_name
from tidemill.rpc.addresses import host_and_port, why_not_free
from tidemill.rpc.certificate import end_of
from tidemill.services.launcher.run.paths import make_socket_folder, remove_socket_folder
from tidemill.services.tools.certs import SERVICES
from tidemill.services.tools.doctor.finding import Finding, says

_MIN_FREE_BYTES = 5 * 1024**3
_MIN_MEMORY_BYTES = 2 * 1024**3
"""What the quickstart's six processes take, with some room."""
_MIN_FILES = 4096
"""A replay server holds a few files for each stream and each connection."""
_MIN_DAYS = 30


def open_files() -> list[Finding]:
    """Return a finding on the number of files that a server may open: it raises its own limit to the hard one."""
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"{limit} open files per process"
    if limit != resource.RLIM_INFINITY and limit < _MIN_FILES:
        advice = (
            f"with hundreds of actors a server needs more: `ulimit -n {_MIN_FILES * 16}`, or LimitNOFILE of systemd"
        )
        return [Finding("note", text, advice)]
    return [Finding("ok", text)]


def memory(meminfo: Path = linux.PROC / "meminfo") -> list[Finding]:
    """Return a finding on the available memory, of the container in one; nothing if the system does not report it."""
    if (available_bytes := container_limits.available_memory_bytes(meminfo)) is None:
        return []
    text = f"{available_bytes / 1024**3:.1f} GiB of memory available"
    if available_bytes < _MIN_MEMORY_BYTES:
        advice = "end other programs, or take a smaller table (table.max_items) and fewer actors (launcher.actors)"
        return [Finding("note", text, advice)]
    return [Finding("ok", text)]


def forking() -> list[Finding]:
    """Return a finding if Linux or Python lacks what `launcher.fork_services` takes; other systems never have it."""
    if linux.CAN_FORK or not linux.AVAILABLE:
        return []
    advice = "take Linux 5.3 or newer, and a newer build of Python, such as `uv python install --reinstall` installs"
    return [Finding("note", "no pidfd_open: services are not forked, and take seconds longer to start", advice)]


def clock() -> list[Finding]:
    """Check that the clock is synchronised; no finding where no service knows."""
    answer = says("timedatectl", "show", "--property", "NTPSynchronized", "--value")
    if answer == "no":
        advice = "certificates and the times in logs depend on it: `timedatectl set-ntp true`"
        return [Finding("note", "the clock is not synchronised", advice)]
    return [Finding("ok", "the clock is synchronised")] if answer == "yes" else []


def ports() -> list[Finding]:
    """The ports of services started by hand; `tidemill train` uses sockets and needs none."""
    cluster = RunConfig().cluster
    addresses = [("replay", address) for address in cluster.replay]
    return [_port(*pair) for pair in (*addresses, ("params", cluster.params), ("learner", cluster.learner))]


def _port(name: str, address: str) -> Finding:
    _, port = host_and_port(address)
    if (error := why_not_free(address)) is not None:
        advice = f"only services started by hand use it; set cluster.{name} to a free port for them"
        return Finding("note", f"{name}: port {port} is not free ({error.strerror})", advice)
    return Finding("ok", f"{name}: port {port} is free")


def sockets() -> list[Finding]:
    """Check that there is a folder for sockets, whose path has to be short."""
    try:
        folder = make_socket_folder()
    except FatalError as error:
        found, _, advice = str(error).partition("; ")
        return [Finding("FAIL", found, advice)]
    remove_socket_folder(folder)
    return [Finding("ok", f"sockets of `tidemill train` in {folder.parent}")]


def disk(root: Path) -> list[Finding]:
    """Return a finding on the free space for runs."""
    existing = next(path for path in (root.resolve(), *root.resolve().parents) if os.path.exists(path))
    free_bytes = shutil.disk_usage(existing).free
    text = f"{free_bytes / 1024**3:.1f} GiB free for {root}"
    if not os.access(existing, os.W_OK):
        return [
            Finding(
                "FAIL", f"{existing} cannot be written", "choose another with --run.root; `doctor --root` checks it"
            )
        ]
    if free_bytes < _MIN_FREE_BYTES:
        return [
            Finding(
                "note", text, "long runs with large networks need more; lower paramserver.keep_versions to save space"
            )
        ]
    return [Finding("ok", text)]


def certificates(asked: Path | None, now: datetime.datetime | None = None) -> list[Finding]:
    """Return findings on how long each certificate below a folder lasts.

    Args:
        asked: The folder. None: the one that `tidemill certs` writes by default, if it is there.
        now: The present time.
    """
    folder = asked or Path("certs")
    files = sorted(folder.rglob("*.pem")) if os.path.isdir(folder) else []
    if not files:
        advice = "name a folder that `tidemill certs` wrote and that you may read with --certs"
        return [Finding("FAIL", f"no certificate is found in {folder}", advice)] if asked else []
    now = now or datetime.datetime.now(datetime.UTC)
    found = []
    for file in files:
        try:
            days = (end_of(file.read_bytes()) - now).days
        except (OSError, ValueError) as error:
            found.append(Finding("FAIL", f"{file} is not a readable certificate: {error}", _renewal(file, lost=True)))
            continue
        text = f"{file} has expired" if days < 0 else f"{file} is valid for {days} days"
        mark = "FAIL" if days < 0 else "note" if days < _MIN_DAYS else "ok"
        found.append(Finding(mark, text, "" if mark == "ok" else _renewal(file)))
    return found


def _renewal(file: Path, *, lost: bool = False) -> str:
    """Return how to renew a certificate that `tidemill certs` made; of one that is lost the names are, too."""
    folder = file.parent
    is_copy = folder.name in SERVICES
    if file.name == "ca.pem" and not (lost and is_copy):
        return "a CA cannot be renewed: make new files in an empty folder and restart all services with them"
    if not (folder.parent / "ca.key" if is_copy else folder / "ca.key").exists():
        return "make it again with `tidemill certs` where ca.key is, and copy it here"
    words = f"{folder.parent} --services" if is_copy else f"{folder}"
    if file.name == "ca.pem":
        return f"`{command_name()} certs {words} --keep` writes it again"
    names = " with its --host and --shards" if lost and file.name == "server.pem" else ""
    return f"`{command_name()} certs {words}`{names} renews it; running servers reload it automatically"
