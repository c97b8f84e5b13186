"""Roles to ranks to GPUs, before anything is started."""
