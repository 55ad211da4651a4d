"""What a run says about its rewards: while it goes on, at its end, and when it is scored again."""
