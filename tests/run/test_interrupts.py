"""How a block ends that is asked to stop: in order once, and in any case in time."""

import signal
import subprocess
import sys
import threading

import pytest

from harness.run.interrupts import ended_by_first_interrupt

PROGRAM = """
import ctypes, os, signal, sys, threading, time
from harness.core.interrupts import signals_as_interrupts
from harness.run.interrupts import ended_by_first_interrupt
with signals_as_interrupts(), ended_by_first_interrupt({most_s}):
"""
ENDS = """
    try:
        os.kill(os.getpid(), {number})
        time.sleep(40)
    except KeyboardInterrupt:
        for _ in range(3):
            os.kill(os.getpid(), {number})
        print("ended in order", flush=True)
"""
HANGS = """
    library, mutex = ctypes.CDLL(None), (ctypes.c_byte * 64)()
    library.pthread_mutex_lock(mutex)
    threading.Timer(0.1, os.kill, (os.getpid(), {number})).start()
    library.pthread_mutex_lock(mutex)  # no signal ends this wait
"""


@pytest.mark.parametrize(
    ("number", "program", "most_s", "ended"),
    [
        (signal.SIGINT, ENDS, 30, (0, "ended in order\n", "")),  # more signals do not disturb the end
        (signal.SIGTERM, ENDS, 30, (0, "ended in order\n", "")),
        # as Ray waits for a minute where its servers are gone: it answers no signal, and lets other threads work
        (signal.SIGTERM, HANGS, 0.2, (130, "", "interrupted\n")),
    ],
    ids=["Ctrl-C", "SIGTERM", "a library that waits"],
)
def test_how_a_program_ends(number: signal.Signals, program: str, most_s: float, ended: tuple[int, str, str]) -> None:
    text = (PROGRAM + program).format(most_s=most_s, number=int(number))
    process = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=50, check=False)
    assert (process.returncode, process.stdout, process.stderr) == ended


def test_handlers_are_put_back_and_other_threads_have_none() -> None:
    before, raised = signal.getsignal(signal.SIGINT), list[BaseException]()
    with pytest.raises(KeyboardInterrupt), ended_by_first_interrupt(30):
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) == before
    assert signal.set_wakeup_fd(-1) == -1

    def elsewhere() -> None:
        try:
            with ended_by_first_interrupt(30):
                pass
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert raised == []
