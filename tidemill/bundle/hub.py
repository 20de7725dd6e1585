"""Bundles on the Hugging Face Hub: downloads one by its name, uploads a folder.

Both need `huggingface_hub`, which reads the endpoint (`HF_ENDPOINT`), the token (`HF_TOKEN`, or the one that `hf auth
login` has kept) and the place of the cache (`HF_HOME`) itself.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tidemill.atomic_files import is_disk_full
from tidemill.bundle.files import DOCUMENT, FILES, is_bundle
from tidemill.errors import ConfigError, NotFound, Unavailable

_NAME = re.compile(r"(?!.*(?:--|\.\.|\.git$))\w(?:[\w.-]*\w)?/\w(?:[\w.-]{0,94}\w)?", re.ASCII)  # by the Hub's rules
_TRANSPORTS = ("httpx", "httpx2", "requests")  # of releases of huggingface_hub
_SOURCE = re.compile(r"hf:/{1,2}([^@]*)(?:@(.+))?")  # a path in between has made one slash of two


def local_folder(source: str | Path) -> Path:
    """Return the folder of a run or of a bundle; a bundle on the Hub is downloaded first.

    Args:
        source: A path, or `hf://OWNER/NAME`, with `@REVISION` for a branch, a tag or a commit.

    Raises:
        ConfigError: The name is none, huggingface_hub is not installed, or the cache cannot be written.
        NotFound: There is no such repository or revision, the token may not read it, or it holds no bundle.
        Unavailable: The Hub does not answer.
    """
    found = _SOURCE.fullmatch(str(source))
    if found is None:
        return Path(os.path.expanduser(source))
    name, revision = found.groups()
    _check_name(str(source), name, "hf://OWNER/NAME or hf://OWNER/NAME@REVISION")
    with _errors_of(f"hf://{name}") as hub:
        folder = Path(hub.snapshot_download(name, revision=revision, allow_patterns=list(FILES)))
    if not is_bundle(folder):  # without one it would pass for a run of one's own, whose code is imported
        raise NotFound(f"{source} is not a bundle: it has no {DOCUMENT}; put one there with `tidemill export --to-hub`")
    return folder


def open_repository(name: str, *, private: bool) -> str:
    """Make a repository on the Hub if there is none; return its address.

    Args:
        name: `OWNER/NAME`.
        private: Whether a repository that is made is private; otherwise it is as its owner makes them by default.

    Raises:
        ConfigError: The name is none, there is no token that may write, or huggingface_hub is not installed.
        Unavailable: The Hub does not answer.
    """
    _check_name(name, name, "OWNER/NAME")
    with _errors_of(f"hf://{name}", writes=True) as hub:
        return str(hub.HfApi().create_repo(name, private=private or None, exist_ok=True))


def upload(folder: Path, name: str) -> None:
    """Put a bundle's files into a repository of the Hub in place of an earlier one's; raises as `open_repository`."""
    with _errors_of(f"hf://{name}", writes=True) as hub:
        message = "Add a policy trained with Tidemill"
        hub.HfApi().upload_folder(
            repo_id=name,
            folder_path=folder,
            commit_message=message,
            delete_patterns=list(FILES),  # those of an earlier policy that this one has not
        )


def _check_name(given: str, name: str, allowed: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{given} does not name a repository of the Hub; give {allowed}")


def _package() -> Any:  # noqa: ANN401 - the module
    try:
        import huggingface_hub
    except ImportError as error:
        raise ConfigError(f"the Hub needs huggingface_hub ({error}): pip install 'tidemill[hub]'") from error
    return huggingface_hub


@contextmanager
def _errors_of(what: str, *, writes: bool = False) -> Iterator[Any]:
    """Yield the package; turn its errors into one line each, without its headers."""
    hub = _package()
    from huggingface_hub import errors

    try:
        yield hub
    except errors.LocalTokenNotFoundError as error:
        raise ConfigError(f"{what} needs a token: set HF_TOKEN, or run `hf auth login`") from error
    except errors.LocalEntryNotFoundError as error:
        raise Unavailable(
            f"{what} cannot be reached and is not in the cache: check HF_ENDPOINT and the network"
        ) from error
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        why = "is not on the Hub, or the token (HF_TOKEN, `hf auth login`) may not see it"
        raise (ConfigError if writes else NotFound)(f"{what} {why}") from error
    except errors.HfHubHTTPError as error:
        status = getattr(error.response, "status_code", 0)
        if status in (401, 403):
            may = "write to" if writes else "read"
            raise ConfigError(
                f"the Hub refused {what} ({status}): set HF_TOKEN, or run `hf auth login`, to a token that may {may} it"
            ) from error
        raise Unavailable(f"the Hub answered {what} with status {status}: try again") from error
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in _TRANSPORTS and not isinstance(error, OSError):
            raise
        if isinstance(error, OSError) and is_disk_full(error):
            raise
        if isinstance(error, OSError) and error.filename is not None:  # of the cache, not of the network
            raise ConfigError(
                f"cannot use {error.filename} for {what}: {error.strerror}; HF_HOME sets the folder of the cache"
            ) from error
        raise Unavailable(f"the Hub does not answer for {what}: {type(error).__name__}") from error
