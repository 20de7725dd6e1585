"""Settings from defaults, file and command line, in that order."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.naming import naming
from tests.support.own_algorithm import OwnConfig
from tidemill.config.load import by_sections, from_document, load, load_config, load_run, write_document
from tidemill.config.sections import ActorConfig, LearnerConfig, ReplayConfig, RunConfig
from tidemill.config.yaml_text import parse, written
from tidemill.errors import ConfigError


def _load(config: type, *arguments: str) -> object:
    return load(config, arguments, prog="tidemill test", description="A test.")


def test_load_without_arguments_gives_the_defaults() -> None:
    """Nothing given, nothing changed."""
    assert _load(RunConfig) == RunConfig()


def test_load_puts_the_command_line_over_the_file_over_the_defaults(tmp_path: Path) -> None:
    """Each source overrides only what it names."""
    file = tmp_path / "run.yaml"
    file.write_text("run: {seed: 5, name: pong}\nlearner: {publish_every: 7}\n")
    config = _load(LearnerConfig, "--config", str(file), "--run.seed", "9")
    assert isinstance(config, LearnerConfig)
    assert (config.run.seed, config.run.name, config.learner.publish_every) == (9, "pong", 7)


def test_load_gives_a_service_paths_from_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its environment may change the working directory; the settings of a whole run stay as they were written."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    arguments = ("--actor.server.tokens", "keys/tokens", "--actor.server.tls-cert", "~/cert.pem")
    config = _load(ActorConfig, *arguments)
    assert isinstance(config, ActorConfig)
    assert config.run.folder == tmp_path / "runs" / "run"
    server = config.actor.server
    assert (server.tokens, server.tls_cert, server.tls_key) == (str(tmp_path / "keys/tokens"), "/home/me/cert.pem", "")
    whole = _load(RunConfig)
    assert isinstance(whole, RunConfig)
    assert whole.run.root == "runs"


def test_server_takes_no_larger_version_than_its_clients() -> None:
    """A limit above 1 GiB had no effect: the learner refuses to pack more, and readers to take memory for it."""
    with pytest.raises(ConfigError, match=naming("paramserver.max_blob_bytes 1073741825 1 1073741824")):
        _load(RunConfig, "--paramserver.max-blob-bytes", str(2**30 + 1))


def test_only_a_process_that_would_trace_needs_opentelemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of a traced run is read without it, as for its policy."""
    monkeypatch.setattr("tidemill.config.traces.find_spec", lambda _: None)
    assert from_document(RunConfig, {"log": {"trace_every": 5}}).log.trace_every == 5
    for config in (ActorConfig, RunConfig):
        with pytest.raises(ConfigError, match=naming("log.trace_every 5 tidemill[trace]")):
            _load(config, "--log.trace-every", "5")


def test_load_builds_the_agent_the_file_names(tmp_path: Path) -> None:
    """`agent.algorithm` decides which settings the agent section has."""
    file = tmp_path / "run.yaml"
    file.write_text("agent: {algorithm: dqn}\n")
    config = _load(ActorConfig, f"--config={file}")
    assert isinstance(config, ActorConfig)
    assert config.agent.algorithm == "dqn"


def test_load_lets_the_command_line_choose_the_agent() -> None:
    """`--agent.algorithm` works without a file."""
    config = _load(RunConfig, "--agent.algorithm", "dqn")
    assert isinstance(config, RunConfig)
    assert config.agent.algorithm == "dqn"


def test_last_of_several_algorithms_counts_as_of_every_option() -> None:
    """The first one was built, and the last one only looked as if it had been refused or taken."""
    words = ("--agent.algorithm", "dqn", "--env.num-envs", "2", "--agent.algorithm=r2d2", "--env.num-envs", "3")
    config = load(RunConfig, words, prog="test", description="Test.")
    assert (config.agent.algorithm, config.env.num_envs) == ("r2d2", 3)


@pytest.mark.parametrize("second", [["--config", "cartpole_ppo"], ["--config=cartpole_ppo"]])
@pytest.mark.parametrize("first", [["--config", "cartpole_dqn"], ["--config=cartpole_dqn"]])
def test_second_config_is_refused(first: list[str], second: list[str]) -> None:
    """Neither is left out silently."""
    with pytest.raises(ConfigError, match=naming("--config one")):
        load(RunConfig, [*first, *second], prog="test", description="Test.")


def test_load_ignores_sections_of_other_processes(tmp_path: Path) -> None:
    """One file serves every process of the run."""
    file = tmp_path / "run.yaml"
    file.write_text("learner: {publish_every: 7}\nreplay: {max_tables: 2}\n")
    config = _load(ReplayConfig, "--config", str(file))
    assert isinstance(config, ReplayConfig)
    assert config.replay.max_tables == 2


@pytest.mark.parametrize(
    "text,words",
    [
        ("lerner: {}", "unknown section 'lerner'; did you mean 'learner'?"),
        ("agent: {algorithm: a3c}", "agent.algorithm is 'a3c', allowed: d4pg, ddpg, dqn"),
        ("learner: {publish_every: 0}", "learner.publish_every is 0, allowed: at least 1"),
        ("- a", "must hold a mapping of sections, got list"),
        ("", "is empty; expected sections, such as `env: {id: CartPole-v1}`"),
        ("# nothing\n", "is empty"),
        ("env: {id: \xff}", "is not a text of settings"),
        ("[" * 5000, "is not"),
        ("? [a, b]\n: c", "a key is a list or a mapping: expected a name"),
        ("env:\n\tid: a", "is not valid YAML"),
        ("env: {id: a}\nenv: {id: b}", "'env' is written twice"),
        ("a: [", "is not valid YAML"),
        ("run: [a, b]", "run is ['a', 'b'], must be a mapping of settings"),
        ("env: CartPole-v1", "env is 'CartPole-v1', must be a mapping of settings, such as {id: CartPole-v1}"),
        ("agent: dqn", "agent is 'dqn', must be a mapping of settings, such as {algorithm: dqn}"),
        ("nonsection: {}", "unknown section 'nonsection'; known: actor, agent, cluster, env, evaluator, inference, "),
        ("Env: {id: a}", "unknown section 'Env'; did you mean 'env'?"),
        ("env: {id:CartPole-v1}", "'env.id:CartPole-v1'; put a space behind the colon: id: CartPole-v1"),
        ("agent: {learning_rate: .inf}", "agent.learning_rate is inf, allowed: a finite number"),
        ("run: {max_wall_s: 1e400}", "run.max_wall_s is inf, allowed: a finite number"),
        ("agent: {gamma: .nan}", "agent.gamma is nan, allowed: a finite number"),
        ("run: {name: 2024-01-01}", "run.name is '2024-01-01', allowed: a text: put it in quotes, '2024-01-01'"),
        ("run: {name: 2024-31-12}", "'2024-31-12' is not a valid timestamp: put it in quotes if it is a text"),
        ("run: {seed: !!int ''}", "'' is not a valid int"),
        ("run: {name: !!bool maybe}", "'maybe' is not a valid bool"),
        ("run: {name: !!timestamp now}", "'now' is not a valid timestamp"),
        ("table: {max_items: .inf}\nlauncher: {actors: .inf}", "launcher.actors is inf, allowed: a whole number"),
        (
            "run: {name: -x}",
            "run.name is '-x', allowed: letters, digits, `_`, `-` and `.`, a letter or digit first; at most",
        ),
        ("run: {name: 5}", "run.name is '5', allowed: a text: put it in quotes, '5'"),
        ("agent: {hidden_sizes: 64}", "agent.hidden_sizes is 64, allowed: a list, such as [64]"),
        ("agent: {hidden_sizes: '64,64'}", "agent.hidden_sizes is '64,64', allowed: a list, such as [64,64]"),
        ("run: {seed: 9999999999999999999999}", "run.seed is 9999999999999999999999, allowed: 0 to 2**63 - 1"),
    ],
)
def test_load_refuses_a_wrong_file(tmp_path: Path, text: str, words: str) -> None:
    """The message says what is wrong and what is allowed."""
    file = tmp_path / "run.yaml"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError) as caught:
        _load(RunConfig, "--config", str(file), "--run.root", "here", "--env.num-envs", "2")
    assert words in str(caught.value)
    assert "unicode string" not in str(caught.value)


@pytest.mark.parametrize("text", ["env: {kwargs: {%s}}", "agent: {hidden_sizes: {%s}}", "unknown: {%s}"])
def test_aliases_that_repeat_each_other_are_refused(text: str, tmp_path: Path) -> None:
    """A kilobyte of them stands for more values than anybody could check or print."""
    lists = ["a0: &a0 [x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 13))]
    file = tmp_path / "run.yaml"
    file.write_text(text % ", ".join(lists))
    for words in (["--config", str(file)], ["--env.kwargs", "a", f"{{{', '.join(lists)}}}"]):
        with pytest.raises(ConfigError, match=naming("aliases 1,000,000")):
            _load(RunConfig, *words)


def test_aliases_repeat_what_they_stand_for() -> None:
    """Also as the base of another mapping, in which a key may be written again."""
    read = parse("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\nc: [*a, *a]")
    assert read == {"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 3}, "c": [{"x": 1, "y": 2}] * 2}


def test_yaml_error_names_the_file_and_the_line(tmp_path: Path) -> None:
    """Whichever part of the text is wrong."""
    file = tmp_path / "run.yaml"
    file.write_text("env: {id: a\nagent: [")
    with pytest.raises(ConfigError, match=f"in {re.escape(str(file))}, line 2"):
        _load(RunConfig, "--config", str(file))


def test_whole_number_of_any_length_is_read_as_it_is(tmp_path: Path) -> None:
    """A float cannot hold 2**53 + 1."""
    file = tmp_path / "run.yaml"
    file.write_text("run: {seed: '9007199254740993'}\n")
    for words in (["--config", str(file)], ["--run.seed", "9007199254740993"]):
        config = _load(RunConfig, *words)
        assert isinstance(config, RunConfig)
        assert config.run.seed == 2**53 + 1


def test_load_refuses_a_missing_file(tmp_path: Path) -> None:
    """The message names the file."""
    with pytest.raises(ConfigError, match=naming("--config absent.yaml")):
        _load(RunConfig, "--config", str(tmp_path / "absent.yaml"))


def test_file_that_is_only_there_as_a_preset_is_hinted_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the documents' configs/NAME.yaml outside a clone."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=naming("--config cartpole_simulators")):
        _load(RunConfig, "--config", "configs/cartpole_simulators.yaml")


def test_load_documents_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    """`--help SECTION` lists the options with their explanation and exits with 0."""
    with pytest.raises(SystemExit) as caught:
        _load(ReplayConfig, "--help", "replay.")
    assert caught.value.code == 0
    assert "--replay.max-tables" in capsys.readouterr().out


@pytest.mark.parametrize("algorithm", ["dqn", "sac"])
def test_write_document_is_read_back_unchanged(tmp_path: Path, algorithm: str) -> None:
    """The config.yaml of a run's folder gives the same settings again."""
    config = from_document(RunConfig, {"run": {"target_return": 200}}, algorithm)
    write_document(config, tmp_path / "config.yaml")
    assert _load(RunConfig, "--config", str(tmp_path / "config.yaml")) == config


def test_run_from_python_is_what_the_command_line_gives(tmp_path: Path) -> None:
    """Settings by dotted names or by sections, over a file, a preset or nothing."""
    file = tmp_path / "run.yaml"
    file.write_text("run: {seed: 5, name: pong}\nenv: {id: CartPole-v1}\nagent: {algorithm: dqn, batch_size: 8}\n")
    words = ("--config", str(file), "--run.seed", "9", "--agent.hidden-sizes", "32", "16")
    dotted = {"run.seed": 9, "agent.hidden_sizes": [32, 16]}
    nested = {"run": {"seed": 9}, "agent": {"hidden_sizes": (32, 16)}}
    for options in (dotted, nested):
        assert load_run(file, options) == (_load(RunConfig, *words), [])
    config, notes = load_run("cartpole_dqn", {"agent.algorithm": "ppo"})
    assert config == _load(RunConfig, "--config", "cartpole_dqn", "--agent.algorithm", "ppo")
    assert any("ppo" in note for note in notes)
    assert load_run(None, {})[0] == RunConfig()


def test_dotted_names_become_sections() -> None:
    """As a config file has them; mappings are merged with what else is said of their section, and not changed."""
    values = {"agent.n_step": 3, "learner.server.port": 1, "agent.gamma": 0.5}
    assert by_sections(values) == {"agent": {"n_step": 3, "gamma": 0.5}, "learner": {"server": {"port": 1}}}
    section = {"n_step": 3}
    for options in ({"agent": section, "agent.gamma": 0.5}, {"agent.gamma": 0.5, "agent": section}):
        assert by_sections(options) == {"agent": {"n_step": 3, "gamma": 0.5}}
    assert section == {"n_step": 3}


@pytest.mark.parametrize(
    "options, words",
    [
        ({"run.sed": 3}, "run.seed"),
        ({"rnu.seed": 3}, "'run'"),
        ({"run": 3}, "3"),
        ({"run.name": 3}, "run.name '3'"),
        ({"agent.algorithm": "dnq"}, "dqn"),
        ({"env.num_envs": math.inf}, "env.num_envs inf"),
    ],
)
def test_mistake_in_settings_from_python_is_told_by_name(options: dict[str, object], words: str) -> None:
    """As on the command line."""
    with pytest.raises(ConfigError, match=naming(words)):
        load_run(None, options)


@pytest.mark.parametrize("name", ["1e5", "12e4567", "1.5e3", "12", "null", "plain"])
def test_text_that_looks_like_a_number_is_read_back_as_text(name: str, tmp_path: Path) -> None:
    """A run may be called by a commit, one in fifty of which does."""
    config = _load(RunConfig, "--run.name", name)
    write_document(config, tmp_path / "config.yaml")
    assert _load(RunConfig, "--config", str(tmp_path / "config.yaml")) == config
    assert parse(written({"name": name})) == {"name": name}


@dataclass(frozen=True)
class Fussy(OwnConfig):
    """Settings of a user's algorithm that check one themselves."""

    algorithm: str = f"{__name__}:Fussy"
    rate: float = 0.5

    def __post_init__(self) -> None:
        if self.rate <= 0:
            raise ValueError("too slow")
        if self.batch_size < 2:
            raise ValueError("too small")


@dataclass(frozen=True)
class WithoutDefault(OwnConfig):
    """Settings of which one has to be given."""

    algorithm: str = f"{__name__}:WithoutDefault"
    rate: float = field(kw_only=True)


@dataclass(frozen=True)
class WrongDefault(Fussy):
    """Settings that refuse their own defaults."""

    algorithm: str = f"{__name__}:WrongDefault"
    rate: float = 0.0


@dataclass(frozen=True)
class OfUnknownType(OwnConfig):
    """Settings of which one has a type that is not there when the program runs."""

    algorithm: str = f"{__name__}:OfUnknownType"
    rate: Rate | None = None  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    "settings, words",
    [
        ("Fussy", "agent 'rate' -1.0 ValueError too slow"),
        ("WithoutDefault", "agent.algorithm TypeError 'rate' default"),
        ("WrongDefault", "agent.algorithm ValueError too slow default"),
        ("OfUnknownType", "agent.algorithm NameError 'Rate'"),
    ],
)
def test_class_of_settings_that_raises_is_told_with_its_name(settings: str, words: str) -> None:
    """Of a user's algorithm, in a file as on the command line; with what is given if that is refused."""
    name = f"{__name__}:{settings}"
    with pytest.raises(ConfigError, match=naming(f"'{name}'", words)):
        from_document(RunConfig, {"agent": {"algorithm": name, "rate": -1}})
    with pytest.raises(ConfigError, match=naming(f"'{name}'", words)):
        _load(ActorConfig, "--agent.algorithm", name, "--agent.rate", "-1")


def test_share_of_a_batch_that_a_class_refuses_is_told_with_it() -> None:
    """Several learners ask the user's class for a smaller batch than the one in its settings."""
    agent = {"algorithm": f"{__name__}:Fussy", "batch_size": 4}
    assert load_config({"agent": agent, "launcher": {"learners": 2}}).launcher.learners == 2
    with pytest.raises(ConfigError, match=naming("4 learners 1 agent.batch_size Fussy ValueError too small")):
        load_config({"agent": agent, "launcher": {"learners": 4}})


def test_setting_that_a_class_refuses_does_not_hide_the_next_one() -> None:
    """Both are told at once."""
    agent = {"algorithm": f"{__name__}:Fussy", "rate": -1, "batch_size": "many"}
    with pytest.raises(ConfigError, match=naming("'rate' -1.0 ValueError agent.batch_size 'many'")) as told:
        from_document(RunConfig, {"agent": agent})
    assert len(str(told.value).splitlines()) == 2


def test_home_of_nobody_is_the_name_of_a_folder() -> None:
    """As a shell takes it."""
    assert load_config({"run": {"root": "~nobody-here/runs", "name": "a"}}).run.folder == Path("~nobody-here/runs/a")


def test_missing_cluster_file_of_a_run_is_told_as_a_run_that_has_stopped(tmp_path: Path) -> None:
    """Its config.yaml would name no address of a running service."""
    (tmp_path / "config.yaml").touch()
    with pytest.raises(ConfigError, match=naming("is not running")) as refused:
        load(RunConfig, ["--config", str(tmp_path / "cluster.yaml")], prog="test", description="")
    assert "did you mean" not in str(refused.value)
