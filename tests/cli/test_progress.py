"""The progress bar is there on a terminal and nowhere else."""

import io
import threading

import click
import pytest

from dcir.cli.progress import progress_bar


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def context():
    with click.Context(click.Command("verb")) as context:
        yield context


def test_a_terminal_sees_the_steps(context, monkeypatch):
    screen = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", screen)
    with progress_bar(plain=False) as progress:
        progress("tier 2 [bold]fusion", 1, 2)
        progress("tier 2 [bold]fusion", 2, 2)
    assert "tier 2 (bold]fusion" in screen.getvalue()


def test_a_still_bar_has_no_thread(context, monkeypatch):
    screen = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", screen)
    before = threading.active_count()
    with progress_bar(plain=False, still=True) as progress:
        progress("kernels", 1, 2)
        assert threading.active_count() == before
        assert "kernels" in screen.getvalue()


def test_nobody_else_does(context, monkeypatch):
    monkeypatch.setattr("sys.stderr", Terminal())
    with progress_bar(plain=True) as progress:
        assert progress is None
    context.meta["dcir.json"] = True
    with progress_bar(plain=False) as progress:
        assert progress is None
    context.meta["dcir.json"] = False
    monkeypatch.setattr("sys.stderr", io.StringIO())
    with progress_bar(plain=False) as progress:
        assert progress is None
