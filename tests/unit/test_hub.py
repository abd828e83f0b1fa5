"""Waking Celery's event loop in a signal handler, which interrupts the thread that waits in it."""

import os
import signal
import socket
import threading

import pytest
from kombu.asynchronous import Hub
from kombu.asynchronous.timer import Timer

from tarsy_tasks.worker.process.hub import wake_in_signal_handler
from tarsy_tasks.worker.sessions.session_loop import SessionLoop


@pytest.mark.timeout(20)
def test_a_signal_ends_an_iteration_of_the_event_loop() -> None:
    session_loop, hub = SessionLoop(), Hub(Timer(max_interval=3600))
    hub.call_later(3600, str)
    session_loop.start()
    before = signal.signal(signal.SIGUSR2, lambda *_: wake_in_signal_handler(hub, session_loop))
    one, other = socket.socketpair()
    with one, other:
        hub.add_reader(one, str)
        hub.on_tick.add(threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR2)).start)
        next(hub.create_loop())  # waits for an hour
        hub.close()
    session_loop.stop()
    wake_in_signal_handler(hub, session_loop)
    signal.signal(signal.SIGUSR2, before)
