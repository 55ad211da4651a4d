"""Text that nobody vouches for, made fit for a table on a terminal."""

from __future__ import annotations

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

_SEARCHED_CHARS = 400


def shown(text: str, width: int = 40) -> Text:
    """The beginning of a text in one line of at most `width` cells.

    What doesn't print (control characters, escape sequences, zero-width and direction marks) is spelled out, and nothing
    in it is taken for markup.

    >>> shown("[red]a\\x1b[31m").plain
    '[red]a\\\\x1b[31m'
    """
    head = "".join(map(_visible, text[:_SEARCHED_CHARS]))
    if cell_len(head) > width or len(text) > _SEARCHED_CHARS:
        head = f"{set_cell_size(head, width - 1).rstrip()}…"
    return Text(head, no_wrap=True, overflow="ellipsis")


def line(text: str, limit: int = 2000) -> str:
    """A text in one line with what doesn't print spelled out, cut where it is long."""
    head = "".join(map(_visible, text[:limit]))
    return f"{head}…" if len(text) > limit else head


def number(value: float | None) -> str:
    """A number for a table."""
    return "-" if value is None else f"{value:.4g}" if abs(value) >= 1e4 else f"{value:.3f}"


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


def _visible(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
