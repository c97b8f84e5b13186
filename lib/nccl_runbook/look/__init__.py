"""nccl-look.pyz: drives gpus, worlds, sync and hang on a node."""
