"""Why there is no session with a server, in the words of errors."""

from tarsy_tasks.config.servers import ServerConfig
from tarsy_tasks.worker.maskers import build_masker
from tarsy_tasks.worker.sessions.connection_errors import ConnectionErrors
from tarsy_tasks.worker.transport.server_output import ServerOutput


def test_the_last_output_of_a_failure_outlives_the_next_attempt() -> None:
    masker = build_masker()
    output = ServerOutput("db", masker)
    errors = ConnectionErrors(ServerConfig(name="db", command="db"), masker, output, lambda: "")
    output.record_line(b"fatal: the licence has expired")
    reason = errors.describe_unreachable(OSError(), "its process exited with code 3")
    output.clear()  # a new process starts
    text = str(errors.out_of_reach(82, reason))
    assert "for 82 s: its process exited with code 3. Its last output: 'fatal: the licence has expired'" in text
