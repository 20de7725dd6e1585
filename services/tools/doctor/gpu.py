"""Checks of this machine's GPUs: one or several, alone and in containers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tidemill import linux
from tidemill.installation import how_to_install
from tidemill.services.tools.doctor.finding import Finding, says

_TIMEOUT_S = 120.0
"""Loading CUDA takes seconds for each GPU; a broken link between two of them never ends."""
_GIB = 1024**3
_OTHERS_BYTES = 2 * _GIB
"""Memory that is in use and not ours; the process that asks holds half a GiB itself."""
_MIN_SHM_BYTES = 1 * _GIB
_CDI_FOLDERS = (Path("/etc/cdi"), Path("/var/run/cdi"))

Answer = Mapping[str, Any]


def gpus(timeout_s: float = _TIMEOUT_S, shm: Path = linux.SHM) -> list[Finding]:
    """Return torch's abilities on each GPU, from a separate process: the launcher never imports torch.

    Args:
        timeout_s: Longest wait for that process.
        shm: Where shared memory is mounted.
    """
    command = [sys.executable, "-W", "ignore", "-m", "tidemill.gpu_probe"]
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=False, stdin=subprocess.DEVNULL
        )
        said, error, code = ended.stdout, ended.stderr, ended.returncode
    except subprocess.TimeoutExpired as late:
        said = (late.stdout or b"").decode(errors="replace")  # bytes, whatever `text` says
        error, code = f"no answer within {timeout_s:.0f} s", 1
    seen = says("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    answers = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    found = findings(answers, "" if code == 0 else _last_line(error) or f"it ended with code {code}", seen or "")
    return [*found, *shared_memory(shm)] if sum("gpu" in answer for answer in answers) > 1 else found


def findings(answers: Sequence[Answer], error: str, seen: str) -> list[Finding]:
    """Return findings for the answers of `tidemill.gpu_probe`.

    Args:
        answers: Its lines, in their order.
        error: Why it ended early; empty if it did not.
        seen: GPUs and driver versions as nvidia-smi lists them, a line each; empty without it.
    """
    known = {key: value for answer in answers for key, value in answer.items()}
    found = [_gpu(answer) for answer in answers if "gpu" in answer]
    if error:
        return [*found, _ended_at(known.get("begins", "import torch"), error)]
    if known["why_unusable"]:
        advice = (
            "update the driver, restart the machine or the container, or install a build of torch for an older CUDA; "
            "`auto` trains on the CPU until then"
        )
        return [Finding("FAIL", known["why_unusable"], advice)]
    if not found:
        return [_none(known["torch"], known["cuda"], seen.replace("\n", "; "))]
    driver = seen.partition("\n")[0].rpartition(", ")[2] or "of an unknown version"
    found.insert(0, Finding("ok", f"{_count(len(found))}, driver {driver}; {known['needs']}"))
    return [*found, *_together(known, len(found) - 1)]


def _ended_at(step: str, error: str) -> Finding:
    if step == "import torch":
        return Finding("FAIL", f"torch cannot be imported: {error}", how_to_install("learn"))
    advice = "see `nvidia-smi` and `dmesg`; skip a GPU with CUDA_VISIBLE_DEVICES, or all with --learner.device cpu"
    if "NCCL" in step:
        advice = "check the GPUs' links with `nvidia-smi topo -m`; NCCL_P2P_DISABLE=1 uses host memory instead"
    return Finding("FAIL", f"torch did not get past {step}: {error}", advice)


def _none(torch: str, cuda: str | None, seen: str) -> Finding:
    if not seen:
        text = "no GPU: learning runs on the CPU"
        return Finding("note", text, "fast enough for vector observations; Atari takes long")
    if cuda is None:
        text = f"the driver sees a GPU ({seen}), but torch {torch} is a build for CPUs"
        return Finding("note", text, "install the CUDA build of torch")
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    advice = "reboot, or reinstall the driver" if hidden is None else f"CUDA_VISIBLE_DEVICES is {hidden!r}; unset it"
    return Finding("note", f"the driver sees a GPU ({seen}), torch {torch} does not", advice)


def _gpu(answer: Answer) -> Finding:
    name = f"GPU {answer['gpu']}: {answer['name']}, compute capability {'.'.join(map(str, answer['capability']))}"
    if "free_bytes" not in answer:
        advice = "leave it out by CUDA_VISIBLE_DEVICES, or install a build of torch for an older CUDA"
        return Finding("FAIL", f"{name}, for which this torch has no kernels", advice)
    for dtype in ("float32", "bfloat16"):
        if answer[dtype]:
            advice = "leave it out by CUDA_VISIBLE_DEVICES; `nvidia-smi -q` and `dmesg` may say what is wrong with it"
            return Finding("FAIL", f"{name}; a {dtype} matmul fails: {answer[dtype]}", advice)
    free_bytes, total_bytes = answer["free_bytes"], answer["total_bytes"]
    free = f"{free_bytes / _GIB:.1f} of {total_bytes / _GIB:.1f} GiB free"
    text = f"{name}, float32 and bfloat16 matmuls are correct, {free}"
    if total_bytes - free_bytes > _OTHERS_BYTES:
        used = f"about {(total_bytes - free_bytes) / _GIB:.1f} GiB"
        return Finding("note", text, f"other programs use {used} of it, and share its time: `nvidia-smi`")
    return Finding("ok", text)


def _together(known: Answer, count: int) -> list[Finding]:
    """Return findings on what several GPUs need to train together; none for one GPU."""
    if count == 1:
        return []
    if not known["nccl"]:
        text = f"this torch has no NCCL: its {count} GPUs cannot train together"
        return [Finding("note", text, "install the CUDA build of torch; several runs use them without it")]
    if known["nccl_sum"]:
        advice = "`nvidia-smi topo -m` shows how they are linked; NCCL_DEBUG=INFO says more"
        return [Finding("FAIL", f"NCCL all-reduce over {count} GPUs fails: {known['nccl_sum']}", advice)]
    return [Finding("ok", f"NCCL all-reduce over {count} GPUs is correct")]


def shared_memory(folder: Path) -> list[Finding]:
    """Check that the memory shared by processes of several GPUs is large enough; containers start with 64 MiB."""
    try:
        size = os.statvfs(folder)
    except OSError as error:
        return [Finding("FAIL", f"{folder} cannot be used: {error.strerror}", "NCCL needs it; mount a tmpfs there")]
    size_bytes = size.f_frsize * size.f_blocks
    text = f"{folder} holds {size_bytes / _GIB:.2f} GiB"
    if size_bytes < _MIN_SHM_BYTES:
        advice = "NCCL passes data between GPUs through it: `docker run --shm-size=2g`, shm_size in a compose file"
        return [Finding("note", text, advice)]
    return [Finding("ok", text)]


def containers(folders: Sequence[Path] = _CDI_FOLDERS) -> list[Finding]:
    """Return a finding on how containers get the GPUs of this machine; nothing without a GPU or an engine."""
    runtimes = says("docker", "info", "--format", "{{json .Runtimes}}")
    if says("nvidia-smi", "-L") is None or not runtimes:
        return []
    described = [
        file
        for folder in folders
        if folder.is_dir()
        for file in sorted(folder.iterdir())
        if file.suffix in (".yaml", ".json") and "nvidia.com/gpu" in file.read_text(encoding="utf-8", errors="replace")
    ]
    if '"nvidia"' in runtimes:
        return [Finding("ok", "containers get GPUs from Docker's runtime nvidia: docker-compose.gpu.yml takes all")]
    if described:
        return [
            Finding("ok", f"containers get GPUs by CDI, as {described[0]} lists them: docker-compose.gpu.yml takes all")
        ]
    advice = (
        "install nvidia-container-toolkit, then `sudo nvidia-ctk runtime configure --runtime=docker` and restart Docker"
    )
    return [Finding("note", "Docker cannot give a GPU to a container: it has neither runtime nvidia nor CDI", advice)]


def _count(number: int) -> str:
    return f"{number} GPU{'s' if number > 1 else ''}"


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]
