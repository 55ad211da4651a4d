"""turngym.agents.engines."""
