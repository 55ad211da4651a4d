"""Making the checks: in order, each once, on an event loop in a thread of its own.

The thread is what lets a call that blocks its event loop for good be noticed, named and left behind.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Collection
from typing import NamedTuple, TypeAlias

from ..errors import ConfigError, EnvError
from ..instance import AgentInstance
from ..registry import EnvFactory, spec, task_source
from ..tasks import TaskSource
from . import conduct, contract, rewards
from .context import CheckContext, CheckFailed, CheckLimits, CheckSkipped
from .play import describe
from .report import CheckReport, CheckResult

_BEAT_S = 0.01
_POLL_S = 0.02

CheckFunction: TypeAlias = Callable[[CheckContext], Awaitable[str | None]]


class Check(NamedTuple):
    """A check, and the names of those without which it can't be made."""

    function: CheckFunction
    needs: tuple[str, ...] = ("instance", "reset", "step")

    @property
    def name(self) -> str:
        """The function's name without `check_`."""
        return self.function.__name__.removeprefix("check_")


CHECKS: tuple[Check, ...] = (
    Check(contract.check_instance, ()),
    Check(contract.check_reset, ("instance",)),
    Check(contract.check_step, ("instance", "reset")),
    Check(contract.check_spaces),
    Check(contract.check_step_before_reset, ("instance",)),
    Check(contract.check_step_after_end),
    Check(contract.check_ends),
    Check(contract.check_options),
    Check(contract.check_close, ("instance",)),
    Check(contract.check_picklable, ("instance",)),
    Check(conduct.check_same_seed),
    Check(conduct.check_reset_again, ("instance", "reset", "step", "same_seed")),
    Check(conduct.check_interleaved, ("instance", "reset", "step", "same_seed")),
    Check(conduct.check_cancel, ("instance", "reset", "step", "same_seed")),
    Check(conduct.check_loop),
    Check(conduct.check_leaks),
    Check(rewards.check_any_action),
    Check(rewards.check_rewards),
    Check(rewards.check_scores),
    Check(rewards.check_demonstrations, ("instance", "reset", "step", "spaces", "rewards", "scores")),
    Check(rewards.check_cheap_rewards, ("instance", "reset", "step", "rewards", "scores")),
)
"""All checks, in the order in which they are made."""


def check_env(
    env: str | Callable[[], AgentInstance],
    *,
    tasks: TaskSource | None = None,
    seed: int = 0,
    only: Collection[str] | None = None,
    limits: CheckLimits | None = None,
) -> CheckReport:
    """Check an environment.

    >>> from turngym.envs.checks import check_env
    >>> check_env("GuessNumber-v0").passed
    True

    Args:
        env: an id, as `make` takes it, or a class or function that gives a new instance.
        tasks: what episodes start from; None takes the environment's own, or seeds alone where it has none.
        seed: seed of the first task; the second gets the next, and so on.
        only: names of the checks to make; None for all. `instance` is always made.
        limits: how long things may take.

    Raises:
        UnknownEnvError: there is no such environment.
        ConfigError: there are no tasks, or no check of such a name.
        EnvError: an event loop is running here; await `acheck_env` instead.
    """
    if _is_loop_running():
        raise EnvError(
            "check_env was called inside a running event loop, which it would block; use await acheck_env(…)"
        )
    session = _Session(_context(env, tasks, seed, limits), _chosen(only))
    try:
        while not session.is_over():
            session.done.wait(_POLL_S)
    finally:
        session.stop()
    return session.report()


async def acheck_env(
    env: str | Callable[[], AgentInstance],
    *,
    tasks: TaskSource | None = None,
    seed: int = 0,
    only: Collection[str] | None = None,
    limits: CheckLimits | None = None,
) -> CheckReport:
    """Check an environment from inside a running event loop, which goes on meanwhile. See `check_env`."""
    session = _Session(_context(env, tasks, seed, limits), _chosen(only))
    try:
        while not session.is_over():  # noqa: ASYNC110 - the other thread may be stuck and set nothing
            await asyncio.sleep(_POLL_S)
    finally:
        session.stop()
    return session.report()


def _is_loop_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _context(
    env: str | Callable[[], AgentInstance], tasks: TaskSource | None, seed: int, limits: CheckLimits | None
) -> CheckContext:
    factory = EnvFactory(id=env) if isinstance(env, str) else env
    found = None
    if isinstance(factory, EnvFactory):
        found = spec(factory.id)
        if tasks is None and found.tasks is not None:
            tasks = task_source(factory.id, **factory.kwargs)
    return CheckContext(factory, spec=found, source=tasks, seed=seed, limits=limits)


def _chosen(only: Collection[str] | None) -> tuple[Check, ...]:
    names = [check.name for check in CHECKS]
    for name in only or ():
        if name not in names:
            raise ConfigError(f"there is no check {name!r}; there are {', '.join(names)}")
    return CHECKS if only is None else tuple(c for c in CHECKS if c.name in only or c.name == "instance")


class _Session:
    """Checks under way in a thread of their own."""

    def __init__(self, context: CheckContext, checks: tuple[Check, ...]) -> None:
        self.done = threading.Event()
        self._context = context
        self._checks = checks
        self._results: list[CheckResult] = []
        self._started = time.monotonic()
        self._stop: Callable[[], object] = lambda: None
        self._stuck = ""
        context.progress.begin("making an instance")
        threading.Thread(target=self._run, name="turngym-check", daemon=True).start()

    def is_over(self) -> bool:
        """Whether all checks are made, or one of them will never be."""
        if self.done.is_set():
            return True
        limits, progress = self._context.limits, self._context.progress
        now = time.monotonic()
        if now - progress.last_beat > limits.call_s:
            self._stuck = (
                f"{progress.call} has blocked the event loop for more than {limits.call_s:g} s; "
                "await what takes long, or write the method as a plain def, which runs on a thread"
            )
        elif now - self._started > limits.total_s + 2 * limits.call_s:
            self._stuck = f"{progress.call} went on after it was cancelled; let asyncio.CancelledError pass"
        return bool(self._stuck)

    def stop(self) -> None:
        """Cancel what is left of the checks."""
        if not self.done.is_set():
            self._stop()

    def report(self) -> CheckReport:
        """What was found; where a call is stuck, its check has failed and the later ones are skipped."""
        results = list(self._results)
        missing = [check.name for check in self._checks[len(results) :]]
        if missing:
            results.append(_failed(missing[0], self._stuck or "the check itself broke down"))
            results += [_skipped(name, f"not made: {missing[0]} never came back") for name in missing[1:]]
        return CheckReport(env=self._context.spec.id, results=tuple(results))

    def _run(self) -> None:
        try:
            asyncio.run(self._make_checks())
        except asyncio.CancelledError:
            pass
        finally:
            self.done.set()

    async def _make_checks(self) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        self._stop = lambda: loop.call_soon_threadsafe(task.cancel)
        heart = asyncio.create_task(self._beat())
        for check in self._checks:
            self._context.progress.check = check.name
            self._results.append(await self._make(check))
        heart.cancel()
        self.done.set()

    async def _beat(self) -> None:
        while True:
            self._context.progress.beat()
            await asyncio.sleep(_BEAT_S)

    async def _make(self, check: Check) -> CheckResult:
        failed = {result.name for result in self._results if result.failed}
        for need in check.needs:
            if need in failed:
                return _skipped(check.name, f"needs {need}, which failed")
        total_s = self._context.limits.total_s
        limit = asyncio.timeout(self._started + total_s - time.monotonic())
        try:
            async with limit:
                note = await check.function(self._context)
            return CheckResult(name=check.name, passed=True, message=note or "")
        except CheckFailed as failure:
            return _failed(check.name, str(failure))
        except CheckSkipped as skip:
            return _skipped(check.name, str(skip))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - one check must not end the others
            if isinstance(error, TimeoutError) and limit.expired():
                return _skipped(check.name, f"the {total_s:g} s for all checks were over")
            return _failed(check.name, f"{self._context.progress.call} raised {describe(error)}")


def _failed(name: str, message: str) -> CheckResult:
    return CheckResult(name=name, passed=False, message=message)


def _skipped(name: str, message: str) -> CheckResult:
    return CheckResult(name=name, passed=False, skipped=True, message=message)
