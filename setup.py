"""Builds the optional C library of tidemill/kernel where there is a compiler; pyproject.toml says everything else.

`TIDEMILL_KERNEL=0` leaves the library out, `TIDEMILL_KERNEL=1` makes it an error that it cannot be built.
With SOURCE_DATE_EPOCH set, the same sources give the same bytes of sdist and wheel, wherever and whenever it is.
"""

import gzip
import io
import os
import shlex
import shutil
import subprocess
import sysconfig
import tarfile
from typing import Any

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist


class BuildKernel(build_ext):
    """Builds the library under a plain name: ctypes loads it, so that it belongs to no version of Python."""

    def get_ext_filename(self, fullname: str) -> str:
        """Return its path below the package's root."""
        return os.path.join(*fullname.split(".")) + ".so"


class KernelWheel(bdist_wheel):
    """A wheel with the library serves every Python 3 of the platform; one without serves every platform."""

    def get_tag(self) -> tuple[str, str, str]:
        """Return the tags of Python, ABI and platform."""
        python, abi, platform = super().get_tag()
        return (python, abi, platform) if self.root_is_pure else ("py3", "none", platform)


class DatedSdist(sdist):
    """An sdist whose files are all of the time that SOURCE_DATE_EPOCH says, and nobody's."""

    def make_archive(self, *arguments: Any, **options: Any) -> str:  # noqa: ANN401 - handed on
        """Make the archive; return its path."""
        archive = str(super().make_archive(*arguments, **options))
        epoch = os.environ.get("SOURCE_DATE_EPOCH")
        if epoch and archive.endswith(".tar.gz"):
            date_archive(archive, int(epoch))
        return archive


def date_archive(path: str, epoch: int) -> None:
    """Write a .tar.gz anew: its members in order, of one time, of user and group 0, with plain permissions."""
    with tarfile.open(path) as archive:
        members = [(member, archive.extractfile(member)) for member in archive.getmembers()]
        contents = [(member, file.read() if file else b"") for member, file in members]
    with (
        open(path, "wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=epoch) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for member, content in sorted(contents, key=lambda each: each[0].name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = epoch, 0, 0, "", ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.pax_headers = {}
            archive.addfile(member, io.BytesIO(content) if member.isfile() else None)


SOURCE = "tidemill/kernel/kernel.c"


def compiles() -> bool:
    """Return whether the C compiler that setuptools would call is there, with the headers that it needs."""
    command = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "")
    if not command or shutil.which(command[0]) is None:
        return False
    check = [*command, "-std=c11", "-fsyntax-only", SOURCE]
    return subprocess.run(check, capture_output=True, check=False).returncode == 0


choice = os.environ.get("TIDEMILL_KERNEL")
kernel = Extension(
    "tidemill.kernel.kernel",
    [SOURCE],
    optional=choice != "1",  # a compiler that fails is as good as none
    extra_compile_args=["-std=c11", "-O3", "-ffp-contract=off", "-fvisibility=hidden", "-g0", "-Wall", "-Wextra"],
)
COMMANDS = {"build_ext": BuildKernel, "bdist_wheel": KernelWheel, "sdist": DatedSdist}
wanted = choice == "1" or (choice != "0" and compiles())
setup(ext_modules=[kernel] if wanted else [], cmdclass=COMMANDS)
