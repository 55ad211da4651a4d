import numpy as np

num_calls = 0


def reward_func(queries, prompts, labels, **kwargs):
    """Every call logs something else."""
    global num_calls
    num_calls += 1
    rewards = np.array([0.25 * i for i in range(len(queries))], dtype=np.float32)
    logs = {"always": np.float64(1.0)}
    if num_calls % 2:
        logs["odd"] = rewards > 0
    else:
        logs["even"] = np.arange(len(queries))
    return {"rewards": rewards, "scores": np.clip(rewards, 0, 1), "extra_logs": logs}
