"""Text that nobody vouches for, made fit for a table on a terminal."""

from __future__ import annotations

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...reward_reports.shown_text import head


def shown(text: str, width: int = 40) -> Text:
    r"""The beginning of a text in one line of at most `width` cells.

    What doesn't print (control characters, escape sequences, zero-width and direction marks) is spelled out, and
    nothing in it is taken for markup.

    >>> shown("[red]a\x1b[31m").plain
    '[red]a\\x1b[31m'
    """
    start = head(text, width)
    if cell_len(start) > width:
        start = f"{set_cell_size(start, width - 1).rstrip()}…"
    return Text(start, no_wrap=True, overflow="ellipsis")


def number(value: float | None, num_digits: int = 6) -> str:
    """A number for a table.

    >>> number(-2187.4, 3), number(0.123456, 3)
    ('-2187', '0.123')
    """
    if value is None:
        return "-"
    return f"{value:.0f}" if 10**num_digits <= abs(value) < 1e9 else f"{value:.{num_digits}g}"


def say(console: Console, text: str) -> None:
    """Print a line as it is."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def make_table(*columns: str) -> Table:
    """A table whose first columns keep their width."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for name in columns:
        is_number = name in ("reward", "best", "mean", "expected")
        table.add_column(name, justify="right" if is_number else "left", no_wrap=True, overflow="ellipsis")
    return table
