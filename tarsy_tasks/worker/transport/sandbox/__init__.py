"""The sandbox around the processes of a stdio server, without root and without a daemon.

    preparation  from a server's configuration to the command that starts it in its sandbox
    kernel       what this kernel can do
    temporary    the folder for its temporary files
    launcher     the program that applies a sandbox and runs the server in it
    seccomp      the filter of system calls

Each wall has one mechanism: Landlock for files, the filter for sockets and dangerous system calls, namespaces for
other processes. Where namespaces are not allowed, Landlock still protects the memory and the environment of processes
outside.
"""
