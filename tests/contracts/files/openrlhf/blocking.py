import time


def reward_func(queries, prompts, labels):
    time.sleep(1.0)  # a slow verifier
    return {"rewards": [float(len(q) - len(p)) for q, p in zip(queries, prompts)]}
