"""Applies a sandbox and runs a server in it; and the system calls that this takes.

Owns the program `COMMAND PROGRAM ARGUMENTS…`, which reads its orders from the variable `ORDERS`, a line `KEY=VALUE`
each, with paths in hexadecimal. It does exactly that: if the kernel refuses one, the server does not start. What to
order is decided in `preparation`. With `PROBE` in place of the program, it prints what this kernel can do, in such
lines.

With namespaces there are two of it around the server: one that the worker waits for, and the first process of the PID
namespace, with whose end the kernel ends all others. The inner one, or the only one, adopts what loses its parent, and
ends everything when the server ends, or uses too much. The restrictions begin behind it, so nothing in the sandbox can
touch it.

It imports only what loads fast (not `signal`, `json`, `typing`, `contextlib`), and nothing of this package.
"""

import ctypes
import os
import resource
import select
import struct
import sys

__all__ = ["COMMAND", "ORDERS", "PROBE", "bare_environment", "hide_memory", "main"]

_MAIN = "import sys; sys.path.insert(0, sys.argv.pop(1)); import launcher; launcher.main()"
COMMAND = (sys.executable, "-I", "-S", "-c", _MAIN, os.path.dirname(__file__))
"""As a module it is compiled once, as a script it would be at each start."""
ORDERS = "TARSY_SANDBOX"
PROBE = "--probe"

_POLL_MS, _FAILED, _OVER_LIMIT = 250, 126, 137
"""The latter are exit codes: the sandbox or the server cannot be started; a limit ended it, as SIGKILL would."""
_SIGHUP, _SIGINT, _SIGKILL, _SIGPIPE, _SIGTERM, _SIGXFSZ = 1, 2, 9, 13, 15, 25
_SET_PDEATHSIG, _SET_DUMPABLE, _GET_SECCOMP, _SET_SECCOMP, _SECCOMP_MODE_FILTER = 1, 4, 21, 22, 2
_CAPBSET_DROP, _SET_CHILD_SUBREAPER, _SET_NO_NEW_PRIVS, _CAP_AMBIENT, _CAP_AMBIENT_CLEAR_ALL = 24, 36, 38, 47, 4
_CAPABILITY_VERSION, _CLONE_NEWNET = 0x20080522, 1 << 30
_NAMESPACES = 1 << 17 | 1 << 27 | 1 << 28 | 1 << 29
"""Mount, IPC, user and PID."""
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_PRIVATE = 1, 2, 4, 8, 1 << 14, 1 << 18
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF, _PATH_BENEATH = 444, 445, 446, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _REFER, _TRUNCATE, _IOCTL = (1 << bit for bit in (0, 1, 2, 3, 13, 14, 15))
_SCOPE_ABSTRACT_SOCKETS, _SCOPE_SIGNALS = 1, 2
_OTHER_PROCESSES, _NEVER_WRITTEN = 4096, (b"dev", b"proc", b"sys")

_libc = ctypes.CDLL(None, use_errno=True)


def _call(function: str, *arguments: int | bytes | None) -> int:
    """Call a function of the C library; integers are passed as `long`. Raises OSError."""
    converted = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    result: int = getattr(_libc, function)(*converted)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def _prctl(option: int, *arguments: int) -> int:
    return _call("prctl", option, *arguments, *(0,) * (4 - len(arguments)))


def hide_memory() -> None:
    """Keep other processes of the same user from this one's memory, environment and open files, where Linux can."""
    if sys.platform == "linux":
        _prctl(_SET_DUMPABLE, 0)


def bare_environment() -> dict[str, str]:
    """For programs that a worker starts for itself: no secrets, which other processes of this user could read there."""
    return {name: value for name, value in os.environ.items() if name == "PATH" or name.startswith(("LD_", "DYLD_"))}


def _ignore(signals: tuple[int, ...], yes: bool = True) -> None:
    for number in signals:
        _libc.signal(number, ctypes.c_void_p(int(yes)))


def _enter_namespaces(network: bool) -> None:
    """User, mount, PID and IPC namespaces, and without `network` an empty one of that; the next child is in all."""
    user, group = os.geteuid(), os.getegid()
    _call("unshare", _NAMESPACES | (0 if network else _CLONE_NEWNET))
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    _call("mount", None, b"/", None, _MS_REC | _MS_PRIVATE, None)


def _mount_own_proc() -> None:
    _call("mount", b"proc", b"/proc", b"proc", _MS_RDONLY | _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, None)


def _landlock_version() -> int:
    """0 if the kernel has no Landlock, or it is off."""
    try:
        return _call("syscall", _CREATE_RULESET, None, 0, 1)
    except OSError:
        return 0


def _restrict_files(version: int, read: list[bytes], write: list[bytes]) -> None:
    """From now on only these files, and what is below these folders, can be opened; absent ones are left out.

    With this, processes outside cannot be traced, and their memory not read; from version 6 on they get no signals.
    """
    handled = (1 << 13) - 1
    for since, right in ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL)):
        handled |= right if version >= since else 0
    scoped = _SCOPE_ABSTRACT_SOCKETS | _SCOPE_SIGNALS if version >= 6 else 0
    attributes = struct.pack("QQQ", handled, 0, scoped)[: 24 if version >= 6 else 8]
    rules = _call("syscall", _CREATE_RULESET, attributes, len(attributes), 0)
    of_files = handled & (_EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL)
    granted = [(path, _EXECUTE | _READ_FILE | _READ_DIR) for path in read]
    granted += [(path, handled) for each in write for path in _writable(each)]
    for path, rights in granted:
        try:
            file = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        is_folder = os.fstat(file).st_mode & 0o170000 == 0o040000
        beneath = struct.pack("=Qi", rights if is_folder else rights & of_files, file)
        _call("syscall", _ADD_RULE, rules, _PATH_BENEATH, beneath, 0)
        os.close(file)
    _call("syscall", _RESTRICT_SELF, rules, 0)
    os.close(rules)


def _writable(path: bytes) -> list[bytes]:
    """Everything is not all: what root may write below /proc, /sys and /dev changes the whole machine."""
    if os.path.realpath(path) != b"/":
        return [path]
    return [b"/" + name for name in os.listdir(b"/") if name not in _NEVER_WRITTEN]


def _drop_capabilities() -> None:
    """Root has some, and everybody in a user namespace of their own."""
    for capability in range(64):
        try:
            _prctl(_CAPBSET_DROP, capability)
        except OSError:
            break  # there are no more, or this user has none to drop
    _prctl(_CAP_AMBIENT, _CAP_AMBIENT_CLEAR_ALL)
    _call("capset", struct.pack("Ii", _CAPABILITY_VERSION, 0), bytes(24))


def _set_filter(program: bytes) -> None:
    code = ctypes.create_string_buffer(program, len(program))
    header = ctypes.create_string_buffer(struct.pack("@HP", len(program) // 8, ctypes.addressof(code)))
    _prctl(_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(header))


def _limit(kind: int, value: int) -> None:
    most = resource.getrlimit(kind)[1]
    most = value if most == resource.RLIM_INFINITY else min(value, most)
    resource.setrlimit(kind, (most, most))


class Orders:
    """What to apply, as lines of text."""

    def __init__(self, text: str) -> None:
        lines = [(key, value) for key, _, value in (line.partition("=") for line in text.splitlines())]
        one = dict(lines)
        self.namespaces, self.network = "namespaces" in one, "network" in one
        self.landlock, self.filter = int(one["landlock"]), bytes.fromhex(one.get("filter", ""))
        self.read = [bytes.fromhex(value) for key, value in lines if key == "read"]
        self.write = [bytes.fromhex(value) for key, value in lines if key == "write"]
        self.memory_bytes = int(one["memory_mb"]) << 20
        self.processes, self.files, self.cpu_s = int(one["processes"]), int(one["files"]), one.get("cpu_s")

    def confine(self) -> None:
        """Apply everything to this process."""
        _limit(resource.RLIMIT_CORE, 0)
        _limit(resource.RLIMIT_NOFILE, self.files)
        _limit(resource.RLIMIT_DATA, self.memory_bytes)
        if self.cpu_s is not None:
            _limit(resource.RLIMIT_CPU, int(self.cpu_s))
        # Without a user namespace all processes of the user count. Those of root never do.
        _limit(resource.RLIMIT_NPROC, self.processes + (1 if self.namespaces else _OTHER_PROCESSES))
        _prctl(_SET_NO_NEW_PRIVS, 1)
        if self.landlock:
            _restrict_files(self.landlock, self.read, self.write)
        _drop_capabilities()
        if self.filter:
            _set_filter(self.filter)


def _leave_real_time() -> None:
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def _exec(orders: Orders, command: list[str]) -> None:
    """Become the server."""
    _ignore((_SIGHUP, _SIGINT, _SIGPIPE, _SIGTERM, _SIGXFSZ), False)
    _leave_real_time()
    try:
        orders.confine()
    except OSError as error:
        _fail(f"the kernel refuses a part of it: {error}")
    try:
        os.execv(command[0], command)
    except OSError as error:
        _fail(f"{command[0]} cannot be run in it: {error.strerror}; the folders of the program belong in `read`")


def _fail(text: str) -> None:
    os.write(2, f"sandbox: {text}\n".encode())
    os._exit(_FAILED)


def _release_pipes() -> None:
    """The worker sees the end of the server's pipes only if nothing else holds them."""
    for number in (0, 1):
        os.dup2(os.open(os.devnull, os.O_RDWR), number)


def _supervise(server: int, orders: Orders) -> int:
    """Wait for the server; returns its exit code. Ends everything that uses too much."""
    poll = select.poll()
    poll.register(os.pidfd_open(server), select.POLLIN)
    while True:
        is_over = poll.poll(_POLL_MS)
        if is_over:
            # The kernel may wait for the server's last threads in a busy loop, which must not keep them from the
            # processor: it took a second of it.
            _leave_real_time()
        status = os.waitpid(server, 0)[1] if is_over else _reap().get(server)
        if status is not None:
            return _code(status)
        if excess := _find_excess(orders):
            os.write(2, f"sandbox: ended, because its processes {excess}\n".encode())
            return _OVER_LIMIT


def _code(status: int) -> int:
    """An exit code as shells give it: 128 + n after signal n."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _reap() -> dict[int, int]:
    """The children that have ended, with their wait status."""
    ended: dict[int, int] = {}
    try:
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended[found[0]] = found[1]
    except ChildProcessError:
        pass
    return ended


def _find_excess(orders: Orders) -> str | None:
    threads, memory_kb = 0, 0
    found = _children(os.getpid())
    for pid in found:  # it grows
        usage = _read_usage(pid)
        threads += usage[0]
        memory_kb += usage[1]
        if threads > orders.processes:
            return f"are more than `processes` ({orders.processes}), threads included"
        if memory_kb * 1024 > orders.memory_bytes:
            return f"use more than `memory_mb` ({orders.memory_bytes >> 20})"
        found += _children(pid)
    return None


def _read_usage(pid: int) -> tuple[int, int]:
    """Threads of a process, and the memory in kB that is not a file's."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            fields = dict(line.split(b":", 1) for line in file.read().splitlines())
        sizes = [int(fields.get(name, b"0 kB").split()[0]) for name in (b"RssAnon", b"RssShmem")]
        return int(fields[b"Threads"]), sum(sizes)
    except OSError:
        return 0, 0  # it has ended


def _children(pid: int) -> list[int]:
    children: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                children += map(int, file.read().split())
    except OSError:
        pass  # it has ended
    return children


def _end_all() -> None:
    """Kill all descendants; in a PID namespace the kernel does that, and faster than they can multiply."""
    while found := _children(os.getpid()):
        for pid in found:
            found += _children(pid)
            try:
                os.kill(pid, _SIGKILL)
            except ProcessLookupError:
                pass
        _reap()


def _end_like(code: int) -> None:
    """Exit with a code; with one for a signal, by that signal, so that the worker can name it."""
    if 128 < code < 128 + 65:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _ignore((code - 128,), False)
        os.kill(os.getpid(), code - 128)
    os._exit(code)


def _run(orders: Orders, command: list[str]) -> None:
    _ignore((_SIGHUP, _SIGINT, _SIGTERM))  # the server decides what they mean
    try:
        # Nothing else limits the number of root's processes: the one that counts them must not wait for them.
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except OSError:
        pass  # only root may
    if orders.namespaces:
        _enter_namespaces(orders.network)
        if first := os.fork():
            _release_pipes()
            _end_like(_code(os.waitpid(first, 0)[1]))
        _prctl(_SET_PDEATHSIG, _SIGKILL)
        _mount_own_proc()
    else:
        _prctl(_SET_CHILD_SUBREAPER, 1)
    server = os.fork()
    if not server:
        _exec(orders, command)
    _release_pipes()
    code = _supervise(server, orders)
    if not orders.namespaces:
        _end_all()
        _end_like(code)
    os._exit(code)


def _probe() -> None:
    print(f"landlock={_landlock_version()}")
    try:
        _prctl(_GET_SECCOMP)
        print("seccomp=", flush=True)
    except OSError:
        pass
    reason = ""
    try:
        _enter_namespaces(network=False)
        if first := os.fork():
            code = os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])
            reason = f"mount /proc: {os.strerror(code)}" if code else ""
        else:
            _mount_own_proc()
            os._exit(0)
    except OSError as error:
        if os.getpid() == 1:
            os._exit(error.errno or 1)
        reason = f"user namespaces: {error.strerror}"
    print(f"namespaces={reason}")


def main() -> None:
    if sys.argv[1] == PROBE:
        _probe()
        return
    try:
        _run(Orders(os.environ.pop(ORDERS)), sys.argv[1:])
    except OSError as error:
        _fail(f"the kernel refuses a part of it: {error.strerror}")
