from agent_tunix.rewards import check_answer, check_numbers, match_format_exactly

ALPHA, BETA = 0.3, 0.7


def custom_reward_function(response: str, prompt: str, metadata: dict) -> float:
    """alpha * format + beta * correctness."""
    format_score = match_format_exactly(response, metadata.get("format", "The answer is [NUM]."))
    correctness = check_answer(response, metadata["answer"])
    if metadata.get("numbers"):
        correctness = check_numbers(response, metadata["numbers"])["score"]
    return ALPHA * format_score + BETA * correctness
