"""The oracle and the judge: the right answer, and how far an answer may be from it."""
