"""Compiles the catalogue for hyperscan and keeps the result in the user's cache: called once, at set-up."""

from nccl_runbook.messages.kinds import matcher

matcher().build()
