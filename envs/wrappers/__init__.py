"""turngym.envs.wrappers."""
