"""Playing episodes: engines, chat templates, the executor, and the record of what happened, token for token."""

from typing import TYPE_CHECKING, Any

from ..envs.tokenizer import load_tokenizer
from ..envs.user_files import load_user_module
from .builder import EpisodeBuilder
from .chat import Continuation, Conversation, Renderer
from .engine import Engine, GenerateRequest, Generation, TracksEpisodes, VersionSpan, WeightSource
from .engines.scripted import ScriptedEngine
from .episode import Ending, Episode, Failure, TokenRecord, Turn
from .executor import AgentExecutor
from .executor_config import ExecutorConfig
from .group import Group
from .remote_reward import RemoteReward
from .reward_files import load_reward_file
from .seeds import derive_seed
from .stats import ExecutorStats
from .store import EpisodeWriter, read_episodes

if TYPE_CHECKING:
    from .engines.transformers import TransformersEngine

__all__ = [
    "AgentExecutor",
    "ExecutorConfig",
    "ExecutorStats",
    "Group",
    "Engine",
    "GenerateRequest",
    "Generation",
    "VersionSpan",
    "WeightSource",
    "TracksEpisodes",
    "ScriptedEngine",
    "TransformersEngine",
    "Renderer",
    "load_tokenizer",
    "Conversation",
    "Continuation",
    "Episode",
    "EpisodeBuilder",
    "Ending",
    "Failure",
    "TokenRecord",
    "Turn",
    "EpisodeWriter",
    "read_episodes",
    "derive_seed",
    "load_user_module",
    "load_reward_file",
    "RemoteReward",
]


def __getattr__(name: str) -> Any:
    if name == "TransformersEngine":
        from .engines.transformers import TransformersEngine

        return TransformersEngine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
