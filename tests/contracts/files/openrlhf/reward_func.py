import torch


def reward_func(queries, prompts, labels):
    # queries is prompts + responses
    # labels is answers
    rewards = []
    for query, prompt, label in zip(queries, prompts, labels):
        assert query.startswith(prompt)
        response = query[len(prompt) :]
        rewards.append(1.0 if label in response else -0.5)
    rewards = torch.tensor(rewards)
    return {
        "rewards": rewards,  # Rewards for advantage calculation
        "scores": (rewards > 0).float(),  # Scores for dynamic filtering (0-1 reward)
        "extra_logs": {"dummy_scores": rewards, "n": len(queries), "all_good": bool((rewards > 0).all())},
    }
