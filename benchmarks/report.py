"""What all benchmarks share: alternating pairs, their interval, and the JSON line at the end."""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent


class Ratio(NamedTuple):
    """Median of paired ratios, and a 95 % interval of the median from its order statistics."""

    median: float
    low: float
    high: float


def alternating(
    first: Callable[[], float], second: Callable[[], float], *, num_pairs: int
) -> list[tuple[float, float]]:
    """Measure both sides by turns, each first as often as the other, so that a drift of the machine hits both."""
    pairs = []
    for index in range(num_pairs):
        if index % 2:
            b, a = second(), first()
        else:
            a, b = first(), second()
        pairs.append((a, b))
    return pairs


def ratio(pairs: Sequence[tuple[float, float]]) -> Ratio:
    """First over second, as the median over pairs; the interval spans all pairs where there are fewer than six."""
    ratios = sorted(a / b for a, b in pairs)
    below = max(0, math.floor(len(ratios) / 2 - 0.98 * math.sqrt(len(ratios))))
    return Ratio(statistics.median(ratios), ratios[below], ratios[-1 - below])


def report(
    name: str,
    figures: Mapping[str, float],
    at_most: Mapping[str, float],
    *,
    at_least: Mapping[str, float] | None = None,
    num_digits: int = 3,
) -> None:
    """Print the benchmark's last line, which `make bench` appends to `results.jsonl`.

    Args:
        name: the benchmark's name.
        figures: what was measured.
        at_most: what figures must not exceed.
        at_least: what the other figures must reach.
        num_digits: digits after the point.
    """
    at_least = at_least or {}
    targets = {**at_most, **at_least}
    assert figures.keys() == targets.keys(), "each figure has a target and each target a figure"
    is_met = all(figures[key] <= at_most[key] for key in at_most) and all(
        figures[key] >= at_least[key] for key in at_least
    )
    line = json.dumps(
        {
            "name": name,
            "figures": {key: round(value, num_digits) for key, value in figures.items()},
            "targets": {key: targets[key] for key in figures},
            "met": is_met,
            "machine": f"{_cpu()}, {os.cpu_count()} cores, Python {platform.python_version()}",
            "commit": _commit(),
        }
    )
    print(line)


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _commit() -> str:
    command = ["git", "-C", str(HERE), "describe", "--always", "--dirty", "--abbrev=10"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"
