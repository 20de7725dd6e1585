"""`tidemill replay export`, `import`, `copy`: the table of a running server to files, back, and to another server."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tidemill.process import end_in_order
from tidemill.replay.transfer.copying import copy_tables
from tidemill.replay.transfer.episodes import FORMS
from tidemill.replay.transfer.exporting import TransferReport, export_table
from tidemill.replay.transfer.importing import import_table
from tidemill.replay.transfer.lerobot import import_lerobot
from tidemill.replay.transfer.minari import export_minari, import_minari
from tidemill.services.replay.commands.options import add_timeout, add_times, command_parser, times_of
from tidemill.settings.argument_parser import ArgumentParser


def export(arguments: Sequence[str]) -> int:
    """Write a table into a folder and say what was written; return 0."""
    parser = command_parser(
        "export",
        "Write a table of a running replay server into a new folder of safetensors files, as a snapshot "
        "of one moment. Writers and learners continue meanwhile. The folder appears only once it is complete. Only "
        "items that meet every given condition are written.",
    )
    parser.add_argument("table", help="name of the table")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="the folder to write; must not exist")
    add_range(parser)
    add_timeout(parser)
    options = parser.parse_args(arguments)
    end_in_order()
    report = export_table(options.address, options.table, options.out, timeout_s=options.timeout_s, **range_of(options))
    print(f"exported {described(report)} to {options.out}")
    return 0


def import_(arguments: Sequence[str]) -> int:
    """Put a folder's table into a server and say what was imported; return 0."""
    parser = command_parser(
        "import",
        "Import a table from a folder of `tidemill replay export` into a running replay server. The "
        "folder is checked before anything is sent. If the server already has the table with the same configuration, "
        "the items are appended to it. The rate limiter of a new table is off during the import and starts balanced "
        "afterwards, or stays off if it was.",
    )
    parser.add_argument("folder", type=Path, help="folder that `tidemill replay export` wrote")
    parser.add_argument("--table", default="", metavar="NAME", help="name on the server (default: the exported name)")
    parser.add_argument(
        "--append", action="store_true", help="append also to a table that looks like an interrupted import"
    )
    add_timeout(parser)
    options = parser.parse_args(arguments)
    end_in_order()
    report = import_table(
        options.address, options.folder, table=options.table, timeout_s=options.timeout_s, append=options.append
    )
    print(f"imported {described(report)} from {options.folder}{_held(report)}")
    return 0


def _held(report: TransferReport) -> str:
    """Return the size of the table after an import, in words, and what it dropped for it."""
    held = "" if report.table_items is None else f"; the table has {report.table_items:,} items now"
    if not report.evicted_items:
        return held
    remedy = f"raise its limit before an import (`tidemill replay update ADDRESS {report.table} --max-items M`)"
    return f"{held}; {report.evicted_items:,} were dropped because it was full: {remedy}"


def described(report: TransferReport) -> str:
    """Return a report for a person to read."""
    lost = f" ({report.lost_items:,} more are corrupt and were left out)" if report.lost_items else ""
    return f"{report.items:,} items{lost} of {report.table}, {report.steps:,} rows, {report.size_bytes:,} bytes"


def add_range(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which items."""
    parser.add_argument("--newest", type=int, metavar="N", help="only the N newest items")
    parser.add_argument(
        "--min-age", type=int, default=0, metavar="N", help="only items with at least N inserted after them"
    )
    parser.add_argument("--max-age", type=int, metavar="N", help="only items with at most N inserted after them")
    add_times(parser)


def range_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return the values of the options of `add_range`."""
    ages = {"min_age": options.min_age, "max_age": options.max_age}
    return {"newest": options.newest, **ages, **times_of(options)}


def to_minari(arguments: Sequence[str]) -> int:
    """Make a Minari dataset of a table and say what is in it; return 0."""
    parser = command_parser(
        "to-minari",
        "Make a Minari dataset of a table of a running replay server, as a snapshot of one moment. The "
        "table's columns must be observation, action, reward, terminated and truncated, and is_first or "
        "next_observation.",
    )
    parser.add_argument("table", help="name of the table")
    parser.add_argument("dataset", help="name of the dataset, such as walks/random-v0; must not exist")
    parser.add_argument("--env", metavar="ID", help="gymnasium environment with the dataset's spaces (default: boxes)")
    _add_form(parser, "form of the table's observations and actions, with --env", "recognized by the columns")
    parser.add_argument("--newest", type=int, metavar="N", help="only the N newest items")
    add_times(parser)
    parser.add_argument(
        "--temporary", type=Path, metavar="FOLDER", help="folder for the table's files during the export"
    )
    add_timeout(parser)
    options = parser.parse_args(arguments)
    end_in_order()
    report = export_minari(
        options.address,
        options.table,
        options.dataset,
        env=options.env,
        form=options.form,
        newest=options.newest,
        **times_of(options),
        folder=options.temporary,
        timeout_s=options.timeout_s,
    )
    print(f"made {report.dataset_id} of {report.table}: {report.episodes:,} episodes, {report.steps:,} steps")
    print(*report.notes, sep="\n", end="\n" * bool(report.notes))
    return 0


def from_minari(arguments: Sequence[str]) -> int:
    """Put a Minari dataset into a table and say what it holds; return 0."""
    parser = command_parser(
        "from-minari",
        "Write a Minari dataset of this machine into a new table of a running replay server.",
    )
    parser.add_argument("dataset", help="name of the dataset, as `minari list local` shows it")
    parser.add_argument("table", help="name of the table; must not exist")
    _add_form(parser, "form in which observations and actions are stored", "env")
    _add_item(parser)
    add_timeout(parser)
    options = parser.parse_args(arguments)
    end_in_order()
    report = import_minari(
        options.address,
        options.dataset,
        options.table,
        form=options.form or "env",
        item_steps=options.item_steps,
        history=options.history,
        timeout_s=options.timeout_s,
    )
    print(f"wrote {report.dataset_id} to {report.table}: {report.episodes:,} episodes, {report.steps:,} steps")
    print(*report.notes, sep="\n", end="\n" * bool(report.notes))
    return 0


def from_lerobot(arguments: Sequence[str]) -> int:
    """Put a LeRobot dataset into a table and say what it holds; return 0."""
    parser = command_parser(
        "from-lerobot",
        "Write a LeRobot dataset of this machine, format v2 or v3, into a new table of a running replay server. Videos "
        "are not read.",
    )
    parser.add_argument("folder", type=Path, help="folder of the dataset, with meta/info.json")
    parser.add_argument("table", help="name of the table; must not exist")
    parser.add_argument(
        "--observation",
        action="append",
        default=[],
        metavar="FEATURE",
        help="feature of the observation, such as observation.state; repeat for several (default: all of numbers)",
    )
    parser.add_argument(
        "--final-reward",
        type=float,
        metavar="R",
        help="reward of each episode's last step, where there is no next.reward",
    )
    for end, word in (("low", "lowest"), ("high", "highest")):
        parser.add_argument(
            f"--action-{end}",
            type=float,
            nargs="+",
            metavar="A",
            help=f"{word} action of the environment, one or one per dimension; actions are scaled to [-1, 1]",
        )
    _add_item(parser)
    add_timeout(parser)
    options = parser.parse_args(arguments)
    low, high = options.action_low, options.action_high
    if (low is None) != (high is None):
        parser.error("give --action-low and --action-high together")
    end_in_order()
    report = import_lerobot(
        options.address,
        options.folder,
        options.table,
        observations=options.observation,
        final_reward=options.final_reward,
        action_bounds=None if low is None else (low, high),
        item_steps=options.item_steps,
        history=options.history,
        timeout_s=options.timeout_s,
    )
    seen = ", ".join(report.columns)
    print(f"wrote {report.folder} to {report.table}: {report.episodes:,} episodes, {report.steps:,} steps of {seen}")
    return 0


def _add_form(parser: argparse.ArgumentParser, what: str, default: str) -> None:
    """Add the option that says how observations and actions are stored."""
    parser.add_argument(
        "--form",
        choices=FORMS,
        help=f"{what}: env, as the environment has them; run, as a run stores them, actions in [-1, 1] or from 0; "
        f"flat, as a run with env.flatten (default: {default})",
    )


def _add_item(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how many rows an item has."""
    parser.add_argument(
        "--item-steps",
        type=int,
        default=2,
        metavar="N",
        help="rows of an item: 2 for transitions (the default), n + 1 for n steps",
    )
    parser.add_argument(
        "--history",
        type=int,
        default=0,
        metavar="N",
        help="rows before these, for stacked observations: one less than the stack (default: 0)",
    )


def copy(arguments: Sequence[str]) -> int:
    """Copy tables to another server and say what was copied; return 0."""
    parser = ArgumentParser(
        prog="tidemill replay copy",
        description="Copy tables of a running replay server to another one, for example to fork an experiment. Each "
        "is a snapshot of one moment; writers and learners of the source continue. The target must not have these "
        "tables.",
    )
    parser.add_argument("source", help="address of the server with the tables, such as 127.0.0.1:7401")
    parser.add_argument("target", help="address of the other server")
    parser.add_argument("tables", nargs="*", help="names of the tables; all if none is given")
    add_times(parser)
    parser.add_argument("--temporary", type=Path, metavar="FOLDER", help="folder for a table's files during the copy")
    add_timeout(parser)
    options = parser.parse_args(arguments)
    end_in_order()
    reports = copy_tables(
        options.source,
        options.target,
        options.tables,
        **times_of(options),
        folder=options.temporary,
        timeout_s=options.timeout_s,
    )
    for report in reports:
        print(f"copied {described(report)}{_held(report)}")
    return 0
