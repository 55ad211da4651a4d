import re

import torch

ANSWER = re.compile(r"####\s*(-?[\d,]+(?:\.\d+)?)")


def extract(text):
    match = ANSWER.search(text)
    return match.group(1).replace(",", "") if match else None


def reward_func(queries, prompts, labels, **kwargs):
    rewards = []
    for query, prompt, label in zip(queries, prompts, labels):
        given = extract(query[len(prompt) :])
        rewards.append(float(given is not None and given == extract(label)))
    return {"rewards": torch.tensor(rewards)}
