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
    lines.append("  replay       not restored: its table is in memory and fills anew before training goes on")
    return lines
