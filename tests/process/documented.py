"""How the commands of the documents are run by tests: budgets, what serves, what comes before, what is run elsewhere.

Every command in a fenced shell block is run as printed, in a bash, in a checkout that is thrown away, unless it is in
`ELSEWHERE`. Patterns are for the whole text of a command; one that no document has any more fails a test.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

TRAINING = (
    "--run.max-learner-steps 10 --run.target-return none --table.min-size 100 --agent.batch-size 8 "
    "--env.num-envs 2 --actor.max-env-steps-per-s 200 --env.max-evaluation-steps 30 --evaluator.episodes 1 "
    "--evaluator.num-envs 1 --evaluator.start-env-steps 0 --evaluator.min-interval-s 0.2 --evaluator.no-video"
)
"""The budget of every command that trains. `make quickstart` films, as does what resumes its run.

An emulator of Atari is 0.2 s of processor time before its first frame.
"""

QUICKSTART: dict[str, dict[str, object]] = {
    "run": {"max_learner_steps": 20, "target_return": None, "max_wall_s": 0},
    "env": {"num_envs": 2, "max_evaluation_steps": 30},
    "agent": {"batch_size": 8, "start_steps": 0},
    "table": {"min_size": 100},
    "actor": {"max_env_steps_per_s": 200},
    "evaluator": {"episodes": 1, "num_envs": 1, "min_interval_s": 0.2, "start_env_steps": 0, "video_max_steps": 20},
}
"""What the checkout's configs/quickstart.yaml has instead."""

ENDLESS = QUICKSTART | {
    "run": {"name": "endless"},
    "actor": {"max_env_steps_per_s": 20},
    "evaluator": QUICKSTART["evaluator"] | {"min_interval_s": 10},
}
"""What its configs/endless.yaml has, for what runs until it is stopped: slow, for other commands run beside it."""

SWEEP = {"settings": {"run.max_learner_steps": 20}, "seeds": [1], "space": {"agent.learning_rate": [1e-3]}}
"""What its examples/sweeps/cartpole.yaml has instead: one trial."""

BUDGETS = (
    (r"^tidemill train .*", rf"\g<0> {TRAINING}"),
    (r"^tidemill resume .*", r"\g<0> --run.max-learner-steps 40"),
    (r"--launcher.learners 4", "--launcher.learners 2"),
    (r"--launcher.actors \d+", "--launcher.actors 1"),
    (r"torchrun 4 3", "torchrun 2 1"),
    (r"--episodes \d+", "--episodes 2"),
    (r"C=configs/quickstart.yaml", "C=configs/endless.yaml"),
    (r"\bbox1\b", "localhost"),
    (r"runs/NAME/cluster", "runs/running/cluster"),
    (r"runs/NAME", "runs/quickstart"),
    (r"scripts\.trace_transition$", r"\g<0> --steady-s 8 --record-s 1"),
)
"""What is put instead of a part of a command: budgets, and names of machines and runs."""

FIRST = ("make quickstart", "tidemill train --config pong_dqn --launcher.actors 4")
"""What pages take for granted that others show: run before all others."""

SERVES = (
    (r"(env/bin/)?tidemill (replay --|paramserver|inference).*", " serving "),
    (r"tidemill learner .*|python -m tidemill.services.learner.torchrun .*", " listening .*address"),
    (r"tidemill actor .*", " acting starts "),
    (r"tidemill evaluator .*", " evaluated "),
    (r"tensorboard .*", "http://"),
)
"""What runs until it is stopped, with what it says once it is ready."""


@dataclass(frozen=True)
class Before:
    """What comes before a command: `stop` ends what serves and matches it, `run` is run, what is in `serve` started."""

    pattern: str
    page: str = ""
    stop: str | None = None
    run: str = ""
    serve: tuple[str, ...] = ()

    def matches(self, page: str, command: str) -> bool:
        """True if the rule is for a command of a page."""
        return self.page in ("", page) and re.fullmatch(self.pattern, command, re.DOTALL) is not None


_HAND = "docs/by-hand.md"
_PLAIN = ("tidemill replay --config $C", "tidemill paramserver --config $C")
_RUNNING = "tidemill train --config configs/endless.yaml --run.name running"

BEFORE = (
    Before("tidemill plot runs/a runs/b .*", run="cp -r runs/quickstart runs/a; cp -r runs/quickstart runs/b"),
    Before("tidemill status", serve=(_RUNNING,)),
    Before("tidemill actor .* --cluster.inference .*", _HAND, stop="actor.id a1"),
    Before("tidemill actor --config runs/NAME/cluster.yaml .*", stop="", serve=(_RUNNING,)),
    Before("tidemill certs .*", _HAND, stop=""),
    Before("tidemill replay .* 127.0.0.1:7411", _HAND, stop="", run="unset TIDEMILL_TLS_CA TIDEMILL_TOKEN_FILE"),
    Before("tidemill learner .* 127.0.0.1:7411 .*", serve=_PLAIN[1:]),
    Before("tidemill replay --folder data .*", _HAND, stop=""),
    Before("python -m tidemill.services.learner.torchrun .* \\$C", stop="", serve=_PLAIN),
    Before(r"env/bin/python walks\.py|\. env/bin/activate", run="ln -sfn .venv env"),
    Before("env/bin/tidemill replay --folder data .*", stop="", run="ln -sfn .venv env"),
    Before("env/bin/tidemill replay export 127.0.0.1:7401 walks .*", run="env/bin/python write.py"),
    Before(
        "env/bin/tidemill replay tables .*",
        stop="",
        run="unset TIDEMILL_TLS_CA TIDEMILL_TOKEN_FILE",
        serve=("env/bin/tidemill replay --folder data",),
    ),
)


@dataclass(frozen=True)
class Elsewhere:
    """A command that is not run here: the test (or the file of CI) that runs it, and why."""

    pattern: str
    by: str
    why: str
    page: str = ""

    def matches(self, page: str, command: str) -> bool:
        """True if the rule is for a command of a page."""
        return self.page in ("", page) and re.fullmatch(self.pattern, command, re.DOTALL) is not None


_STACK = "tests/compose/test_stack.py::"
_DOCKER = "needs the cluster in containers, which tests/compose starts once"
_ALONE = "tests/process/test_replay_alone.py::"

ELSEWHERE = (
    Elsewhere("make (dev|check|test)", ".ci/run", "installs, checks and tests everything: half an hour"),
    Elsewhere(
        "make (hooks|atari)", "", "fetches packages of others; `make dev` installs the emulator by the same lock"
    ),
    Elsewhere(
        r".* -m scripts.mutants .*", "tests/unit/test_mutants.py", "runs tests again for each of 16 or 84 mutants"
    ),
    Elsewhere(
        r"pip install 'tidemill\[wandb\]' && wandb login|tidemill log .* --to wandb",
        "tests/process/test_log.py::test_run_is_sent_to_weights_and_biases",
        "needs wandb, which is in an environment of its own",
    ),
    Elsewhere(
        "python -m tidemill.services.learner.torchrun --nnodes 2 .*",
        "tests/process/test_nodes_recover.py::test_machine_that_ended_and_came_back_is_joined",
        "waits for a second machine",
    ),
    Elsewhere(
        "python -m tidemill.services.learner.torchrun 4 3 --config configs/apex_pong.yaml",
        "tests/process/test_ranks_recover.py::test_killed_rank_brings_all_back_from_the_checkpoint",
        "the command of docs/by-hand.md, which is run here, with another config",
    ),
    Elsewhere("make chaos .*", "tests/chaos/test_chaos.py", "kills processes for minutes, and writes down the result"),
    Elsewhere("make release-rehearsal", "tests/process/test_release.py", "makes every file of a release"),
    Elsewhere("grpcurl .*", "tests/integration/test_security.py::test_health_is_open_and_reflection_is_not", "grpcurl"),
    Elsewhere("python3 -m venv env|env/bin/pip install .", f"{_ALONE}test_tutorial_works_as_it_stands", "installs"),
    Elsewhere(
        r"env/bin/pip install '\.\[security\]'|pip install \. torch gymnasium", "", "the tests' environment has them"
    ),
    Elsewhere(
        r"env/bin/pip install '\.\[minari\]'|env/bin/tidemill replay (from|to)-minari .*",
        "tests/process/test_minari.py::test_dataset_goes_into_a_table_and_comes_back_equal",
        "needs minari, which is in an environment of its own, and a dataset",
    ),
    Elsewhere(
        r"env/bin/pip install '\.\[lerobot\]'|env/bin/tidemill replay from-lerobot .*",
        "tests/process/test_lerobot.py::test_dataset_goes_into_a_table",
        "needs pyarrow, which is in an environment of its own, and a dataset",
    ),
    Elsewhere(
        r"cd examples|tidemill train --config (own|dict|masked|batched|hindsight|retrace)(_\w+)?\.yaml.*",
        "tests/process/test_examples.py::test_example_trains",
        "the same, in a copy",
    ),
    Elsewhere(
        r"tidemill train --config suites/minatar_pqn\.yaml .*",
        "tests/unit/rl/test_minatar.py::test_game_is_played_and_seen_by_the_network",
        "needs MinAtar, which is in an environment of its own",
    ),
    Elsewhere(
        r"tidemill train --config suites/bsuite_dqn\.yaml .*",
        "tests/unit/rl/test_bsuite.py::test_config_builds_its_agent",
        "needs bsuite, which is in an environment of its own",
    ),
    Elsewhere(
        r"tail -n 1 runs/events/.*|tidemill sweep sweeps/.*",
        "tests/process/test_examples.py::test_example_trains",
        "is in the folder of the examples; another page has the sweep",
        page="examples/README.md",
    ),
    Elsewhere(
        r"python examples/replay/\w+\.py( write| learn| --replay \S+)?",
        f"{_ALONE}test_example_outlives_its_server",
        "the same, and a kill",
        page="examples/replay/README.md",
    ),
    Elsewhere(
        r"python replay/dqn\.py",
        f"{_ALONE}test_example_outlives_its_server",
        "the same, and a kill",
        "examples/README.md",
    ),
    Elsewhere(
        "tidemill train --config configs/cartpole_simulators.yaml",
        "tests/process/test_simulators.py::test_simulators_train_a_run_whose_service_is_killed",
        "trains only while a simulator plays",
    ),
    Elsewhere(
        "docker compose (build|.* build.*|(--env-file second.env )?up -d|ps|logs -f .*)",
        f"{_STACK}test_every_container_becomes_healthy",
        _DOCKER,
    ),
    Elsewhere(
        "docker compose --profile inference up .*", f"{_STACK}test_simulators_are_awaited_without_actors", _DOCKER
    ),
    Elsewhere(
        "docker compose run --rm operator .*|docker compose run .* actor (status|ctl stop) .*",
        f"{_STACK}test_operator_steers_and_services_do_not",
        _DOCKER,
    ),
    Elsewhere(
        "docker compose (stop|up -d --no-deps .*|run .* inspect .*)",
        f"{_STACK}test_termination_ends_every_service_with_zero",
        _DOCKER,
    ),
    Elsewhere("docker compose run .* evaluate .*", f"{_STACK}test_cluster_trains", _DOCKER),
    Elsewhere(
        "docker compose run .* export .*|echo .* > configs/own-requirements.txt",
        f"{_STACK}test_run_has_its_settings_and_its_policy_comes_out_of_the_volumes",
        f"{_DOCKER}, with an environment of its own that needs a package",
    ),
    Elsewhere("for s in .*", f"{_STACK}test_run_moves_to_another_box", _DOCKER),
    Elsewhere(
        "docker compose run --rm certs certs /certs --services",
        f"{_STACK}test_certificates_are_renewed_while_training_continues",
        _DOCKER,
    ),
    Elsewhere(
        "docker compose run --rm certs certs .* --keep .*",
        "tests/unit/tools/test_certs.py::test_token_is_rotated_and_retired",
        _DOCKER,
    ),
    Elsewhere("nvidia-smi .*", "tests/unit/tools/test_doctor_gpu.py", "needs a driver, which `tidemill doctor` asks"),
    Elsewhere("tidemill doctor --network .*", "tests/process/test_doctor_network.py", "runs where the module is"),
    Elsewhere(
        "tidemill train .* --learner.device cuda .*",
        "tests/process/test_pretended_gpus.py::test_run_on_four_gpus_survives_a_rank_and_goes_on_with_two_and_with_none",
        "needs GPUs",
    ),
    Elsewhere(
        "make gpu-report .*",
        "tests/unit/benchmarks/test_gpu_report.py::test_report_is_written_step_by_step",
        "measures for 40 minutes",
    ),
    Elsewhere(
        r"make race(| ARGS=.*)",
        "tests/unit/benchmarks/test_race.py::test_page_is_made_from_the_rows",
        "trains for hours, and installs other programs",
    ),
    Elsewhere("helm install .*", "tests/compose/test_shipped_helm.py", "needs a cluster of Kubernetes"),
    Elsewhere(
        r"(TIDEMILL_\w+=\S+ )*sbatch .*",
        "tests/slurm/test_rehearsal.py::test_run_that_loses_nodes_is_requeued_and_ends_solved",
        "needs Slurm",
    ),
    Elsewhere("kubectl .*", "tests/compose/test_shipped_kubernetes.py", "needs a cluster of Kubernetes"),
    Elsewhere(
        "export TIDEMILL_TLS_CA=.*|tidemill status .*",
        f"{_STACK}test_operator_steers_and_services_do_not",
        "the status of a cluster of Kubernetes",
        page="docs/kubernetes.md",
    ),
)
"""Commands that are not run here."""
