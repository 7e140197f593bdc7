"""The oracle and the judge: what a right answer is, and how far from it one may be."""
