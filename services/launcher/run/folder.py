"""The folder of a run: made once, held by one launcher at a time, never overwritten."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tidemill.atomic_files import is_there, replacing
from tidemill.bundle.files import DOCUMENT, describe_no_run
from tidemill.closing import Closing
from tidemill.config.load import read_document, write_document
from tidemill.config.run import RANK_FAILURE, RESTORED
from tidemill.config.sections import RunConfig
from tidemill.errors import AlreadyExists, ConfigError, FailedPrecondition, FatalError, TidemillError
from tidemill.file_lock import open_locked, unlock
from tidemill.installation import typed, versions
from tidemill.params.run_end import FILMING, PAUSED, RESULT, clear_divergence, set_result_aside
from tidemill.scores import EVALUATING
from tidemill.services.launcher.run.remains import clear, remains

_CONFIG, _LOCK = "config.yaml", ".lock"
_MISSING = (FileNotFoundError, NotADirectoryError)
_LASTING = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG)


class RunFolder(Closing):
    """ROOT/NAME of one run, locked for as long as this object is open."""

    def __init__(self, path: Path) -> None:
        """Lock an existing folder.

        Raises:
            FailedPrecondition: another launcher runs in it.
            ConfigError: it cannot be written to, as that of another user.
        """
        self.path = path
        with _writing(path):
            descriptor = open_locked(path / _LOCK)
        if descriptor is None:
            raise _running(path)
        self._lock = descriptor
        with contextlib.suppress(OSError):  # on a full disk it is not known
            os.ftruncate(descriptor, os.pwrite(descriptor, socket.gethostname().encode(), 0))
        self._rank_failed_ns = 0  # when the failure of a rank that was taken last was written

    @classmethod
    def create(cls, config: RunConfig, *, fresh: bool) -> RunFolder:
        """Make the folder of a new run, or take over that of one that never trained, and write its config.yaml.

        Args:
            config: Resolved settings.
            fresh: Whether an earlier run of this name is moved to NAME-1 (or the next free number).

        Raises:
            AlreadyExists: there is such a run, it has trained, and `fresh` is not set; or files that are not of a run.
            FailedPrecondition: that run is still running.
            ConfigError: the folder cannot be made or read.
        """
        path = config.run.folder
        check_free(path, fresh=fresh)
        if _holds_run(path):
            _move_aside(path)
        try:
            (path / "logs").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"cannot create the run's folder {path}: {error.strerror}; choose another --run.root"
            ) from error
        folder = cls(path)
        try:
            _check_unused(path, fresh=False)  # another launcher may have trained here until this one had the lock
            if _CONFIG in _names(path):  # of a run that never trained
                with _writing(path):
                    clear(path)
                    (path / "logs").mkdir(exist_ok=True)
            folder.write_config(config)
        except BaseException:
            folder.close()
            raise
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Lock the folder of an earlier run.

        Raises:
            ConfigError: there is no run at this path, or it cannot be written to.
            FailedPrecondition: it is running.
        """
        check_has_begun(path)
        with _writing(path):
            (path / "logs").mkdir(exist_ok=True)
        return cls(path)

    @property
    def config_file(self) -> Path:
        """The resolved settings the run was started with."""
        return self.path / _CONFIG

    @property
    def cluster_file(self) -> Path:
        """The same with the addresses of the services that run now: `--config` of an actor that joins."""
        return self.path / "cluster.yaml"

    def take_restored(self) -> str:
        """Return once what a start of the learner restored, in words; empty for nothing, or nothing yet."""
        try:
            restored = self._restored_file.read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            return ""
        self._restored_file.unlink()
        return restored

    def take_rank_failure(self) -> str:
        """Return once how one of several learners failed, in words; empty if none has since."""
        with contextlib.suppress(FileNotFoundError):
            written_ns = (self.path / RANK_FAILURE).stat().st_mtime_ns
            if written_ns != self._rank_failed_ns:
                self._rank_failed_ns = written_ns
                return self.read_rank_failure()
        return ""

    def read_rank_failure(self) -> str:
        """Return how one of several learners failed last; empty if none has, since the run was started or resumed."""
        try:
            return (self.path / RANK_FAILURE).read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            return ""

    @property
    def _restored_file(self) -> Path:
        return self.path / "checkpoints" / RESTORED

    def write_config(self, config: RunConfig) -> None:
        """Write config.yaml, with the versions it ran with as comments, whole or not at all."""
        write_config(config, self.config_file)

    def write_cluster(self, config: RunConfig) -> None:
        """Write cluster.yaml, likewise."""
        write_config(config, self.cluster_file, sync=False)  # of no use once the launcher ends

    def set_end_aside(self) -> None:
        """Keep the previous result under a number, and forget how the run ended: it continues."""
        for name in (EVALUATING, FILMING, PAUSED):  # of processes that were killed
            (self.path / name).unlink(missing_ok=True)
        self._restored_file.unlink(missing_ok=True)
        (self.path / RANK_FAILURE).unlink(missing_ok=True)
        clear_divergence(self.path)
        set_result_aside(self.path)

    def close(self) -> None:
        """Mark the run as stopped, and unlock."""
        self.cluster_file.unlink(missing_ok=True)
        unlock(self._lock)


def keep_settings(config: RunConfig) -> None:
    """Write config.yaml of a run whose services an engine starts, in a folder that a launcher takes over, too.

    Raises:
        AlreadyExists: the folder has a config.yaml of somebody's own, or an exported policy.
        ConfigError: the file cannot be written.
        FatalError: the disk failed, which another attempt may not find.
    """
    folder = config.run.folder
    check_free(folder, fresh=True, has_begun=True)
    file = folder / _CONFIG
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _LOCK).touch()
        write_config(config, file)
    except OSError as error:
        raise _refusal(f"cannot write {file}", error) from error


def write_config(config: RunConfig, file: Path, *, sync: bool = True) -> None:
    """Write a run's settings, with the versions it runs with as comments, whole or not at all."""
    header = "".join(f"# {name} {version}\n" for name, version in versions().items())
    with replacing(file, sync=sync) as temporary:
        write_document(config, temporary)
        temporary.write_text(header + temporary.read_text(encoding="utf-8"), encoding="utf-8")


def check_free(path: Path, *, fresh: bool, has_begun: bool = False) -> None:
    """Check that a new run may be kept at `path`.

    Args:
        path: Its folder.
        fresh: Whether a run that is there is moved aside.
        has_begun: Whether services of the run may have written there already.

    Raises:
        AlreadyExists: there is a run that has trained, and it is not moved aside; or an exported policy, or files of
            somebody's own that a run would replace.
        FailedPrecondition: there is a run that is still running.
        ConfigError: it cannot be read.
    """
    if _CONFIG in _names(path) and is_running(path):  # nor could it be resumed or moved aside
        raise _running(path)
    _check_unused(path, fresh=fresh, has_begun=has_begun)


def _check_unused(path: Path, *, fresh: bool, has_begun: bool = False) -> None:
    """Raise as `check_free`, but not for a lock, which may be the caller's own."""
    names, holds_run = _names(path), _holds_run(path)
    foreign = [name for name in (DOCUMENT,) if name in names]
    if _LOCK not in names and not holds_run:
        if _CONFIG in names:
            foreign.append(_CONFIG)
        elif not has_begun:
            foreign += [str(file.relative_to(path)) for file in remains(path)]
    if foreign:
        raise AlreadyExists(
            f"{path} has {foreign[0]} and is not the folder of a run, which would replace what is there; choose "
            "another --run.name or --run.root"
        )
    if fresh or not holds_run:
        return
    resumes = f"continue it with `{typed('resume', path)}`, " if _CONFIG in names else ""
    raise AlreadyExists(
        f"{path} already holds a run; {resumes}choose another --run.name, or start from scratch with --fresh "
        f"(fresh=True in Python), which moves the run to {_free_name(path)}"
    )


def _holds_run(path: Path) -> bool:
    """True if a run has trained in a folder; without a config.yaml one whose services were started by hand."""
    return has_trained(path) if _CONFIG in _names(path) else _has_learned(path)


def _running(path: Path) -> FailedPrecondition:
    return FailedPrecondition(
        f"{path} is running; see `{typed('status', path)}`, or end it with `{typed('ctl', 'stop', path)}`"
    )


def is_running(path: Path) -> bool:
    """True if a launcher holds the run at `path`, or if the system cannot tell just now."""
    for access in (os.O_RDWR, os.O_RDONLY):  # the lock of another user's run may be read only
        try:
            descriptor = open_locked(path / _LOCK, access)
        except _MISSING:
            return False
        except OSError:
            continue
        except FatalError:  # nor can a launcher have locked it, unless that takes the right to write
            return access == os.O_RDONLY
        if descriptor is not None:
            unlock(descriptor)
        return descriptor is None
    return True


def host_of(path: Path) -> str:
    """Return the host name of the machine that last held the run at `path`; empty if it is not known."""
    try:
        return (path / _LOCK).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def check_is_run(path: Path) -> None:
    """Raise a `ConfigError` unless `path` is a run's folder; an exported policy has a config.yaml, too."""
    with _reading(path):
        if is_there(path / DOCUMENT):
            raise ConfigError(f"{path} is an exported policy, not a run; name the folder of the run it is from")
        if not is_there(path / _CONFIG):
            raise ConfigError(describe_no_run(path))


def check_has_begun(path: Path) -> None:
    """Raise a `ConfigError` unless a run was started in `path`; a config.yaml may be that of a trial, or a user's own.

    One that has trained may lack its lock: a backup can leave out files that begin with a dot.
    """
    check_is_run(path)
    if _LOCK in _names(path) or has_trained(path):
        return
    below = sorted(str(file.parent) for file in path.glob(f"*/{_CONFIG}"))
    runs = f"; runs: {', '.join(below)}" if below else ""
    raise ConfigError(
        f"{path} has a {_CONFIG} but is not the folder of a run; start one with these settings with "
        f"`{typed('train', '--config', path / _CONFIG, '--run.name', 'NEW')}`{runs}"
    )


def log_file(folder: Path, service: str) -> Path:
    """Return the file of a service's log, in the run's folder."""
    return folder / "logs" / f"{service}.log"


def check_names_run(before: RunConfig, now: RunConfig, path: Path) -> None:
    """Raise a `ConfigError` if options give the run at `path` another name or root: its folder decides them."""
    own = with_run_paths(now, path).run
    moves = now.run.root != before.run.root and Path(os.path.expanduser(now.run.root)).resolve() != Path(own.root)
    is_renamed = now.run.name not in (before.run.name, own.name)
    for name, is_other in (("name", is_renamed), ("root", moves)):
        if is_other:
            raise ConfigError(
                f"run.{name} is {getattr(now.run, name)!r}, but the run is in {path}: leave it out; to give the run "
                "another name, rename or copy its folder first"
            )


def name_of(folder: Path) -> str:
    """Return the name of a run's folder, also of one that is given as `.` or ends with `..`."""
    return (folder.resolve() if folder.name in ("", "..") else folder).name


def with_run_paths(config: RunConfig, path: Path) -> RunConfig:
    """Return the settings of a run with the present path of its folder."""
    path = path.resolve()
    return replace(config, run=replace(config.run, root=str(path.parent), name=path.name))


def _free_name(path: Path) -> Path:
    number = 1
    while is_there(path.with_name(f"{path.name}-{number}")):
        number += 1
    return path.with_name(f"{path.name}-{number}")


def _move_aside(path: Path) -> None:
    if is_running(path):
        raise _running(path)
    with _writing(path):
        path.rename(_free_name(path))


_WORTH_KEEPING_BYTES = 2**20
_FIRST_VERSION = 1  # published before the first update, for actors to begin with


def has_trained(folder: Path) -> bool:
    """True if the run of a folder has learned, or collected a MiB of experience.

    What was ended before that, by a wrong setting for example, holds nothing that `tidemill resume` would bring back.

    Raises:
        ConfigError: the folder cannot be read just now, which proves nothing.
    """
    if RESULT in _names(folder) or has_scores(folder) or _has_learned(folder):
        return True
    return _size_bytes(folder / "replay") > _WORTH_KEEPING_BYTES


def _has_learned(folder: Path) -> bool:
    """True if a run's folder has parameters that were trained, or a checkpoint."""
    checkpoints = _names(folder / "checkpoints")
    return has_policy(folder) or any(name.endswith(".safetensors") and name[0] != "." for name in checkpoints)


def has_policy(folder: Path) -> bool:
    """True if a run's folder has parameters that were trained."""
    names = (name.partition(".") for name in _names(folder / "params"))  # a description and its copy of each
    return any(kind.endswith("json") and number.isdigit() and int(number) > _FIRST_VERSION for number, _, kind in names)


def is_deterministic(folder: Path) -> bool:
    """True if the settings in a run's folder put it in lock-step; False if they cannot be read."""
    return bool(_setting(folder, "run", "deterministic"))


def target_return(folder: Path) -> float | None:
    """Return the target in the settings of a run's folder; None if it has none or they cannot be read."""
    target = _setting(folder, "run", "target_return")
    return target if isinstance(target, int | float) else None


def plays_in_simulators_alone(folder: Path) -> bool:
    """True if no environment can be made from the settings in a run's folder; False if they cannot be read."""
    return bool(_setting(folder, "env", "spaces"))


def _setting(folder: Path, section: str, name: str) -> object:
    """Return one setting from a run's folder; None if it is not set or the settings cannot be read."""
    try:
        return (read_document(folder / "config.yaml").get(section) or {}).get(name)
    except ConfigError:
        return None


def has_scores(folder: Path) -> bool:
    """True if a policy of a run was evaluated."""
    file = folder / "scores.csv"
    with contextlib.suppress(*_MISSING), _reading(file):
        return len(file.read_bytes().splitlines()) > 1
    return False


def _names(folder: Path) -> list[str]:
    with contextlib.suppress(*_MISSING), _reading(folder):
        return os.listdir(folder)  # `Path.glob` takes a folder that it cannot read for an empty one
    return []


def _size_bytes(path: Path) -> int:
    """Return the bytes of a file, or of all files of a folder and those below it."""
    with contextlib.suppress(*_MISSING), _reading(path):
        status = path.stat()
        if not stat.S_ISDIR(status.st_mode):
            return status.st_size
        return sum(_size_bytes(path / name) for name in os.listdir(path))
    return 0


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn an error that proves nothing of what is at `path` into that of `_refusal`."""
    try:
        yield
    except _MISSING:
        raise
    except OSError as error:
        raise _refusal(f"cannot read {error.filename or path}", error) from error


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn an error of a change in the run's folder at `path` into that of `_refusal`."""
    try:
        yield
    except OSError as error:
        raise _refusal(f"cannot write to the run's folder {path}", error) from error


def _refusal(what: str, error: OSError) -> TidemillError:
    """Return the error of a wrong place or of missing rights, or else of a disk that may work at the next attempt."""
    return (ConfigError if error.errno in _LASTING else FatalError)(f"{what}: {error.strerror}")
