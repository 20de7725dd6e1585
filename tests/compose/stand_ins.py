"""Images under separate names that stand for those of a registry that cannot be reached.

The shipped files take the sources of their images as settings, for mirrors; these are given there. What is built
from them is the shipped Dockerfile, unchanged.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

from tests.compose.engine import Engine, NoEngine

PYTHON = "tidemill-stand-in/python:bookworm"
PROMETHEUS = "tidemill-stand-in/prometheus:bookworm"

_PACKAGES = "python3,python3-pip,python3-venv,ca-certificates,wget"
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_COMPOSE_FILE = Path(__file__).resolve().parents[2] / "docker-compose.yml"
_DOCKERFILE = f"""FROM {PYTHON}
COPY prometheus promtool /bin/
RUN ["install", "-d", "-o", "65534", "-g", "65534", "/prometheus"]
USER 65534:65534
WORKDIR /prometheus
ENTRYPOINT ["/bin/prometheus"]
"""


def image_settings(engine: Engine) -> dict[str, str]:
    """Return the variables that name stand-ins; empty where the real images can be had.

    Raises:
        NoEngine: neither can be had.
    """
    image = yaml.safe_load(_COMPOSE_FILE.read_text())["services"]["prometheus"]["image"]
    real = image.partition(":-")[2].rstrip("}")
    if engine.succeeds("docker", "image", "inspect", real) or engine.succeeds("docker", "pull", real, bound_s=300):
        return {}
    missing = [name for name in ("mmdebstrap", "prometheus", "promtool") if not shutil.which(name)]
    if missing or os.geteuid() != 0:
        raise NoEngine(f"no registry answers, and stand-ins take root and {', '.join(missing or ['nothing else'])}")
    if not engine.succeeds("docker", "image", "inspect", PYTHON, PROMETHEUS):
        with tempfile.TemporaryDirectory(prefix="tidemill-root-", dir="/var/tmp") as folder:
            _import_python(engine, Path(folder))
            _build_prometheus(engine, Path(folder) / "prometheus")
    return {"TIDEMILL_PYTHON_IMAGE": PYTHON, "TIDEMILL_PROMETHEUS_IMAGE": PROMETHEUS}


def _import_python(engine: Engine, folder: Path) -> None:
    """Import a Debian of this machine's mirror, in which pip finds packages as it does on this machine."""
    root = folder / "root"
    # In half the time of debootstrap; what is thrown away need not survive a power failure.
    make = ("mmdebstrap", "--quiet", "--variant=minbase", "--dpkgopt=force-unsafe-io")
    engine.run(*make, f"--include={_PACKAGES}", "bookworm", str(root), bound_s=400)
    (root / "usr/local/bin/python").symlink_to("/usr/bin/python3")
    shutil.copyfile(_CERTIFICATES, root / _CERTIFICATES.relative_to("/"))
    variables = [f"PIP_CERT={_CERTIFICATES}"]
    if wheels := _wheel_folder():
        shutil.copytree(wheels, root / wheels.relative_to("/"))
        variables.append(f"PIP_FIND_LINKS={wheels}")
    archive = folder / "root.tar"
    engine.run("tar", "-C", str(root), "-cf", str(archive), ".")
    changes = [word for variable in variables for word in ("--change", f"ENV {variable}")]
    engine.docker("import", *changes, str(archive), PYTHON)


def _wheel_folder() -> Path | None:
    """Return the folder in which pip looks for wheels on this machine, if it has been told one."""
    command = [sys.executable, "-m", "pip", "config", "get", "global.find-links"]
    configured = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    folder = Path(os.environ.get("PIP_FIND_LINKS") or configured or "-")
    return folder if folder.is_absolute() and folder.is_dir() else None


def _build_prometheus(engine: Engine, folder: Path) -> None:
    folder.mkdir()
    for name in ("prometheus", "promtool"):
        shutil.copy(shutil.which(name) or name, folder)
    (folder / "Dockerfile").write_text(_DOCKERFILE)
    engine.docker("build", "--quiet", "--tag", PROMETHEUS, str(folder), bound_s=120)
