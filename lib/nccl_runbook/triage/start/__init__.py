"""00: what the reader brought, a symptom or a log, and the steps that decide it."""
