"""Checks of a deployment from one of its machines: what is wrong, where, and the remedy.

`finding` has the shape of a result. `machine`, `settings_file`, `task_signals`, `configuration`,
`configuration_record`, `policy`, `secret_files`, `sandbox`, `broker`, `rights`, `deployment` and `server_start` each
check one thing, `preflight` what a run needs. They change nothing.
"""
