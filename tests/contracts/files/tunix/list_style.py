def reward_fn(prompts, completions, **kwargs):
    """Column values arrive as lists, too."""
    answers = kwargs["answer"]
    levels = kwargs.get("level", [1] * len(prompts))
    return [level * float(answer in completion) for completion, answer, level in zip(completions, answers, levels)]


def answer_only(prompts, completions, answer):
    return [float(c == a) for c, a in zip(completions, answer)]
