"""Every method of every service."""

from __future__ import annotations

from collections.abc import Mapping

from google.protobuf.descriptor import MethodDescriptor

from tidemill.inference.v1 import inference_pb2
from tidemill.learner.v1 import learner_pb2
from tidemill.params.v1 import params_pb2
from tidemill.replay.v1 import replay_pb2
from tidemill.simulator.v1 import simulator_pb2

METHODS: Mapping[str, MethodDescriptor] = {
    f"/{service.full_name}/{method.name}": method
    for file in (replay_pb2, params_pb2, inference_pb2, simulator_pb2, learner_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
"""By their paths in HTTP/2."""
