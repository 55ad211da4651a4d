import torch

from reward_utils import is_correct


def reward_func(queries, prompts, labels):
    from reward_utils import bonus  # found later, too

    return {"rewards": torch.tensor([is_correct(q, label) + bonus for q, label in zip(queries, labels)])}
