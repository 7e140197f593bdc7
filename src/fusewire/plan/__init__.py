"""A plan and what runs it: regions, guards, recovery, hand-over, the user's own function."""
