"""`python -I -S health_probe.py HOST:PORT/PATH`: whether a process is well, for a container's healthcheck.

It asks over HTTP. An engine runs it every few seconds in every container, so it imports nothing that has to be looked
for: a gRPC client, or even `urllib`, would cost more processor than the services need when they have nothing to do.
"""

import _socket
import sys

_TIMEOUT_S = 4.0


def main(target: str) -> int:
    """Ask once; return 0 if the answer is 200, else 1, with the reason on stderr.

    Args:
        target: IP address, port and path, e.g. `127.0.0.1:9400/healthz` or `[::1]:9400/healthz`.
    """
    address, _, path = target.partition("/")
    host, _, port = address.rpartition(":")
    status, reason = _ask(host.strip("[]"), int(port), path)
    if status != "200":
        sys.stderr.write(f"{target}: {reason}\n")
    return 0 if status == "200" else 1


def _ask(host: str, port: int, path: str) -> tuple[str, str]:
    """Return the status code of the answer, empty without one, and the answer's first line or the reason."""
    family = _socket.AF_INET6 if ":" in host else _socket.AF_INET
    connection = _socket.socket(family, _socket.SOCK_STREAM)
    try:
        connection.settimeout(_TIMEOUT_S)
        connection.connect((host, port))
        connection.send(f"GET /{path} HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
        line = connection.recv(256).decode("latin-1").partition("\r\n")[0]
    except OSError as error:
        return "", str(error)
    finally:
        connection.close()
    return line.split(" ")[1] if line.startswith("HTTP/") else "", line


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
