"""`turngym reward run`."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from ....envs.errors import ConfigError

_HELP = """usage: turngym reward run [--real_imports] SCRIPT.py [argument ...]

Runs a script of your own as __main__, with the imports that reward files have:
turngym's classes stand in for the packages that such files name, unless
--real_imports is given. What follows the script's name is the script's. The
exit code is the script's, too."""


def run(argv: Sequence[str]) -> int:
    """Run a script; returns its exit code."""
    if argv and argv[0] in ("-h", "--help"):
        print(_HELP)
        raise SystemExit(0)
    real_imports = bool(argv) and argv[0] == "--real_imports"
    if len(argv) <= real_imports:
        raise ConfigError("the script is missing; give turngym reward run SCRIPT.py")
    path, *arguments = argv[real_imports:]
    if path.startswith("-"):
        raise ConfigError(f"there is no flag {path}; flags of the script come after its name")
    from ....envs.user_files import python_file, run_user_script

    python_file(path)
    try:
        run_user_script(path, arguments, real_imports=real_imports)
    except SystemExit as ended:
        return _code(ended.code)
    except Exception as error:  # noqa: BLE001 - the script's own, told as Python tells it
        traceback.print_exception(error.with_traceback(_within(error.__traceback__, Path(path).absolute())))
        return 1
    return 0


def _within(trace: TracebackType | None, path: Path) -> TracebackType | None:
    """The traceback from the script's first frame on."""
    first = trace
    while first is not None and first.tb_frame.f_code.co_filename != str(path):
        first = first.tb_next
    return trace if first is None else first


def _code(code: object) -> int:
    """The exit code that the interpreter would end with."""
    if code is None:
        return 0
    if isinstance(code, int):
        return int(code)
    print(code, file=sys.stderr)
    return 1
