"""What a person sees of a run: a bar and one line per update on a terminal, the lines alone elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from .evaluate import EvalReport

_LINE: tuple[tuple[str, str, str], ...] = (
    ("reward_mean", "reward", "{:.3f}"),
    ("solved", "solved", "{:.3f}"),
    ("first_attempt", "first", "{:.3f}"),
    ("turns_mean", "turns", "{:.2f}"),
    ("groups_without_signal", "no signal", "{:.0%}"),
    ("entropy", "entropy", "{:.3f}"),
    ("clip_share", "clipped", "{:.1%}"),
    ("grad_norm", "grad", "{:.2f}"),
    ("mismatch_max", "mismatch", "{:.0e}"),
)
"""(metric, its name in the line, its form)."""


def update_line(metrics: Mapping[str, Any], num_updates: int) -> str:
    """One update in one line; figures that it doesn't have are left out."""
    figures = [f"{name} {form.format(metrics[key])}" for key, name, form in _LINE if metrics.get(key) is not None]
    if metrics["failed_episodes"]:
        figures.append(f"failed {metrics['failed_episodes']}")
    seconds = metrics["rollout_s"] + metrics["update_s"] + metrics["publish_s"]
    return f"update {metrics['version']}/{num_updates}  {'  '.join(figures)}  {seconds:.1f} s"


def eval_line(report: EvalReport, version: int) -> str:
    """An evaluation in one line."""
    figures = [f"{name} {estimate}" for name, estimate in report.estimates().items()]
    failed = f"  failed {report.num_failed}" if report.num_failed else ""
    return f"held-out after {version} updates: {'  '.join(figures)}{failed}"


def eval_table(report: EvalReport, title: str = "") -> Table:
    """An evaluation as a table."""
    table = Table("", "mean", "95 % interval", title=title or None, title_justify="left")
    for name, estimate in report.estimates().items():
        table.add_row(name, f"{estimate.mean:.3f}", f"{estimate.low:.3f} to {estimate.high:.3f}")
    table.caption = f"{report.num_tasks} tasks, {report.num_episodes} episodes, {report.num_failed} failed"
    return table


class RunProgress:
    """Shows a run.

    Args:
        console: where to; standard output by default.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = Console(highlight=False) if console is None else console
        self._bar: Progress | None = None
        self._num_updates = 0

    def begin(self, *, version: int, num_updates: int) -> None:
        """The run begins, or goes on, at a version."""
        self._num_updates = num_updates
        if self.console.is_terminal:
            columns = TextColumn("updates"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
            self._bar = Progress(*columns, console=self.console, transient=True)
            self._bar.add_task("updates", total=num_updates, completed=version)
            self._bar.start()

    def end(self) -> None:
        """The run is over, one way or another."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def note(self, text: str) -> None:
        """Something worth saying."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def updated(self, metrics: Mapping[str, Any]) -> None:
        """An update is done."""
        self.note(update_line(metrics, self._num_updates))
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=metrics["version"])

    def evaluated(self, report: EvalReport, version: int) -> None:
        """An evaluation is done."""
        self.note(eval_line(report, version))
