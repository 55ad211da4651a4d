"""turngym.envs.math."""
