"""08: the hosts of one job. Their facts compared, the TCP paths between them, and one world of ranks over
all of them."""
