"""What a signal handler does to Celery's event loop, which waits for input in the thread that is interrupted."""

import threading

from kombu.asynchronous import Hub

from tarsy_tasks.worker.process.hub import wake_in_signal_handler
from tarsy_tasks.worker.sessions.session_loop import SessionLoop


def test_celerys_event_loop_is_woken_until_all_has_ended() -> None:
    session_loop, hub, waits = SessionLoop(), Hub(), threading.Event()
    hub.call_later(3600, str)
    hub.on_tick.add(waits.set)
    loop = hub.create_loop()
    iteration = threading.Thread(target=next, args=(loop,), daemon=True)
    session_loop.start()
    iteration.start()
    assert waits.wait(20)
    wake_in_signal_handler(hub, session_loop)
    iteration.join(5)  # by itself it ends after 10 s
    assert not iteration.is_alive()
    session_loop.stop()
    wake_in_signal_handler(hub, session_loop)
    hub.close()
