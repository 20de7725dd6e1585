"""The committed learning results: the whole cluster, several seeds, one command.

Every seed is a run of `tidemill train` in runs/learn/NAME/seed-SEED. One that has a result is not run again; one that
was stopped continues if the commit and the machine are the same. The last and the best version of each are then tested
on fresh episodes. benchmarks/results/learning/NAME gets the config as it was run, curve.csv, curve.png and result.json,
which depend on the runs alone.

    python -m benchmarks.learn configs/cartpole_dqn.yaml [--seeds 1 2 3] [--steps N] [--sb3 .venv-sb3]
    python -m benchmarks.learn --report [NAME ...]      on the seeds of declared_seeds.yaml, which nothing else may see
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path

from benchmarks.learn.carry_out import carry_out, check_committed
from benchmarks.learn.committed import read_committed
from benchmarks.learn.plan import RESULTS, make_plan
from benchmarks.learn.report import write_report
from benchmarks.learn.seeds import check_free, check_no_report, is_reported, read_declared
from benchmarks.learn.table import write_table
from tidemill.errors import ConfigError, TidemillError


def main() -> int:
    """Run what is missing and write the report; return the exit code."""
    arguments = parser().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as Ctrl-C: what runs is stopped in order
    try:
        return _make(arguments)
    except TidemillError as error:
        print(f"benchmarks.learn: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _make(arguments: argparse.Namespace) -> int:
    if arguments.table:
        print(write_table())
        return 0
    if arguments.report is not None:
        return _report(arguments)
    if not arguments.config:
        raise ConfigError("which config? for example configs/cartpole_dqn.yaml")
    if arguments.report_only:
        name = arguments.name or Path(arguments.config).stem
        check_no_report(RESULTS / name)
        document = write_report(name, arguments.seeds or (), timed=not arguments.untimed)
    else:
        if arguments.extend and arguments.sb3:
            raise ConfigError("--extend adds our runs alone: a result with a peer is made whole, without it")
        arguments.seeds = arguments.seeds or [1, 2, 3]
        check_free(arguments.seeds)
        plan = make_plan(arguments)
        check_no_report(plan.results)
        committed = read_committed(plan.results, plan.text, plan.seeds) if arguments.extend else []
        seeds = [seed for seed in plan.seeds if seed not in {ran.seed for ran in committed}]
        if not seeds:
            raise ConfigError(f"{plan.results} has every one of these seeds; name those to add as well")
        carry_out(plan, seeds, jobs=arguments.jobs, again=arguments.again, limit_s=arguments.limit_s)
        document = write_report(plan.name, seeds, committed, timed=not arguments.untimed)
    write_table()
    print(json.dumps(document["over_seeds"]))
    return 1 if document["unfinished_seeds"] or not document["seeds"] else 0


def _report(arguments: argparse.Namespace) -> int:
    """Run the declared rows one after another, those that are reported already left out; return the exit code."""
    names, jobs, limit_s = arguments.report, arguments.jobs, arguments.limit_s
    words = ["--report", *names, "--jobs", str(jobs), "--limit-s", str(limit_s)]
    if arguments != parser().parse_args([*words, "--untimed"] if arguments.untimed else words):
        raise ConfigError("--report takes names, --jobs, --limit-s and --untimed: all else is declared")
    code = 0
    for row in read_declared(names):
        words = [row.config, "--name", row.name, "--seeds", *map(str, row.seeds), *row.options]
        plan = make_plan(parser().parse_args(words), declared=True)
        if is_reported(row, plan.results, plan.text):
            print(f"{row.name}: reported already", flush=True)
            continue
        check_committed()
        print(f"{row.name}: the seeds {', '.join(map(str, row.seeds))}", flush=True)
        carry_out(plan, plan.seeds, jobs=jobs, again=False, limit_s=limit_s)
        document = write_report(plan.name, plan.seeds, declared=True, timed=not arguments.untimed)
        write_table()
        print(json.dumps(document["over_seeds"]), flush=True)
        code = code or (1 if document["unfinished_seeds"] or not document["seeds"] else 0)
    return code


def parser() -> argparse.ArgumentParser:
    """Create the parser of the command line."""
    words = argparse.ArgumentParser(prog="python -m benchmarks.learn", description=(__doc__ or "").splitlines()[0])
    add = words.add_argument
    add("config", nargs="?", default="", help="configs/NAME.yaml")
    add("--seeds", type=int, nargs="+", help="default: 1 2 3, or with --report-only every seed there is")
    add("--name", default="", help="of the result, if it shall not be the config's")
    add("--steps", type=int, default=0, help="agent decisions of a run, in place of every limit of the config")
    add("--full", action="store_true", help="continue to the limit after the target is reached")
    add(
        "--set", action="extend", nargs="+", default=[], metavar="KEY=VALUE", help="other settings: agent.batch_size=64"
    )
    add("--test-episodes", type=int, default=100, help="fresh episodes of the last and the best version; 0: no test")
    add("--sb3", default="", metavar="FOLDER", help="run Stable-Baselines3, installed there, beside it")
    add("--peer-every", type=int, default=0, help="its decisions between evaluations; 0: a fiftieth of the run")
    add("--jobs", type=int, default=1, help="runs at a time; more than one makes their wall times longer")
    add("--limit-s", type=float, default=4 * 3600.0, help="seconds of one run whose config has no run.max_wall_s")
    add("--again", action="store_true", help="run seeds again that have a result; the previous run is moved aside")
    add("--extend", action="store_true", help="keep the seeds that the committed result has, run the others")
    add("--untimed", action="store_true", help="leave seconds out of the report: the machine did other work")
    add("--report-only", action="store_true", help="run nothing, write the report of the runs there are")
    add("--report", nargs="*", metavar="NAME", help="run what is declared for these results; without a name, for all")
    add("--table", action="store_true", help="only write the table of all results")
    return words


if __name__ == "__main__":
    sys.exit(main())
