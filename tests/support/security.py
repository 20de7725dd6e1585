"""A folder of certificates and tokens, and the environment of a client that uses it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.rpc import client_security
from tidemill.rpc.settings import ServerSettings


def guarded(folder: Path, *, client_ca: bool = False) -> ServerSettings:
    """Return the settings of a server on loopback with the files that `tidemill certs` wrote."""
    return ServerSettings(
        tls_cert=str(folder / "server.pem"),
        tls_key=str(folder / "server.key"),
        tls_client_ca=str(folder / "ca.pem") if client_ca else "",
        tokens=str(folder / "tokens.txt"),
        grace_s=0.2,
    )


def become(patch: pytest.MonkeyPatch, *, ca: Path | None = None, token: Path | None = None) -> None:
    """Set the environment of a client: the CA it trusts, None for plaintext, and the file of its token, if any."""
    for name in ("CA", "TOKEN_FILE", "CERT", "KEY", "NAME"):
        patch.delenv(getattr(client_security, name), raising=False)
    if ca is not None:
        patch.setenv(client_security.CA, str(ca))
    if token is not None:
        patch.setenv(client_security.TOKEN_FILE, str(token))
