"""turngym.agents."""
