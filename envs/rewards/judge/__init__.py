"""Language models as judges: `LLMJudge` and `JudgePanel`."""

from .client import JudgeUsage
from .llm_judge import LLMJudge
from .panel import JudgePanel

__all__ = ["LLMJudge", "JudgePanel", "JudgeUsage"]
