"""Files that users wrote, loaded once each, with the imports that other systems taught them.

A file written for flux, OpenRLHF or agent_tunix imports names from there. Inside such a file, and inside the files
beside it that it imports, those packages are turngym's, whatever is installed. Nobody else sees them: the module's
globals have builtins of their own, and in these an `__import__` of its own, so that only import statements of the
file's own code find them. `importlib.import_module` is everybody's, and isn't changed.

The file's folder is searched as Python does for a script: `import helpers` finds `helpers.py` beside it, before an
installed package and after the standard library. `sys.path` stays as it is.
"""

from __future__ import annotations

import builtins
import contextlib
import hashlib
import importlib
import importlib.util
import re
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from .errors import ConfigError

_FLUX = {
    name: f"turngym.envs.rewards:{name}"
    for name in (
        "RewardFunction",
        "RewardOutput",
        "LengthReward",
        "FormatReward",
        "KeywordReward",
        "FunctionReward",
        "CompositeReward",
        "RewardModel",
        "LLMJudge",
        "Trajectory",
    )
}

STAND_INS: dict[str, Mapping[str, str]] = {
    "flux.rewards": _FLUX,
    "flux.rewards.base": _FLUX,
    "flux.rewards.rule_based": _FLUX,
    "flux.rewards.model_based": _FLUX,
    "flux.core.trajectory": {"Trajectory": "turngym.envs.rewards:Trajectory"},
    "agent_tunix.rewards": {
        name: f"turngym.envs.rewards:{name}" for name in ("match_format_exactly", "check_answer", "check_numbers")
    },
}
"""Module -> its names -> where they are, `module:attribute`; imported when they are asked for."""

STAND_INS_WHERE_ABSENT: dict[str, Mapping[str, str]] = {"vllm": {"SamplingParams": "turngym.envs:SamplingParams"}}
"""As `STAND_INS`, for packages that are themselves used where they are installed."""

REFUSED: dict[str, str] = {
    "openrlhf.utils.agent": "it is an agent file, and agent files don't run yet; reward files do",
}
"""Module -> why a file that imports it can't be used."""

MAX_MESSAGE_CHARS = 1_000

_PREFIX = "turngym_file_"
_lock = threading.RLock()


def load_user_module(path: str | Path, *, real_imports: bool = False) -> ModuleType:
    """The module that a user's file is; each file is loaded once in a process.

    Args:
        path: a `.py` file.
        real_imports: whether the file gets the installed `flux`, `agent_tunix` and `openrlhf` instead of turngym's.

    Raises:
        ConfigError: there is no such file, or it can't be loaded; the message names file, line and cause.
    """
    file = python_file(path)
    try:
        return import_file(file, real_imports=real_imports)
    except (Exception, SystemExit) as error:  # whatever a file's own code raises
        raise ConfigError(f"{path} can't be loaded: {describe_error(error)}") from error


def import_file(path: Path, *, real_imports: bool = False) -> ModuleType:
    """As `load_user_module`, for a file that is there; what its code raises comes as it is."""
    path = path.resolve()
    with _lock:
        return _Imports(path.parent, real_imports).load(_private_name(path, real_imports), path)


def run_user_script(path: str | Path, arguments: Sequence[str] = (), *, real_imports: bool = False) -> ModuleType:
    """Run a user's file as `python FILE ARGUMENTS` would, as `__main__`, with the imports of `load_user_module`.

    Args:
        path: a `.py` file.
        arguments: what stands in `sys.argv` after the file.
        real_imports: as for `load_user_module`.

    Returns:
        The module, when it has ended. What it raises comes as it is, `SystemExit` included.

    Raises:
        ConfigError: there is no such file.
    """
    file = python_file(path)
    module = ModuleType("__main__")
    module.__file__ = str(file.absolute())
    module.__dict__["__builtins__"] = _builtins(_Imports(file.resolve().parent, real_imports))
    with _as_main(module, [str(path), *arguments], str(file.resolve().parent)):
        _execute(file.absolute(), module)
    return module


def python_file(path: str | Path) -> Path:
    """The path, if it is that of a Python file.

    Raises:
        ConfigError: there is no such file, or its name doesn't end in `.py`.
    """
    file = Path(path)
    if file.suffix != ".py":
        raise ConfigError(f"{path} is no Python file; its name must end in .py")
    if not file.is_file():
        raise ConfigError(f"there is no file {path}")
    return file


def describe_error(error: BaseException) -> str:
    """An exception in one line: its class, its message, and the place in a user's file that it comes from."""
    try:
        message = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())
    except Exception as second:  # noqa: BLE001 - a file's own class
        message = f"<its str() raised {type(second).__name__}>"
    if len(message) > MAX_MESSAGE_CHARS:
        message = message[: MAX_MESSAGE_CHARS - 3] + "..."
    said = f"{type(error).__name__}: {message}" if message else type(error).__name__
    where = _place_of(error)
    return said if where is None else f"{said} ({where[0]}, line {where[1]})"


def _place_of(error: BaseException) -> tuple[str, int] | None:
    """File and line of the innermost of a user's frames that an exception went through."""
    if isinstance(error, SyntaxError) and error.filename and error.filename.endswith(".py"):
        return error.filename, error.lineno or 1
    place = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        own = frame.f_globals.get("__builtins__")
        if isinstance(own, dict) and isinstance(own.get("__import__"), _Imports):
            place = frame.f_code.co_filename, line
    return place


class _StandIn(ModuleType):
    """A module that isn't there, made of turngym's names."""

    def __init__(self, name: str, places: Mapping[str, str]) -> None:
        super().__init__(name)
        self.__path__ = []
        self.__all__ = sorted(places)
        self._places = places

    def __getattr__(self, name: str) -> Any:
        places = self.__dict__.get("_places", {})
        if name not in places:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        module, _, attribute = places[name].partition(":")
        found = getattr(importlib.import_module(module), attribute)
        setattr(self, name, found)
        return found

    @property
    def names(self) -> list[str]:
        """What can be imported from it."""
        return sorted({*self._places, *(name for name, value in vars(self).items() if isinstance(value, _StandIn))})


class _Imports:
    """The `__import__` of a user's file, and of the files beside it."""

    def __init__(self, folder: Path, real_imports: bool) -> None:
        self._folder = folder
        self._real_imports = real_imports
        self._stand_ins = {} if real_imports else _stand_ins({**STAND_INS, **{name: {} for name in REFUSED}})

    def __call__(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,  # noqa: A002 - the names that `__import__` has
        locals: Mapping[str, Any] | None = None,  # noqa: A002
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        importer = globals or {}
        root = name.partition(".")[0]
        if level:
            package = str(importer.get("__package__") or "")
            if package.startswith(_PREFIX):
                return self._beside(importlib.util.resolve_name("." * level + name, package), fromlist)[-1]
        elif root in self._stand_ins or self._is_absent(root):
            return self._stand_in(name, fromlist or (), importer.get("__file__"))
        elif root not in sys.stdlib_module_names and _find(self._folder, root) is not None:
            return self._beside(name, fromlist)[-1 if fromlist else 0]
        try:
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        except ModuleNotFoundError as error:
            if level or error.name != root or not (self._folder / root).is_dir():
                raise
        return self._beside(name, fromlist)[-1 if fromlist else 0]  # a folder without __init__.py

    def load(self, name: str, path: Path) -> ModuleType:
        """The module of this name, from the file or folder that it is, unless it is loaded already."""
        with _lock:
            if name in sys.modules:
                return sys.modules[name]
            folder = path if path.is_dir() else path.parent if path.name == "__init__.py" else None
            spec = ModuleSpec(name, None, is_package=True)
            if path.is_file():
                search = None if folder is None else [str(folder)]
                spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=search) or spec
            module = importlib.util.module_from_spec(spec)
            if path.is_dir():
                module.__path__ = [str(path)]
            module.__dict__["__builtins__"] = _builtins(self)
            sys.modules[name] = module
            try:
                if path.is_file():
                    _execute(path, module)
            except BaseException:
                sys.modules.pop(name, None)
                raise
            return sys.modules.get(name, module)

    def _is_absent(self, root: str) -> bool:
        if self._real_imports or root not in STAND_INS_WHERE_ABSENT or root in sys.modules:
            return False
        if importlib.util.find_spec(root) is None:
            self._stand_ins |= _stand_ins({root: STAND_INS_WHERE_ABSENT[root]})
        return root in self._stand_ins

    def _stand_in(self, name: str, fromlist: Sequence[str], importer: Any) -> ModuleType:
        if name in REFUSED:
            raise ImportError(f"{importer} imports {name}: {REFUSED[name]}", name=name)
        root = name.partition(".")[0]
        found = self._stand_ins.get(name)
        hint = f"real_imports (--real_imports) takes an installed {root} instead"
        if found is None:
            known = ", ".join(sorted(known for known in self._stand_ins if known.partition(".")[0] == root))
            raise ModuleNotFoundError(f"{importer} imports {name!r}; there are {known}; {hint}", name=name)
        for wanted in fromlist:
            if wanted != "*" and wanted not in found.names and wanted not in vars(found):
                known = ", ".join(found.names) or "no names"
                raise ImportError(f"{importer} imports {wanted!r} from {name}; there are {known}; {hint}", name=name)
            refused = REFUSED.get(f"{name}.{wanted}")
            if refused is not None:
                raise ImportError(f"{importer} imports {name}.{wanted}: {refused}", name=name)
        return found if fromlist else self._stand_ins[root]

    def _beside(self, name: str, fromlist: Sequence[str] | None) -> list[ModuleType]:
        """The modules a, a.b, a.b.c of a dotted name whose first is beside the file, or is one of our own."""
        chain: list[ModuleType] = []
        for part in name.split("."):
            chain.append(self._part(part, chain[-1] if chain else None, name))
        last = chain[-1]
        wanted = getattr(last, "__all__", ()) if fromlist and "*" in fromlist else fromlist or ()
        for part in wanted if hasattr(last, "__path__") else ():
            if not hasattr(last, part) and _find(Path(last.__path__[0]), part, is_folder_enough=True) is not None:
                self._part(part, last, name)
        return chain

    def _part(self, part: str, parent: ModuleType | None, name: str) -> ModuleType:
        if parent is None and part.startswith(_PREFIX):
            return sys.modules[part]
        folders = [str(self._folder)] if parent is None else getattr(parent, "__path__", [])
        path = _find(Path(folders[0]), part, is_folder_enough=True) if folders else None
        if path is None:
            raise ModuleNotFoundError(f"No module named {name!r} beside the file, in {self._folder}", name=name)
        if parent is None:
            return self.load(_private_name(path, self._real_imports), path)
        module = self.load(f"{parent.__name__}.{part}", path)
        setattr(parent, part, module)
        return module


def _stand_ins(table: Mapping[str, Mapping[str, str]]) -> dict[str, _StandIn]:
    """Stand-ins for all modules of a table and the packages that they are in, each an attribute of its package."""
    found: dict[str, _StandIn] = {}
    for name in table:
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            module = ".".join(parts[:end])
            found.setdefault(module, _StandIn(module, table.get(module, {})))
            if end > 1:
                setattr(found[".".join(parts[: end - 1])], parts[end - 1], found[module])
    return found


def _find(folder: Path, name: str, *, is_folder_enough: bool = False) -> Path | None:
    for path in (folder / name / "__init__.py", folder / f"{name}.py"):
        if path.is_file():
            return path
    return folder / name if is_folder_enough and (folder / name).is_dir() else None


def _private_name(path: Path, real_imports: bool) -> str:
    path = path.resolve()
    digest = hashlib.blake2b(f"{path}{'?real' * real_imports}".encode("utf-8", "surrogateescape"), digest_size=8)
    stem = path.parent.name if path.name == "__init__.py" else path.stem
    return f"{_PREFIX}{re.sub(r'[^0-9a-zA-Z_]', '_', stem)}_{digest.hexdigest()}"


def _builtins(imports: _Imports) -> dict[str, Any]:
    return {**vars(builtins), "__import__": imports}


def _execute(path: Path, module: ModuleType) -> None:
    """Run a file's code; no compiled copy of it is written beside it."""
    exec(compile(path.read_bytes(), str(path), "exec", dont_inherit=True), module.__dict__)


@contextlib.contextmanager
def _as_main(module: ModuleType, argv: list[str], folder: str) -> Iterator[None]:
    main, old_argv, old_path = sys.modules["__main__"], sys.argv, list(sys.path)
    sys.modules["__main__"], sys.argv = module, argv
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.modules["__main__"], sys.argv = main, old_argv
        sys.path[:] = old_path
