"""The wording of messages, pinned in tests/messages.txt: a test asserts numbers, rules and places, the file the prose.

`pytest --update-messages` writes what the tests that ran said, and drops what no test says any more.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

FILE = Path(__file__).with_name("messages.txt")
HEAD = "## "
MessageIs = Callable[..., None]


def facts(text: str | None) -> str:
    """Return the names in backquotes and the numbers of a message in their order, separated by spaces."""
    return " ".join(found.strip("`") for found in re.findall(r"`[^`]*`|\d+(?:[.,]\d+)*", text or ""))


def read(path: Path) -> dict[str, str]:
    """Return the pinned messages by the test that says them."""
    if not path.exists():
        return {}
    entries = f"\n{path.read_text(encoding='utf-8')}".split(f"\n{HEAD}")[1:]
    return {name: text.rstrip("\n") for name, _, text in (entry.partition("\n") for entry in entries)}


def write(path: Path, messages: dict[str, str]) -> None:
    """Write the messages, sorted by the test that says them."""
    path.write_text("\n".join(f"{HEAD}{name}\n{messages[name]}\n" for name in sorted(messages)), encoding="utf-8")


class Messages:
    """What is pinned, and what the tests of this session say.

    Attributes:
        collected: tests of the files that were collected whole, those left out by a mark among them.
        said: messages of tests that ran.
        finished: tests that ran to their end and passed.
    """

    def __init__(self, path: Path, update: bool) -> None:
        self.path = path
        self.update = update
        self.pinned = read(path)
        self.collected: set[str] = set()
        self.said: dict[str, str] = {}
        self.finished: set[str] = set()

    def check(self, name: str, text: str) -> None:
        """Compare a message with the pinned one, or note it to be pinned."""
        assert name not in self.said, f"{name} says a second message: name it"
        self.said[name] = text.rstrip("\n")
        if not self.update:
            assert name in self.pinned, f"nothing is pinned for {name}: look at the message, then --update-messages"
            assert self.said[name] == self.pinned[name]

    def stale(self) -> list[str]:
        """Return what is pinned for tests that are gone, or that passed without saying it."""
        files = {test.split("::")[0] for test in self.collected}

        def is_stale(name: str) -> bool:
            test = name.split(" > ")[0]
            file = test.split("::")[0]
            if test in self.finished:
                return name not in self.said
            return not (self.path.parents[1] / file).exists() or (file in files and test not in self.collected)

        return [name for name in self.pinned if is_stale(name)]

    def finish(self) -> list[str]:
        """Write what was said if that was asked for; return what is stale otherwise."""
        stale = self.stale()
        if not self.update:
            return stale
        kept = {name: text for name, text in self.pinned.items() if name not in stale}
        write(self.path, kept | self.said)
        return []

    # ---- pytest calls these

    @pytest.hookimpl(tryfirst=True)  # before tests are left out by their marks
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if not any("::" in argument for argument in config.args):
            self.collected = {item.nodeid for item in items}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self.finished.add(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if stale := self.finish():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
            print(f"\nno test says these of {self.path.name} any more; --update-messages drops them:", *stale, sep="\n")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-messages", action="store_true", help="pin the messages that the tests say now")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Messages(FILE, bool(config.getoption("--update-messages"))), "messages")


@pytest.fixture
def message_is(request: pytest.FixtureRequest) -> MessageIs:
    """Compare a message with the one that is pinned for this test; ``name`` tells several of one test apart."""
    messages = request.config.pluginmanager.get_plugin("messages")
    assert isinstance(messages, Messages)

    def check(text: str, name: str = "") -> None:
        messages.check(f"{request.node.nodeid} > {name}" if name else request.node.nodeid, text)

    return check
