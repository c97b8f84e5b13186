"""Opening files, archives and pipes; lines with rank, host and time.
Whoever needs log text needs only this."""
