"""Builds the optional C library of tidemill/kernel where there is a compiler; pyproject.toml says everything else."""

import os
import shlex
import shutil
import subprocess
import sysconfig

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext


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


SOURCE = "tidemill/kernel/kernel.c"


def compiles() -> bool:
    """Return whether the C compiler that setuptools would call is there, with the headers that it needs."""
    command = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "")
    if not command or shutil.which(command[0]) is None:
        return False
    check = [*command, "-std=c11", "-fsyntax-only", SOURCE]
    return subprocess.run(check, capture_output=True, check=False).returncode == 0


kernel = Extension(
    "tidemill.kernel.kernel",
    [SOURCE],
    optional=True,  # a compiler that fails is as good as none
    extra_compile_args=["-std=c11", "-O3", "-ffp-contract=off", "-fvisibility=hidden", "-Wall", "-Wextra"],
)
wanted = os.environ.get("TIDEMILL_KERNEL") != "0" and compiles()
setup(ext_modules=[kernel] if wanted else [], cmdclass={"build_ext": BuildKernel, "bdist_wheel": KernelWheel})
