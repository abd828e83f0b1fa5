"""Checks of a deployment from one of its machines: what is wrong, where, and the remedy.

`finding` has the shape of a result. `machine`, `settings_file`, `configuration`, `secret_files`, `sandbox`, `broker`,
`deployment` and `server_start` each check one thing. They change nothing.
"""
