"""What the checks found: one result per check, and a report as a plain table."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import EnvError

if TYPE_CHECKING:
    from rich.table import Table

WIDTH = 110


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """What one check found.

    Attributes:
        name: the check's name.
        passed: whether the check was made and found nothing wrong.
        skipped: whether it couldn't be made.
        message: what is wrong and what to change; why it was skipped; or, where it passed, a note.
    """

    name: str
    passed: bool
    skipped: bool = False
    message: str = ""

    @property
    def failed(self) -> bool:
        """Whether the check was made and found something wrong."""
        return not self.passed and not self.skipped

    @property
    def verdict(self) -> str:
        """`ok`, `note`, `skipped` or `FAILED`."""
        if self.passed:
            return "note" if self.message else "ok"
        return "skipped" if self.skipped else "FAILED"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """What all checks of one environment found. `str(report)` is a plain table, and rich prints a coloured one.

    Attributes:
        env: the environment's name.
        results: one per check, in the order in which they were made.
    """

    env: str
    results: tuple[CheckResult, ...]

    @property
    def passed(self) -> bool:
        """Whether no check failed. A skipped check doesn't fail, and doesn't count as passed either: see `summary`."""
        return not self.failures

    @property
    def failures(self) -> tuple[CheckResult, ...]:
        """The checks that failed."""
        return tuple(result for result in self.results if result.failed)

    @property
    def summary(self) -> str:
        """One line: how many checks passed, failed and were skipped."""
        num_passed = sum(result.passed for result in self.results)
        num_skipped = sum(result.skipped for result in self.results)
        return f"{self.env}: {num_passed} passed, {len(self.failures)} failed, {num_skipped} skipped"

    def raise_if_failed(self) -> None:
        """Raise an `EnvError` that holds the messages of all failed checks, if there are any."""
        if self.failures:
            raise EnvError("\n".join([self.summary, *(f"{r.name}: {r.message}" for r in self.failures)]))

    def __str__(self) -> str:
        name_width = max((len(result.name) for result in self.results), default=0)
        indent = " " * (name_width + 11)
        lines = [self.summary]
        for result in self.results:
            start = f"{result.name:<{name_width}}  {result.verdict:<7}  "
            wrapped = textwrap.wrap(
                result.message, WIDTH, initial_indent=start, subsequent_indent=indent, break_on_hyphens=False
            )
            lines.extend(wrapped or [start.rstrip()])
        return "\n".join(lines)

    def __rich__(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        styles = {"ok": "green", "note": "cyan", "skipped": "yellow", "FAILED": "bold red"}
        table = Table(title=self.summary, title_justify="left", box=None, show_header=False, padding=(0, 2, 0, 0))
        for result in self.results:
            table.add_row(result.name, Text(result.verdict, styles[result.verdict]), Text(result.message))
        return table
