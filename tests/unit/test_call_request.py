"""The worker's view of a message."""

import threading

from tarsy_tasks.worker.process.request import CallRequest


def test_a_request_ended_by_two_threads_is_acknowledged_once() -> None:
    request = CallRequest.__new__(CallRequest)
    acknowledged: list[str] = []
    second = threading.Thread(target=request.acknowledge)

    def on_ack(*_: object) -> None:
        acknowledged.append(threading.current_thread().name)
        if len(acknowledged) == 1:
            # Celery acknowledges a revoked request on one thread while its task ends on another.
            second.start()
            second.join()

    request._on_ack, request._on_reject, request._connection_errors = on_ack, on_ack, ()
    request.acknowledge()
    request.reject()
    assert len(acknowledged) == 1
