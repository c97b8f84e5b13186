"""What a test waits for is at work while the other tests of its file run."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest


def begun(request: pytest.FixtureRequest, test: str, call: Callable[[], Any]) -> Iterator[Future[Any] | None]:
    """For a fixture of a module: a call that mostly waits is at work while the other tests run; None if nobody asks for its test."""
    if not any(item.name.partition("[")[0] == test for item in request.session.items):
        yield None
        return
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(call)
