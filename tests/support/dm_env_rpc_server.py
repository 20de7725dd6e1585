"""A dm_env_rpc server of the package `dm_env_rpc`: catch a ball that falls. Run with .venv-extras on PYTHONPATH.

python dm_env_rpc_server.py      prints the port
"""

# mypy: ignore-errors
# ruff: noqa
from __future__ import annotations

import sys
import time
from concurrent import futures

import grpc
import numpy as np
from dm_env_rpc.v1 import dm_env_rpc_pb2 as pb
from dm_env_rpc.v1 import dm_env_rpc_pb2_grpc, spec_manager, tensor_spec_utils, tensor_utils

ROWS, COLUMNS = 6, 5


def specs():
    board = pb.TensorSpec(name="board", shape=[ROWS, COLUMNS], dtype=pb.DataType.FLOAT)
    place = pb.TensorSpec(name="place", dtype=pb.DataType.INT32)
    reward = pb.TensorSpec(name="reward", dtype=pb.DataType.FLOAT)
    label = pb.TensorSpec(name="label", dtype=pb.DataType.STRING)
    move = pb.TensorSpec(name="move", dtype=pb.DataType.INT8)
    tensor_spec_utils.set_bounds(move, minimum=-1, maximum=1)
    return pb.ActionObservationSpecs(actions={7: move}, observations={1: board, 2: place, 3: reward, 4: label})


class Catch:
    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.ball, self.row, self.place = int(self.rng.integers(COLUMNS)), 0, COLUMNS // 2

    def push(self, move):
        self.place = int(np.clip(self.place + move, 0, COLUMNS - 1))
        self.row += 1
        return self.row == ROWS - 1

    def observations(self):
        board = np.zeros((ROWS, COLUMNS), np.float32)
        board[self.row, self.ball] = 1
        board[-1, self.place] = 1
        caught = self.row == ROWS - 1 and self.ball == self.place
        return {"board": board, "place": np.int32(self.place), "reward": np.float32(caught), "label": "catch"}


class Servicer(dm_env_rpc_pb2_grpc.EnvironmentServicer):
    def Process(self, requests, context):
        manager = spec_manager.SpecManager(specs().observations)
        actions = spec_manager.SpecManager(specs().actions)
        game, seed, state = None, 0, pb.EnvironmentStateType.TERMINATED
        for request in requests:
            kind = request.WhichOneof("payload")
            response = pb.EnvironmentResponse()
            if kind == "create_world":
                if "bad" in request.create_world.settings:
                    response.error.message = "no setting 'bad'"
                else:
                    response.create_world.world_name = "catch"
            elif kind == "join_world":
                response.join_world.specs.CopyFrom(specs())
            elif kind == "reset":
                if "seed" in request.reset.settings:
                    seed = int(tensor_utils.unpack_tensor(request.reset.settings["seed"]))
                game, state = None, pb.EnvironmentStateType.TERMINATED
                response.reset.specs.CopyFrom(specs())
            elif kind == "step":
                if state != pb.EnvironmentStateType.RUNNING:
                    game, seed, state = Catch(seed), seed + 1, pb.EnvironmentStateType.RUNNING
                else:
                    move = actions.unpack(request.step.actions)["move"]
                    if game.push(int(move)):
                        state = pb.EnvironmentStateType.TERMINATED
                response.step.state = state
                packed = manager.pack(game.observations())
                for key in request.step.requested_observations:
                    response.step.observations[key].CopyFrom(packed[key])
            else:
                getattr(response, kind).SetInParent()
            yield response


if __name__ == "__main__":
    server = grpc.server(futures.ThreadPoolExecutor(8))
    dm_env_rpc_pb2_grpc.add_EnvironmentServicer_to_server(Servicer(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)
    sys.stdin.read()
