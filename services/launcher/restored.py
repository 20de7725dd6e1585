"""What `tidemill resume` finds in the run's folder, and what it cannot bring back."""

from __future__ import annotations

from pathlib import Path

from tidemill.scores import read_scores


def describe_restored(folder: Path) -> list[str]:
    """Return lines that say what goes on where it was and what starts anew."""
    scores = read_scores(folder / "scores.csv")
    checkpoints = sorted(path.name for path in (folder / "checkpoints").glob("[!.]*.safetensors"))
    has_params = any((folder / "params").glob("*"))
    lines = [f"resuming {folder}"]
    params = "the parameter server takes up its versions" if has_params else "none were published"
    lines.append(f"  params       {params}")
    if checkpoints:
        lines.append(f"  learner      from its newest checkpoint ({checkpoints[-1]}); see below")
    else:
        lines.append("  learner      no checkpoint: it starts anew")
    if scores:
        best = max(score.mean for score in scores)
        trained = f"{scores[-1].wall_s:.0f} s of training"
        lines.append(f"  scores       {len(scores)} evaluations, best mean {best:.1f}, {trained}")
    lines.append(f"  replay       {_replay(folder / 'replay')}")
    lines.append("  environments not restored: every actor starts new episodes, with a new epoch of its streams")
    return lines


def _replay(folder: Path) -> str:
    if any(folder.glob("**/*")):
        return "its tables come back from the log; the learner says below how many items it found"
    return "not restored: its tables were in memory only and fill anew before training goes on"
