"""The reference is made from the docstrings, and says something about every public name."""

from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path

import sandcell

PYTHON = Path(__file__).resolve().parent.parent


def test_the_reference_is_up_to_date() -> None:
    specification = importlib.util.spec_from_file_location("reference", PYTHON / "reference.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    assert module.TARGET.read_text("utf-8") == module.reference(), "run `python reference.py`"


def test_every_public_name_is_documented() -> None:
    for name in sandcell.__all__:
        thing = getattr(sandcell, name)
        if name.startswith("_"):
            continue
        assert inspect.getdoc(thing), name
        for member, value in vars(thing).items() if inspect.isclass(thing) else ():
            if not member.startswith("_") and (inspect.isfunction(value) or isinstance(value, property)):
                assert inspect.getdoc(value), f"{name}.{member}"
