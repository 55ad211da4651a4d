"""Several rewards in one file: --reward_function chooses."""

import agent_tunix.rewards as rewards


def format_reward(response, format):
    return rewards.match_format_exactly(response, format)


def numbers_reward(response, numbers):
    return rewards.check_numbers(response, numbers)


def prompt_echo_penalty(response: str, prompt: str, metadata: dict) -> float:
    return 0.0 if prompt and prompt in response else 1.0
