"""Group nodes so that one kernel runs them."""
