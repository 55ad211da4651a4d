"""Two environments about numbers: Math-v0 and GuessNumber-v0."""

from .env import MathEnv, MathRewards
from .guess_number import GuessNumberEnv, GuessNumberTasks, bisection_turns
from .tasks import MathTasks

__all__ = ["MathEnv", "MathRewards", "MathTasks", "GuessNumberEnv", "GuessNumberTasks", "bisection_turns"]
