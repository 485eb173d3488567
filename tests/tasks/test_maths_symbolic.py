"""The process of the symbolic comparison: its limits, its end, and what it cannot do."""

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness.tasks.maths.reward import question_only_reward_fn, r1_zero_reward_fn
from harness.tasks.maths.symbolic import MAX_DEPTH, MAX_SYMBOLIC_CHARS, AnswerGrader, SymbolicComparer
from tests.tasks.conftest import is_alive, orphaned, until_gone

NEVER_S = 600.0  # a limit that no test reaches
BOMBS = [r"9^{9^{9^9}}", r"\operatorname{eye}(10^6)"]
"""Each would keep a computer algebra system busy for hours, or eat all memory."""


@pytest.fixture
def make() -> Iterator[Callable[[float], SymbolicComparer]]:
    made: list[SymbolicComparer] = []

    def make_one(timeout_s: float = NEVER_S) -> SymbolicComparer:
        made.append(SymbolicComparer(timeout_s))
        return made[-1]

    yield make_one
    for comparer in made:
        comparer.close()


def pid_of(comparer: SymbolicComparer) -> int:
    (process,) = comparer._running
    return process.pid


def test_one_process_answers_all_remembers_knows_no_secret_and_goes_with_the_comparer(monkeypatch) -> None:
    monkeypatch.setenv("HARNESS_SECRET", "secret")
    held = b"x" * (600 << 20)  # a child begins with its parent's peak in ru_maxrss: it must not cost it its place
    comparer = SymbolicComparer(NEVER_S)
    assert [comparer(text, "2") for text in (r"\sqrt{4}", r"\sqrt{9}", r"\sqrt{4}")] == [True, False, True]
    counts, pid = comparer.counts, pid_of(comparer)
    assert (len(held), counts.started, counts.asked, counts.remembered) == (600 << 20, 1, 2, 1)
    assert b"secret" not in Path(f"/proc/{pid}/environ").read_bytes()
    del comparer
    gc.collect()
    assert not is_alive(pid)


def test_no_process_is_started_before_it_is_needed() -> None:
    grader = AnswerGrader()
    assert grader("0.5", "1/2")
    assert grader.symbolic.counts.started == 0


@pytest.mark.parametrize(
    "bombs", [BOMBS, pytest.param(["(10^9)!", r"\sum_{k=1}^{10^9} \frac{1}{k^k}"], marks=pytest.mark.slow)]
)
def test_a_bomb_is_wrong_and_the_next_answer_right(make, bombs: list[str]) -> None:
    """It ends at its limit, or at the end of the memory, or is not understood; never with a reward or a hang."""
    comparer = make(2.0)
    assert [comparer(bomb, "7") for bomb in bombs] == [False] * 2
    comparer.timeout_s = NEVER_S
    assert comparer(r"\sqrt{49}", "7") is True


def test_a_comparison_at_its_limit_or_a_process_that_dies_costs_one_answer(make) -> None:
    comparer = make()
    assert comparer(r"\sqrt{64}", "8") is True
    first = pid_of(comparer)
    os.kill(first, signal.SIGSTOP)  # no answer comes, however fast the machine is
    comparer.timeout_s = 0.05
    assert comparer(r"\sqrt{49}", "7") is False
    comparer.timeout_s = NEVER_S
    assert comparer(r"\sqrt{36}", "6") is True
    second = pid_of(comparer)
    os.kill(second, signal.SIGKILL)
    assert comparer(r"\sqrt{25}", "5") is False
    assert comparer(r"\sqrt{36}", "-6") is False
    assert len({first, second, pid_of(comparer)}) == 3
    counts = comparer.counts
    assert (counts.timed_out, counts.died, counts.started) == (1, 1, 3)


def test_a_response_is_worth_one_comparison_however_many_answers_it_holds() -> None:
    grader = AnswerGrader(NEVER_S)
    many = "".join(rf"\boxed{{\sqrt{{{number}}}}} answer is \sqrt{{{number}}} " for number in range(50))
    parts = ", ".join(rf"\sqrt{{{number}}}" for number in range(20))
    for response in (many, rf"\boxed{{{parts}}}", f"</think> <answer> {parts} </answer>"):
        for function in (r1_zero_reward_fn, question_only_reward_fn):
            before = grader.symbolic.counts.asked
            function(response, parts.replace("sqrt{19}", "sqrt{20}"), agree=grader)
            assert grader.symbolic.counts.asked <= before + 1
    assert grader.symbolic.counts.asked > 0
    grader.close()


def test_threads_share_one_comparer(make) -> None:
    shared = make()
    pairs = [(rf"\sqrt{{{number**2}}}", str(number + extra)) for number in range(2, 12) for extra in (0, 1)]
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda pair: shared(*pair), pairs)) == [True, False] * 10


def test_its_process_ends_with_this_one_even_while_it_works() -> None:
    program = (
        "import threading, time\n"
        "from harness.tasks.maths.symbolic import SymbolicComparer\n"
        "comparer = SymbolicComparer(600.0)\n"
        "assert comparer('\\\\sqrt{49}', '7')\n"
        "threading.Thread(target=comparer, args=('9^{9^{9^9}}', '5'), daemon=True).start()\n"
        "time.sleep(0.5)\n"
        "print(comparer._running[0].pid, flush=True)\n"
    )
    until_gone([orphaned(program)])


# ---- what is not even asked


def test_what_is_wrong_without_asking(make) -> None:
    comparer, long = make(), "x" + "+x" * (MAX_SYMBOLIC_CHARS // 2)
    deep = "(" * (MAX_DEPTH + 1) + "1" + ")" * (MAX_DEPTH + 1)
    answers = ["", long, deep, "She sold them", "x \u4e00", "x \x00 y\u200d"]
    assert [comparer(answer, "5") for answer in answers] == [False] * 6
    assert (comparer.counts.refused, comparer.counts.started) == (6, 0)


# ---- what the process cannot do

CONFINED = "from harness.tasks.maths.symbolic_process import _load, confine\ncompare = _load()\nconfine()\n"


def in_the_process(code: str) -> str:
    """Return what a process of its own prints."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


ATTEMPTS = [
    "open('written', 'w')",
    "open('written', 'a')",
    "os.mkdir('folder')",
    "os.open('written', os.O_RDWR)",
    "os.open('written', os.O_RDONLY | os.O_CREAT)",
    "__import__('socket').socket()",
    "__import__('subprocess').run(['true'])",
    "os.system('true')",
    "os.fork()",
    "os.posix_spawn('/bin/true', ['true'], {})",
    "os.execv('/bin/true', ['true'])",
    "os.remove('written')",
    "os.kill(1, 0)",
    "__import__('ctypes').CDLL(None)",
    "__import__('pickle').loads(b'cos\\nsystem\\n(S\"true\"\\ntR.')",
    "eval('__import__(\"os\")')",
    "exec('import os')",
    "__import__('sympy').sympify('open')",
    "__import__('sympy').sympify('x.__class__')",
    "bytearray(1 << 30)",
    "os.getcwd()",
    r"compare(r'\sqrt{8}', r'2\sqrt{2}')",
]


def test_what_no_comparison_needs_is_refused() -> None:
    """Each attempt is code that was compiled before, so that not its ``eval`` is refused but what it does."""
    functions = "".join(f"    lambda: {code},\n" for code in ATTEMPTS)
    tries = (
        "import os\n" + CONFINED + f"for attempt in [\n{functions}]:\n"
        "    try:\n        print(attempt())\n"
        "    except BaseException as error:\n        print(type(error).__name__)\n"
    )
    expected = {
        **dict.fromkeys(ATTEMPTS, "Forbidden"),
        **{"bytearray(1 << 30)": "MemoryError", "os.getcwd()": "FileNotFoundError"},
        r"compare(r'\sqrt{8}', r'2\sqrt{2}')": "True",
    }
    assert dict(zip(ATTEMPTS, in_the_process(tries).split(), strict=True)) == expected


def test_of_all_that_an_answer_says_only_numbers_are_ever_evaluated() -> None:
    """Every text that Python compiles while answers are compared is a number of sympy's, or a polynomial's own code."""
    answers = [
        *("1.5x+2", r"\frac{\sqrt3}{3}", "(x+1)^{12}", r"2{,}000 x", r"0.1\% x", r"\log_2 8 + x_{12}", "0x10 y"),
        *("__import__('os')", r"\operatorname{eval}(1)", r"\text{open}(1)", r"x.\_\_class\_\_", "1;2;import os"),
        *(r"\begin{pmatrix}1&a\\b&2\end{pmatrix}", r"\{1,a\}", "lambda: 1", r"\mathrm{exit}()", r"\gcd(4, 6)"),
    ]
    code = (
        "import sys, re\n"
        "from harness.tasks.maths.symbolic_process import _load\n"
        "compare = _load()\n"
        "seen = set()\n"
        "def note(event, arguments):\n"
        "    if event == 'compile' and arguments[0] is not None:\n"
        "        seen.add(arguments[0].decode() if isinstance(arguments[0], bytes) else str(arguments[0]))\n"
        "sys.addaudithook(note)\n"
        f"for answer in {answers!r}:\n"
        "    try:\n        compare(answer, 'x + 1')\n    except Exception:\n        pass\n"
        r"number = r'(?:Integer|Float) \(["
        '"'
        r"\'\d. e+-]*\)|from sympy import \*|\s*def monomial_(?s:.*)'"
        "\n"
        "print(len(seen) > 3, sorted(text for text in seen if not re.fullmatch(number, text)))\n"
    )
    assert in_the_process(code) == "True []"
