"""Environments: what an agent acts in.

Write one by deriving from `AgentInstance`; `register` it, or give its class as `file.py:Class`.
"""

from .checks import CheckLimits, CheckReport, CheckResult, acheck_env, check_env
from .errors import (
    CheckpointError,
    ConfigError,
    DataError,
    EngineError,
    EnvClosedError,
    EnvError,
    EnvWorkerError,
    EpisodeEndedError,
    InvalidRewardError,
    InvalidStepError,
    PolicyFault,
    RecordError,
    ResetNeededError,
    RewardError,
    StepTimeoutError,
    TemplateError,
    TurngymError,
    UnknownEnvError,
)
from .instance import AgentInstance, UnicodeText
from .registry import EnvFactory, EnvSpec, make, register, registered, spec, task_source
from .rows import RowTaskSource
from .sampling import SamplingParams
from .tasks import ListTaskSource, SplitName, Task, TaskSource
from .threads import abandoned_threads
from .types import (
    Action,
    FinishReason,
    Message,
    Observation,
    Role,
    StepResult,
    ToolCall,
    Verbatim,
    VerbatimData,
    as_step_result,
)
from .wrappers import OrderEnforcing, StepTimeout, TimeLimit, Wrapper

__all__ = [
    "AgentInstance",
    "Action",
    "StepResult",
    "Observation",
    "Message",
    "Role",
    "Verbatim",
    "VerbatimData",
    "ToolCall",
    "FinishReason",
    "SamplingParams",
    "UnicodeText",
    "as_step_result",
    "Task",
    "TaskSource",
    "ListTaskSource",
    "RowTaskSource",
    "SplitName",
    "EnvSpec",
    "EnvFactory",
    "register",
    "registered",
    "spec",
    "make",
    "task_source",
    "Wrapper",
    "OrderEnforcing",
    "TimeLimit",
    "StepTimeout",
    "abandoned_threads",
    "check_env",
    "acheck_env",
    "CheckReport",
    "CheckResult",
    "CheckLimits",
    "TurngymError",
    "EnvError",
    "ResetNeededError",
    "EpisodeEndedError",
    "EnvClosedError",
    "InvalidStepError",
    "StepTimeoutError",
    "EnvWorkerError",
    "PolicyFault",
    "UnknownEnvError",
    "DataError",
    "ConfigError",
    "TemplateError",
    "RecordError",
    "RewardError",
    "InvalidRewardError",
    "EngineError",
    "CheckpointError",
]
