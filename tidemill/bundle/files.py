"""The files of a bundle: what is written by `tidemill export`, and read again on another machine.

bundle.json          what it is, sealed by its own SHA-256
policy.safetensors   the parameters, full precision
config.yaml          the settings of the run
README.md            the model card
scores.csv, learning_curve.png, policy.mp4, contact_sheet.png   where the run has them
policy.onnx          what it does in evaluation, where the network allows
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import hashlib
import json
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidemill import formats
from tidemill.config.load import read_document
from tidemill.config.yaml_text import written
from tidemill.errors import AlreadyExists, ConfigError, DataLoss, InvalidArgument, NotFound
from tidemill.params.document import from_version, seal, to_version, unseal
from tidemill.params.stored import read_params
from tidemill.params.version import BEST, LATEST, Params, Precision
from tidemill.settings.check import is_safe_name
from tidemill.types import EnvSpec

DOCUMENT, POLICY, CONFIG, CARD = "bundle.json", "policy.safetensors", "config.yaml", "README.md"

_SHOWN = {"scores.csv": "scores.csv", "learning_curve.png": "plots/learning_curve.png"}
"""What a person looks at: its name in the bundle, and where a run has it."""

_FILM = {"policy.mp4": "videos/best.mp4", "contact_sheet.png": "videos/best.png"}
"""The film of its best version, which the run made at its end."""

FILES = (DOCUMENT, POLICY, CONFIG, CARD, "policy.onnx", *_SHOWN, *_FILM)
"""Names of all files that a bundle may have."""

_SECTIONS = ("run", "env", "agent", "table", "learner", "actor", "evaluator")
"""Of the settings, those that say how the policy was trained and is evaluated."""

_LAUNCHER = ("actors", "inference", "learners")
"""Settings of the launcher that training depends on: actors divide the range of epsilon, learners the batch, and
simulators play with a service for inference."""


@dataclass(frozen=True)
class Bundle:
    """A trained policy: its parameters, and what is needed to act with them.

    Attributes:
        params: The version, full precision.
        env_spec: Shapes of the environment it was trained in.
        result: What the run reported of itself when it ended; empty if it has not.
        versions: Of Tidemill and the packages it was trained with, by name.
        exported: When it was written, ISO 8601, UTC.
    """

    params: Params
    env_spec: EnvSpec
    result: Mapping[str, Any]
    versions: Mapping[str, str]
    exported: str = ""


def check_trusted(folder: Path, *, trusted: bool, by: str = "trusted=True") -> None:
    """Refuse a bundle whose settings name code to be imported, unless its origin is trusted.

    Args:
        folder: Of the bundle; a run's folder is one's own, and is trusted.
        trusted: Whether the user has said so.
        by: How the user says so, for the message.

    Raises:
        ConfigError: The settings name code, and nobody has said that they may.
    """
    if trusted or not is_bundle(folder):
        return
    if named := named_code(read_document(folder / CONFIG)):
        listed = ", ".join(f"{setting}: {value!r}" for setting, value in named.items())
        raise ConfigError(f"{folder} would import and run code ({listed}); if you trust where it comes from: {by}")


def named_code(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings that name a module which acting imports, and their values."""
    return {f"{section}.{name}": value for section in ("env", "agent") for name, value in _named_in(document, section)}


def _named_in(document: Mapping[str, Any], section: str) -> Iterator[tuple[str, str]]:
    """Yield the settings of a section that name a module: `module:name`, or a dotted path where one may stand."""
    for name, value in (document.get(section) or {}).items():
        if isinstance(value, str) and (":" in value or (section == "agent" and "." in value)):
            yield name, value


def is_bundle(folder: Path) -> bool:
    """True if a folder holds a bundle."""
    return (folder / DOCUMENT).is_file()


_OF_SWEEP = re.compile(r"trial-\d+/seed-\d+")


def name_beyond_sweep(folder: Path, name: str) -> str:
    """Return the name of a run where those of others are: of a sweep's run, `seed-1`, it is `SWEEP-trial-0003-seed-1`.

    Args:
        folder: The run's folder.
        name: Its name.
    """
    *_, sweep, trial, seed = ("", "", *folder.resolve().parts)
    return f"{sweep}-{trial}-{name}" if _OF_SWEEP.fullmatch(f"{trial}/{seed}") else name


def present_name(folder: Path, name: str) -> str:
    """Return the name of the run in a folder, which may be another than in its settings; that of a bundle stays."""
    present = name_beyond_sweep(folder, folder.resolve().name)
    return name if is_bundle(folder) or not is_safe_name(present) else present


def describe_no_run(folder: Path) -> str:
    """Return the words for a folder without a config.yaml: it is not a run, and the runs beside it or in runs/."""
    names: list[str] = []
    for root in (folder.parent, Path("runs")):
        found = (file.parent for file in root.glob(f"*/{CONFIG}"))
        names = names or sorted(str(path) for path in found if not is_bundle(path))
    has_trained = any((folder / name).exists() for name in ("checkpoints", "params", "scores.csv"))
    remedy = ", which `tidemill check` writes, given the settings of its services" if has_trained else ""
    return f"{folder} is not a run: it has no {CONFIG}{remedy}" + (f"; runs: {', '.join(names)}" if names else "")


def write_bundle(bundle: Bundle, run: Path, folder: Path, card: str, more: Mapping[str, Path] | None = None) -> None:
    """Write a bundle of a run into a folder, which appears whole or not at all.

    Args:
        bundle: What is passed on.
        run: The run's folder, from which settings and pictures are copied.
        folder: Where; its parents are made.
        card: Text of README.md.
        more: Further files, copied under these names.

    Raises:
        AlreadyExists: There is something already.
        ConfigError: The folder cannot be written.
    """
    check_free(folder)
    part = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.part")  # of this call, whoever else exports there
    try:
        part.mkdir(parents=True)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written ({error.strerror}); give another folder") from error
    try:
        (part / POLICY).write_bytes(bundle.params.blob)
        (part / DOCUMENT).write_bytes(_document(bundle))
        (part / CARD).write_text(card, encoding="utf-8")
        document = {formats.KEY: formats.NEWEST[formats.CONFIG], **portable_settings(run / CONFIG)}
        writer = bundle.versions.get("tidemill")  # which an older one names if it does not know a setting
        header = f"# tidemill {writer}\n" if writer else ""
        (part / CONFIG).write_text(header + written(document), encoding="utf-8")
        for name, source in {**find_shown(run, bundle), **(more or {})}.items():
            shutil.copyfile(source, part / name)
        try:
            part.rename(folder)
        except OSError:
            check_free(folder)  # of another export meanwhile
            raise
    finally:
        shutil.rmtree(part, ignore_errors=True)


def check_free(folder: Path) -> None:
    """Raise AlreadyExists if a bundle cannot be written to a folder, because there is something already."""
    if folder.exists():
        raise AlreadyExists(f"{folder} exists; give another folder, or remove it first")


def find_shown(run: Path, bundle: Bundle) -> dict[str, Path]:
    """Return the files of a run to show, by their names in a bundle: the film only if it is of the bundle's version."""
    is_filmed = bundle.result.get("video") and bundle.result.get("best_version") == bundle.params.number
    shown = _SHOWN | _FILM if is_filmed else _SHOWN
    return {name: run / file for name, file in shown.items() if (run / file).is_file()}


def portable_settings(file: Path) -> dict[str, dict[str, Any]]:
    """Return the settings of a run's config.yaml without those of its machine: addresses, folders and most processes.

    Raises:
        ConfigError: The file is missing or is not a YAML mapping.
    """
    document = read_document(file)
    kept = {name: dict(document[name] or {}) for name in _SECTIONS if name in document}
    for section in kept.values():
        section.pop("server", None)
    kept.get("run", {}).pop("root", None)
    if name := kept.get("run", {}).get("name"):
        kept["run"]["name"] = present_name(file.parent, name)
    for source in (kept.get("learner", {}).get("sources") or {}).values():
        source.pop("replay", None)
    launcher = {name: value for name, value in (document.get("launcher") or {}).items() if name in _LAUNCHER}
    if simulators := (document.get("inference") or {}).get("simulators"):
        kept["inference"] = {"simulators": simulators}
    else:
        launcher.pop("inference", None)  # as fast as the machine
    if launcher:
        kept["launcher"] = launcher
    return kept


def _document(bundle: Bundle) -> bytes:
    version = bundle.params.version
    described = dataclasses.replace(version, encodings=(version.encoding(Precision.FULL),))
    env_spec = dataclasses.asdict(bundle.env_spec)
    content = {
        "version": from_version(described),
        "observation_spaces": env_spec.pop("observation_spaces"),  # earlier versions know no other fields of a spec
        "env_spec": env_spec,
        "result": dict(bundle.result),
        "versions": dict(bundle.versions),
        "exported": bundle.exported or datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    content = json.loads(json.dumps(content))  # tuples become lists, so that the sum is that of what is read
    return seal(content, formats.BUNDLE)


def read_bundle(folder: Path) -> Bundle:
    """Return the bundle in a folder.

    Raises:
        NotFound: There is none.
        DataLoss: A file is corrupt.
        FatalError: It has a format that this version does not know.
    """
    file = folder / DOCUMENT
    try:
        content = unseal(file.read_bytes(), file, formats.BUNDLE)
        blob = (folder / POLICY).read_bytes()
        version = to_version(content["version"])
        spec = {**content["env_spec"], "observation_spaces": content.get("observation_spaces", ())}
        params, env_spec = Params(version, Precision.FULL, blob), EnvSpec.from_document(spec)
        bundle = Bundle(params, env_spec, content["result"], content["versions"], content["exported"])
    except FileNotFoundError as error:
        raise NotFound(f"{folder} is not a bundle: it has no {Path(error.filename).name}") from error
    except DataLoss as error:
        raise DataLoss(f"{file} is corrupt: {error}") from error
    except (KeyError, TypeError, ValueError, InvalidArgument) as error:
        raise DataLoss(f"{file} does not have the fields of a bundle: {error}") from error
    encoding = version.encoding(Precision.FULL)
    if len(blob) != encoding.size_bytes or hashlib.sha256(blob).digest() != encoding.sha256:
        raise DataLoss(f"{folder / POLICY} does not match its size and SHA-256")
    return bundle


def read_policy_params(folder: Path, selector: int | str | None = None) -> Params:
    """Return the parameters in the folder of a run or of a bundle, full precision.

    Args:
        folder: Of the run, running or not, or of the bundle.
        selector: Number of a version, or a tag; None: the one a bundle holds, a run's best, or else its latest.

    Raises:
        NotFound: There is no such version or tag; the message names those there are.
        DataLoss: The files are corrupt.
    """
    if is_bundle(folder):
        params = read_bundle(folder).params
        if selector not in (None, params.number):
            raise NotFound(f"{folder} is a bundle, which holds version {params.number} alone, not {selector!r}")
        return params
    if selector is not None:
        return read_params(folder / "params", selector)
    with contextlib.suppress(NotFound):
        return read_params(folder / "params", BEST)
    return read_params(folder / "params", LATEST)
