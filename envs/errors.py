"""The errors that turngym raises on purpose.

    TurngymError
    ├── EnvError                     something about an environment
    │   ├── ResetNeededError         (RuntimeError)  step or render before reset
    │   ├── EpisodeEndedError        (RuntimeError)  step after the episode ended
    │   ├── EnvClosedError           (RuntimeError)  any call after close
    │   ├── InvalidStepError         (ValueError)    reset or step returned something that breaks the contract
    │   ├── StepTimeoutError         (TimeoutError)  reset, step or close took longer than its limit
    │   ├── EnvWorkerError           (RuntimeError)  the process that held the environment died or was killed
    │   └── PolicyFault              the policy, not the environment, is to blame; its episode is truncated and trained
    ├── UnknownEnvError              (LookupError)   no environment has this id
    ├── DataError                    (ValueError)    a file of tasks can't be used; names file, line and remedy
    ├── ConfigError                  (ValueError)    a flag, field or combination of them can't be used
    ├── TemplateError                (ValueError)    a chat template can't be continued token for token
    ├── RecordError                  (ValueError)    the parts of a token record disagree
    ├── RewardError                  (RuntimeError)  a reward failed, or gave what can't be used as one
    │   └── InvalidRewardError       (ValueError)    what it gave breaks the reward contract: no number, the wrong shape
    ├── EngineError                  (RuntimeError)  an inference engine failed or was asked for what it can't do
    └── CheckpointError              (RuntimeError)  a checkpoint can't be written or read

Each is built from one message, so that it survives pickling between processes. Messages hold the value, the rule and
the remedy.
"""


class TurngymError(Exception):
    """Root of every error that turngym raises on purpose."""


class EnvError(TurngymError):
    """Something about an environment."""


class ResetNeededError(EnvError, RuntimeError):
    """The environment was stepped or rendered before its first reset."""


class EpisodeEndedError(EnvError, RuntimeError):
    """The environment was stepped although its episode has ended."""


class EnvClosedError(EnvError, RuntimeError):
    """The environment was used after it was closed."""


class InvalidStepError(EnvError, ValueError):
    """What reset or step returned breaks the environment contract."""


class StepTimeoutError(EnvError, TimeoutError):
    """A call into the environment took longer than its limit."""


class EnvWorkerError(EnvError, RuntimeError):
    """The process that held the environment died or was killed.

    Args:
        message: what happened.
        is_bystander: whether another environment in the same process is to blame.
    """

    def __init__(self, message: str, is_bystander: bool = False) -> None:
        super().__init__(message, is_bystander)
        self.is_bystander = is_bystander

    def __str__(self) -> str:
        return str(self.args[0])


class PolicyFault(EnvError):  # noqa: N818 - the contract's name
    """Raised by an environment when the policy is to blame.

    The episode ends truncated, keeps the rewards of its turns, and is trained like any other.

    Args:
        message: what the policy did.
        reward: what the faulty turn earns.
    """

    def __init__(self, message: str, reward: float = 0.0) -> None:
        super().__init__(message, reward)
        self.reward = reward

    def __str__(self) -> str:
        return str(self.args[0])


class UnknownEnvError(TurngymError, LookupError):
    """No environment is registered under this id."""


class DataError(TurngymError, ValueError):
    """A file of tasks can't be used."""


class ConfigError(TurngymError, ValueError):
    """A flag, a config field, or a combination of them can't be used."""


class TemplateError(TurngymError, ValueError):
    """A chat template can't be continued token for token."""


class RecordError(TurngymError, ValueError):
    """The parts of a token record disagree."""


class RewardError(TurngymError, RuntimeError):
    """A reward failed, or gave what can't be used as one. It is never taken for a zero."""


class InvalidRewardError(RewardError, ValueError):
    """What a reward gave breaks the reward contract, so that the next call won't go better."""


class EngineError(TurngymError, RuntimeError):
    """An inference engine failed, or was asked for something it can't do."""


class CheckpointError(TurngymError, RuntimeError):
    """A checkpoint can't be written or read."""
