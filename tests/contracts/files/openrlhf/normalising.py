import torch


def reward_func(queries, prompts, labels):
    lengths = torch.tensor([float(len(q) - len(p)) for q, p in zip(queries, prompts)])
    rewards = (lengths - lengths.mean()) / (lengths.std(unbiased=False) + 1e-6)
    return {"rewards": rewards, "scores": torch.sigmoid(rewards), "extra_logs": {"batch_mean": lengths.mean()}}
