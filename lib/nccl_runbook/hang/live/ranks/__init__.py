"""One rank of a job that hangs now: its stacks, its calls, its words."""
