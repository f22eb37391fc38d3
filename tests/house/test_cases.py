"""Every known fault of training systems, S1 to S48, is a test whose name carries its number."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
CASES = range(1, 49)
# Cases without a test of their own, each with the reason why it does not apply here.
EXCEPTIONS: dict[int, str] = {
    40: "no file of token ids is read: text is bytes, so that every token is below the vocabulary of 256 by its type",
    41: "no file of token ids is written or read: text is bytes, widened from uint8 to int64 and narrowed nowhere",
}


def named_cases() -> set[int]:
    """The numbers in the names of the tests: `test_s13_s14_the_learning_rate_is_that_of_the_step` has two."""
    names = [
        name for path in TESTS.rglob("test_*.py") for name in re.findall(r"^def (test_\w+)", path.read_text(), re.M)
    ]
    numbers = [re.match(r"test((?:_s\d+)*)", name) for name in names]
    return {int(number) for found in numbers if found is not None for number in re.findall(r"\d+", found[1])}


def test_every_case_has_a_test() -> None:
    named = named_cases()
    assert named <= set(CASES), "a test is named after a case that there is not"
    assert {*CASES} - named == EXCEPTIONS.keys()
    assert all(reason.strip() for reason in EXCEPTIONS.values())
