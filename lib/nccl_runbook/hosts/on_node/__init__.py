"""What runs on each host, sent over standard input; standard library, and nothing of ours."""
