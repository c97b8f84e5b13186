"""For .venv, where a .pth file imports it: what PYTHONPATH names comes behind our own libraries, not before them.

It belongs to the job, whose ranks find it in their environment as ever; an old pydantic there would take the place of ours.
"""
import os
import site
import sys

NAMED = os.environ.get("PYTHONPATH")
if NAMED:
    site.execsitecustomize()  # one that lies there acts under the order it knows: pip's own builds rest on that
    theirs = {os.path.abspath(entry) for entry in NAMED.split(os.pathsep)}  # an empty one is the working directory
    sys.path = [entry for entry in sys.path if entry not in theirs] + [entry for entry in sys.path if entry in theirs]
