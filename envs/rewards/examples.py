"""Example responses that a reward is tried on: reading them, scoring them, and comparing with what was expected."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import DataError, RewardError
from ..rows import jsonl_rows, label_text
from .base import RewardFunction
from .combined import Scored
from .scoring import score_group
from .types import Trajectory, described

_OWN_KEYS = ("prompt", "response", "label", "expected", "group")
_GROUPS_AT_ONCE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardCase:
    """One example of a reward: a response, and maybe what it should earn.

    Attributes:
        line: where it stands in its file, from 1.
        prompt: what the response answers.
        response: the action text; None where the file gives none, as for attacks.
        label: the task's label, as text, or None.
        columns: the row's other columns.
        expected: part -> its value, with the reward itself as `reward`; empty where nothing is expected.
        group: cases with the same group are scored together; None stands alone.
    """

    line: int = 0
    prompt: str = ""
    response: str | None = None
    label: str | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    expected: Mapping[str, float] = field(default_factory=dict)
    group: Hashable = None

    def trajectory(self, response: str | None = None) -> Trajectory:
        """What the reward gets to see, of this response or of the case's own."""
        row = {**self.columns, "prompt": self.prompt}
        if self.label is not None:
            row["label"] = self.label
        text = (self.response or "") if response is None else response
        return Trajectory(prompt=self.prompt, response=text, label=self.label, columns=row, id=f"line {self.line}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One number of a case against what was expected.

    Attributes:
        part: `reward`, `score`, or the part's name.
        given: what the reward gave; None where it has no such part.
        expected: what was expected; None where nothing was.
        is_off: whether the two differ by more than the tolerance.
    """

    part: str
    given: float | None
    expected: float | None
    is_off: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """What a case came to.

    Attributes:
        case: the case.
        comparisons: the reward first, then its parts; empty where scoring failed.
        error: what scoring failed with, or None.
    """

    case: RewardCase
    comparisons: tuple[Comparison, ...] = ()
    error: RewardError | None = None

    @property
    def is_off(self) -> bool:
        """Whether scoring failed, or a number isn't what was expected."""
        return self.error is not None or any(comparison.is_off for comparison in self.comparisons)


def read_cases(path: str | Path, *, needs_response: bool = True) -> tuple[RewardCase, ...]:
    """The cases of a JSONL file, one object a line: prompt, response, label, other columns, expected, group.

    Labels are read as training reads them: text, of a worked solution what stands after `####`.

    Args:
        path: the file.
        needs_response: whether each case must have a response.

    Raises:
        DataError: the file is missing or empty, or a line can't be used; the message names file, line and remedy.
    """
    file = Path(path)
    if not file.is_file():
        raise DataError(f"{file}: there is no such file; give a .jsonl file with one case a line")
    cases = tuple(_case(row, line, f"{file}, line {line}", needs_response) for line, row in jsonl_rows(file))
    if not cases:
        raise DataError(f'{file} is empty; it needs one case or more, such as {{"response": "4", "expected": 1}}')
    return cases


async def score_cases(
    reward: RewardFunction, cases: Sequence[RewardCase], *, timeout_s: float | None = None
) -> list[Scored]:
    """Score each case, those of a group together, in their order.

    Args:
        reward: what scores.
        cases: the cases; each needs a response.
        timeout_s: seconds that each call may take, or None.
    """
    groups: dict[Hashable, list[int]] = {}
    for index, case in enumerate(cases):
        groups.setdefault(("alone", index) if case.group is None else ("group", case.group), []).append(index)
    scored: dict[int, Scored] = {}
    free = asyncio.Semaphore(_GROUPS_AT_ONCE)

    async def score(members: list[int]) -> None:
        async with free:
            outputs = await score_group(reward, [cases[i].trajectory() for i in members], timeout_s=timeout_s)
        scored.update(zip(members, outputs, strict=True))

    async with asyncio.TaskGroup() as together:
        for members in groups.values():
            together.create_task(score(members))
    return [scored[index] for index in range(len(cases))]


async def try_cases(
    reward: RewardFunction, cases: Sequence[RewardCase], *, tolerance: float = 1e-6, timeout_s: float | None = None
) -> list[CaseResult]:
    """Score each case and compare it with what was expected.

    Args:
        reward: what scores.
        cases: the cases; each needs a response.
        tolerance: how far a number may be off, inclusive.
        timeout_s: seconds that each call may take, or None.
    """
    scored = await score_cases(reward, cases, timeout_s=timeout_s)
    return [compare(case, output, tolerance) for case, output in zip(cases, scored, strict=True)]


def compare(case: RewardCase, scored: Scored, tolerance: float = 1e-6) -> CaseResult:
    """What a case came to: each number next to what was expected.

    >>> from turngym.envs.rewards import RewardOutput
    >>> case = RewardCase(response="4", expected={"reward": 0.5})
    >>> compare(case, RewardOutput(0.5, metadata={"words": 1})).is_off
    False
    """
    if isinstance(scored, RewardError):
        return CaseResult(case=case, error=scored)
    given = {"reward": scored.reward} | ({} if scored.score is None else {"score": scored.score})
    given |= {name: value for name, value in scored.parts.items() if name != "reward"}
    names = dict.fromkeys([*given, *case.expected])
    return CaseResult(
        case=case,
        comparisons=tuple(_compared(name, given.get(name), case.expected.get(name), tolerance) for name in names),
    )


def _compared(part: str, given: float | None, expected: float | None, tolerance: float) -> Comparison:
    is_off = expected is not None and (given is None or abs(given - expected) > tolerance)
    return Comparison(part=part, given=given, expected=expected, is_off=is_off)


def _case(row: Mapping[str, Any], line: int, where: str, needs_response: bool) -> RewardCase:
    response = row.get("response")
    if response is None and needs_response:
        has = ", ".join(row) or "none"
        raise DataError(f"{where}: there is no column 'response'; it has {has}: give each case a response")
    for name in ("prompt", "response"):
        if not isinstance(row.get(name, ""), str | None):
            raise DataError(f"{where}: column {name!r} holds {described(row[name])}; it must be a string")
    group = row.get("group")
    if not isinstance(group, str | int | None):
        raise DataError(f"{where}: column 'group' holds {described(group)}; give a name or a number")
    return RewardCase(
        line=line,
        prompt=row.get("prompt") or "",
        response=response,
        label=None if row.get("label") is None else label_text(row["label"], "label", where),
        columns={name: value for name, value in row.items() if name not in _OWN_KEYS},
        expected=_expected(row.get("expected"), where),
        group=group,
    )


def _expected(given: Any, where: str) -> dict[str, float]:
    if given is None:
        return {}
    numbers = given if isinstance(given, dict) else {"reward": given}
    for name, value in numbers.items():
        if not isinstance(value, int | float) or not _is_finite(value):
            raise DataError(
                f"{where}: 'expected' holds {described(value)} for {name!r}; "
                'give a number, or numbers by part such as {"reward": 1, "length": 0.5}'
            )
    return {name: float(value) for name, value in numbers.items()}


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond any float
        return False
