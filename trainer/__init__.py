"""turngym.trainer."""
