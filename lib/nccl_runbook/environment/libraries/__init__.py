"""The libraries that ranks load: which NCCL, which wheels, and whether their versions fit."""
