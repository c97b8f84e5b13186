"""00: what the reader gave, a symptom or a log, and the steps that decide it."""
