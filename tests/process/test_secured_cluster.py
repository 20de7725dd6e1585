"""A cluster by hand over TLS, in which every process has the token of its role and no more."""

from __future__ import annotations

import re
import signal
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
import yaml

from tests.support.launched import BOUND_S, Launched, launched, tidemill
from tests.support.naming import naming
from tests.support.security import become
from tests.support.small_run import small_run
from tests.support.waiting import wait_until
from tidemill.errors import PermissionDenied, Unavailable
from tidemill.learner.client import LearnerClient
from tidemill.services.tools.certs import make

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]


def _address(service: Launched) -> str:
    found = re.search(r"address=(127\.0\.0\.1:\d+)", re.sub(r"\x1b\[[0-9;]*m", "", service.until("listening|serving")))
    assert found, service.output
    return found.group(1)


def test_cluster_trains_over_tls_with_a_token_per_role(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are learned from, versions published, the operator steers; an actor's token does not."""
    certs, config = tmp_path / "certs", tmp_path / "small.yaml"
    make(certs)
    settings = small_run(run={"name": "small", "root": str(tmp_path)}, actor={"max_env_steps_per_s": 0.0})
    config.write_text(yaml.safe_dump(settings))
    become(monkeypatch, ca=certs / "ca.pem")

    def start(stack: ExitStack, name: str, role: str, *options: str) -> Launched:
        server = {"address": "127.0.0.1:0", "tokens": certs / "tokens.txt"}
        server |= {"tls-cert": certs / "server.pem", "tls-key": certs / "server.key"}
        words = [word for key, value in server.items() for word in (f"--{name}.server.{key}", str(value))]
        own = {"TIDEMILL_TOKEN_FILE": str(certs / f"{role}.token")} if role else {}
        return stack.enter_context(launched(name, "--config", str(config), *words, *options, environment=own))

    with ExitStack() as stack:
        replay, params = start(stack, "replay", ""), start(stack, "paramserver", "")
        reached = ["--cluster.replay", _address(replay), "--cluster.params", _address(params)]
        learner = start(stack, "learner", "learner", *reached)
        actor = start(stack, "actor", "actor", *reached)
        address = _address(learner)
        become(monkeypatch, ca=certs / "ca.pem", token=certs / "operator.token")
        with LearnerClient(address) as client:

            def has_trained() -> bool:
                with suppress(Unavailable):
                    return client.get_status().learner_steps >= 50
                return False

            wait_until(has_trained, "50 updates", BOUND_S, describe=lambda: learner.output + actor.output)
        assert "table items" in tidemill("status", "--learner", address)
        become(monkeypatch, ca=certs / "ca.pem", token=certs / "actor.token")
        with LearnerClient(address) as client, pytest.raises(PermissionDenied, match=naming("operator")):
            client.stop("not an actor's decision")
        for service in (actor, learner, params, replay):
            service.send(signal.SIGTERM)
            assert service.wait() == 0, service.output
