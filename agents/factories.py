"""What makes environments: here, by name, and sent to another process."""

from __future__ import annotations

import dataclasses
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..envs.errors import ConfigError
from ..envs.instance import AgentInstance
from ..envs.registry import EnvFactory, EnvSpec, spec
from ..envs.threads import as_async
from ..envs.wrappers import OrderEnforcing


def make_checked(factory: Callable[[], AgentInstance]) -> AgentInstance:
    """An instance whose methods are async and whose results are checked, whatever the factory gives.

    Raises:
        ConfigError: it gives no environment.
    """
    env = factory()
    if not isinstance(env, AgentInstance):
        raise ConfigError(f"{env_name(factory)} gave {type(env).__name__}; it must give an AgentInstance")
    return env if isinstance(env, OrderEnforcing) else OrderEnforcing(as_async(env))


def env_name(factory: Callable[[], AgentInstance]) -> str:
    """What messages call the environments of a factory."""
    return factory.id if isinstance(factory, EnvFactory) else getattr(factory, "__name__", type(factory).__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSetup:
    """What a worker process begins with.

    Attributes:
        factory: pickled; gives the environment's instances.
        spec: pickled; the environment's specification where the parent's own code may have registered it, or None.
    """

    factory: bytes
    spec: bytes | None = None


def worker_setup(factory: Callable[[], AgentInstance]) -> WorkerSetup:
    """The factory in a form that another process understands.

    Raises:
        ConfigError: it can't be pickled.
    """
    env_spec = None
    if isinstance(factory, EnvFactory):
        env_spec = spec(factory.id)
        entry_point = env_spec.entry_point
        if not isinstance(entry_point, str):
            env_spec = dataclasses.replace(env_spec, entry_point=_location(entry_point), tasks=None)
    elif getattr(factory, "__module__", None) == "__main__":
        factory = EnvFactory(id=_location(factory))
    try:
        return WorkerSetup(factory=pickle.dumps(factory), spec=None if env_spec is None else pickle.dumps(env_spec))
    except Exception as error:  # pickle raises whatever the object's own methods raise
        raise _cannot_send(factory, str(error)) from error


def unpack(setup: WorkerSetup) -> tuple[Callable[[], AgentInstance], EnvSpec | None]:
    """The factory and the specification, in the other process."""
    return pickle.loads(setup.factory), None if setup.spec is None else pickle.loads(setup.spec)


def _location(target: Any) -> str:
    """Where another process finds a class or function; the main program counts as the file that it is."""
    module, name = getattr(target, "__module__", None), getattr(target, "__qualname__", "<unnamed>")
    if "<" in name:
        raise _cannot_send(target, "it is defined inside a function, or is a lambda")
    if module != "__main__":
        return f"{module}:{name}"
    path = getattr(sys.modules["__main__"], "__file__", None)
    if path is None:
        raise _cannot_send(target, "it is defined in an interactive session")
    return f"{Path(path).resolve()}:{name}"


def _cannot_send(factory: Any, reason: str) -> ConfigError:
    return ConfigError(
        f"{factory!r} can't be sent to worker processes: {reason}; give an environment's id, file.py:Class, or a class "
        "or function at the top level of a module, or set env_workers=0"
    )
