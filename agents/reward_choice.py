"""Which object of a user's file is the reward."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from ..envs.errors import ConfigError
from ..envs.rewards.base import RewardFunction
from ..envs.rewards.functions import BATCH, as_reward
from ..envs.user_files import python_file

NAMES = ("reward_func", "custom_reward_function", "reward_function", "reward_fn", "reward")
"""What a file's reward is called where nobody says it; the first that there is."""


def split_location(path: str | Path, name: str | None) -> tuple[Path, str | None]:
    """File and name of `FILE` or `FILE:NAME`.

    Raises:
        ConfigError: there is no such file, or there are two names.
    """
    file, colon, own = str(path).rpartition(":")
    if not colon or not file.endswith(".py"):
        return python_file(path), name
    if name not in (None, own):
        raise ConfigError(f"{path} names {own!r}, and the name {name!r} is given, too; give one of them")
    return python_file(file), own or name


def choose_reward(module: ModuleType, name: str | None = None) -> tuple[str, RewardFunction]:
    """The reward of a file, and what the file calls it.

    Args:
        module: the file, loaded.
        name: what to take. By default the first of `NAMES`; else the only reward object that the file makes; else the
            only subclass of `RewardFunction` that it defines; else its only function.

    Raises:
        ConfigError: it isn't there, could be several, or can't serve as a reward.
    """
    name = _only_candidate(module) if name is None else name
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            known = ", ".join(dict.fromkeys(n for kind in _candidates(module) for n in kind)) or "no reward at all"
            raise ConfigError(f"{module.__file__} defines no {name!r}; there are: {known}")
        found = getattr(found, part)
    try:
        return name, as_reward(found)
    except ConfigError as error:
        raise ConfigError(f"{module.__file__}:{name}: {error}") from error


def is_single(file: Path, name: str | None = None) -> bool:
    """Whether the text of a file shows that its reward looks at one trajectory at a time; nothing of it is run.

    False also where that can't be seen.
    """
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, OSError):
        return False
    if any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in tree.body):
        return False
    bound = _bound_names(tree)
    if name is None:
        name = next((key for key in NAMES if key in bound), None) or _only_class(tree)
    nodes = bound.get(name or "", [])
    if len(nodes) != 1:
        return False
    node = nodes[0]
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        names = {a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)}
        return not node.decorator_list and not names & BATCH
    return isinstance(node, ast.ClassDef) and _is_reward(node)


def _only_class(tree: ast.Module) -> str | None:
    """The only reward class of a file in which nothing else could be the reward."""
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.bases]
    calls = [node for node in tree.body if isinstance(getattr(node, "value", None), ast.Call)]
    return classes[0].name if len(classes) == 1 and not calls else None


def _only_candidate(module: ModuleType) -> str:
    for name in NAMES:
        if callable(getattr(module, name, None)):
            return name
    for found in _candidates(module):
        if len(found) == 1:
            return next(iter(found))
        if found:
            raise ConfigError(
                f"{module.__file__} could mean any of {', '.join(found)}; choose with FILE:NAME, or call one of them "
                f"{NAMES[0]}"
            )
    raise ConfigError(f"{module.__file__} defines no reward; it needs a function such as {NAMES[0]}, or a class")


def _candidates(module: ModuleType) -> tuple[Mapping[str, Any], ...]:
    """The reward objects of a file, its reward classes, and its functions; imported ones and private ones left out."""
    public = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    own = {n: value for n, value in public.items() if getattr(value, "__module__", None) == module.__name__}
    return (
        {n: value for n, value in public.items() if isinstance(value, RewardFunction)},
        {
            n: value
            for n, value in own.items()
            if inspect.isclass(value) and issubclass(value, RewardFunction) and not inspect.isabstract(value)
        },
        {n: value for n, value in own.items() if inspect.isfunction(value)},
    )


def _is_reward(node: ast.ClassDef) -> bool:
    bases = [base.id if isinstance(base, ast.Name) else getattr(base, "attr", "") for base in node.bases]
    return bases == [RewardFunction.__name__] and not node.decorator_list


def _bound_names(tree: ast.Module) -> dict[str, list[ast.stmt]]:
    """Name -> the top-level statements that may bind it."""
    bound: dict[str, list[ast.stmt]] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names = [node.name]
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.asname or alias.name for alias in node.names]
        else:  # an assignment, or one in a branch or a loop
            names = [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
            names += [
                n.name for n in ast.walk(node) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            ]
        for name in names:
            bound.setdefault(name, []).append(node)
    return bound
