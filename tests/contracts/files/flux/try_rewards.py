"""python try_rewards.py: prints what the rewards give for some examples."""

import sys

from concise_and_polite import ConcisenessReward, PolitenessReward

from flux.core.trajectory import Trajectory
from flux.rewards import CompositeReward, LengthReward

EXAMPLES = ["Thank you.", "No."]

if __name__ == "__main__":
    reward = CompositeReward([(PolitenessReward(), 0.5), (ConcisenessReward(), 0.25), (LengthReward(target=2), 0.25)])
    for response in EXAMPLES:
        output = reward.compute_reward(Trajectory(response=response))
        print(f"{response}: {output.reward:.3f}")
    print("arguments:", sys.argv[1:])
    sys.exit(0)
