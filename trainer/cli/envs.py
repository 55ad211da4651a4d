"""`turngym envs`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ...envs.registry import registered


def run(argv: Sequence[str]) -> int:
    """List the environments, a line each; returns the exit code."""
    argparse.ArgumentParser(prog="turngym envs", description="Lists the environments, a line each.").parse_args(argv)
    specs = registered()
    width = max(len(spec.id) for spec in specs) + 2
    for spec in specs:
        print(f"{spec.id:{width}}{spec.description}".rstrip())
    return 0
