"""Wrong command lines of the commands with few options."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.naming import naming
from tidemill.services.launcher import cli
from tidemill.services.replay.__main__ import main as replay
from tidemill.settings.argument_parser import ArgumentParser


@pytest.mark.parametrize(
    "line, named",
    [
        ("certs", "FOLDER --help"),
        ("certs x --hots a", "--hots '--host'"),
        ("certs x --shards two", "--shards 'two' number"),
        ("certs x --shards", "--shards"),
        ("certs x --rotate nobody", "--rotate 'nobody' actor, simulator"),
        ("doctor extra", "'extra' --help"),
        ("doctor --obsevations 8", "--obsevations '--observations'"),
        ("completion", "shell --help"),
        ("completion fsh", "shell 'fsh' bash, fish 'fish'"),
        ("configs a b", "'b' --help"),
        ("ctl halt", "verb 'halt' pause, stop"),
        ("log r", "--to LOGGER --help"),
        ("log r --to wandb --every-s fast", "--every-s 'fast' number"),
        ("replay tabels", "'tabels' 'tables'"),
        ("replay export 127.0.0.1:1", "table --out --help"),
        ("replay delete 127.0.0.1:1 t --since yesterday", "--since 'yesterday'"),
        ("replay delete 127.0.0.1:1 t", "--actor, --until"),
        ("replay update 127.0.0.1:1 t", "--max-items, --rate-limiter"),
        ("replay update 127.0.0.1:1 t --rate-limiter maybe", "--rate-limiter 'maybe' on, off"),
    ],
)
def test_wrong_command_line_gets_one_line(line: str, named: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With the value, what is allowed or was meant, and where to read on; without the usage. The exit code is 2."""
    name, *rest = line.split()
    try:
        code = replay(rest) if name == "replay" else cli.main([name, *rest])
    except SystemExit as ended:
        code = int(ended.code or 0)
    assert code == 2
    text = capsys.readouterr().err
    assert len(text.splitlines()) == 1
    assert text.startswith(f"tidemill {name}")
    assert re.match(naming(named), text), text


def test_path_in_the_home_is_found_after_an_equals_sign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bash leaves `~` as it is there, and a folder of this name was made in the working directory."""
    monkeypatch.setenv("HOME", str(tmp_path))
    parser = ArgumentParser()
    command = parser.add_subparsers().add_parser("command")
    command.add_argument("--out", type=Path, default=Path("~"))
    assert parser.parse_args(["command", "--out=~/x"]).out == tmp_path / "x"
    assert parser.parse_args(["command", "--out=~nobody-of-this-name/~"]).out == Path("~nobody-of-this-name/~")
