"""Tests of the E2B server with E2B's own packages. The server's addresses and key come in E2B's variables."""

import os

import pytest
from e2b_code_interpreter import Sandbox


@pytest.fixture(scope="module")
def sandbox():
    """A sandbox that the tests of one file share."""
    made = Sandbox.create(timeout=120)
    yield made
    made.kill()


@pytest.fixture
def fresh():
    """A sandbox for one test."""
    made = Sandbox.create(timeout=120)
    yield made
    made.kill()


@pytest.fixture
def other_key():
    """The key of another owner."""
    key = os.environ.get("SANDCELL_TEST_E2B_OTHER_KEY")
    if not key:
        pytest.skip("not required: the server takes every key")
    return key
