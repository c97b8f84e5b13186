"""Roles to ranks to GPUs; shared by plan, sync and look."""
