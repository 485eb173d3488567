"""How a block ends that is asked to stop: in order once, and in any case in time."""

import signal
import subprocess
import sys
import threading

import pytest

from harness.run.interrupts import ended_by_first_interrupt

PROGRAM = """
import os, signal, sys, time
from harness.core.interrupts import signals_as_interrupts
from harness.run.interrupts import ended_by_first_interrupt
with signals_as_interrupts(), ended_by_first_interrupt({most_s}):
    try:
        os.kill(os.getpid(), {number})
        {waits}
    except KeyboardInterrupt:
        for _ in range(3):
            os.kill(os.getpid(), {number})
        print("ended in order", flush=True)
"""


def carried_out(**values: object) -> subprocess.CompletedProcess[str]:
    program = PROGRAM.format(**values)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=False)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_more_signals_do_not_disturb_the_end(number: signal.Signals) -> None:
    process = carried_out(most_s=30, number=int(number), waits="time.sleep(40)")
    assert (process.returncode, process.stdout, process.stderr) == (0, "ended in order\n", "")


def test_a_library_that_waits_is_left_in_time() -> None:
    """As Ray's does for a minute where its servers are gone: it answers no signal, and lets other threads work."""
    program = """
import ctypes, os, signal, threading, time
from harness.core.interrupts import signals_as_interrupts
from harness.run.interrupts import ended_by_first_interrupt
library, mutex = ctypes.CDLL(None), (ctypes.c_byte * 64)()
library.pthread_mutex_lock(mutex)
with signals_as_interrupts(), ended_by_first_interrupt(0.2):
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
    library.pthread_mutex_lock(mutex)  # no signal ends this wait
"""
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=False)
    assert (process.returncode, process.stderr) == (130, "interrupted\n")


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
