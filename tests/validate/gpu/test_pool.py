"""Tasks in processes that may end, fail or hang."""

from __future__ import annotations

import os
import time

from roofline.validate.gpu.pool import Answer, each


def test_tasks_that_end_their_process_leave_the_others() -> None:
    def task(number: int) -> int:
        if number == 3:
            os._exit(1)
        if number == 5:
            raise ValueError("five\nlines")
        return number**2

    found: list[Answer] = []
    assert each(task, range(8), 3, found.append) == 0
    values = {answer.task: answer.value for answer in found}
    assert values == {0: 0, 1: 1, 2: 4, 3: None, 4: 16, 5: None, 6: 36, 7: 49}
    errors = {answer.task: answer.error for answer in found if answer.error}
    assert errors.keys() == {3, 5}
    assert errors[5] == "ValueError: five"


def test_a_process_whose_device_is_lost_is_replaced() -> None:
    """What it kept is gone: the next task finds a whole one."""
    spoilt = []

    def task(number: int) -> int:
        if spoilt:
            raise RuntimeError("the device is lost")
        if number == 1:
            spoilt.append(number)
            raise RuntimeError("the device is lost")
        return number

    found: list[Answer] = []
    each(task, range(4), 1, found.append, fatal=lambda error: "lost" in str(error))
    assert [answer.value for answer in found] == [0, None, 2, 3]


def test_the_time_is_up() -> None:
    found: list[Answer] = []
    started = time.monotonic()
    left = each(lambda seconds: time.sleep(seconds), [0.0, 60.0, 60.0], 2, found.append, seconds=0.5)
    assert left == 2
    assert [answer.task for answer in found] == [0.0]
    assert time.monotonic() - started < 30
    assert each(abs, [], 2, found.append) == 0
