"""What is wrong with a deployment, seen from one machine of it, and what to do about it.

`finding` has the shape of what is found; `machine`, `settings_file`, `configuration`, `broker`, `deployment` and
`server_start` look, each at one thing. They tell what they find, and mend nothing.
"""
