"""What an adapter hands to a model about a run."""

from __future__ import annotations

from ._errors import SandcellError
from ._results import Run


def text_for_model(run: Run) -> str:
    """Returns output, value and traceback of a run; what the model cannot see from them is added with its remedy."""
    text = run.text.rstrip("\n")
    if run.cause is None or run.cause.code == "code_failed" or run.cause.message in text:
        return text
    return f"{text}\n{SandcellError(run.cause.message, run.cause.remedy, run.cause.code)}"
