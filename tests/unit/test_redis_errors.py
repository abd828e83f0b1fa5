"""What each error of Redis means: whether to wait, to ask an operator, or to change the command."""

import pytest
from redis.connection import DefaultParser
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import DataError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.sentinel import MasterNotFoundError

from tarsy_tasks.broker.redis_errors import ErrorKind, classify_error

REPLIES = {
    "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.": ErrorKind.PASSING,
    "CLUSTERDOWN The cluster is down": ErrorKind.PASSING,
    "ERR max number of clients reached": ErrorKind.PASSING,
    "LOADING Redis is loading the dataset in memory": ErrorKind.PASSING,
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.": ErrorKind.PASSING,
    "MISCONF Errors writing to the AOF file: No space left on device": ErrorKind.PASSING,
    "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist": ErrorKind.PASSING,
    "NOREPLICAS Not enough good replicas to write.": ErrorKind.PASSING,
    "OOM command not allowed when used memory > 'maxmemory'.": ErrorKind.PASSING,
    "READONLY You can't write against a read only replica.": ErrorKind.PASSING,
    "TRYAGAIN Multiple keys request during rehashing of slot": ErrorKind.PASSING,
    "UNBLOCKED client unblocked via CLIENT UNBLOCK": ErrorKind.PASSING,
    "NOAUTH Authentication required.": ErrorKind.REFUSED,
    "NOPERM User agent has no permissions to run the 'set' command": ErrorKind.REFUSED,
    "WRONGPASS invalid username-password pair or user is disabled.": ErrorKind.REFUSED,
    "ERR syntax error": ErrorKind.WRONG,
    "ERR string exceeds maximum allowed size (proto-max-bulk-len)": ErrorKind.WRONG,
    "EXECABORT Transaction discarded because of previous errors.": ErrorKind.WRONG,
    "MOVED 3999 127.0.0.1:6381": ErrorKind.WRONG,
    "NOSCRIPT No matching script.": ErrorKind.WRONG,
    "WRONGTYPE Operation against a key holding the wrong kind of value": ErrorKind.WRONG,
}
ERRORS: dict[Exception, ErrorKind] = {
    RedisConnectionError("closed"): ErrorKind.PASSING,
    RedisTimeoutError("no reply"): ErrorKind.PASSING,
    MasterNotFoundError("no master"): ErrorKind.PASSING,
    ConnectionRefusedError(): ErrorKind.PASSING,
    DataError("a value of a wrong type"): ErrorKind.WRONG,
    ValueError(): ErrorKind.WRONG,
}


@pytest.mark.parametrize("reply", REPLIES)
def test_each_reply_of_redis_has_a_kind(reply: str) -> None:
    assert classify_error(DefaultParser.parse_error(reply)) is REPLIES[reply]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_each_error_on_the_way_has_a_kind(error: Exception) -> None:
    assert classify_error(error) is ERRORS[error]
