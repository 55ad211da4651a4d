"""`turngym reward run`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from ....envs.errors import ConfigError

_HELP = """usage: turngym reward run SCRIPT.py [argument ...]

Runs a script of your own as __main__, with the imports that reward files have:
turngym's classes stand in for the packages that such files name. What follows
the script's name is the script's. The exit code is the script's, too."""


def run(argv: Sequence[str]) -> int:
    """Run a script; returns its exit code."""
    if argv and argv[0] in ("-h", "--help"):
        print(_HELP)
        raise SystemExit(0)
    if not argv:
        raise ConfigError("the script is missing; give turngym reward run SCRIPT.py")
    path, arguments = Path(argv[0]), list(argv[1:])
    if not path.is_file():
        raise ConfigError(f"{path}: there is no such script")
    from ....envs.user_files import run_user_script

    before = sys.argv
    sys.argv = [str(path), *arguments]
    try:
        run_user_script(path)
    except SystemExit as ended:
        return _code(ended.code)
    finally:
        sys.argv = before
    return 0


def _code(code: object) -> int:
    """The exit code that the interpreter would end with."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code
    print(code, file=sys.stderr)
    return 1
