"""What type checkers know of a user's script; mypy checks `user_script` with all tests."""

from __future__ import annotations

from typing import Any

import pytest

from tests.typing import user_script


def test_the_users_script_runs() -> None:
    user_script.main()


@pytest.mark.parametrize("call", user_script.MISTAKES)
def test_mistakes_that_type_checkers_find_are_errors(call: Any) -> None:
    with pytest.raises((TypeError, ValueError, AttributeError)):
        call()
