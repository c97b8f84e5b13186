"""Start N ranks with a request and a deadline, and say how each of them ended: the single door
to processes that touch a GPU.

Standard library only, Python >= 3.9; imports facts and redact, nothing else of ours.
"""
