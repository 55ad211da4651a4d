"""turngym.trainer.cli."""
