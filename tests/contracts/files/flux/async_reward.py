import asyncio

from flux.core.trajectory import Trajectory
from flux.rewards import RewardFunction, RewardOutput


class VerifierReward(RewardFunction):
    """Asks a (pretended) service."""

    async def compute_reward(self, trajectory: Trajectory) -> RewardOutput:
        await asyncio.sleep(0.05)
        ok = trajectory.response.strip().endswith(".")
        return RewardOutput(reward=1.0 if ok else 0.0, metadata={"ok": ok})
