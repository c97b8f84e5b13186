"""05: ways to move weights from trainer to engine, measured and compared."""
