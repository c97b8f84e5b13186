"""The nodes of a cluster, night after night: which differ, changed, left no record, or fail often."""
