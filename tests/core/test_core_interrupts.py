"""Both signals that ask a command to end raise KeyboardInterrupt, in the main thread and within the block alone."""

import signal
import threading

import pytest

from harness.core.interrupts import signals_as_interrupts

BOTH = (signal.SIGINT, signal.SIGTERM)


@pytest.mark.parametrize("number", BOTH)
def test_a_signal_interrupts_even_where_it_was_ignored_and_what_was_set_comes_back(number: signal.Signals) -> None:
    before = [signal.signal(each, signal.SIG_IGN) for each in BOTH]  # as a shell starts a job in the background
    try:
        with pytest.raises(KeyboardInterrupt), signals_as_interrupts():
            signal.raise_signal(number)
        assert [signal.getsignal(each) for each in BOTH] == [signal.SIG_IGN] * 2
    finally:
        for each, handler in zip(BOTH, before, strict=True):
            signal.signal(each, handler)


def test_another_thread_goes_through_without_touching_a_handler() -> None:
    before, within = [signal.getsignal(each) for each in BOTH], list[object]()

    def elsewhere() -> None:
        with signals_as_interrupts():
            within.extend(signal.getsignal(each) for each in BOTH)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert within == before
