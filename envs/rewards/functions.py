"""Plain functions as rewards: whatever a function's parameters are named after is what it gets.

fn(response)                          the action text; also `completion`, `text`
fn(response, prompt, metadata)        the prompt; the row's columns, with the label as `answer`
fn(response, ground_truth)            the label; also `label`, `answer`, where the row has no such column
fn(response, difficulty)              any column of the row
fn(trajectory), fn(anything)          the whole `Trajectory`; also a single parameter of any other name
fn(completions, answer, **columns)    lists over the whole group, `prompts` too -> one reward each
fn(queries, prompts, labels)          lists over the whole group -> dict of rewards, scores, extra_logs
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from ..errors import ConfigError, InvalidRewardError, RewardError
from .arrays import as_logs, as_numbers
from .base import Clip, GroupReward, RewardFunction
from .types import RewardOutput, Trajectory

RESPONSE = ("response", "completion", "text", "action_text")
PROMPT = ("prompt", "query")
LABEL = ("label", "ground_truth", "answer", "expected")
TRAJECTORY = ("trajectory", "traj")
BATCH = frozenset({"queries", "prompts", "completions"})
"""Parameters that only functions of lists have."""
SYNONYMS = {"expected_format": "format", "expected_numbers": "numbers", "ground_truth": "answer", "expected": "answer"}
"""Parameter -> the column that it may also stand for."""


class FunctionReward(RewardFunction):
    """A function of the trajectory as a reward.

    >>> FunctionReward(fn=lambda trajectory: len(trajectory.response) / 10)(Trajectory(response="12345")).reward
    0.5

    Args:
        fn: takes a `Trajectory`, gives a number or a `RewardOutput`; may be async.
        name: what messages and metrics call it; by default the function's name.
        scale: as for every reward.
        clip: as for every reward.
    """

    def __init__(
        self,
        fn: Callable[[Trajectory], Any],
        name: str | None = None,
        scale: float = 1.0,
        clip: Clip = None,
    ) -> None:
        super().__init__(_name_of(fn) if name is None else name, scale, clip)
        if not callable(fn):
            raise ConfigError(f"fn={fn!r} must be a function of a trajectory, such as fn=lambda trajectory: 1.0")
        self.fn = fn
        self.wraps_async = _is_async(fn)

    def compute_reward(self, trajectory: Trajectory) -> RewardOutput | Awaitable[RewardOutput]:
        """What the function gives."""
        return self.fn(trajectory)


class NamedArgumentsReward(RewardFunction):
    """A function whose parameters are named after what it wants. Made by `as_reward`.

    Args:
        fn: the function; see this module's table.
        name: what messages and metrics call it; by default the function's name.
    """

    def __init__(self, fn: Callable[..., Any], name: str | None = None) -> None:
        super().__init__(_name_of(fn) if name is None else name)
        self.fn = fn
        self.wraps_async = _is_async(fn)
        self._parameters = _parameters(fn)

    def compute_reward(self, trajectory: Trajectory) -> RewardOutput | Awaitable[RewardOutput]:
        """What the function gives."""
        args, kwargs = self._arguments(trajectory)
        given = self.fn(*args, **kwargs)
        return _scored_later(given) if inspect.isawaitable(given) else _scored(given)

    def _arguments(self, trajectory: Trajectory) -> tuple[list[Any], dict[str, Any]]:
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for parameter in self._parameters:
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                taken = {p.name for p in self._parameters}
                kwargs |= {name: value for name, value in trajectory.columns.items() if name not in taken}
            elif parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                continue
            else:
                found, value = _argument(parameter.name, trajectory)
                if not found:
                    if parameter.default is not inspect.Parameter.empty:
                        continue
                    raise InvalidRewardError(
                        f"no value for the parameter {parameter.name!r}; {_known(trajectory)}. {_REMEDY}"
                    )
                if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
                    args.append(value)
                else:
                    kwargs[parameter.name] = value
        return args, kwargs


class BatchFunctionReward(GroupReward):
    """A function of lists over a whole group. Made by `as_reward`.

    Args:
        fn: `fn(queries, prompts, labels)` or any of `fn(prompts, completions, **columns)`.
        name: what messages and metrics call it; by default the function's name.
    """

    def __init__(self, fn: Callable[..., Any], name: str | None = None) -> None:
        super().__init__(_name_of(fn) if name is None else name)
        self.fn = fn
        self.wraps_async = _is_async(fn)
        self._names = {parameter.name for parameter in _parameters(fn)}
        kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        self._needed = {p.name for p in _parameters(fn) if p.default is p.empty and p.kind not in kinds}
        self._takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in _parameters(fn))

    def compute_rewards(
        self, trajectories: Sequence[Trajectory]
    ) -> Sequence[RewardOutput | RewardError] | Awaitable[Sequence[RewardOutput | RewardError]]:
        """What the function gives, one output for each trajectory."""
        arguments = query_lists(trajectories) if "queries" in self._names else self._columns(trajectories)
        given = self.fn(**arguments)
        count = len(trajectories)
        return _batch_later(given, count) if inspect.isawaitable(given) else batch_outputs(given, count)

    def _columns(self, trajectories: Sequence[Trajectory]) -> dict[str, list[Any]]:
        lists: dict[str, list[Any]] = {
            "prompts": [t.prompt for t in trajectories],
            "completions": [t.response for t in trajectories],
        }
        for name in dict.fromkeys(name for t in trajectories for name in t.metadata):
            lists.setdefault(name, [t.metadata.get(name) for t in trajectories])
        if any(t.label is not None for t in trajectories):
            lists.setdefault("label", [t.label for t in trajectories])
        for name in sorted(self._needed - lists.keys()):
            raise InvalidRewardError(f"no values for the parameter {name!r}; there are: {', '.join(lists)}. {_REMEDY}")
        return lists if self._takes_any else {name: values for name, values in lists.items() if name in self._names}


def as_reward(given: Any, *, name: str | None = None) -> RewardFunction:
    """Anything that can serve as a reward, as a `RewardFunction`.

    >>> as_reward(lambda response, answer: float(response == answer))(Trajectory(response="4", label="4")).reward
    1.0

    Args:
        given: a reward, a subclass of `RewardFunction` that needs no arguments, or a function; see this module's table.
        name: what messages and metrics call it, instead of its own name.

    Raises:
        ConfigError: it is none of these.
    """
    if inspect.isclass(given):
        given = _instance(given)
    if isinstance(given, RewardFunction):
        if name is not None:
            given.name = name
        elif not given.name:
            object.__setattr__(given, "name", type(given).__name__)  # a frozen dataclass takes it, too
        return given
    if not callable(given):
        raise ConfigError(f"{given!r} is no reward; give a RewardFunction, or a function such as fn(response, label)")
    parameters = _parameters(given)
    names = {parameter.name for parameter in parameters}
    if names & BATCH:
        return BatchFunctionReward(given, name)
    required = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    known = {*RESPONSE, *PROMPT, *LABEL, *TRAJECTORY, *SYNONYMS, "metadata"}
    if len(required) == 1 and required[0].name not in known and required[0].kind is not inspect.Parameter.KEYWORD_ONLY:
        return FunctionReward(given, name)
    return NamedArgumentsReward(given, name)


def query_lists(trajectories: Sequence[Trajectory]) -> dict[str, list[str]]:
    """The three lists that OpenRLHF's reward files and servers get; `queries[i] == prompts[i] + response` exactly."""
    return {
        "queries": [t.prompt + t.response for t in trajectories],
        "prompts": [t.prompt for t in trajectories],
        "labels": [_label_text(t.label) for t in trajectories],
    }


def batch_outputs(given: Any, count: int) -> list[RewardOutput | RewardError]:
    """One output for each of `count` responses from what a function of lists, or a reward server, gave.

    Args:
        given: a dict with `rewards` [count], and maybe `scores` [count] (default: the rewards) and `extra_logs`; or the
            rewards alone.
        count: how many responses there were.

    Returns:
        The outputs; an error in the place of one whose number isn't finite.

    Raises:
        InvalidRewardError: something has another shape, or is no number.
    """
    if not isinstance(given, Mapping):
        return [_output(reward, None, {}) for reward in as_numbers(given, count, "rewards")]
    if "rewards" not in given:
        raise InvalidRewardError(f"it gave a dict of {', '.join(map(repr, given)) or 'nothing'}; 'rewards' is missing")
    rewards = as_numbers(given["rewards"], count, "rewards")
    scores = [None] * count if given.get("scores") is None else as_numbers(given["scores"], count, "scores")
    logs = as_logs(given.get("extra_logs"), count, "extra_logs")
    return [_output(reward, score, row) for reward, score, row in zip(rewards, scores, logs, strict=True)]


def _output(reward: float, score: float | None, metadata: Mapping[str, float]) -> RewardOutput | RewardError:
    try:
        return RewardOutput(reward=reward, score=score, metadata=dict(metadata))
    except RewardError as error:
        return error


async def _batch_later(given: Awaitable[Any], count: int) -> list[RewardOutput | RewardError]:
    return batch_outputs(await given, count)


def _scored(given: Any) -> Any:
    """A dict with a `score` counts as a reward whose other numbers are logged, as `check_numbers` gives it."""
    if isinstance(given, Mapping) and "score" in given:
        return RewardOutput(reward=given["score"], metadata={k: v for k, v in given.items() if k != "score"})
    return given


async def _scored_later(given: Awaitable[Any]) -> Any:
    return _scored(await given)


def _argument(name: str, trajectory: Trajectory) -> tuple[bool, Any]:
    """Whether there is a value for a parameter of this name, and the value."""
    if name in TRAJECTORY:
        return True, trajectory
    if name in RESPONSE:
        return True, trajectory.response
    if name in PROMPT:
        return True, trajectory.prompt
    if name == "metadata":
        return True, trajectory.metadata
    if name in trajectory.columns:
        return True, trajectory.columns[name]
    if name in LABEL and trajectory.label is not None:
        return True, trajectory.label
    column = SYNONYMS.get(name, name)
    return column in trajectory.columns, trajectory.columns.get(column)


_REMEDY = "Add the column to the data, or give the parameter a default"


def _known(trajectory: Trajectory) -> str:
    """What a parameter could have been named after."""
    label = LABEL[:1] if trajectory.label is not None else ()
    return f"there are: {', '.join(dict.fromkeys([RESPONSE[0], PROMPT[0], *label, 'metadata', *trajectory.columns]))}"


def _instance(kind: type) -> Any:
    try:
        return kind()
    except TypeError as error:
        raise ConfigError(f"{kind.__name__} can't be made without arguments: {error}; give an instance of it") from None


def _parameters(fn: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        raise ConfigError(f"{fn!r} doesn't show its parameters; wrap it in a function fn(trajectory)") from None


def _is_async(fn: Any) -> bool:
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__)


def _name_of(fn: Any) -> str:
    name = getattr(fn, "__name__", None) or type(fn).__name__
    return "function" if name == "<lambda>" else name


def _label_text(label: Any) -> str:
    if label is None:
        return ""
    return label if isinstance(label, str) else json.dumps(label)
