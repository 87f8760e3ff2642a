"""Whether Dynamo gave up compiling: past its limit it runs a new shape eagerly, with a warning."""

from __future__ import annotations

import logging
from types import TracebackType

# The module that compares the number of compilations of a function with the limits.
_LOGGER = "torch._dynamo.convert_frame"


class RecompileLimit(logging.Handler):
    """``with RecompileLimit() as limit:`` and then ``limit.reached``: the limit's name and value
    and the function, in Dynamo's words, or "" while none was reached."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.reached = ""

    def emit(self, record: logging.LogRecord) -> None:
        lines = record.getMessage().splitlines()
        if "hit config." in lines[0] and not self.reached:
            function = next((x.strip() for x in lines if x.strip().startswith("function:")), "")
            self.reached = f"{lines[0].partition('hit ')[2]}, {function}".strip(", ")

    def __enter__(self) -> RecompileLimit:
        logging.getLogger(_LOGGER).addHandler(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        logging.getLogger(_LOGGER).removeHandler(self)
