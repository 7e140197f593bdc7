"""A plan for people to look at: a page, DOT, other viewers. Never on the path of a call."""
