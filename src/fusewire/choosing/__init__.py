"""Race candidates, judge their answers, and choose."""
