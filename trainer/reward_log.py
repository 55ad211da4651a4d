def reward_metrics(groups):
    return {}
