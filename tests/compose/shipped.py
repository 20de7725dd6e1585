"""What the tests of the shipped files share: commands, and the settings that a service reads from its command line."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tidemill.config.load import load as load_settings
from tidemill.config.sections import (
    ActorConfig,
    EvaluatorConfig,
    InferenceConfig,
    LearnerConfig,
    ParamServerConfig,
    ReplayConfig,
    RunConfig,
)
from tidemill.rpc.settings import ServerSettings
from tidemill.rpc.tls import is_local
from tidemill.services.tools.certs import SERVICES

ROOT = Path(__file__).resolve().parents[2]
HEALTH_PATH = "/healthz"
CONFIGS: dict[str, type[Any]] = {
    "replay": ReplayConfig,
    "paramserver": ParamServerConfig,
    "learner": LearnerConfig,
    "actor": ActorConfig,
    "evaluator": EvaluatorConfig,
    "inference": InferenceConfig,
    "page": RunConfig,
}


def run(*command: str) -> str:
    """Run a command in the repository; return what it printed. The test is skipped where there is no such command."""
    if not shutil.which(command[0]):
        pytest.skip(f"there is no {command[0]}")
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def check_secured(kind: str, server: ServerSettings, environment: dict[str, str]) -> None:
    """Check that a service has the secrets of its kind at the shipped paths, and no exception but one for metrics."""
    share = SERVICES[kind]
    own = (server.tls_cert, server.tls_key, server.tokens)
    assert own == (("/certs/server.pem", "/certs/server.key", "/certs/tokens.txt") if share.serves else ("", "", ""))
    assert share.serves or is_local(server.address)
    assert not server.insecure
    assert server.metrics_insecure
    brought = {"TIDEMILL_TLS_CA": "/certs/ca.pem", "TIDEMILL_TOKEN_FILE": "/certs/token"}
    assert {name: value for name, value in environment.items() if name in brought} == (brought if share.role else {})


def load_as(service: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: ANN401 - each service has another class
    """Return the settings a service would read from its command line, in the image's working folder."""
    monkeypatch.chdir(ROOT)
    return load_settings(CONFIGS[service], arguments, prog=service, description="")
