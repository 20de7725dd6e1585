"""The shell commands that documents print, and a shell in which a test gives them as a reader would."""

from __future__ import annotations

import os
import re
import select
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from scripts.check_links import documents
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
GENERATED = {"CHANGELOG.md", "docs/api.md", "docs/reference/configuration.md", "docs/reference/wire.md"}
"""Of these the changelog speaks of the past, and scripts write the others."""
PAGES = [
    str(path.relative_to(ROOT))
    for path in documents()
    if str(path.relative_to(ROOT)) not in GENERATED and "results" not in path.parts
]

_BLOCK = re.compile(r"^ *```(bash|sh|console|shell)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"(?:^|\s+)# .*$")
_BOUND_S = 300.0


def shell_commands(page: str) -> list[str]:
    """Return the commands in the fenced shell blocks of a page, in order, without comments.

    Lines that belong together are one: those that end in a backslash, and a loop. Of a block of a session, `console`,
    only what follows a prompt is a command.
    """
    found: list[str] = []
    for kind, block in _BLOCK.findall((ROOT / page).read_text(encoding="utf-8")):
        open_lines: list[str] = []
        for line in block.splitlines():
            if kind == "console" and not open_lines and not line.lstrip().startswith("$ "):
                continue
            open_lines.append(_COMMENT.sub("", line.strip().removeprefix("$ ")))
            if not open_lines[-1].endswith("\\") and _is_whole(open_lines):
                found.append("\n".join(open_lines).replace("\\\n", " ").strip())
                open_lines = []
        assert not open_lines, f"{page}: a command has no end: {open_lines}"
    return [re.sub(r"  +", " ", text) for text in found if text]


def _is_whole(lines: list[str]) -> bool:
    return not lines[0].startswith("for ") or lines[-1] == "done"


@dataclass(frozen=True)
class Serving:
    """A command that runs until it is stopped."""

    text: str
    pid: int
    output: Path

    def said(self) -> str:
        """Return its output so far."""
        return self.output.read_text(encoding="utf-8", errors="replace") if self.output.exists() else ""

    def has_ended(self) -> bool:
        """True if it runs no longer; the shell has not waited for it yet."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"
        except FileNotFoundError:
            return True


class Shell:
    """A bash that keeps its folder and its variables from one command to the next, as a terminal does."""

    def __init__(
        self, folder: Path, output: Path, environment: Mapping[str, str], *, before: tuple[str, ...] = ()
    ) -> None:
        """Start it.

        Args:
            folder: Its working directory.
            output: A folder for what commands print.
            environment: Its variables.
            before: What starts it, as `nsenter` would.
        """
        output.mkdir(parents=True, exist_ok=True)
        self._output, self._count = output, 0
        self._codes, write = os.pipe()
        self._bash = subprocess.Popen(
            [*before, "bash", "--norc", "--noprofile"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env=dict(environment) | {"CODES": str(write)},
            pass_fds=[write],
            text=True,
            start_new_session=True,
        )
        os.close(write)
        self.serving: list[Serving] = []

    def run(self, text: str, bound_s: float = _BOUND_S) -> str:
        """Give a command and wait for its end, which must be a good one; return what it printed."""
        script, output = self._files(text)
        code = self._ask(f'. {script} </dev/null >{output} 2>&1; echo "$?" >&$CODES', text, bound_s)
        said = output.read_text(encoding="utf-8", errors="replace")
        assert code == 0, f"{text}\nended with {code}:\n{said[-6000:]}"
        return said

    def serve(self, text: str, ready: str, bound_s: float = _BOUND_S) -> Serving:
        """Give a command that runs until it is stopped; wait until what it prints matches `ready`."""
        script, output = self._files(f"exec {text}")
        pid = self._ask(f'( . {script} </dev/null >{output} 2>&1 ) & echo "$!" >&$CODES', text, bound_s)
        serving = Serving(text, pid, output)
        self.serving.append(serving)
        wait_until(
            lambda: re.search(ready, serving.said()) or serving.has_ended(),
            f"{ready!r} from {text}",
            bound_s,
            describe=lambda: serving.said()[-6000:],
        )
        assert re.search(ready, serving.said()), f"{text}\nended:\n{serving.said()[-6000:]}"
        return serving

    def stop(self, pattern: str = "") -> None:
        """Ask what serves and matches a pattern to end, the newest first; each must, with 0 or, as a job, with 143."""
        stopped = [serving for serving in self.serving if re.search(pattern, serving.text)]
        for serving in reversed(stopped):
            self.serving.remove(serving)
            order = f'kill -TERM {serving.pid}; wait {serving.pid}; echo "$?" >&$CODES'
            code = self._ask(order, f"the end of {serving.text}", _BOUND_S)
            expected = 143 if "--run.supervisor job" in serving.text else 0
            assert code == expected, f"{serving.text}\nended with {code}:\n{serving.said()[-6000:]}"

    def close(self) -> None:
        """End the shell and what still runs in it."""
        for serving in self.serving:
            if not serving.has_ended():
                os.kill(serving.pid, 9)
        self._bash.kill()
        self._bash.wait()
        assert self._bash.stdin is not None
        self._bash.stdin.close()
        os.close(self._codes)

    def _files(self, text: str) -> tuple[Path, Path]:
        self._count += 1
        script = self._output / f"{self._count}.sh"
        script.write_text(f"{text}\n", encoding="utf-8")
        return script, script.with_suffix(".txt")

    def _ask(self, line: str, what: str, bound_s: float) -> int:
        """Have bash run a line that writes one number; return it."""
        assert self._bash.stdin is not None
        self._bash.stdin.write(f"{line}\n")
        self._bash.stdin.flush()
        is_there, _, _ = select.select([self._codes], [], [], bound_s)
        assert is_there, f"not within {bound_s:g} s: {what}"
        answer = os.read(self._codes, 32)
        assert answer, f"the shell has ended: {what}"
        return int(answer)
