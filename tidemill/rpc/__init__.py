"""gRPC as Tidemill uses it."""

import os

# gRPC's core writes its own lines to standard error, before and beside the error that is raised. Read at its start.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
