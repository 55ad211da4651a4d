import torch


def reward_func(queries, prompts, labels):
    return {"rewards": torch.zeros(len(queries), 1)}  # should be [n]
