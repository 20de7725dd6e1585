"""The roles of tokens in the documentation are those that servers know."""

from __future__ import annotations

import re

from tests.support.shell_commands import ROOT
from tidemill.rpc.access import ROLES


def test_pages_on_security_name_every_role() -> None:
    """What each may do, and in the list of what is defended."""
    operations = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    table = operations.partition("| Role | May |\n")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| ([a-z]+) \|", table, re.MULTILINE)) == {*ROLES}
    policy = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    listed = re.search(r"roles \((.*?)\)", policy)
    assert listed
    assert set(listed[1].split(", ")) == {*ROLES}
