"""Will a delta, FP8 or a full transfer be faster? From two checkpoints and a link rate, without a GPU."""
