"""turngym.envs."""
