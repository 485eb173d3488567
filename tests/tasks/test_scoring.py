"""The rewards of one group: what a function that fails costs, and what is left of the process that it ran in."""

import os
import pickle
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness.core.child_process import ChildProcess
from harness.core.errors import Interrupted
from harness.tasks.rewards import UserReward
from harness.tasks.scoring import DirectRewards, GroupRewards, RewardFailed, TimedRewards
from tests.tasks.conftest import is_alive, orphaned, until_gone

NAME = "own_reward_under_test"
SIGNATURE = "def score(response, truth):\n    "
NEVER_S = 600.0  # a limit that no test reaches

Write = Callable[[str], UserReward]
Make = Callable[..., GroupRewards]


def never() -> bool:
    return False


@pytest.fixture
def write(write_module: Callable[[str], str]) -> Write:
    """Return a function that writes a module into the current folder, a fresh one, and returns its ``score``."""
    return lambda body: UserReward(f"{write_module(body)}:score")


@pytest.fixture
def timed() -> Iterator[Callable[..., TimedRewards]]:
    """Return a function that makes ``TimedRewards``, closed at the end of the test."""
    made: list[TimedRewards] = []

    def make(reward: Callable[[str, str], dict[str, float]], timeout_s: float = NEVER_S, stop=never) -> TimedRewards:
        made.append(TimedRewards(reward, timeout_s, stop))
        return made[-1]

    yield make
    for rewards in made:
        rewards.close()


@pytest.fixture(params=["direct", "timed"])
def make(request: pytest.FixtureRequest, timed: Make) -> Make:
    """Return what makes each kind of group rewards."""
    return timed if request.param == "timed" else lambda reward: DirectRewards(reward, never)


def failure(rewards: GroupRewards, *responses: str, truth: str = "truth") -> str:
    with pytest.raises(RewardFailed) as caught:
        rewards(responses, truth)
    return str(caught.value)


def whole(reward: float) -> dict[str, float]:
    return {"reward": reward, "format_reward": 1.0, "answer_reward": reward}


def plain(response: str, truth: str) -> dict[str, float]:
    """Fail as the response says: a function that no ``UserReward`` has looked at."""
    if response == "exits":
        sys.exit(0)
    return {"reward": 1.0, "format_reward": 1.0} if response == "two parts" else whole(float(response))


# ---- what both kinds do alike


def test_each_response_gets_its_reward_in_order(make: Make, write: Write) -> None:
    rewards = make(write(SIGNATURE + "return len(response) - len(truth)\n"))
    assert rewards(["12345", "1", ""], "12") == [whole(3.0), whole(-1.0), whole(-2.0)]
    assert rewards([], "12") == []
    assert rewards(["1"], "") == [whole(1.0)]


def test_any_text_crosses_as_it_is(make: Make, write: Write) -> None:
    texts = ["\n", '{"at": [1, 0]}\n', "ÄÖ \u2028 \U0001f600 \x00", "\ud800", "x" * 1_000_000]
    rewards = make(write(SIGNATURE + f"return {texts!r}.index(response) + 10 * {texts!r}.index(truth)\n"))
    assert [part["reward"] for part in rewards(texts, texts[3])] == [30.0, 31.0, 32.0, 33.0, 34.0]


FAILS = {
    "1 / 0": "raised ZeroDivisionError: division by zero for the response 'a'",
    "raise GeneratorExit": "raised GeneratorExit for the response 'a'",
    "raise BaseException": "raised BaseException for the response 'a'",
    "import asyncio; raise asyncio.CancelledError": "raised CancelledError for the response 'a'",
    "return lambda: 1": "returned <function score.<locals>.<lambda> at",
    "return float('nan')": "returned nan, as its reward; expected a finite number",
    "os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')": "changed the current folder to ",
}


@pytest.mark.parametrize("does", FAILS)
def test_what_fails_costs_its_group_only(make: Make, write: Write, does: str) -> None:
    here = os.getcwd()
    rewards = make(write("import os\n" + SIGNATURE + f"if response: {does}\n    return float(len(os.listdir()))\n"))
    said = failure(rewards, "", "a")
    assert said.startswith("response 2 of 2: the reward function ")
    assert FAILS[does] in said
    assert os.getcwd() == here
    assert rewards([""], "")[0]["reward"] > 0


def test_a_plain_function_that_fails_is_told_apart(make: Make) -> None:
    rewards = make(plain)
    for response, says in {
        "x": "raised ValueError: could not convert string to float: 'x', for the response 'x'",
        "exits": "raised SystemExit: 0, for the response 'exits'",
        "two parts": "gave {'reward': 1.0, 'format_reward': 1.0}; expected finite numbers for reward, format_reward, ",
        "-inf": "gave {'reward': -inf, 'format_reward': 1.0, 'answer_reward': -inf}; expected finite",
    }.items():
        assert failure(rewards, response).startswith(f"response 1 of 1: the reward function {says}")


def test_the_failure_pickles() -> None:
    assert str(pickle.loads(pickle.dumps(RewardFailed("response 1 of 2: it hangs")))) == "response 1 of 2: it hangs"


# ---- the process of its own

NOTES_PID = "import os\nwith open('pids', 'a') as file:\n    file.write(f'{os.getpid()}\\n')\n"
IGNORES_SIGTERM = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n    time.sleep(600)\n"
HANGS = {
    "holds the lock": "re.match('(a+)+b', 'a' * 60)\n",  # for hours, holding the interpreter lock
    "ignores SIGTERM": IGNORES_SIGTERM,
    "prints for ever": "while True: print('again')\n",
}
IMPORTS = "import os, re, signal, time\n"


def noted_pids() -> list[int]:
    """The processes that have imported a module which begins with ``NOTES_PID``; the first one is this."""
    return [int(line) for line in Path("pids").read_text().split()]


def test_one_process_serves_all_groups_even_those_that_fail(timed, write: Write) -> None:
    rewards = timed(write("import os\n" + SIGNATURE + "return os.getpid() if response else None\n"))
    first = rewards(["a", "b"], "")
    assert failure(rewards, "").startswith("response 1 of 1: ")
    assert rewards(["c", "d"], "") == first
    assert first[0]["reward"] == first[1]["reward"] != os.getpid()


@pytest.mark.parametrize("hangs", HANGS)
def test_a_function_that_hangs_is_killed_and_its_process_replaced(timed, write: Write, hangs: str) -> None:
    rewards = timed(write(NOTES_PID + IMPORTS + SIGNATURE + HANGS[hangs]), timeout_s=0.2)
    for _ in range(2):
        assert failure(rewards, "first", "second") == (
            "response 1 of 2: the reward function took longer than the 0.2 s that it has for a group "
            "(task.reward_timeout_s), and was busy with the response 'first' and the ground truth 'truth'"
        )
    ours, first, second = noted_pids()
    assert ours == os.getpid()
    assert first != second
    assert [is_alive(first), is_alive(second)] == [False, False]


def test_the_limit_is_for_the_group_not_for_each_response(timed, write: Write) -> None:
    # 20 responses of at least 0.05 s take at least 1 s.
    rewards = timed(write("import time\n" + SIGNATURE + "time.sleep(0.05)\n    return 1.0\n"), timeout_s=0.3)
    assert "of 20: the reward function took longer than the 0.3 s" in failure(rewards, *["text"] * 20)


def test_the_start_of_the_process_does_not_count(timed, write: Write) -> None:
    slow_start = "import os, time\nif os.path.exists('imported'):\n    time.sleep(0.5)\nopen('imported', 'w').close()\n"
    reward = write(slow_start + IMPORTS + SIGNATURE + IGNORES_SIGTERM)
    began = time.monotonic()
    assert "took longer than the 0.2 s" in failure(timed(reward, timeout_s=0.2), "text")
    assert time.monotonic() - began >= 0.7  # 0.5 of the import and 0.2 of the function


@pytest.mark.parametrize(
    ("crash", "how"),
    [("os._exit(0)", "ended with exit code 0"), ("os.kill(os.getpid(), 9)", "was killed by signal 9")],
)
def test_a_function_that_takes_its_process_with_it_costs_its_group_only(
    timed, write: Write, crash: str, how: str
) -> None:
    rewards = timed(write("import os\n" + SIGNATURE + f"return os.getpid() if response else {crash}\n"))
    (before,) = rewards(["a"], "")
    said = failure(rewards, "a", "")
    assert said.startswith(f"response 2 of 2: the process of the reward function {how}")
    assert said.endswith("for the response '' and the ground truth 'truth'")
    (after,) = rewards(["a"], "")
    assert before["reward"] != after["reward"]
    assert not is_alive(int(before["reward"]))


def test_what_the_function_prints_and_reads_disturbs_nothing(
    timed, write: Write, capfd: pytest.CaptureFixture[str]
) -> None:
    """What it prints commands no terminal either, may be long, and need not end its line."""
    prints = r"print('\x1b[2J\u202e', response, flush=True)" + "\n    print('b', end='', file=sys.stderr, flush=True)\n"
    rewards = timed(write("import sys\n" + SIGNATURE + prints + "    return len(input()) if truth else 0.5\n"))
    assert rewards(["a", "a" * 200000], "") == [whole(0.5), whole(0.5)]
    assert "raised EOFError" in failure(rewards, "c")
    rewards.close()
    output = capfd.readouterr()
    seen = [r"\x1b[2J\u202e " + response for response in ("a", "a" * 200000, "c")]
    assert (output.out.replace("\n", ""), output.err) == ("".join(seen), "bbb\n")


WRITES = (
    "import os\n"
    + SIGNATURE
    + "[os.write(fd, {!r}) for fd in map(int, os.listdir('/proc/self/fd')) if 'socket' in link(fd)]\n    return 1\n"
)
LINK = "def link(fd):\n    return os.readlink(path) if os.path.lexists(path := f'/proc/self/fd/{fd}') else ''\n"


NOT_A_NUMBER = b'{"at": [1, 0], "rewards": {"reward": NaN, "format_reward": 1, "answer_reward": 1}}\n'


@pytest.mark.parametrize(
    ("forged", "says"),
    [
        (b'{"at": [1, 7], "rewards": {}}\n', "answered {'at': [1, 7], 'rewards': {}}, and was not asked for it"),
        (b"junk\n", "sent b'junk', which is no answer, for the response 'a'"),
        (b"[1, 0]\n", "sent b'[1, 0]', which is no answer, for the response 'a'"),
        (NOT_A_NUMBER, "gave {'reward': nan, 'format_reward': 1, 'answer_reward': 1}; expected finite numbers"),
    ],
)
def test_an_answer_that_was_not_asked_for_is_refused(timed, write: Write, forged: bytes, says: str) -> None:
    assert says in failure(timed(write(WRITES.format(forged) + LINK)), "a")


def test_an_answer_too_many_spoils_the_next_group_and_no_reward(timed, write: Write) -> None:
    forged = b'{"at": [1, 0], "rewards": {"reward": 1, "format_reward": 1, "answer_reward": 1}}\n'
    rewards = timed(write(WRITES.format(forged) + LINK))
    assert rewards(["a"], "") == [whole(1.0)]  # the forged one, since it came first
    assert "answered {'at': [1, 0], 'rewards': {'reward': 1.0" in failure(rewards, "b")


def test_bytes_that_never_make_an_answer_do_not_outlast_the_limit(timed, write: Write) -> None:
    dribbles = (
        "fd = next(fd for fd in map(int, os.listdir('/proc/self/fd')) if 'socket' in link(fd))\n"
        "    while True: os.write(fd, b'x')\n"
    )

    def bytes_have_come() -> bool:
        select.select([rewards._process._connection], [], [])
        return False

    rewards = timed(write("import os\n" + LINK + SIGNATURE + dribbles), 0.01, bytes_have_come)
    assert "the reward function took longer than the 0.01 s" in failure(rewards, "a")


def test_killing_a_process_twice_closes_nothing_of_others() -> None:
    process = ChildProcess("harness.tasks.scoring:prepare_rewards")
    process.kill()
    others = [os.open(os.devnull, os.O_RDONLY) for _ in range(4)]  # they get the numbers that have become free
    process.kill()
    for descriptor in others:
        os.close(descriptor)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (
            "raise ImportError('only once')",
            "the process of the reward function cannot start: UserError: the reward "
            f"'{NAME}:score' cannot be imported: importing it raised ImportError: only once",
        ),
        ("os._exit(5)", "the process of the reward function ended with exit code 5 while it started"),
    ],
)
def test_a_function_that_cannot_be_had_again_is_told_so(timed, write: Write, body: str, says: str) -> None:
    once = f"import os\nif os.path.exists('imported'):\n    {body}\nopen('imported', 'w').close()\n"
    rewards = timed(write(once + SIGNATURE + "return 1.0\n"))
    assert failure(rewards, "a").startswith(says)
    Path("imported").unlink()
    assert rewards(["a"], "") == [whole(1.0)]


def test_the_import_path_is_this_process_s(timed, write: Write, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "beside.py").write_text("VALUE = 0.75\n")
    sys.path.append(str(tmp_path / "elsewhere"))
    rewards = timed(write(SIGNATURE + "import beside\n    return beside.VALUE\n"))
    assert rewards(["a"], "") == [whole(0.75)]


def test_closing_lets_the_process_end_by_itself_and_leaves_nothing_open(write: Write) -> None:
    body = "atexit.register(open, 'ended', 'w')\n    return time.sleep(600 if response else 0) or 1.0\n"
    reward = write(NOTES_PID + "import atexit, time\n" + SIGNATURE + body)
    before = sorted(os.listdir("/proc/self/fd"))
    rewards = TimedRewards(reward, NEVER_S, never)
    assert rewards([""], "") == [whole(1.0)]
    rewards.close()
    rewards.close()
    assert Path("ended").exists()
    assert not is_alive(noted_pids()[1])
    killed = TimedRewards(reward, 0.1, never)
    failure(killed, "a")
    assert sorted(os.listdir("/proc/self/fd")) == before


PARENT = f"""
from harness.tasks.scoring import TimedRewards
from harness.tasks.rewards import UserReward
TimedRewards(UserReward("{NAME}:score"), {NEVER_S}, lambda: False)(["a"], "")
"""


@pytest.mark.parametrize("does", [HANGS["holds the lock"], "return 1.0\n"], ids=["busy", "idle"])
def test_no_orphan_is_left_when_the_parent_is_killed(write: Write, does: str) -> None:
    write(IMPORTS + SIGNATURE + f"print(os.getpid(), flush=True)\n    {does}")
    until_gone([orphaned(PARENT)])


# ---- a function that does its worst

HIDES = """
import os, subprocess, sys

def score(response, truth):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            other = subprocess.Popen(["sleep", "600"], env={}, start_new_session=True)  # does not say whose it is
            with open("hidden.draft", "w") as file:
                file.write(f"{os.getpid()} {other.pid}")
            os.rename("hidden.draft", "hidden")
            os.execvp("sleep", ["sleep", "600"])
        os._exit(0)
    os.wait()
    while not os.path.exists("hidden"):
        pass
    END
"""


@pytest.mark.parametrize(
    ("end", "says"),
    [
        ("return 1.0", None),
        ("while True: pass", "stopped while scoring"),
        ("os._exit(3)", "ended with exit code 3"),
    ],
    ids=["closed", "killed", "ended by itself"],
)
def test_what_hides_in_sessions_of_its_own_ends_too(timed, write: Write, end: str, says: str | None) -> None:
    hides = write(NOTES_PID + HIDES.replace("END", end))
    rewards = timed(hides, stop=Path("hidden").exists if "while" in end else never)
    if says is None:
        assert rewards(["a"], "") == [whole(1.0)]
        rewards.close()
    else:
        with pytest.raises((RewardFailed, Interrupted), match=says):
            rewards(["a"], "")
    until_gone([int(pid) for pid in Path("hidden").read_text().split()] + noted_pids()[1:])


FORKS = """
import os, time

def score(response, truth):
    for _ in range(5):
        os.fork()  # each of them forks in turn
    with open("forked", "a") as file:
        file.write(f"{os.getpid()}\\n")
    time.sleep(600)
"""


def test_processes_that_fork_and_fork_again_all_end(timed, write: Write) -> None:
    def all_have_begun() -> bool:
        return Path("forked").exists() and len(Path("forked").read_text().split()) == 2**5

    rewards = timed(write(FORKS), stop=all_have_begun)
    with pytest.raises(Interrupted):
        rewards(["a"], "")
    until_gone([int(pid) for pid in Path("forked").read_text().split()])


def test_memory_that_runs_out_costs_the_group_only(timed, write: Write) -> None:
    limited = "resource.setrlimit(resource.RLIMIT_AS, (2**29, 2**29))\n    taken = [bytes(2**24) for _ in range(64)]\n"
    rewards = timed(write("import resource\n" + SIGNATURE + f"if not response: return 1.0\n    {limited}"))
    assert "raised MemoryError" in failure(rewards, "a")
    assert rewards([""], "") == [whole(1.0)]


def test_the_kernel_takes_its_process_first(timed, write: Write) -> None:
    rewards = timed(write(SIGNATURE + "return int(open('/proc/self/oom_score_adj').read())\n"))
    assert rewards(["a"], "") == [whole(1000.0)]


def test_a_keyboard_interrupt_of_its_own_costs_its_group_and_a_ctrl_c_ends_the_run(timed, write: Write) -> None:
    reward = write(SIGNATURE + "raise KeyboardInterrupt\n")
    assert "raised KeyboardInterrupt for the response 'a'" in failure(timed(reward), "a")
    with ThreadPoolExecutor(1) as parts:  # as in a run in one process
        said = parts.submit(failure, DirectRewards(reward, never), "a").result()
    assert "raised KeyboardInterrupt for the response 'a'" in said
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            DirectRewards(reward, never)(["a"], "")
    finally:
        signal.signal(signal.SIGINT, before)
