"""The configuration for processes that only need to know the servers: beat, Flower, agents.

Owns that they go by a changed file without a restart, and by the one before it while it is wrong. A look is one `stat`,
and with a configuration in Redis one exchange a second. Workers are more careful: they wait until a file has been saved
whole (`watch`), and say what they have taken.
"""

import logging
import threading

from tarsy_tasks.config.loading import find_config_path, load_config
from tarsy_tasks.config.record import find_record
from tarsy_tasks.config.servers import Config
from tarsy_tasks.config.watch import FileWatch
from tarsy_tasks.errors import ConfigError

__all__ = ["FollowedConfig"]

logger = logging.getLogger(__name__)


class FollowedConfig:
    """The configuration file of this process. Safe to share between threads.

    Raises:
        ConfigError: It is missing or wrong, at first.
    """

    def __init__(self) -> None:
        self._path = find_config_path()
        self._record = find_record(load_config)
        self._lock = threading.Lock()
        self._watch = FileWatch([self._path])
        self._config = load_config(self._path)

    def look(self) -> Config:
        """What it says now; what it said before, and a line in the log, while it is wrong."""
        with self._lock:
            if self._record is not None:
                self._record.follow()
            if not self._watch.is_current():
                self._watch.begin()
                try:
                    self._config = load_config(self._path)
                except ConfigError as error:
                    logger.error("the changed configuration is not used, and the one before it stays: %s", error)  # noqa: TRY400
            return self._config
