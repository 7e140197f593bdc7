"""What a user calls: programs, their entries, arguments, states and submitted calls."""
