"""turngym.envs.checks."""
