"""Steps of the tests before they start an engine."""

from __future__ import annotations

from pathlib import Path

from tests.compose.engine import stale_rules


def test_rules_of_networks_that_are_gone_are_found(tmp_path: Path) -> None:
    """Not those of a network that is there, of Docker's own bridge, or of anything else."""
    (tmp_path / "br-0a1b").mkdir()
    gone = "-A POSTROUTING -s 172.18.0.0/16 ! -o br-2e0a -j MASQUERADE"
    rules = (
        "-P POSTROUTING ACCEPT",
        "-A POSTROUTING -s 172.19.0.0/16 ! -o br-0a1b -j MASQUERADE",
        gone,
        "-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE",
        "-A POSTROUTING -s 172.20.0.2/32 -d 172.20.0.2/32 -p tcp -m tcp --dport 8100 -j MASQUERADE",
    )
    assert stale_rules("\n".join(rules), tmp_path) == [gone]
