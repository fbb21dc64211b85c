"""Logs are read from their end and followed over rotation and truncation."""

from contextlib import closing
from itertools import islice

import pytest

from tenora.stack import log_files
from tenora.stack.log_files import read_logs


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "web.log").write_text("".join(f"web {number}\n" for number in range(5)))
    (tmp_path / "worker.log").write_text("worker 0\nunfinished")
    return tmp_path


@pytest.mark.parametrize(
    ("program", "last", "expected"),
    [
        ("web", 2, ["web 3", "web 4"]),
        ("web", 0, []),
        ("worker", 9, ["worker 0", "unfinished"]),
        (None, 1, ["web 4", "unfinished"]),
    ],
)
def test_the_last_lines_of_one_log_or_of_each_are_read(folder, program, last, expected):
    assert [line for _, line in read_logs(folder, program, last=last, follow=False)] == expected


def test_new_lines_are_followed_whatever_happens_to_the_files(folder, monkeypatch):
    web, worker = folder / "web.log", folder / "worker.log"

    def append():
        with web.open("a") as file:
            file.write("appended\nhal")

    def rotate():
        with web.open("a") as file:
            file.write("f, and more before the rotation")
        web.rename(folder / "web.log.1")

    def start():
        web.write_text("in the new file\n")
        (folder / "gateway.log").write_text("a program that starts later\n")

    steps = iter([append, rotate, start, lambda: worker.write_text("cut\n")])
    monkeypatch.setattr(log_files.time, "sleep", lambda _: next(steps)())
    with closing(read_logs(folder, None, last=1, follow=True)) as followed:
        lines = list(islice(followed, 7))
    assert lines == [
        ("web", "web 4"),
        ("worker", "worker 0"),
        ("web", "appended"),
        ("gateway", "a program that starts later"),
        ("web", "half, and more before the rotation"),
        ("web", "in the new file"),
        ("worker", "unfinished"),
    ]
