"""Numbers of elements that must be the same on every rank."""

_EMPTY = {
    "time_discovered_completed_ns": None,
    "input_dtypes": [],
    "is_p2p": False,
    "p2p_seq_id": 0,
    "retired": False,
    "input_sizes": [],
    "output_sizes": [],
    "time_created_ns": 0,
    "timeout_ms": 0,
    "frames": [],
}


def alike(entries: list) -> list:
    """The entries in the form of torch 2.4 and later, whatever version wrote them; JSON has lists for
    pairs."""
    first = entries[0] if entries else {}
    missing = {k: v for k, v in _EMPTY.items() if k not in first}
    if not missing and "collective_seq_id" in first and isinstance(first.get("process_group"), tuple):
        return entries
    number = "collective_seq_id" if "collective_seq_id" in first else "seq_id"
    return [
        {
            **missing,
            **e,
            "collective_seq_id": e.get(number),
            "process_group": tuple(
                e["process_group"] if "process_group" in first else (str(e.get("pg_id")), "")
            ),
        }
        for e in entries
    ]
