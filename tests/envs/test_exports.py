import pickle
import subprocess
import sys

import pytest
import turngym.envs
from turngym.envs import (
    EnvFactory,
    ListTaskSource,
    PolicyFault,
    Task,
    TurngymError,
    spec,
    task_source,
)

PUBLIC = """
AgentInstance Action StepResult Observation Message Role Verbatim VerbatimData ToolCall FinishReason SamplingParams
UnicodeText as_step_result Task TaskSource ListTaskSource RowTaskSource SplitName EnvSpec EnvFactory register registered
spec make task_source Wrapper OrderEnforcing TimeLimit StepTimeout abandoned_threads check_env acheck_env CheckReport
CheckResult CheckLimits TurngymError EnvError
ResetNeededError EpisodeEndedError EnvClosedError InvalidStepError StepTimeoutError EnvWorkerError PolicyFault
UnknownEnvError DataError ConfigError TemplateError RecordError RewardError InvalidRewardError EngineError
CheckpointError
""".split()  # noqa: SIM905 - short enough to read

HEAVY = ("torch", "transformers", "vllm", "math_verify", "sympy", "pyarrow")


def errors() -> list[type[TurngymError]]:
    found: list[type[TurngymError]] = [TurngymError]
    for error in found:
        found.extend(error.__subclasses__())
    return [error for error in found if error.__module__.startswith("turngym.envs")]


def test_the_public_names_are_pinned():
    assert turngym.envs.__all__ == PUBLIC
    assert all(hasattr(turngym.envs, name) for name in PUBLIC)


def test_importing_envs_loads_nothing_heavy():
    code = "import turngym.envs; turngym.envs.make('Math-v0'); turngym.envs.task_source('GuessNumber-v0').task(0)"
    run = subprocess.run([sys.executable, "-X", "importtime", "-c", code], capture_output=True, text=True, check=True)
    loaded = {line.rsplit("|", 1)[-1].strip().split(".")[0] for line in run.stderr.splitlines() if "|" in line}
    assert "gymnasium" in loaded
    assert loaded.isdisjoint(HEAVY)


@pytest.mark.parametrize("error", errors(), ids=lambda error: error.__name__)
def test_every_error_survives_pickling(error: type[TurngymError]):
    copy = pickle.loads(pickle.dumps(error("what, rule and remedy")))
    assert type(copy) is error
    assert str(copy) == "what, rule and remedy"


def test_every_error_is_public():
    assert {error.__name__ for error in errors()} <= set(PUBLIC)


def test_a_policy_fault_keeps_its_reward():
    copy = pickle.loads(pickle.dumps(PolicyFault("ran out of memory", -1.0)))
    assert (str(copy), copy.reward) == ("ran out of memory", -1.0)


@pytest.mark.parametrize(
    "value",
    [
        spec("Math-v0"),
        spec("GuessNumber-v0"),
        spec("turngym.envs.math:MathEnv"),
        EnvFactory(id="Math-v0", kwargs={"max_attempts": 2}),
        Task(id="a", options={"prompt": "p", "nested": [1, {"b": 2}]}, seed=3),
    ],
    ids=lambda value: f"{type(value).__name__}-{value.id}",
)
def test_specs_factories_and_tasks_survive_pickling(value: object):
    assert pickle.loads(pickle.dumps(value)) == value


@pytest.mark.parametrize(
    "source",
    [
        task_source("Math-v0", level=2, seed=5).split("held_out"),
        task_source("GuessNumber-v0", seed=5).split("train"),
        ListTaskSource([Task(id="a"), Task(id="b")], held_out=1),
    ],
    ids=lambda source: type(source).__name__,
)
def test_task_sources_survive_pickling(source: turngym.envs.TaskSource):
    copy = pickle.loads(pickle.dumps(source))
    assert copy.task(0) == source.task(0)
    assert copy.num_tasks == source.num_tasks


def test_tasks_are_read_only():
    options = {"prompt": "p"}
    task = Task(id="a", options=options)
    options["prompt"] = "changed"
    assert task.options["prompt"] == "p"
    with pytest.raises(TypeError):
        task.options["prompt"] = "changed"  # pyright: ignore[reportIndexIssue]
